"""Compiled code launches its kernels one by one."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.compiled_regions import CompiledRegion
from stepscope.analyses.graph_skips import GraphSkip
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Saving, locations_of, rule
from stepscope.findings._compile_log import skips_said
from stepscope.findings._compiling import CompiledCode, compiled_code, ordinary_step_ns
from stepscope.findings._phrases import if_idle, often, times
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["missed_graphs"]

REPLAY_NS = 300_000
"""Host time of one replay of a region's graph while recording: inputs are checked, and copied if they moved.
On one machine it was 400 µs with the profiler and under 200 µs without."""
STEADY_SHARE = 0.7
"""A graph is captured for one shape: this part of the steps must be alike."""
_FIX = fix_of(
    line(
        Change.GRAPHS,
        'model = torch.compile(model, mode="reduce-overhead")   # or "max-autotune": both replay CUDA graphs',
    ),
    line(
        Change.MARK_STEP,
        "torch.compiler.cudagraph_mark_step_begin()             # before each step, if outputs are kept",
    ),
    'TORCH_LOGS="perf_hints" python train.py                # logs why graphs were skipped',
)

_SKIPPED = """\
# move work on the CPU, mutated inputs and shapes that vary out of the compiled function
TORCH_LOGS="cudagraphs,perf_hints" python train.py     # says the same for each function"""


@rule(category=Category.COMPILE, yields_to=("unfused_backend",))
def missed_graphs(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    compiled_regions: Table[CompiledRegion],
    step_ops: Table[StepOp],
    step_classes: Table[StepClass],
    graph_skips: Table[GraphSkip] | None = None,
    *,
    least_share: float = 0.03,
    least_kernels: float = 4.0,
) -> Advice | None:
    """Compiled code launches its kernels one by one while the GPU waits, and could replay a CUDA graph.

    Gain: a CUDA graph is one launch, and its kernels follow each other without the host.

    - at most: all the host's time in compiled code, as far as the GPU waited for the host. With graphs the
      host runs ahead of the GPU, and the rest of its work is hidden.
    - at least: what the GPU waited inside compiled graphs, with the latency of their launches, less the
      cost of the replays. With stacks nothing, unless the step was also timed without the profiler: stacks
      slow generated code down by more than its events tell, and the host may not be slow without them.

    A compile log beside the profile says why graphs were skipped. Of a log alone, the gain is not known.
    """
    if not mean_step.steps:
        return _of_log(graph_skips)
    rows = [row for row in compiled_regions if row.calls and not row.graph_launches]
    runs = sum(row.calls for row in rows)
    kernels = sum(row.device_events + row.backward_device_events for row in rows)
    if not runs or kernels / runs < least_kernels or not _steady(step_classes):
        return None
    code = compiled_code(step_ops, compiled_regions)
    starved_ns, waited = _starved(mean_step, rows, code, compiled_regions)
    if facts.stacks and mean_step.measured_ns is None:
        starved_ns = 0.0, starved_ns[1]
    saving = Saving(starved_ns=starved_ns)
    if mean_step.gain(saving).high_ns < least_share * ordinary_step_ns(mean_step, step_classes):
        return None
    device_ns = sum(row.device_ns + row.backward_device_ns for row in rows)
    return Advice(
        title="Compiled code does not use CUDA graphs",
        because=f"Compiled code launches {often(kernels / mean_step.steps, 'kernel')} one by one, each "
        f"{units.duration(device_ns / kernels)} long on average."
        + if_idle(waited, f"The GPU waits {{}} a step ({units.share(mean_step.share(waited))}) for them.")
        + skips_said(graph_skips),
        saving=saving,
        certainty="likely" if mean_step.steps > 1 else "possible",
        fix=_FIX,
        check="stepscope show compiled_regions: graph_launches is no longer 0; idle_gaps: less time.",
        evidence={
            "kernels_per_step": kernels / mean_step.steps,
            "kernel_mean_ns": device_ns / kernels,
            "starved_in_compiled_code_ns": round(waited),
            "regions": len(rows),
        },
        claims=frozenset({Claim(Time.STARVED)}),
        locations=locations_of((frame, "runs compiled code") for frame in code.frames),
    )


def _of_log(skips: Table[GraphSkip] | None) -> Advice | None:
    """What a log says where there is no profile."""
    rows = list(skips or ())
    if not rows:
        return None
    regions = sum(row.regions for row in rows)
    return Advice(
        title="CUDA graphs were asked for and skipped",
        because=f"Torch made no CUDA graph for {times(regions, 'compiled region')}.{skips_said(rows)}",
        saving=Saving(known=False),
        certainty="certain",
        fix=_SKIPPED,
        check="stepscope show graph_skips: no rows.",
        evidence={"skips": sum(row.skips for row in rows), "regions": regions},
        claims=frozenset({Claim(Time.STARVED)}),
    )


def _steady(step_classes: Table[StepClass]) -> bool:
    steps = [row.steps for row in step_classes]
    return bool(steps) and max(steps) >= STEADY_SHARE * sum(steps)


def _starved(
    mean_step: MeanStep,
    rows: list[CompiledRegion],
    code: CompiledCode,
    compiled_regions: Table[CompiledRegion],
) -> tuple[Bounds, float]:
    """What graphs save, and what the GPU waited for compiled code, in ns of a step."""
    host = mean_step.per_step(sum(row.host_self_ns + row.backward_host_ns for row in rows))
    if not code.host_ns:  # this torch marked no runs: the regions are known by their graphs alone
        return (0.0, min(mean_step.starved_ns, host)), min(mean_step.starved_ns, host)
    everything = mean_step.per_step(sum(row.host_self_ns + row.backward_host_ns for row in compiled_regions))
    part = host / everything if everything else 1.0
    waited = min(mean_step.starved_ns, part * mean_step.per_step(code.starved_ns))
    most = max(
        mean_step.with_latency(waited), min(mean_step.starved_ns, part * mean_step.per_step(code.host_ns))
    )
    replays = REPLAY_NS * mean_step.per_step(sum(row.calls + row.backward_calls for row in rows))
    least = mean_step.with_latency(part * mean_step.per_step(code.graph_starved_ns)) - replays
    return (min(max(0.0, least), most), most), waited
