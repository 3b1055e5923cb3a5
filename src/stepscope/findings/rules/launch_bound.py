"""The host cannot launch short kernels as fast as the GPU runs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from stepscope import units
from stepscope.analyses.allocations import Allocation
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.compiled_regions import CompiledRegion
from stepscope.analyses.cpu_pauses import CpuPause
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.launches import Launch
from stepscope.analyses.loops import Loop
from stepscope.analyses.many_joins import ManyJoins
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.read_loops import ReadLoops
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Location, Saving, locations_of, rule
from stepscope.findings._joins import joined_share
from stepscope.findings._loops import named_loops, takes_most
from stepscope.findings._read_loops import outside_of_read_loops
from stepscope.findings._starvation import (
    Starvation,
    around_computing,
    computed_on_host,
    starvation_of,
)
from stepscope.findings._waits import WaitCause, waits_of
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, Fix, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.start_up_time import start_up_ns
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["launch_bound"]

GRAPH_LATENCY_NS = (300, 1_000)
"""Between two kernels of a CUDA graph, on recent GPUs."""
_GRAPHS = (
    line(
        Change.GRAPHS,
        'model = torch.compile(model, mode="reduce-overhead")    # fuses kernels, replays CUDA graphs',
    ),
    line(
        Change.MARK_STEP,
        "torch.compiler.cudagraph_mark_step_begin()              # before each step, if outputs are kept",
    ),
)
_FUSED = (
    line(
        Change.COMPILE,
        "model = torch.compile(model)    # fewer kernels, less Python; CUDA graphs once they can be used",
    ),
)
_CHANGING = """\
model = torch.compile(model, dynamic=True, mode="max-autotune-no-cudagraphs")    # shapes change between steps
batch = pad(batch, multiple)    # or pad to a few sizes: then mode="reduce-overhead" captures a graph each"""
_DYNAMIC = (line(Change.DYNAMIC_SHAPES, _CHANGING),)
_FUSABLE = ("elementwise", "copy")
_READY = "Nothing in the profile prevents CUDA graphs."
_OPTIMIZER = "optimizer = torch.optim.AdamW(parameters, fused=True)    # it is not compiled with the model"
_WHY = "memory peaks at {used} of {all}; more work for the same number of launches"


@rule(category=Category.HOST, yields_to=("eager_decode", "abandoned_compilation"))
def launch_bound(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    idle_gaps: Table[IdleGap],
    launches: Table[Launch],
    starving_phases: Table[StarvingPhase],
    host_syncs: Table[HostSync],
    step_ops: Table[StepOp],
    step_classes: Table[StepClass],
    compiled_regions: Table[CompiledRegion],
    allocations: Table[Allocation],
    iterations: Table[Iteration],
    memory: Table[DeviceMemory],
    kernel_families: Table[KernelFamily],
    loops: Table[Loop],
    cpu_pauses: Table[CpuPause],
    read_loops: Table[ReadLoops],
    many_joins: Table[ManyJoins],
    compilations: Table[Compilation],
    *,
    least_share: float = 0.10,
    least_launches: float = 8.0,
    most_starved_ns: float = 1_000_000.0,
    most_captured: float = 0.5,
) -> Advice | None:
    """Kernels take less time than the host needs to launch them, so the GPU waits for each launch.

    Gain: a CUDA graph is one launch, and its kernels follow each other within a microsecond.

    - at most: all waiting for operators, for Python between them (no more than for the operators) and for the
      latency of launches. Compiling, data loading, operators on the CPU, loops that read one number after
      another and lists of hundreds of tensors do not count. If the GPU waited longer than it worked,
      elementwise kernels and copies go as well, fused into others.
    - at least: the optimizer stays as it is, and so does the waiting after calls that synchronise. If
      something prevents CUDA graphs, each launch still costs its call and its latency.

    A host that takes a millisecond for each launch does something other than launching. Where a loop that
    could be one call takes most of the host's time, that is the finding. What launches into a graph that is
    captured does not wait for the GPU.
    """
    count = _Counted.of(mean_step, launches, compiled_regions, _host_ns(mean_step, host_syncs, step_ops))
    if mean_step.device is None or count.launches < least_launches or count.compiled_share > 0.5:
        return None
    if any(row.launched_by == "graph" for row in iterations) or count.median_ns > count.operator_ns:
        return None
    if takes_most(named_loops(loops, step_classes), mean_step, step_ops):
        return None
    if mean_step.share(start_up_ns(mean_step, (), compilations)) > most_captured:
        return None
    blockers = _blockers(mean_step, facts, host_syncs, step_ops, step_classes, allocations)
    joined = joined_share(mean_step, step_ops, many_joins)
    if joined:
        blockers.append("batches of other tensors each time (torch.stack)")
    starved = _launching(mean_step, idle_gaps, step_ops, cpu_pauses)
    part = max(0.0, outside_of_read_loops(mean_step, read_loops) - joined)
    low, high = _saved(starved, count, starving_phases, ready=not blockers)
    bounds = part * low, part * high
    share = mean_step.gain(Saving(starved_ns=bounds)).high_share
    if share < least_share or bounds[1] > most_starved_ns * count.launches:
        return None
    saving = Saving(starved_ns=bounds, device_ns=(0.0, _fused_ns(mean_step, kernel_families)))
    fix = _fix(mean_step, facts, blockers, starving_phases, memory)
    advice = _advice(mean_step, count, blockers, saving, fix)
    return replace(advice, locations=_places(mean_step, step_ops))


