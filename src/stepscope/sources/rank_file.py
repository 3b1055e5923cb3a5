"""Rank files: what `stepscope run` writes beside the profiles of a rank, for what a profile lacks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._reading import why_no_json
from stepscope.store.meta import NO_RANK

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["rank_file"]

# Its first key: the header of a profile may hold a rank file somewhere.
_SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"stepscope\.rank/1"')
_LARGEST = 64 << 20
"""Bytes, unpacked: more than a day of samples."""
_DEEPEST = 6
_MOST_VALUES = 40_000
_MOST_LISTED = 10_000
_LONGEST = 2_000
_FARTHEST = 1 << 62

_SAMPLED = (
    "sm_clock_mhz",
    "max_sm_clock_mhz",
    "memory_clock_mhz",
    "max_memory_clock_mhz",
    "power_mw",
    "power_limit_mw",
    "temperature_c",
    "link_generation",
    "link_width",
)
_SHARES = ("utilization_share", "memory_utilization_share")


def _is_rank_file(given: Input) -> bool:
    return _SCHEMA.match(given.head) is not None


@source(sniff=_is_rank_file, beside=True)
def rank_file(given: Input, writer: StoreWriter) -> SourceMeta:
    """Adds what `stepscope run` found out beside a profile: machine, settings, GPU state, pauses."""
    if not writer.sources:
        raise StepscopeError(
            f"{given.name} is no trace: it says what a trace of the same rank lacks",
            hint=f"name the trace first: stepscope ingest TRACE --also {given.name}",
        )
    document, damage = _document(given)
    first = writer.sources[0]
    rank = _whole(document.get("rank"))
    if rank is not None and first.rank_source != NO_RANK and rank != first.rank:
        raise StepscopeError(
            f"{given.name} is of rank {rank}, {first.source} of rank {first.rank}",
            hint="name the file of the same rank",
        )
    process = str(_whole(document.get("pid")) or "stepscope")
    reader = _Rows(process)
    writer.add_rows("gpu_samples", reader.samples(document.pop("gpu_samples", ())))
    writer.add_rows("collector_pauses", reader.pauses(document.pop("collector_pauses", ())))
    plain = _Plain()
    told = plain.of(document)
    if reader.refused:
        damage.append(Damage("a sample or pause in the rank file that cannot be, not kept", reader.refused))
    if plain.refused:
        damage.append(
            Damage("a value in the rank file that is too long, deep or odd, not kept", plain.refused)
        )
    return SourceMeta(
        damage=tuple(damage),
        metadata={"stepscope_rank": told},
    )


def _document(given: Input) -> tuple[dict[str, Any], list[Damage]]:
    """What the file says; of one that is cut short or no JSON, nothing but the damage."""
    raw = given.whole(_LARGEST, ": it is no rank file", hint="read the trace without it")
    try:
        document = json.loads(raw.decode("utf-8", "replace"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits
        return {}, [
            Damage(f"the rank file ends too early or is no JSON: {why_no_json(error)}", bytes=len(raw))
        ]
    return (document, []) if isinstance(document, dict) else ({}, [Damage("the rank file is no JSON object")])


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


class _Rows:
    """Rows of the two tables; what cannot be is counted and left out."""

    def __init__(self, process: str) -> None:
        self._process = process
        self.refused = 0

    def samples(self, given: Any) -> pa.Table:
        """The GPUs' state."""
        kept = []
        for one in self._objects(given):
            row: dict[str, Any] = {
                "epoch_ns": _time(one.get("epoch_ns")),
                "device": _whole(one.get("device")),
            }
            if row["epoch_ns"] is None or row["device"] is None:
                self.refused += 1
                continue
            row |= {name: _whole(one.get(name)) for name in _SAMPLED}
            row |= {name: _share(one.get(name)) for name in _SHARES}
            row["args"] = json.dumps({"reasons": _words(one.get("reasons"))})
            row["thread"] = f"GPU {row['device']}"
            kept.append(row)
        kinds = {
            **dict.fromkeys(("epoch_ns", "device", *_SAMPLED), "int64"),
            **dict.fromkeys(_SHARES, "double"),
        }
        return self._table("GPU sample", kept, {**kinds, "args": "string", "thread": "string"})

    def pauses(self, given: Any) -> pa.Table:
        """When the collector ran."""
        kept = []
        for one in self._objects(given):
            row = {name: _time(one.get(name)) for name in ("epoch_ns", "dur_ns")}
            if None in row.values():
                self.refused += 1
                continue
            row |= {name: _whole(one.get(name)) for name in ("generation", "collected")}
            kept.append(row | {"thread": "garbage collector"})
        kinds = dict.fromkeys(("epoch_ns", "dur_ns", "generation", "collected"), "int64")
        return self._table("garbage collection", kept, {**kinds, "thread": "string"})

    def _objects(self, given: Any) -> Iterable[dict[str, Any]]:
        rows = given if isinstance(given, list | tuple) else [None]
        kept = [one for one in rows if isinstance(one, dict)]
        self.refused += len(rows) - len(kept)
        return kept

    def _table(self, name: str, rows: list[dict[str, Any]], kinds: dict[str, str]) -> pa.Table:
        import pyarrow as pa

        types = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string()}
        columns = {key: pa.array([row[key] for row in rows], types[kind]) for key, kind in kinds.items()}
        for key, text in (("name", name), ("process", self._process)):
            columns[key] = pa.repeat(pa.scalar(text), len(rows))
        return pa.table(columns)


def _whole(value: Any, most: int = 1 << 31) -> int | None:
    """A whole number from 0 on, of a size that such numbers have."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most
    return value if fits else None


def _time(value: Any) -> int | None:
    return _whole(value, _FARTHEST)


def _share(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= 1 else None


def _words(value: Any) -> str:
    """Reasons in words; only letters and blanks, for each distinct text is kept once."""
    listed = value if isinstance(value, list) else []
    words = [one for one in listed[:16] if isinstance(one, str) and re.fullmatch(r"[a-z ]{1,40}", one)]
    return ", ".join(words)


class _Plain:
    """Copies plain values, within bounds; what is beyond them is counted and left out."""

    def __init__(self) -> None:
        self.refused = 0
        self._left = _MOST_VALUES

    def of(self, value: Any, depth: int = 0) -> Any:
        """The same value as far as it is kept."""
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            self.refused += 1
            return None
        if isinstance(value, str):
            text = value.encode("utf-8", "replace").decode()
            self.refused += len(text) > _LONGEST
            return text[:_LONGEST]
        if isinstance(value, dict):
            kept = {str(self.of(key))[:200]: self.of(value[key], depth + 1) for key in self._few(list(value))}
            return {key: one for key, one in kept.items() if one is not None}
        if isinstance(value, list):
            return [self.of(one, depth + 1) for one in self._few(value)]
        odd = isinstance(value, int) and not -_FARTHEST < value < _FARTHEST
        if odd or (isinstance(value, float) and not math.isfinite(value)):
            self.refused += 1
            return None
        return value

    def _few(self, values: list[Any]) -> list[Any]:
        """As many of them as may still be kept."""
        kept = values[: max(0, min(self._left, _MOST_LISTED))]
        self.refused += len(values) - len(kept)
        return kept
