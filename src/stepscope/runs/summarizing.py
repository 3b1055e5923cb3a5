"""Makes the summary of a rank where its profile lies: what the head of a run needs, in a few megabytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.analyses._rank_file import mapping, rank_file_of, text
from stepscope.analyses._windows import how_steps_were_found
from stepscope.analyses.collective_calls import collective_calls
from stepscope.analyses.exposed_parts import ExposedPart, exposed_parts
from stepscope.analyses.step_pieces import StepPiece, step_pieces
from stepscope.analyses.work_shapes import work_shapes
from stepscope.errors import StepscopeError
from stepscope.findings.facts import facts_of
from stepscope.runs.summary import (
    CAUSES,
    MOST_BYTES,
    SUMMARY_TABLES,
    RankFacts,
    RankSummary,
    SummaryStep,
    read_summary,
    written_summary,
)
from stepscope.store.arrow_sql import ask
from stepscope.store.layout import put_file
from stepscope.store.trace import Trace
from stepscope.streams import open_stream
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.runs import Pass, RankRecord

__all__ = ["MOST_CALLS", "MOST_TABLE_BYTES", "joined", "kept_summary", "summarize", "summary_of"]

KEPT = "rank.4.summary"
"""The file in a store. Its number is raised when the tables of a summary come to mean something else."""

MOST_CALLS = 40_000
MOST_TABLE_BYTES = 4 << 20
"""What the tables of a rank may take on the head; their file is smaller."""
_BOUNDS = """
    WITH bounds AS (
        SELECT start_ns AS bound_ns FROM calls UNION SELECT start_ns + dur_ns FROM calls
        UNION SELECT start_ns FROM steps)
"""
_PIECES = (
    _BOUNDS
    + """
    SELECT p.step, min(p.start_ns) AS start_ns, sum(p.dur_ns)::BIGINT, {sums}, sum(p.kernels)::BIGINT
    FROM pieces p ASOF JOIN bounds b ON p.start_ns >= b.bound_ns
    GROUP BY p.step, b.bound_ns ORDER BY start_ns
"""
)
# What ended with its collective still does.
_PARTS = (
    _BOUNDS
    + """
    SELECT p.step, p.call, max(p.start_ns + p.dur_ns) - sum(p.dur_ns)::BIGINT AS start_ns,
           sum(p.dur_ns)::BIGINT AS dur_ns
    FROM exposed p ASOF JOIN bounds b ON p.start_ns >= b.bound_ns
    GROUP BY p.step, p.call, b.bound_ns ORDER BY start_ns
