"""CUDA graphs are captured again and again, where they should be replayed."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from stepscope import units
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._compiling import keeps_capturing
from stepscope.findings._phrases import times as counted
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["graph_captures"]

_SIZES = line(
    Change.CAPTURE_SIZES, "batch = pad_to_bucket(batch, (128, 256, 512))    # a graph for each size"
)
_COMPILED = fix_of(
    _SIZES,
    'TORCH_LOGS="cudagraphs,perf_hints" python train.py    # says why a graph is recorded again',
    line(Change.MARK_STEP, "torch.compiler.cudagraph_mark_step_begin()    # once at the start of each step"),
    "torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True    # no graphs for sizes that vary",
)
_OWN = fix_of(
    _SIZES,
    """\
if batch.shape not in graphs: graphs[batch.shape] = capture(batch)    # graphs = {} before the loop
graph, inputs = graphs[batch.shape]
inputs.copy_(batch, non_blocking=True); graph.replay()""",
)


@rule(category=Category.COMPILE)
def graph_captures(
    mean_step: MeanStep,
    compilations: Table[Compilation],
    iterations: Table[Iteration],
    *,
    least_share: float = 0.02,
    often_share: float = 0.5,
) -> Advice | None:
    """CUDA graphs are captured in steps all through the recording, not only at its start.

    While a graph is captured, its kernels do not run: the host does all of the work of a step without
    graphs, and then instantiates the graph.

    Gain:

    - at most: what steps that capture take longer than the others. If all steps capture: all the time the
      GPU waits for the host, because a capture also waits for the GPU, collects garbage and empties the cache
      of memory.
    - at least: if most steps capture, the time from the beginning of each capture until its graph is ready.
      Otherwise nothing, because new shapes may stop coming.
    """
    steps = keeps_capturing(compilations, iterations)
    rows = [row for row in compilations if row.kind == "capture" and row.step in steps]
    capturing = min(mean_step.starved_ns, mean_step.per_step(sum(row.total_ns for row in rows)))
    if not rows or mean_step.share(capturing) < least_share:
        return None
    often = len(steps) >= often_share * mean_step.steps
    high = max(capturing, min(mean_step.starved_ns, _longer(steps, iterations, mean_step)))
    times = sum(row.times for row in rows)
    compiled = any(row.region for row in rows)
    return Advice(
        title="CUDA graphs are captured again inside the steps",
        because=f"{units.count(len(steps))} of {counted(mean_step.steps, 'recorded step')} capture graphs, "
        f"{counted(times, 'time')} in all and also in the last steps. From the beginning of a capture until "
        f"its graph is ready it takes {units.duration(capturing * mean_step.steps / times)}. A graph that is "
        "captured once can be replayed in every step with the same shapes.",
        saving=Saving(starved_ns=(capturing if often else 0.0, high)),
        certainty="certain" if often else "likely",
        fix=_COMPILED if compiled else _OWN,
        check="stepscope show compilations: no capture in a step after warm-up.",
        evidence={
            "captures": times,
            "steps_with_capture": len(steps),
            "capturing_ns": round(capturing * mean_step.steps),
            "capturing_per_step_ns": round(capturing),
        },
        claims=frozenset({Claim(Time.STARVED, Part.COMPILATION)}),
    )


def _longer(steps: frozenset[int], iterations: Iterable[Iteration], mean_step: MeanStep) -> float:
    """What steps that capture take longer than others, in the mean step."""
    rows = list(iterations)
    with_, without = ([row.dur_ns for row in rows if (row.step in steps) is ours] for ours in (True, False))
    if not without:
        return mean_step.starved_ns
    return max(0.0, mean(with_) - mean(without)) * len(with_) / len(rows)
