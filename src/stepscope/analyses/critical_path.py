"""What determined the length of each step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.schema import COMMUNICATION_RANGE, DATALOADER_RANGE, NOT_HOST
from stepscope.simulation.critical_path import KINDS, PATH_STEPS, path_sums, walk_of
from stepscope.simulation.dependencies import DEPENDENCY_READS
from stepscope.simulation.device_calls import call_names
from stepscope.store.columns import view
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PathPart", "critical_path"]

SLICE = 8_000_000
"""So many host events are held at once."""


@dataclass(frozen=True, slots=True)
class PathPart:
    """A part of the path: one kind of thing in one step, one item, or one piece."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int | None, "Number of the step; NULL for all steps together."]
    kind: Annotated[
        str,
        "kernel, communication, memcpy, memset: what ran. launch latency: from a launch to its work. "
        "device scheduling, graph latency, waited on the device: between two pieces of work, up to 3 µs, "
        "inside one graph, or longer. synchronising call: the host after the device was done. waited for a "
        "thread: after that thread was done. dataloader, host op, Python between ops, allocation call, "
        "other runtime call, nothing recorded: what the host did. unknown: nothing says what came before.",
    ]
    name: Annotated[
        str | None, "The kernel, operator, call or frame, for items and segments; NULL without one."
    ]
    place: Annotated[str | None, "Thread, or device and stream, of a segment."]
    start_ns: Annotated[int | None, "When a segment began."]
    path_ns: Annotated[int, "Its time on the path. The parts of a step sum to the step."]
    share: Annotated[float | None, "Share of the step, or of all steps together."]
    segments: Annotated[int, "Of how many pieces of the path that is the sum."]


_RANGE = f"""
    CASE WHEN regexp_matches(name, '{DATALOADER_RANGE}') THEN 1
         WHEN regexp_matches(name, '{COMMUNICATION_RANGE}') THEN 2 ELSE {{plain}} END
"""
_CALL = """
    CASE WHEN list_contains($allocating, name) THEN 6 WHEN list_contains($waiting, name) THEN 5 ELSE 7 END
"""
_EVENT = "event, thread, start_ns, coalesce(dur_ns, 0) AS dur_ns, name"
_MARKS = "starts_with(name, 'ProfilerStep#')"
# What is open, as native code numbers it. Step marks say nothing of what goes on in the step.
_HOST = f"""
    SELECT event, thread, start_ns, dur_ns, open::BIGINT AS open, (hash(name) >> 1)::BIGINT AS label FROM (
        SELECT {_EVENT}, 3 AS open FROM python_frames
        UNION ALL SELECT {_EVENT}, {_RANGE.replace("{plain}", "4")} FROM ops
        WHERE NOT coalesce({_MARKS}, FALSE)
        UNION ALL SELECT {_EVENT}, {_CALL} FROM launches
        UNION ALL SELECT {_EVENT}, {_RANGE.replace("{plain}", "0")} FROM annotations
        WHERE category = 'user_annotation' AND NOT coalesce({_MARKS}, FALSE)
        UNION ALL SELECT {_EVENT}, {_RANGE.replace("{plain}", "0")} FROM other_events
        WHERE phase = 'X' AND (category IS NULL OR NOT list_contains($not_host, category)))
    WHERE list_contains($threads, thread) AND start_ns >= $since AND start_ns < $until
"""
_NAMED_IN = ("device_work", "launches", "ops", "python_frames", "annotations", "other_events")
_NAMES = " UNION ALL ".join(
    f"SELECT event, name FROM {table} WHERE event IN (SELECT unnest($events::BIGINT[]))"
    for table in _NAMED_IN
)
_GUESSES = """
    SELECT (SELECT count(*) FROM launches WHERE name LIKE '%StreamWaitEvent%') AS waits,
           (SELECT count(*) FROM other_events
            WHERE category = 'cuda_sync' AND wait_on_stream IS NOT NULL) AS known,
           (SELECT count(DISTINCT thread) FROM device_work) AS streams
"""


