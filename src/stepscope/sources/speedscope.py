"""Files of speedscope: what py-spy and many other samplers write, as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._sampled_frames import frame_rows

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["speedscope"]

_SCHEMA = b"speedscope.app/file-format-schema.json"
_LARGEST = 1 << 30
"""Bytes of text: the whole of it has to be in memory to be read."""
_SCALE = {
    "nanoseconds": 1.0,
    "microseconds": 1e3,
    "milliseconds": 1e6,
    "seconds": 1e9,
}
_DEEPEST = 4096
_THREAD = re.compile(r"(?:Process (\d{1,10}) )?[Tt]hread (0x[0-9A-Fa-f]{1,16}|\d{1,19})")
_NOTE = (
    "Times in a file of speedscope count from the start of the sampler: its samples are not placed in "
    "the steps of a trace."
)
Stack = tuple[int, ...]


def _is_speedscope(given: Input) -> bool:
    return not given.is_folder and _SCHEMA in given.head


@source(sniff=_is_speedscope, beside=True)
def speedscope(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads a file of speedscope: py-spy record --format speedscope, and others."""
    document = _document(given)
    rows = _Samples(_frames(document))
    profiles = document.get("profiles")
    for profile in profiles if isinstance(profiles, list) else ():
        if isinstance(profile, dict):
            rows.add(profile)
    if not rows.rows:
        raise StepscopeError(
            f"{given.name} has no samples",
            hint="py-spy record --format speedscope -o x.json -- python train.py",
        )
    rows.write(writer)
    damage = (
        (Damage("a sample of speedscope that cannot be, left out", rows.refused),) if rows.refused else ()
    )
    return SourceMeta(damage=damage, notes=(_NOTE,))


def _document(given: Input) -> dict[str, Any]:
    raw = given.whole(_LARGEST, hint="py-spy record --format raw writes stacks of any size")
    try:
        document = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise StepscopeError(
            f"{given.name} is of speedscope, but no whole JSON: {str(error)[:120]}",
            hint="record it once more; py-spy record --format raw can be read even if it is cut",
        ) from error
    return document if isinstance(document, dict) else {}


def _frames(document: dict[str, Any]) -> list[tuple[str, str | None, int | None]]:
    shared = document.get("shared")
    given = shared.get("frames") if isinstance(shared, dict) else None
    found = []
    for one in given if isinstance(given, list) else ():
        told = one if isinstance(one, dict) else {}
        file, line = told.get("file"), told.get("line")
        found.append(
            (
                _plain(str(told.get("name"))),
                _plain(file) if isinstance(file, str) and file else None,
                line if isinstance(line, int) and 0 <= line < 1 << 40 else None,
            )
        )
    return found


def _plain(text: str) -> str:
    return text[:2000].encode("utf-8", "replace").decode()


class _Samples:
    """Samples of all profiles; equal ones of a thread are one row, for their times say nothing more."""

    def __init__(self, frames: list[tuple[str, str | None, int | None]]) -> None:
        self._frames = frames
        self._stacks: dict[Stack, int] = {}
        self.rows: dict[tuple[str, str, int], list[float]] = {}
        """Samples and weight by profile, unit and stack."""
        self.refused = 0

    def add(self, profile: dict[str, Any]) -> None:
        """Takes one profile: a thread."""
        name, unit = _plain(str(profile.get("name") or "")), str(profile.get("unit"))[:40]
        told = self._sampled(profile) if "samples" in profile else self._evented(profile)
        for stack, weight in told:
            number = self._stacks.setdefault(stack, len(self._stacks))
            row = self.rows.setdefault((name, unit, number), [0, 0.0])
            row[0] += 1
            row[1] += weight

    def _sampled(self, profile: dict[str, Any]) -> Iterator[tuple[Stack, float]]:
        samples, weights = profile.get("samples"), profile.get("weights")
        samples = samples if isinstance(samples, list) else []
        weights = weights if isinstance(weights, list) else [1] * len(samples)
        self.refused += abs(len(samples) - len(weights))
        for frames, weight in zip(samples, weights, strict=False):
            if not self._is_stack(frames) or not _is_weight(weight):
                self.refused += 1
                continue
            yield tuple(reversed(frames)), float(weight)

    def _is_stack(self, frames: Any) -> bool:
        """Frames are numbers of known ones; their order is from the root."""
        most = len(self._frames)
        return (
            isinstance(frames, list)
            and len(frames) <= _DEEPEST
            and all(type(one) is int and 0 <= one < most for one in frames)
        )

    def _evented(self, profile: dict[str, Any]) -> Iterator[tuple[Stack, float]]:
        """Frames that are opened and closed: the time between two events belongs to the stack between."""
        events = profile.get("events")
        stack: list[int] = []
        last: float | None = None
        for one in events if isinstance(events, list) else ():
            at: Any = one.get("at") if isinstance(one, dict) else None
            frame: Any = one.get("frame") if isinstance(one, dict) else None
            if not _is_weight(at) or not self._is_stack([frame]) or len(stack) >= _DEEPEST:
                self.refused += 1
                continue
            if stack and last is not None and at > last:
                yield tuple(reversed(stack)), float(at - last)
            last = at
            if one.get("type") == "O":
                stack.append(frame)
            elif stack and stack[-1] == frame:
                stack.pop()
            else:
                self.refused += 1

    def write(self, writer: StoreWriter) -> None:
        """Writes all tables."""
        import pyarrow as pa

        rows = list(self.rows.items())
        threads = [_thread(name) for (name, _, _), _ in rows]
        writer.add_rows(
            "cpu_samples",
            pa.table(
                {
                    "process": pa.array([process for process, _ in threads], pa.int64()),
                    "thread": pa.array([thread for _, thread in threads], pa.int64()),
                    "command": pa.array([name or None for (name, _, _), _ in rows], pa.string()),
                    "event": pa.array(
                        [None if unit in _SCALE else unit for (_, unit, _), _ in rows], pa.string()
                    ),
                    "samples": pa.array([count for _, (count, _) in rows], pa.int64()),
                    "weight": pa.array([w * _SCALE.get(key[1], 1.0) for key, (_, w) in rows], pa.float64()),
                    "stack": pa.array([number for (_, _, number), _ in rows], pa.int64()),
                }
            ),
        )
        flat = [
            (number, depth, frame)
            for stack, number in self._stacks.items()
            for depth, frame in enumerate(stack)
        ]
        columns = list(zip(*flat, strict=True)) or [(), (), ()]
        names = ("stack", "depth", "frame")
        table = {name: pa.array(column, pa.int64()) for name, column in zip(names, columns, strict=True)}
        writer.add_rows("sampled_stacks", pa.table(table))
        writer.add_rows("sampled_frames", frame_rows(self._frames))


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _thread(name: str) -> tuple[int | None, int | None]:
    found = _THREAD.search(name)
    if not found:
        return None, None
    thread = int(found[2], 0) if found[2].startswith("0x") else int(found[2])
    return int(found[1]) if found[1] else None, thread if thread < 1 << 62 else None
