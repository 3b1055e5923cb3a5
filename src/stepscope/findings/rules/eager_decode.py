"""Decoding launches kernel by kernel where a CUDA graph would do."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.attention import Attention
from stepscope.analyses.idle_gaps import IdleGap, Side, SpentIn
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.loops import Loop
from stepscope.analyses.read_loops import ReadLoops
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._inference import decodes, engine_of, writes_text
from stepscope.findings._phrases import often, times
from stepscope.findings._read_loops import outside_of_read_loops
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["eager_decode"]

GRAPH_LATENCY_NS = 1_000
"""Between two kernels of a CUDA graph, on recent GPUs."""
_CAPTURED = (SpentIn.HOST_OP, SpentIn.RUNTIME_CALL, SpentIn.ALLOCATION_CALL, SpentIn.LAUNCH_LATENCY)
_ANY = """\
model.generation_config.cache_implementation = "static"    # transformers; or your own StaticCache
model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
with torch.cuda.graph(graph): make_token()    # your own loop; write the cache in place"""


@rule(category=Category.INFERENCE)
def eager_decode(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    iterations: Table[Iteration],
    idle_gaps: Table[IdleGap],
    step_classes: Table[StepClass],
    attention: Table[Attention],
    step_ops: Table[StepOp],
    read_loops: Table[ReadLoops],
    loops: Table[Loop],
    *,
    least_share: float = 0.10,
) -> Advice | None:
    """Decoding launches its kernels one by one, and the GPU waits for the launches.

    Gain: a CUDA graph is one launch.

    - at most: all the time the GPU waits for the host while decoding, except in loops that read one number
      after another: the host decides there what comes next.
    - at least: the part of it that the host spends in operators, in runtime calls and in launch latency,
      less 1 µs between two kernels of the graph. Python between operators may not be capturable.
    """
    rows = list(iterations)
    if not decodes(rows, step_classes, attention, step_ops, loops):
        return None
    # Steps that read a prompt and write text are mixed: most of their passes decode.
    of = {"decode", "mixed"} if writes_text(step_ops) else {"decode"}
    known = any(row.kind for row in rows)
    eager = [row for row in rows if row.launched_by == "eager" and (row.kind in of or not known)]
    idle = sum(row.idle_ns for row in rows)
    kernels = mean_step.per_step(sum(row.kernels for row in eager))
    starved = mean_step.starved_ns * sum(row.idle_ns for row in eager) / idle if idle else 0.0
    if not kernels or mean_step.share(starved - kernels * GRAPH_LATENCY_NS) < least_share:
        return None
    most = starved * outside_of_read_loops(mean_step, read_loops)
    low = max(0.0, most * _captured_share(idle_gaps, mean_step) - kernels * GRAPH_LATENCY_NS)
    requests = max((row.requests or 0 for row in eager), default=0)
    engine = engine_of(rows)
    return Advice(
        title="Decoding launches its kernels one by one",
        because=f"In {times(len(eager), 'decoding step')} the host launches {often(kernels, 'kernel')} one "
        f"by one. A kernel takes {units.duration(mean_step.busy_ns / kernels)} on average. The GPU is idle "
        f"for {units.share(mean_step.share(starved))} of the time, waiting for the host.",
        saving=Saving(starved_ns=(low, most)),
        certainty="likely",
        fix=fix_of(line(Change.DECODE_GRAPHS, _ANY, requests=requests or 256)),
        check="stepscope show iterations: launched_by is graph, and idle_ns is near 0.",
        evidence={
            "eager_decode_steps": len(eager),
            "kernels_per_step": kernels,
            "starved_ns": round(starved),
            "starved_share": mean_step.share(starved),
            "engine": engine,
        },
        claims=frozenset({Claim(Time.STARVED)}),
    )


def _captured_share(idle_gaps: Iterable[IdleGap], mean_step: MeanStep) -> float:
    """The part of the waiting for the host in operators and calls, which a graph replaces."""
    starved = [
        row for row in idle_gaps if row.device == mean_step.device and row.side in (Side.HOST, Side.LAUNCH)
    ]
    whole = sum(row.idle_ns for row in starved)
    return sum(row.idle_ns for row in starved if row.spent_in in _CAPTURED) / whole if whole else 0.0