@analysis(
    reads={
        **DEPENDENCY_READS,
        "steps": ("step", "source", "start_ns", "end_ns", "host_start_ns", "thread"),
        "python_frames": ("event", "thread", "start_ns", "dur_ns", "name"),
    }
)
def critical_path(
    trace: Trace,
    *,
    step: Annotated[int | None, "only this step"] = None,
    items: Annotated[int, "list this many of the longest items by name instead of kinds"] = 0,
    segments: Annotated[int, "list this many first pieces of a step's path instead of kinds"] = 0,
) -> Table[PathPart]:
    """Says what determined the length of each step: the chain of work and waits from its end to its start.

    From the end of a step back: work on a device began when the work before it on its stream or the work
    that it waited for on another stream was done, or when the host launched it; the host went on when the
    device or the thread that it waited for was done. Only shortening what is on this path can shorten the
    step. Every instant of a step is in exactly one part. Communication includes waiting for other ranks.
    """
    if items and segments:
        raise StepscopeError("items and segments cannot be combined", hint="give one of them")
    steps = trace.arrow(PATH_STEPS)
    if not steps.num_rows:
        return Table.of(PathPart, [], ["No events: there is no step to explain."])
    chosen = _chosen(steps, step, bool(segments))
    notes = [*how_steps_were_found(trace), *_guesses(trace)]
    if segments:
        notes.append(f"Segments of step {steps['step'][chosen[0]].as_py()}.")
        return Table.of(PathPart, _pieces(trace, steps.slice(chosen[0], 1), segments), notes)
    sums = _sums(trace, steps)
    rows = _items(trace, steps, sums, chosen, items) if items else _kinds(trace, steps, sums, chosen)
    return Table.of(PathPart, rows, notes)


def _chosen(steps: pa.Table, step: int | None, one: bool) -> list[int]:
    """The places of the steps that were asked for."""
    numbers = steps["step"].to_pylist()
    found = [place for place, number in enumerate(numbers) if step is None or number == step]
    if not found:
        raise StepscopeError(f"there is no step {step}", hint=f"steps are {min(numbers)} to {max(numbers)}")
    return found[:1] if one else found


def _guesses(trace: Trace) -> list[str]:
    found = trace.rows(_GUESSES)[0]
    if not found["waits"] or found["known"] or found["streams"] < 2:
        return []
    said = (
        "Which stream waited for which is not recorded and was told from the order of calls: record with "
        "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True) to have it."
    )
    return [said]


def _sums(trace: Trace, steps: pa.Table) -> pa.Table:
    """The path of every step, summed up by kind and name; worked out once for all tables."""
    return trace.once("critical path", lambda: path_sums(_walked(trace, steps, keep=False).sums()))


def _walked(trace: Trace, steps: pa.Table, *, keep: bool) -> _native.PathCharge:
    """Walks back from the end of each step, and asks what was open on the host along the way."""
    walk = walk_of(trace, steps)
    charge = _native.PathCharge(walk, keep)
    del walk
    if charge.threads:
        names = call_names(trace)
        asked: dict[str, Any] = {"threads": charge.threads, "not_host": list(NOT_HOST)}
        asked |= {"allocating": names.allocating, "waiting": names.waiting}
        for since, until in _slices(trace, steps):
            for batch in trace.batches(_HOST, since=since, until=until, **asked):
                charge.add(*map(view, batch.columns))
            charge.advance()
    charge.finish()
    return charge


