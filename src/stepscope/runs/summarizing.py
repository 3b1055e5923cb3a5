"""Makes the summary of a rank where its profile lies: what the head of a run needs, in a few megabytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.analyses._rank_file import mapping, rank_file_of, text
from stepscope.analyses.collective_calls import collective_calls
from stepscope.analyses.exposed_parts import exposed_parts
from stepscope.analyses.step_pieces import step_pieces
from stepscope.analyses.work_shapes import work_shapes
from stepscope.findings.facts import facts_of
from stepscope.runs.summary import SUMMARY_TABLES, RankFacts, RankSummary, SummaryStep
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MOST_CALLS", "MOST_TABLE_BYTES", "joined", "summarize"]

MOST_CALLS = 40_000
MOST_TABLE_BYTES = 4 << 20
"""What the tables of a rank may take on the head; their file is smaller."""
_STEPS = "SELECT step, start_ns, end_ns FROM steps ORDER BY start_ns"


def summarize(
    trace: Trace, *, rank: int | None = None, rank_source: str = "", host: str = "", source: str = ""
) -> RankSummary:
    """What the head of a run needs of one rank: its steps, collectives, own time and work.

    What the caller knows better than the profile can be told: the rank, the machine, how it is called.
    """
    facts = _facts(trace)
    if rank is not None:
        facts = replace(facts, rank=rank, rank_source=rank_source)
    facts = replace(facts, host=host or facts.host, source=source or facts.source)
    steps = trace.reading({"steps": ("step", "start_ns", "end_ns")}, ours=True).query(SummaryStep, _STEPS)
    tables: dict[str, Table[Any]] = {
        "steps": steps,
        "calls": collective_calls(trace),
        "exposed": exposed_parts(trace),
        "pieces": step_pieces(trace),
        "work": work_shapes(trace),
    }
    facts = replace(
        facts,
        kernel_ns=_kernel_ns(tables["calls"].arrow),
        work_steps=len(steps),
        notes=(*facts.notes, *tables["exposed"].notes),
    )
    return _limited(RankSummary(facts, {name: one.with_notes(()) for name, one in tables.items()}))


def _kernel_ns(calls: pa.Table) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(calls.filter(pc.equal(calls["backend"], "device"))["dur_ns"]).as_py() or 0)


def _facts(trace: Trace) -> RankFacts:
    found, told = facts_of(trace), rank_file_of(trace) or {}
    versions = mapping(mapping(told.get("environment")).get("versions"))
    names = dict.fromkeys(one.name for one in found.devices if one.name)
    measured = trace.measured
    damage = tuple(f"{units.counted(one.count, 'time')}: {one.reason}" for one in trace.meta.damage)
    return RankFacts(
        rank=trace.rank,
        rank_source=trace.meta.rank_source,
        world_size=found.world_size,
        host=text(told.get("host")) or "",
        device=", ".join(names),
        vendor=found.vendor.value,
        torch=text(versions.get("torch")) or "",
        source=trace.path,
        measured_ns=(measured.low_ns, measured.mean_ns, measured.high_ns) if measured else None,
        notes=damage,
    )


def joined(spans: Sequence[RankSummary]) -> RankSummary:
    """Profiles of one rank that follow each other in time, as one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(spans) == 1:
        return spans[0]
    tables: dict[str, list[pa.Table]] = {name: [] for name in SUMMARY_TABLES}
    calls = 0
    for one in spans:
        for name, table in one.tables.items():
            arrow = table.arrow
            if name in ("calls", "exposed"):
                place = arrow.column_names.index("call")
                arrow = arrow.set_column(place, arrow.schema.field(place), pc.add(arrow["call"], calls))
            tables[name].append(arrow)
        calls += len(one.tables["calls"])
    whole: dict[str, Table[Any]] = {
        name: Table(SUMMARY_TABLES[name], pa.concat_tables(parts)) for name, parts in tables.items()
    }
    work = whole["work"].arrow.group_by(["name", "launch_shape"], use_threads=False)
    summed = work.aggregate([("calls", "sum"), ("total_ns", "sum")]).rename_columns(
        ["name", "launch_shape", "calls", "total_ns"]
    )
    whole["work"] = Table(SUMMARY_TABLES["work"], summed.sort_by([("total_ns", "descending")])[:500])
    facts = replace(
        spans[0].facts,
        kernel_ns=sum(one.facts.kernel_ns for one in spans),
        work_steps=sum(one.facts.work_steps for one in spans),
        notes=tuple(dict.fromkeys(note for one in spans for note in one.facts.notes)),
    )
    return _limited(RankSummary(facts, whole))


def _limited(summary: RankSummary) -> RankSummary:
    """The first steps of a rank that fit, with a note if these are not all of them."""
    ends = summary.tables["steps"].arrow["end_ns"].to_pylist()
    if _fits(summary.tables):
        return summary
    low, high = 0, len(ends)  # so many fit, so many do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = _fits(_before(summary.tables, ends[middle - 1]))
        low, high = (middle, high) if fits else (low, middle)
    tables = _before(summary.tables, ends[low - 1] if low else 0)
    said = f"Of {units.counted(len(ends), 'step')} the first {units.count(low)} are looked at"
    facts = replace(summary.facts, notes=(*summary.facts.notes, f"{said}: more would take too much memory."))
    return RankSummary(facts, tables)


def _before(tables: Mapping[str, Table[Any]], until: int) -> dict[str, Table[Any]]:
    """What began before an instant; the work of the steps has none."""
    import pyarrow.compute as pc

    return {
        name: one
        if name == "work"
        else Table(one.row, one.arrow.filter(pc.less(one.arrow["start_ns"], until)))
        for name, one in tables.items()
    }


def _fits(tables: Mapping[str, Table[Any]]) -> bool:
    taken = sum(one.arrow.nbytes for one in tables.values())
    return taken <= MOST_TABLE_BYTES and len(tables["calls"]) <= MOST_CALLS
