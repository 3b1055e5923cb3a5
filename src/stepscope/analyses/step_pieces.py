"""What a rank did by itself in each step: its own time between collectives, divided by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._exposed import EXPOSED_READS, NUMBERED_CALLS, driving_threads, exposed
from stepscope.analyses._own_causes import CAUSE_READS, causes_of
from stepscope.analyses._windows import how_steps_were_found, reads_of_all
from stepscope.records import dataclass
from stepscope.schema import NOT_HOST
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StepPiece", "step_pieces"]


@dataclass(frozen=True, slots=True)
class StepPiece:
    """Own time of a rank in a step: between two stretches of exposed communication, or arrivals."""

    step: Annotated[int, "The step."]
    start_ns: Annotated[int, "When it began: with the step, at an arrival, or after exposed communication."]
    dur_ns: Annotated[int, "How long it took; pieces and exposed parts together are the step."]
    compute_ns: Annotated[int, "A kernel computed; without a device: an operator ran."]
    copies_ns: Annotated[int, "A copy or fill ran, and none of the above."]
    input_ns: Annotated[int, "The device was idle and the host waited for data."]
    memory_ns: Annotated[int, "It was idle, and the host allocated or freed memory of the driver."]
    collector_ns: Annotated[int, "It was idle, and Python's garbage collector ran."]
    compiling_ns: Annotated[int, "It was idle, and the host compiled, tuned or captured graphs."]
    sync_ns: Annotated[int, "It was idle after a call in which the host waited for it."]
    host_ns: Annotated[int, "It was idle and the host ran Python, operators or launches."]
    other_ns: Annotated[int, "The rest: launched work that waited on the device, or nothing recorded."]
    kernels: Annotated[int, "Kernels that began in it; without a device: operators at the outermost."]


# Cut at the ends of steps and exposed parts and at arrivals; what lies in an exposed part is none.
_PIECES = f"""
    WITH calls AS ({NUMBERED_CALLS}),
    steps_only AS (SELECT step, start_ns, end_ns FROM steps),
    parts AS (
        SELECT unnest($part_starts::BIGINT[]) AS start_ns, unnest($part_ends::BIGINT[]) AS end_ns),
    points AS (
        SELECT start_ns AS cut_ns FROM steps_only UNION SELECT start_ns FROM calls
        UNION SELECT start_ns FROM parts UNION SELECT end_ns FROM parts),
    cuts AS (
        SELECT p.cut_ns, s.step, s.start_ns, s.end_ns
        FROM points p ASOF JOIN steps_only s ON p.cut_ns >= s.start_ns
        WHERE p.cut_ns < s.end_ns),
    pieces AS (
        SELECT step, cut_ns AS start_ns,
               coalesce(lead(cut_ns) OVER (PARTITION BY start_ns ORDER BY cut_ns), end_ns) AS end_ns
        FROM cuts)
    SELECT p.step, p.start_ns, p.end_ns FROM pieces p ASOF LEFT JOIN parts e ON p.start_ns >= e.start_ns
    WHERE e.end_ns IS NULL OR e.end_ns <= p.start_ns
    ORDER BY p.start_ns
"""
_BEGAN = """
    SELECT p.number, count(*) AS kernels
    FROM ({work}) w
    ASOF JOIN (SELECT unnest($starts::BIGINT[]) AS since, unnest($ends::BIGINT[]) AS until,
                      unnest($numbers::BIGINT[]) AS number) p
      ON w.start_ns >= p.since
    WHERE w.start_ns < p.until GROUP BY p.number
"""
_KERNELS = "SELECT start_ns FROM device_work WHERE kind = 'kernel' AND NOT communicates"
_OPERATORS = "SELECT start_ns FROM ops WHERE depth = 0 AND list_contains($threads, thread)"


@analysis(reads=reads_of_all(EXPOSED_READS, CAUSE_READS, {"device_work": ("kind",), "ops": ("depth",)}))
def step_pieces(trace: Trace) -> Table[StepPiece]:
    """Divides what a rank did by itself in its steps, from collective to collective, by cause.

    Pieces and `exposed_parts` together are the step, and the causes of a piece sum to it.
    """
    import pyarrow.compute as pc

    parts = exposed(trace)
    cut = trace.arrow(
        _PIECES,
        not_host=list(NOT_HOST),
        part_starts=parts["start_ns"].to_pylist(),
        part_ends=pc.add(parts["start_ns"], parts["dur_ns"]).to_pylist(),
    )
    starts, ends = cut["start_ns"].to_pylist(), cut["end_ns"].to_pylist()
    nothing = [] if starts else ["The profile holds no steps of any length."]
    return Table(StepPiece, _rows(trace, cut, starts, ends), nothing + how_steps_were_found(trace))


def _rows(trace: Trace, cut: pa.Table, starts: list[int], ends: list[int]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    causes = causes_of(trace, starts, ends)
    columns: dict[str, Any] = {"step": cut["step"], "start_ns": cut["start_ns"]}
    columns["dur_ns"] = pc.subtract(cut["end_ns"], cut["start_ns"])
    columns |= {f"{cause}_ns": pa.array(times, pa.int64()) for cause, times in causes.items()}
    columns["kernels"] = pa.array(_begun(trace, starts, ends), pa.int64())
    return pa.table({name: columns[name] for name in StepPiece.__dataclass_fields__})


def _begun(trace: Trace, starts: list[int], ends: list[int]) -> list[int]:
    """How many kernels, or operators, began in each piece."""
    found = [0] * len(starts)
    params: dict[str, Any] = {"starts": starts, "ends": ends, "numbers": list(range(len(starts)))}
    work = _KERNELS
    if not trace.has("device_work"):
        work, params["threads"] = _OPERATORS, driving_threads(trace)
    for row in trace.rows(_BEGAN.format(work=work), **params) if starts else ():
        found[row["number"]] = row["kernels"]
    return found
