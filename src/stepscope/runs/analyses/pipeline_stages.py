"""How long the stages of a pipeline wait for each other, and in which order they work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from stepscope.records import dataclass
from stepscope.runs._stages import Chain, across_stages, chains
from stepscope.runs.aligned import Aligned, aligned
from stepscope.runs.analyses import run_analysis
from stepscope.runs.analyses.rank_steps import rank_steps
from stepscope.runs.many import ManyRanks
from stepscope.runs.rank_lists import ranks_text
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PipelineStage", "pipeline_stages"]


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage of a pipeline, in the mean of its steps."""

    group: Annotated[str, "Process group of the messages, or its ranks if it has no name."]
    stage: Annotated[int, "From 0, in the direction of the forward pass; else the place in the group."]
    ranks: Annotated[str, "The rank of the stage in this pipeline."]
    step_ns: Annotated[int, "Its step."]
    bubble_ns: Annotated[int, "Waiting for other stages in a step, with nothing else to do."]
    bubble_share: Annotated[float | None, "The part of its step."]
    warm_up_ns: Annotated[int, "Of it: until the first message of the step came."]
    drain_ns: Annotated[int, "Of it: in collectives over several stages, as at the end of the step."]
    micro_batches: Annotated[int | None, "Messages of the forward pass in a step; NULL if not in a row."]
    schedule: Annotated[
        str,
        "GPipe-like (all forward, then all backward), 1F1B-like (one forward, one backward), or unknown.",
    ]


@run_analysis
def pipeline_stages(run: ManyRanks) -> Table[PipelineStage]:
    """Lists the stages of pipelines: how long each waits for others in a step, and the schedule.

    Stages are ranks that send to one another. The last one tells the schedule: whether it sends gradients
    back before it has received everything.
    """
    found = aligned(run)
    pipelines = chains(found)
    rows: list[PipelineStage] = []
    if pipelines:
        figures = {(row["chain"], row["rank"]): row for row in _figures(run, found, pipelines)}
        for number, chain in enumerate(pipelines):
            rows += _stages(found, chain, {rank: figures.get((number, rank)) for rank in chain.ranks})
    notes = list(found.notes)
    if not rows:
        notes.append("No rank sends to another one: there is no pipeline.")
    if any(not chain.in_row for chain in pipelines):
        notes.append("Some stages send to others than their neighbours: their schedule is not known.")
    return Table.of(PipelineStage, rows, notes)


def _stages(found: Aligned, chain: Chain, figures: dict[int, dict[str, Any] | None]) -> list[PipelineStage]:
    last = figures.get(chain.ranks[-1])
    schedule = _schedule(last) if last and chain.in_row else "unknown"
    return [
        PipelineStage(
            group=found.groups[chain.gid].label,
            stage=stage,
            ranks=ranks_text([rank]),
            step_ns=row["step_ns"],
            bubble_ns=row["bubble_ns"],
            bubble_share=row["bubble_ns"] / row["step_ns"] if row["step_ns"] else None,
            warm_up_ns=row["warm_up_ns"],
            drain_ns=row["drain_ns"],
            micro_batches=row["forward"] if chain.in_row else None,
            schedule=schedule,
        )
        for stage, rank in enumerate(chain.ranks)
        if (row := figures[rank]) is not None
    ]


def _schedule(last: dict[str, Any]) -> str:
    """Asks the last stage whether it still receives after it has sent the first gradients."""
    if (last["forward"] or 0) < 2 or last["after"] is None:
        return "unknown"
    if last["after"] == 0:
        return "GPipe-like"
    return "1F1B-like" if 2 * last["after"] >= last["forward"] else "unknown"


def _figures(run: ManyRanks, found: Aligned, pipelines: list[Chain]) -> list[dict[str, Any]]:
    import pyarrow as pa

    places: list[tuple[Any, ...]] = []
    for number, chain in enumerate(pipelines):
        ranks = chain.ranks
        places += [
            (
                number,
                chain.gid,
                rank,
                ranks[place - 1] if place else None,
                *ranks[place + 1 : place + 2],
                None,
            )[:5]
            for place, rank in enumerate(ranks)
        ]
    names = ("chain", "gid", "rank", "before", "next")
    stages = pa.table(
        {name: pa.array(of, pa.int64()) for name, of in zip(names, zip(*places, strict=True), strict=True)}
    )
    across = pa.table({"gid": pa.array(across_stages(found), pa.int64())})
    steps = rank_steps(run).arrow.select(["rank", "step", "step_ns"])
    answer: pa.Table = ask(
        _FIGURES, calls=found.calls, exposed=found.exposed, stages=stages, across=across, steps=steps
    )
    rows: list[dict[str, Any]] = answer.to_pylist()
    return rows


_FIGURES = """
WITH messages AS (
    SELECT s.chain, c.rank, c.step, c.call, c.arrival_ns,
           (c.from_rank = c.rank AND c.to_rank = s.next) OR (s.next IS NULL AND c.from_rank = s.before)
               AS forward,
           c.from_rank = c.rank AND c.to_rank = s.before AS gives_back
    FROM calls c JOIN stages s ON s.gid = c.gid AND s.rank = c.rank
    WHERE c.kind = 'send-receive' AND c.step IS NOT NULL),
orders AS (
    SELECT chain, rank, step, count(*) FILTER (forward) AS forward, min(arrival_ns) AS first_ns,
           min(arrival_ns) FILTER (gives_back) AS back_ns FROM messages GROUP BY chain, rank, step),
later AS (
    SELECT m.chain, m.rank, m.step, count(*) FILTER (m.forward AND m.arrival_ns > o.back_ns) AS after
    FROM messages m JOIN orders o USING (chain, rank, step) GROUP BY m.chain, m.rank, m.step),
waits AS (
    SELECT s.chain, s.rank, e.step, sum(e.wait_ns) AS bubble_ns,
           sum(e.wait_ns) FILTER (c.kind = 'send-receive' AND c.arrival_ns = o.first_ns) AS warm_up_ns,
           sum(e.wait_ns) FILTER (c.kind <> 'send-receive') AS drain_ns
    FROM exposed e JOIN stages s ON s.rank = e.rank JOIN calls c ON c.rank = e.rank AND c.call = e.call
        LEFT JOIN orders o ON o.chain = s.chain AND o.rank = e.rank AND o.step = e.step
    WHERE e.wait_ns > 0 AND c.gid IN (SELECT gid FROM across) GROUP BY s.chain, s.rank, e.step)
SELECT s.chain, s.rank, quantile_disc(o.forward, 0.5) AS forward, quantile_disc(l.after, 0.5) AS after,
       round(avg(t.step_ns))::BIGINT AS step_ns, round(avg(coalesce(w.bubble_ns, 0)))::BIGINT AS bubble_ns,
       round(avg(coalesce(w.warm_up_ns, 0)))::BIGINT AS warm_up_ns,
       round(avg(coalesce(w.drain_ns, 0)))::BIGINT AS drain_ns
FROM stages s JOIN steps t ON t.rank = s.rank
    LEFT JOIN orders o ON o.chain = s.chain AND o.rank = s.rank AND o.step = t.step
    LEFT JOIN later l ON l.chain = s.chain AND l.rank = s.rank AND l.step = t.step
    LEFT JOIN waits w ON w.chain = s.chain AND w.rank = s.rank AND w.step = t.step
GROUP BY s.chain, s.rank ORDER BY s.chain, s.rank
"""