"""
)
_STEPS = "SELECT step, start_ns, end_ns FROM steps ORDER BY start_ns"


def summary_of(record: RankRecord, opened: Callable[[Pass], Trace]) -> RankSummary:
    """The summary of a rank: out of its files of `stepscope summarize`, or else made of its profiles.

    `opened` opens a profile. Made ones are kept in the stores of the profiles.
    """
    if record.summaries:
        found = [read_summary(_content(word), word) for word in record.summaries]
    else:
        found = [kept_summary(opened(one), record) for one in record.spans]
    if not found:
        raise StepscopeError(f"rank {record.rank} has no profile", hint="take another rank")
    return joined(found)


def kept_summary(trace: Trace, record: RankRecord | None = None) -> RankSummary:
    """The same as `summarize`, kept in the store of the trace for the next time."""
    place = trace.folder / KEPT
    try:
        made = read_summary(place.read_bytes(), str(place))
    except (OSError, StepscopeError):
        made = _made(trace)
        with suppress(OSError):  # a store that is not to be written to: it is of use, and not needed
            put_file(place, written_summary(made))
    return _known_as(made, trace, record)


def summarize(trace: Trace, record: RankRecord | None = None) -> RankSummary:
    """What the head of a run needs of one rank: its steps, collectives, own time and work.

    What is known about the rank beside its profile is in its record: its number, if the metadata of the
    profile do not say it, and its machine.
    """
    return _known_as(_made(trace), trace, record)


def _made(trace: Trace) -> RankSummary:
    steps = trace.reading({"steps": ("step", "start_ns", "end_ns")}, ours=True).query(SummaryStep, _STEPS)
    tables: dict[str, Table[Any]] = {
        "steps": steps,
        "calls": collective_calls(trace),
        "exposed": exposed_parts(trace),
        "pieces": step_pieces(trace),
        "work": work_shapes(trace),
    }
    facts = _facts(trace)
    facts = replace(
        facts,
        kernel_ns=_kernel_ns(tables["calls"].arrow),
        work_steps=len(steps),
        notes=(*facts.notes, *how_steps_were_found(trace)),
    )
    return _limited(RankSummary(facts, {name: one.with_notes(()) for name, one in tables.items()}))


def _known_as(made: RankSummary, trace: Trace, record: RankRecord | None) -> RankSummary:
    """A summary with what is known beside the profile, which may be another than when it was made."""
    measured = trace.measured
    facts = replace(
        made.facts,
        source=trace.path,
        measured_ns=(measured.low_ns, measured.mean_ns, measured.high_ns) if measured else None,
    )
    if record is not None:
        facts = replace(
            facts, host=record.host or facts.host, device=facts.device or ", ".join(record.devices)
        )
    if record is not None and trace.meta.rank_source != "distributedInfo":
        facts = replace(facts, rank=record.rank, rank_source=record.rank_source)
    elif record is not None and record.rank != facts.rank:
        said = f"Rank {record.rank} by its {record.rank_source} is rank {facts.rank} by its metadata."
        facts = replace(facts, notes=(*facts.notes, said))
    return replace(made, facts=facts)


def _content(word: str) -> bytes:
    """The bytes of a file or address, up to more than a summary has."""
    got = bytearray()
    with closing(iter(open_stream(word))) as pieces:  # type: ignore[type-var]  # a generator
        for piece in pieces:
            got += piece
            if len(got) > MOST_BYTES:
                break
    return bytes(got)


def _kernel_ns(calls: pa.Table) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(calls.filter(pc.equal(calls["backend"], "device"))["dur_ns"]).as_py() or 0)


def _facts(trace: Trace) -> RankFacts:
    found, told = facts_of(trace), rank_file_of(trace) or {}
    versions = mapping(mapping(told.get("environment")).get("versions"))
    names = dict.fromkeys(one.name for one in found.devices if one.name)
    damage = tuple(f"{units.counted(one.count, 'time')}: {one.reason}" for one in trace.meta.damage)
    return RankFacts(
        rank=trace.rank,
        rank_source=trace.meta.rank_source,
        world_size=found.world_size,
        host=text(told.get("host")) or text(trace.meta.metadata.get("host_name")) or "",
        device=", ".join(names),
        vendor=found.vendor.value,
        torch=text(versions.get("torch")) or "",
        source=trace.path,
        notes=damage,
    )


def joined(spans: Sequence[RankSummary]) -> RankSummary:
    """Profiles of one rank that follow each other in time, as one; an error if they do not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(spans) == 1:
        return spans[0]
    spans = sorted(spans, key=lambda one: _extent(one)[0])
    for before, after in pairwise(spans):
        if _extent(before)[1] > _extent(after)[0]:
            raise StepscopeError(
                f"{before.facts.source} and {after.facts.source} are both of rank {after.facts.rank} and "
                "overlap in time",
                hint="name one of them, or move the other to another folder",
            )
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
    counted = [one.name for one in whole["work"].columns if one.type == "int"]
    summed = work.aggregate([(name, "sum") for name in counted]).rename_columns(
        ["name", "launch_shape", *counted]
    )
    whole["work"] = Table(SUMMARY_TABLES["work"], summed.sort_by([("total_ns", "descending")])[:500])
    facts = replace(
        spans[0].facts,
        kernel_ns=sum(one.facts.kernel_ns for one in spans),
        work_steps=sum(one.facts.work_steps for one in spans),
        notes=tuple(dict.fromkeys(note for one in spans for note in one.facts.notes)),
    )
    return _limited(RankSummary(facts, whole))


def _extent(summary: RankSummary) -> tuple[int, int]:
    """From when to when a summary tells anything."""
    steps = summary.tables["steps"].arrow
    starts, ends = steps["start_ns"].to_pylist(), steps["end_ns"].to_pylist()
    return (min(starts), max(ends)) if starts else (0, 0)


def _limited(summary: RankSummary) -> RankSummary:
    """The first steps of a rank that fit, with a note if these are not all of them."""
    if _fits(summary.tables):
        return summary
    summary = _coarser(summary)
    if _fits(summary.tables):
        return summary
    ends = summary.tables["steps"].arrow["end_ns"].to_pylist()
    low, high = 0, len(ends)  # so many fit, so many do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = _fits(_before(summary.tables, ends[middle - 1]))
        low, high = (middle, high) if fits else (low, middle)
    tables = _before(summary.tables, ends[low - 1] if low else 0)
    said = f"Of {units.counted(len(ends), 'step')} the first {units.count(low)} are looked at"
    facts = replace(summary.facts, notes=(*summary.facts.notes, f"{said}: more would take too much memory."))
    return RankSummary(facts, tables)


def _coarser(summary: RankSummary) -> RankSummary:
    """The same with pieces and exposed parts added up between starts and ends of collectives.

    Between short kernels beside a collective there are thousands of pauses, which tell nothing one by one.
    """
    tables = {name: one.arrow for name, one in summary.tables.items()}
    sums = ", ".join(f"sum({cause}_ns)::BIGINT" for cause in CAUSES)
    pieces = ask(_PIECES.format(sums=sums), **tables).rename_columns(tables["pieces"].column_names)
    parts = ask(_PARTS, **tables)
    changed: dict[str, Table[Any]] = {
        "pieces": Table(StepPiece, pieces),
        "exposed": Table(ExposedPart, parts),
    }
    return RankSummary(summary.facts, {**summary.tables, **changed})


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
