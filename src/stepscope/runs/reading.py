"""Reads the folder of a run. It comes from anywhere: what does not fit is refused in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.patterns import late_pattern
from stepscope.runs import MeasuredStep, Pass, PassName, RankRecord, Run
from stepscope.writing import protect

__all__ = ["RUN_FILE", "read_run", "run_folder"]

RUN_FILE = "run.json"
_RANK_FILE = late_pattern(r"rank(\d{1,6})\.json")
_RUN_SCHEMA = "stepscope.run/1"
_RANK_SCHEMA = "stepscope.rank/1"
_OURS = late_pattern(rb'"schema"\s*:\s*"stepscope\.(run|rank)/')
_HEAD_BYTES = 1 << 16
_MOST_BYTES = 256 << 20
_MOST_RANKS = 100_000
_MOST_STEPS = 10_000_000
_LONGEST_NS = 10**16
"""No step takes four months."""
_LONGEST_TEXT = 10_000
_PASSES: dict[str, PassName] = {"light": "light", "full": "full"}
_SNAPSHOT = "snapshot"
_RECORD = "record a run: stepscope run train.py"


def run_folder(word: str | Path) -> Path | None:
    """The folder of a run that a word names: the folder itself, or its run.json; None for anything else."""
    if str(word) == "-" or "://" in str(word):
        return None
    try:
        path = Path(word)
        folder = path.parent if path.name == RUN_FILE else path
        if not folder.is_dir():
            return None
        return folder if any(_is_ours(file) for file in _documents(folder)) else None
    except (OSError, ValueError):
        return None


def read_run(folder: Path) -> Run:
    """The run in a folder; without its run.json, as after a crash, the files of its ranks tell."""
    files = _documents(folder)
    if not files:
        raise StepscopeError(f"{folder} is not a run: it has no {RUN_FILE}", hint=_RECORD)
    whole = files[0].name == RUN_FILE
    documents = [_Document(file, _parsed(file)) for file in files]
    for one in documents:
        one.check_schema(_RUN_SCHEMA if whole else _RANK_SCHEMA)
    first = documents[0]
    ranks = first.items("ranks", _MOST_RANKS) if whole else documents
    records = sorted((_record(folder, one) for one in ranks), key=lambda record: record.rank)
    for before, after in pairwise(records):
        if before.rank == after.rank:
            raise first.wrong(f"rank {before.rank} is in it twice")
    if not records:
        raise first.wrong("it names no rank")
    return Run(
        folder=folder,
        command=tuple(first.texts("command")),
        started=first.text("started"),
        ended=first.text("ended"),
        exit_code=first.whole("exit_code", least=-(1 << 31)),
        world_size=first.whole("world_size", least=1, most=_MOST_RANKS) or len(records),
        ranks=tuple(records),
    )


def _documents(folder: Path) -> list[Path]:
    """run.json, or else the files of ranks."""
    if (folder / RUN_FILE).is_file():
        return [folder / RUN_FILE]
    return sorted(file for file in folder.glob("rank*.json") if _RANK_FILE.fullmatch(file.name))


def _is_ours(file: Path) -> bool:
    """Whether a file begins as the capture writes it: a run.json of others is none of ours."""
    with file.open("rb") as opened:
        return bool(_OURS.search(opened.read(_HEAD_BYTES)))


def _parsed(file: Path) -> dict[str, Any]:
    protect(file)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise _unreadable(file, "it is too large for one")
        read = json.loads(file.read_bytes())
    except OSError as error:
        raise _unreadable(file, error.strerror or "it cannot be opened") from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, f"it is no JSON ({error})") from error
    if not isinstance(read, dict):
        raise _unreadable(file, "it is no JSON object")
    return read


def _unreadable(file: Path, why: str) -> StepscopeError:
    return StepscopeError(f"{file} is not the record of a run: {why}", hint=_RECORD)


class _Document:
    """A JSON object of a file, whose values are looked at before they are believed."""

    def __init__(self, file: Path, told: Mapping[str, Any], place: str = "") -> None:
        self.file = file
        self._told = told
        self._place = place

    def check_schema(self, wanted: str) -> None:
        schema = self._told.get("schema")
        if schema == wanted:
            return
        if isinstance(schema, str) and schema.startswith(wanted.rpartition("/")[0]):
            raise StepscopeError(
                f"{self.file} was written by another version: its schema is {schema[:80]}, not {wanted}",
                hint="pip install -U stepscope",
            )
        raise self.wrong(f"its schema is not {wanted}")

    def wrong(self, why: str) -> StepscopeError:
        return _unreadable(self.file, f"{self._place}{why}")

    def whole(self, key: str, *, least: int = 0, most: int = 1 << 62) -> int | None:
        """A whole number; None if it is absent."""
        value = self._told.get(key)
        if value is None:
            return None
        # A mean may be written as 1.5e6.
        if isinstance(value, float) and math.isfinite(value):
            value = round(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(f"{key} is no number from {least} to {most}")
        return value

    def text(self, key: str) -> str:
        value = self._told.get(key)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            raise self.wrong(f"{key} is no text, or too long a one")
        return value

    def texts(self, key: str) -> list[str]:
        values = self._listed(key, 10_000)
        if not all(isinstance(value, str) and len(value) <= 100 * _LONGEST_TEXT for value in values):
            raise self.wrong(f"{key} is no list of texts")
        return values

    def wholes(self, key: str) -> list[int]:
        values = self._listed(key, _MOST_STEPS)
        if not all(type(value) is int and 0 <= value <= _LONGEST_NS for value in values):
            raise self.wrong(f"{key} is no list of times in ns")
        return values

    def items(self, key: str, most: int) -> list[_Document]:
        """The objects of a list."""
        values = self._listed(key, most)
        if not all(isinstance(value, dict) for value in values):
            raise self.wrong(f"{key} is no list of objects")
        return [_Document(self.file, value, f"{key}[{place}]: ") for place, value in enumerate(values)]

    def item(self, key: str) -> _Document | None:
        value = self._told.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(f"{key} is no object")
        return _Document(self.file, value, f"{self._place}{key}: ")

    def wholes_by_name(self) -> dict[str, int]:
        """All its values, which are times in ns."""
        found = {name: self.whole(name, most=_LONGEST_NS) for name in self._told}
        return {name: value for name, value in found.items() if value is not None}

    def _listed(self, key: str, most: int) -> list[Any]:
        value = self._told.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(f"{key} is no list, or too long a one")
        return value


def _record(folder: Path, told: _Document) -> RankRecord:
    rank = told.whole("rank", most=_MOST_RANKS)
    if rank is None:
        raise told.wrong("rank is missing")
    found = [_pass(folder, one) for one in told.items("files", 1000)]
    passes = [one for one in found if isinstance(one, Pass)]
    beside = [str(one) for one in found if isinstance(one, Path)]
    missing = [f"{one} is not there." for one in found if isinstance(one, str)]
    file = folder / f"rank{rank}.json"
    for one in (file, *(known.path for known in passes), *map(Path, beside)):
        protect(one)
    recorded, step = told.item("recorded_step_ns"), told.item("step")
    return RankRecord(
        rank=rank,
        path=file if file.is_file() and _is_ours(file) else None,
        passes=tuple(passes),
        measured=_measured(told),
        host=told.text("host"),
        state=told.text("state"),
        devices=tuple(told.texts("devices")),
        recorded_ns=recorded.wholes_by_name() if recorded else {},
        step=step.text("sentence") if step else "",
        notes=(*told.texts("notes"), *missing),
        beside=tuple(beside),
    )


def _pass(folder: Path, told: _Document) -> Pass | Path | str | None:
    """A profile, or a snapshot beside it; its name where its file is not there; None for anything else."""
    name, named = told.text("pass"), told.text("path")
    if name not in _PASSES and name != _SNAPSHOT:
        return None
    path = _inside(folder, named, told)
    if not path.is_file():
        return named
    if name == _SNAPSHOT:
        return path
    steps = told.wholes("steps")
    ends = (steps[0], steps[1]) if len(steps) == 2 and steps[0] <= steps[1] else None
    return Pass(_PASSES[name], path, ends)


def _inside(folder: Path, named: str, told: _Document) -> Path:
    """A file of the folder: what somebody else wrote must not lead out of it."""
    pure = PurePosixPath(named)
    if not named or "\0" in named or "\\" in named or pure.is_absolute() or ".." in pure.parts:
        raise told.wrong(f"the path {named[:200]!r} leads out of the folder")
    path = folder / pure
    if not path.resolve().is_relative_to(folder.resolve()):
        raise told.wrong(f"the path {named[:200]!r} leads out of the folder")
    return path


def _measured(told: _Document) -> MeasuredStep | None:
    step = told.item("unprofiled_step_ns")
    if step is None:
        return None
    found = {name: step.whole(name, least=1, most=_LONGEST_NS) for name in ("mean", "median", "low", "high")}
    mean = found["mean"] or found["median"]
    if mean is None:
        raise step.wrong("mean is missing")
    low, high = found["low"] or mean, found["high"] or mean
    if not low <= mean <= high:
        raise step.wrong("the mean is not between low and high")
    lengths = tuple(told.wholes("unprofiled_steps_ns"))
    count = step.whole("steps", most=_MOST_STEPS)
    return MeasuredStep(
        mean_ns=mean,
        median_ns=found["median"] or mean,
        low_ns=low,
        high_ns=high,
        steps=len(lengths) or 1 if count is None else count,
        lengths_ns=lengths,
    )
