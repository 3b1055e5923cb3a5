"""How the memory of two snapshots differs: at the peak, at the end, and by line of code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stepscope import units
from stepscope.findings.report import Report

__all__ = ["COMPARED", "held_changes"]

COMPARED = ("allocators", "allocator_holders")
"""The tables that are compared."""
MOST = 4
LEAST_SHARE = 0.01


def held_changes(before: Report, after: Report) -> Iterator[str]:
    """Each difference as a sentence; none where a side has no snapshot."""
    tables = [[report.tables.get(name, ()) for name in COMPARED] for report in (before, after)]
    if not all(len(allocators) for allocators, _ in tables):
        return
    peaks = [_sum(row.peak_bytes for row in allocators) for allocators, _ in tables]
    if None not in peaks:
        yield f"Memory in use at the peak: {_ends(*peaks)}."
    ends = [_sum(row.active_bytes for row in allocators) or 0 for allocators, _ in tables]
    yield f"Memory in use at the end: {_ends(*ends)}."
    first, second = (_by_site(holders) for _, holders in tables)
    changed = sorted({*first, *second}, key=lambda site: (-abs(second[site] - first[site]), site))
    for site in changed[:MOST]:
        if abs(second[site] - first[site]) >= LEAST_SHARE * max(ends):
            yield f"Held by {site}: {_ends(first[site], second[site])}."


def _sum(sizes: Iterator[int | None]) -> int | None:
    known = list(sizes)
    return sum(one or 0 for one in known) if None not in known else None


def _ends(before: int | None, after: int | None) -> str:
    return f"{units.size(before)} → {units.size(after)}"


def _by_site(holders: object) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for row in holders:  # type: ignore[attr-defined]  # a table, or nothing
        sizes[f"{row.site or 'no stack recorded'} ({row.category})"] += row.bytes
    return sizes