def _launching(
    mean_step: MeanStep, idle_gaps: Table[IdleGap], step_ops: Table[StepOp], cpu_pauses: Table[CpuPause]
) -> Starvation:
    """What the host did while the GPU waited for it, without operators on the CPU and Python around them."""
    starved = starvation_of(mean_step, idle_gaps)
    computed = computed_on_host(step_ops)
    computed_ns = mean_step.per_step(sum(row.starved_ns for row in computed))
    around = around_computing(cpu_pauses, computed, mean_step)
    return replace(
        starved,
        dispatch_ns=max(0.0, starved.dispatch_ns - computed_ns),
        python_ns=max(0.0, starved.python_ns - around),
    )


def _places(mean_step: MeanStep, step_ops: Table[StepOp]) -> tuple[Location, ...]:
    """The functions whose operators the GPU waits for most."""
    starved: Counter[str | None] = Counter()
    for row in step_ops:
        if row.within is None:
            starved[row.user_frame] += row.starved_ns
    return locations_of(
        (frame, f"the GPU waits {units.duration(mean_step.per_step(ns))} a step")
        for frame, ns in starved.most_common()
        if ns
    )


def _advice(mean_step: MeanStep, count: _Counted, blockers: list[str], saving: Saving, fix: str) -> Advice:
    ready = f"These prevent CUDA graphs: {'; '.join(blockers)}." if blockers else _READY
    return Advice(
        title="The GPU waits for the host to launch short kernels",
        because=f"A step has {units.count(round(count.launches))} launches. The median one is "
        f"{units.duration(count.median_ns)} of GPU work, but the host spends "
        f"{units.duration(count.operator_ns)} in operators for each. "
        f"So the GPU waits for {units.share(mean_step.share(saving.starved_ns[1]))} of the step. {ready}",
        saving=saving,
        certainty="likely",
        fix=fix,
        check="stepscope show launches: fewer calls, or cudaGraphLaunch; idle_gaps: less 'host op'.",
        evidence={
            "launches_per_step": count.launches,
            "work_median_ns": count.median_ns,
            "host_per_launch_ns": round(count.operator_ns),
            "short_share": count.short_share,
            "starved_share": mean_step.share(mean_step.starved_ns),
            "graph_ready": not blockers,
        },
        claims=frozenset({Claim(Time.STARVED)}),
    )


@dataclass(frozen=True, slots=True)
class _Counted:
    """Launches of the mean step."""

    launches: float
    median_ns: float
    """Of the work behind the most frequent kind of call."""
    call_ns: float
    """Mean time of the calls."""
    operator_ns: float
    """Host time in operators for each of them."""
    short_share: float
    compiled_share: float
    compiling_ns: float

    @classmethod
    def of(
        cls, mean_step: MeanStep, launches: Table[Launch], regions: Table[CompiledRegion], host_ns: float
    ) -> _Counted:
        rows = [row for row in launches if row.work_events]
        calls = sum(row.calls for row in rows)
        work = sum(row.work_events for row in rows)
        compiled = sum(row.device_events + row.backward_device_events for row in regions)
        most = max(rows, key=lambda row: row.calls, default=None)
        host = sum(row.host_ns - row.back_pressure_ns for row in rows)
        return cls(
            launches=mean_step.per_step(calls),
            median_ns=(most.work_median_ns or 0.0) if most else 0.0,
            call_ns=host / calls if calls else 0.0,
            operator_ns=host_ns / mean_step.per_step(calls) if calls and mean_step.steps else 0.0,
            short_share=sum(row.short_kernels for row in rows) / work if work else 0.0,
            compiled_share=compiled / work if work else 0.0,
            compiling_ns=mean_step.per_step(sum(row.compiling_ns for row in regions)),
        )