def _slices(trace: Trace, steps: pa.Table) -> list[tuple[int, int]]:
    """Stretches of time with not too many host events each; the first also takes all that began before."""
    import pyarrow.compute as pc

    events = sum(trace.meta.rows.get(table, 0) for table in _NAMED_IN[1:])
    first, last = pc.min(steps["start_ns"]).as_py(), pc.max(steps["end_ns"]).as_py()
    count = events // SLICE + 1
    cuts = [-(1 << 62), *(first + (last - first) * number // count for number in range(1, count)), last]
    return list(pairwise(cuts))


def _kinds(trace: Trace, steps: pa.Table, sums: pa.Table, chosen: list[int]) -> Iterator[PathPart]:
    """The kinds of things on the path of each step, those with most time first."""
    found = sums.group_by(["window", "kind"]).aggregate([("path_ns", "sum"), ("pieces", "sum")]).to_pylist()
    found.sort(key=lambda row: (row["window"], -row["path_ns_sum"], row["kind"]))
    starts, ends, numbers = (steps[name].to_pylist() for name in ("start_ns", "end_ns", "step"))
    asked = set(chosen)
    for row in found:
        place = row["window"]
        if place in asked:
            time = row["path_ns_sum"]
            yield PathPart(
                rank=trace.rank,
                step=numbers[place],
                kind=KINDS[row["kind"]],
                name=None,
                place=None,
                start_ns=None,
                path_ns=time,
                share=time / (ends[place] - starts[place]),
                segments=row["pieces_sum"],
            )


def _items(trace: Trace, steps: pa.Table, sums: pa.Table, chosen: list[int], most: int) -> Iterator[PathPart]:
    """The longest items by name, over the chosen steps together."""
    import pyarrow as pa
    import pyarrow.compute as pc

    inside = sums.filter(pc.is_in(sums["window"], pa.array(chosen, pa.int64())))
    grouped = inside.group_by(["kind", "label"]).aggregate(
        [("path_ns", "sum"), ("pieces", "sum"), ("event", "max")]
    )
    order = [("path_ns_sum", "descending"), ("kind", "ascending"), ("event_max", "ascending")]
    found = grouped.sort_by(order).slice(0, most).to_pylist()
    names = _names(trace, [row["event_max"] for row in found])
    whole = sum(steps["end_ns"][place].as_py() - steps["start_ns"][place].as_py() for place in chosen)
    for row in found:
        yield PathPart(
            rank=trace.rank,
            step=steps["step"][chosen[0]].as_py() if len(chosen) == 1 else None,
            kind=KINDS[row["kind"]],
            name=names.get(row["event_max"]),
            place=None,
            start_ns=None,
            path_ns=row["path_ns_sum"],
            share=row["path_ns_sum"] / whole,
            segments=row["pieces_sum"],
        )


def _pieces(trace: Trace, steps: pa.Table, most: int) -> Iterator[PathPart]:
    """The path of one step, piece by piece in order of time."""
    charge = _walked(trace, steps, keep=True)
    found = path_sums(charge.kept()).slice(0, most).to_pylist()
    names = _names(trace, [row["event"] for row in found])
    places = _places(trace)
    length = steps["end_ns"][0].as_py() - steps["start_ns"][0].as_py()
    for row in found:
        yield PathPart(
            rank=trace.rank,
            step=steps["step"][0].as_py(),
            kind=KINDS[row["kind"]],
            name=names.get(row["event"]),
            place=places.get(row["place"]),
            start_ns=row["start_ns"],
            path_ns=row["path_ns"],
            share=row["path_ns"] / length,
            segments=1,
        )


def _names(trace: Trace, events: list[int | None]) -> dict[int, str | None]:
    rows = trace.rows(_NAMES, events=[event for event in events if event is not None])
    return {row["event"]: row["name"] for row in rows}


_PLACES = """
    SELECT DISTINCT thread, format('device {} stream {}', device_name, coalesce(stream::VARCHAR, '?'))
        AS place
    FROM device_work
    UNION SELECT DISTINCT thread, format('thread {}', tid) FROM launches
    UNION SELECT DISTINCT thread, format('thread {}', tid) FROM ops
    UNION SELECT DISTINCT thread, format('thread {}', tid) FROM annotations
    WHERE category = 'user_annotation'
"""


def _places(trace: Trace) -> dict[int, str]:
    """What threads and streams are called."""
    return {row["thread"]: row["place"] for row in trace.rows(_PLACES)}
