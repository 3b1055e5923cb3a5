"""What each rank did in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from stepscope.records import dataclass
from stepscope.runs.aligned import aligned, on_one_clock, reference_time
from stepscope.runs.analyses import run_analysis
from stepscope.runs.many import ManyRanks
from stepscope.runs.summary import CAUSES
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RankStep", "rank_steps"]

By = Literal["step", "rank", "host"]


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step of a rank; or the mean of all steps of a rank or a host."""

    rank: Annotated[int | None, "The rank; NULL for several."]
    host: Annotated[str | None, "Its machine; NULL if not recorded."]
    step: Annotated[int | None, "Step of the run; NULL for several."]
    steps: Annotated[int, "How many steps of ranks the row is the mean of."]
    start_ns: Annotated[
        int | None, "When it began, on the reference clock; NULL if not aligned, and for several."
    ]
    end_ns: Annotated[int | None, "When it ended."]
    step_ns: Annotated[int, "How long it took: own time and exposed communication."]
    own_ns: Annotated[int, "Time in which the rank did not merely communicate; the causes below sum to it."]
    exposed_ns: Annotated[int, "Time in which it did nothing but communicate."]
    exposed_wait_ns: Annotated[int, "The part of it before the last rank arrived."]
    exposed_transfer_ns: Annotated[int, "The part of it after that."]
    exposed_unmatched_ns: Annotated[int, "The part of it in calls that no other rank recorded."]
    compute_ns: Annotated[int, "A kernel computed; without a device: an operator ran."]
    copies_ns: Annotated[int, "A copy or fill ran, and none of the above."]
    input_ns: Annotated[int, "The device was idle and the host waited for data."]
    memory_ns: Annotated[int, "It was idle, and the host allocated or freed memory of the driver."]
    collector_ns: Annotated[int, "It was idle, and Python's garbage collector ran."]
    compiling_ns: Annotated[int, "It was idle, and the host compiled, tuned or captured graphs."]
    sync_ns: Annotated[int, "It was idle after a call in which the host waited for it."]
    host_ns: Annotated[int, "It was idle and the host ran Python, operators or launches."]
    other_ns: Annotated[int, "The rest: nothing recorded explains it."]
    kernels: Annotated[int, "Kernels that began; without a device: operators at the outermost."]


@run_analysis
def rank_steps(
    run: ManyRanks,
    *,
    by: Annotated[By, "List each step of each rank, or the mean step of a rank or a host."] = "step",
) -> Table[RankStep]:
    """Tells what each rank did in each step: own time by cause, waiting for others, and transfer."""
    found = aligned(run)
    rows = ask(
        _STEPS,
        steps=run.stacked("steps"),
        pieces=run.stacked("pieces"),
        exposed=found.exposed,
        clocks=on_one_clock(run),
        hosts=_hosts(run),
    )
    if by != "step":
        rows = ask(_MEAN[by], rows=rows)
    columns = [one.name for one in Table.of(RankStep, []).columns]
    notes = list(found.notes)
    if by != "step":
        notes.append("Times are means over the steps.")
    return Table(RankStep, rows.select(columns), notes)


def _hosts(run: ManyRanks) -> pa.Table:
    import pyarrow as pa

    hosts = [run.host_of(rank) or None for rank in run.ranks]
    return pa.table({"rank": pa.array(run.ranks, pa.int64()), "host": pa.array(hosts, pa.string())})


_TIMES = (
    "step_ns", "own_ns", "exposed_ns", "exposed_wait_ns", "exposed_transfer_ns", "exposed_unmatched_ns",
    *(f"{cause}_ns" for cause in CAUSES), "kernels",
)  # fmt: skip
_SUMS = ", ".join(f"sum({cause}_ns)::BIGINT AS {cause}_ns" for cause in CAUSES)
_CAUSES = ", ".join(f"coalesce({cause}_ns, 0) AS {cause}_ns" for cause in CAUSES)
_STEPS = f"""
WITH own AS (
    SELECT rank, step, sum(dur_ns)::BIGINT AS own_ns, {_SUMS}, sum(kernels)::BIGINT AS kernels
    FROM pieces GROUP BY rank, step),
alone AS (
    SELECT rank, step, sum(dur_ns)::BIGINT AS exposed_ns, sum(wait_ns)::BIGINT AS wait_ns,
           sum(transfer_ns)::BIGINT AS transfer_ns,
           (sum(dur_ns) FILTER (number IS NULL))::BIGINT AS unmatched_ns FROM exposed GROUP BY rank, step)
SELECT s.rank, h.host, s.step + k.shift AS step, 1 AS steps,
       CASE WHEN k.part = 0 THEN {reference_time("s.start_ns")} END AS start_ns,
       CASE WHEN k.part = 0 THEN {reference_time("s.end_ns")} END AS end_ns,
       s.end_ns - s.start_ns AS step_ns, coalesce(own_ns, 0) AS own_ns,
       coalesce(exposed_ns, 0) AS exposed_ns, coalesce(wait_ns, 0) AS exposed_wait_ns,
       coalesce(transfer_ns, 0) AS exposed_transfer_ns, coalesce(unmatched_ns, 0) AS exposed_unmatched_ns,
       {_CAUSES}, coalesce(kernels, 0) AS kernels
FROM steps s JOIN clocks k USING (rank) JOIN hosts h USING (rank)
    LEFT JOIN own o ON o.rank = s.rank AND o.step = s.step
    LEFT JOIN alone a ON a.rank = s.rank AND a.step = s.step + k.shift
ORDER BY s.rank, s.step
"""
_AVERAGES = ", ".join(f"round(avg({name}))::BIGINT AS {name}" for name in _TIMES)
_OVER = """
SELECT {rank} AS rank, host, NULL::BIGINT AS step, count(*) AS steps, NULL::BIGINT AS start_ns,
       NULL::BIGINT AS end_ns, {averages}
FROM rows GROUP BY {keys} ORDER BY {keys}
"""
_MEAN = {
    "rank": _OVER.format(rank="rows.rank", keys="rows.rank, rows.host", averages=_AVERAGES),
    "host": _OVER.format(rank="NULL::BIGINT", keys="rows.host", averages=_AVERAGES),
}