def _host_ns(mean_step: MeanStep, host_syncs: Table[HostSync], step_ops: Table[StepOp]) -> float:
    """Host time of a step in operators, without waiting for the GPU."""
    inside = sum(row.host_ns for row in step_ops if row.within is None)
    inside -= sum(row.host_ns for row in computed_on_host(step_ops))
    waited = sum(row.waited_ns for row in host_syncs if row.op is not None)
    return mean_step.per_step(max(0, inside - waited))


def _fused_ns(mean_step: MeanStep, kernel_families: Table[KernelFamily]) -> float:
    """Work of a step that a compiler can fuse into its neighbours, if the GPU waits longer than it works."""
    if mean_step.unprofiled_starved_ns[0] < mean_step.busy_ns:
        return 0.0
    fused = sum(row.exclusive_ns for row in kernel_families if row.family in _FUSABLE)
    return min(mean_step.busy_ns, mean_step.per_step(fused))


def _saved(
    starved: Starvation, count: _Counted, starving_phases: Table[StarvingPhase], *, ready: bool
) -> Bounds:
    loading, optimizer = (_share(starving_phases, phase) for phase in ("dataloader", "optimizer"))
    host = (1 - loading) * (starved.dispatch_ns + min(starved.python_ns, starved.dispatch_ns))
    host = max(0.0, host - count.compiling_ns)
    least, most = (starved.gaps * ns for ns in GRAPH_LATENCY_NS)
    high = max(0.0, host + starved.latency_ns - least)
    stays = starved.latency_ns - most if ready else -count.launches * count.call_ns
    return min(high, (1 - optimizer) * max(0.0, host - starved.drained_ns + stays)), high


def _share(starving_phases: Table[StarvingPhase], phase: str) -> float:
    """Part of the waiting for the host that is for one phase."""
    return sum(row.share or 0.0 for row in starving_phases if row.phase == phase)


def _blockers(
    mean_step: MeanStep,
    facts: Facts,
    host_syncs: Table[HostSync],
    step_ops: Table[StepOp],
    step_classes: Table[StepClass],
    allocations: Table[Allocation],
) -> list[str]:
    """What prevents capturing the step in a graph."""
    found = []
    waits = [
        wait
        for wait in waits_of(host_syncs, step_ops)
        if wait.cause is not WaitCause.OTHER and wait.starved_ns
    ]
    per_step = mean_step.per_step(sum(wait.calls for wait in waits))
    if per_step >= 0.5:
        found.append(f"calls that wait for the GPU ({units.tally(per_step)} a step)")
    shapes = {row.batch for row in step_classes if row.batch is not None}
    if len(shapes) > 1:
        found.append(f"batches of {units.count(len(shapes))} shapes")
    asked = sum(row.per_step for row in allocations if row.source == "driver")
    if asked >= 0.5:
        found.append(f"memory requests to the driver ({units.tally(asked)} a step)")
    if facts.backend == "gloo" and (facts.world_size or 1) > 1:
        found.append("collectives on the host (gloo)")
    return found


def _fix(
    mean_step: MeanStep,
    facts: Facts,
    blockers: list[str],
    starving_phases: Table[StarvingPhase],
    memory: Table[DeviceMemory],
) -> Fix:
    shapes = any("shapes" in blocker for blocker in blockers)
    lines = [*(_DYNAMIC if shapes else _FUSED if blockers else _GRAPHS)]
    optimizer = mean_step.per_step(sum(row.starved_ns for row in starving_phases if row.phase == "optimizer"))
    if mean_step.share(optimizer) > 0.05:
        lines.append(line(Change.OPTIMIZER, _OPTIMIZER))
    device = facts.device(mean_step.device)
    used = max((row.peak_bytes for row in memory if row.device == mean_step.device), default=0)
    if device and device.memory_bytes and 0 < used < device.memory_bytes / 2:
        why = _WHY.format(used=units.size(used), all=units.size(device.memory_bytes))
        lines.append(line(Change.BATCH, f"batch_size *= 2    # {why}", why=why))
    return fix_of(*lines)
