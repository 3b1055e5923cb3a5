"""What a profile shows that is no step: bars with a heading, for every format of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.findings._without_steps import is_cut
from stepscope.records import dataclass
from stepscope.tables import Table

if TYPE_CHECKING:
    from stepscope.analyses.allocator_holders import AllocatorHolder
    from stepscope.analyses.allocator_peaks import PeakHolder
    from stepscope.analyses.allocators import Allocator

__all__ = ["PICTURED", "Bar", "Picture", "pictures_of"]

PICTURED = ("allocators", "allocator_peaks", "allocator_holders", "allocator_pools", "timeline_kinds")
"""The tables that pictures are drawn from."""
MOST = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a picture."""

    name: str
    value: str
    share: float
    """Its part of the whole."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Something that the report shows beside the step."""

    title: str
    sentences: tuple[str, ...]
    heading: str
    """What the bars are parts of."""
    bars: tuple[Bar, ...]


def pictures_of(tables: Mapping[str, Table[Any]]) -> tuple[Picture, ...]:
    """All pictures of a trace; none for most."""
    held = [picture for one in tables.get("allocators", ()) for picture in _of_device(one, tables)]
    kinds = Counter({row.category: row.at_peak_bytes for row in tables.get("timeline_kinds", ())})
    if kinds:
        said = f"{units.size(kinds.total())} in all."
        held.append(_picture("Memory at the peak of the memory timeline", (said,), "by kind", kinds))
    return tuple(held)


def _of_device(held: Allocator, tables: Mapping[str, Table[Any]]) -> Iterator[Picture]:
    if held.peak_bytes is not None:
        rows = [row for row in tables.get("allocator_peaks", ()) if row.device == held.device]
        yield _picture(f"Memory at the peak of device {held.device}", _at_peak(held), "by kind", _kinds(rows))
        yield _picture("", (), "by line of code", _lines(rows))
    rows = [row for row in tables.get("allocator_holders", ()) if row.device == held.device]
    title = f"Memory at the end on device {held.device}"
    said = (*_cut(tables), _at_end(held), *_free(held, tables))
    yield _picture(title, said, "by line of code", _lines(rows))


def _picture(title: str, sentences: tuple[str, ...], heading: str, sizes: Counter[str]) -> Picture:
    whole = sum(sizes.values())
    shown = sizes.most_common(MOST)
    rest = whole - sum(size for _, size in shown)
    if rest > 0.001 * whole:
        shown.append(("all others", rest))
    bars = tuple(Bar(name, units.size(size), size / whole) for name, size in shown if size > 0)
    return Picture(title, sentences, heading, bars)


def _at_peak(held: Allocator) -> tuple[str, ...]:
    said = f"{units.size(held.peak_bytes)} in use, {units.size(held.reserved_at_peak_bytes)} reserved."
    before = held.start_bytes or 0
    if before and held.peak_bytes and before > 0.01 * held.peak_bytes:
        return (said, f"{units.size(before)} of it was in use before the history began, counted back.")
    return (said,)


def _cut(tables: Mapping[str, Table[Any]]) -> tuple[str, ...]:
    if not is_cut(tables):
        return ()
    return ("The snapshot is cut short: this is what is left of it.",)


def _at_end(held: Allocator) -> str:
    freed = (
        f"{units.size(held.awaiting_bytes)} in {units.counted(held.awaiting_blocks, 'block')} freed but "
        "still used by a stream, "
        if held.awaiting_blocks
        else ""
    )
    return (
        f"{units.size(held.allocated_bytes)} in {units.counted(held.live_blocks, 'block')} in use, {freed}"
        f"{units.size(held.reserved_bytes)} in {units.counted(held.segments, 'segment')} reserved."
    )


def _free(held: Allocator, tables: Mapping[str, Table[Any]]) -> tuple[str, ...]:
    pools = [row for row in tables.get("allocator_pools", ()) if row.device == held.device]
    back, pinned = sum(row.returnable_bytes for row in pools), sum(row.pinned_bytes for row in pools)
    if not back and not pinned:
        return ()
    return (
        (
            f"Reserved and free: {units.size(back)} in free segments, which empty_cache() gives back, and "
            f"{units.size(pinned)} beside used blocks, which nothing gives back."
        ),
    )


def _kinds(rows: list[PeakHolder]) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for row in rows:
        sizes[row.category] += row.bytes
    return sizes


def _lines(rows: list[PeakHolder] | list[AllocatorHolder]) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for row in rows:
        place = row.site or "no stack recorded"
        sizes[f"{place} · {row.category}" if row.category != "unknown" else place] += row.bytes
    return sizes
