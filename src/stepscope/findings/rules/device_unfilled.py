"""Kernels that are too small for the GPU."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.graph_replays import GraphReplay
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.launches import SHORT_NS
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Figure, Location, NotKnown, Saving, locations_of, rule
from stepscope.findings._kernels import Ran, ran_in_steps
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, Fix, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["device_unfilled"]

_MODEL = ("forward", "backward", "recomputation")
"""Phases whose work grows with the batch."""
# Kernels that choose the next token, which the next pass needs.
_CHOOSES = late_pattern(r"arg_?max|multinomial|top_?k|top_?p|sampl", re.IGNORECASE)
_LAUNCH_NS = 200_000
"""No launch takes the host this long; compiling, waiting or reading does."""


@dataclass(frozen=True, slots=True)
class _Filling:
    """How well kernels fill the GPU, in a mean step."""

    ns: float
    fill: float
    """The part of the multiprocessors that have a block, averaged over the kernel time."""
    under_one: float
    """The part of that time in which some have none."""
    under_half: float
    mean_ns: float
    """The mean duration of a kernel."""
    starved_ns: float
    """How long the GPU waited for launches of the model's operators."""
    passes: int
    """How often a step repeats the same work; 1 where that is not known."""
    is_accumulating: bool
    """Whether these passes belong to one optimizer step, so that they could be one pass."""

    @property
    def evidence(self) -> dict[str, Figure]:
        """The figures, as a finding shows them."""
        return {
            "filled_share": self.fill,
            "under_one_block_share": self.under_one,
            "under_half_block_share": self.under_half,
            "kernel_mean_ns": self.mean_ns,
            "wasted_ns": round((1 - self.fill) * self.ns),
            "model_starved_ns": round(self.starved_ns),
            "passes_per_step": self.passes,
        }


@rule(category=Category.DEVICE)
def device_unfilled(  # noqa: PLR0913, PLR0917  # a rule's parameters are what it looks at
    mean_step: MeanStep,
    facts: Facts,
    steps_by_any: Table[Step],
    kernels_by_shape: Table[Kernel],
    step_classes: Table[StepClass],
    step_ops: Table[StepOp],
    memory: Table[DeviceMemory],
    graph_replays: Table[GraphReplay],
    *,
    least_fill: float = 0.75,
    least_share: float = 0.01,
    starved_share: float = 0.35,
    most_busy: float = 0.1,
) -> Advice | None:
    """Kernels are too small for the GPU, so a larger batch would take hardly longer.

    Gain, for the same number of samples:

    - at most: the part of the kernel time in which multiprocessors have no block.
    - at least: nothing, because the trace does not tell whether other work could run there.
    - at most, if a step repeats the same work n times: as one pass, each kernel that leaves room or takes
      less than 10 µs runs once, and all waiting for the host falls to 1/n, except for the optimizer's.
    - at least, if these n passes belong to one optimizer step: these kernels fill the GPU, and the waiting
      for the model's operators falls to 1/n. If they are replays of a CUDA graph, each may need the result
      of the one before, and the least is nothing.
    """
    ran = ran_in_steps(kernels_by_shape, steps_by_any, mean_step)
    if not ran or not mean_step.step_ns:
        return None
    device = facts.device(mean_step.device)
    if device is None or not device.multiprocessors or all(one.blocks is None for one in ran):
        raise NotKnown("the number of multiprocessors or the kernels' grids are not in the profile")
    accumulated = _accumulated(step_classes, step_ops)
    passes = accumulated if accumulated > 1 else _replayed(graph_replays, ran, mean_step)
    filling = _filling(ran, device.multiprocessors, passes, accumulated > 1, _starved(step_ops, mean_step))
    saving = _saving(ran, device.multiprocessors, filling, step_ops, mean_step)
    is_unfilled = filling.fill < least_fill and mean_step.gain(saving).high_share >= least_share
    if not is_unfilled and not _is_starved(filling, mean_step, starved_share, most_busy):
        return None
    has_room, room = _room(memory, facts, mean_step, passes)
    return Advice(
        title=f"{'Kernels are' if is_unfilled else 'The batch is'} too small for the GPU",
        because=_because(filling, device.multiprocessors, mean_step),
        saving=saving,
        certainty="likely" if filling.is_accumulating and has_room else "possible",
        fix=_fix(filling, room),
        check="stepscope show throughput: more samples a second; show devices: sm_efficiency rises.",
        evidence={**filling.evidence, "multiprocessors": device.multiprocessors},
        claims=frozenset({Claim(Time.DEVICE), Claim(Time.STARVED)} if passes > 1 else {Claim(Time.DEVICE)}),
        locations=_locations(step_ops),
    )


def _filling(
    ran: Iterable[Ran], multiprocessors: int, passes: int, is_accumulating: bool, starved_ns: float
) -> _Filling:
    known = [(one, one.blocks / multiprocessors) for one in ran if one.blocks is not None]
    whole = sum(one.ns for one, _ in known) or 1.0
    calls = sum(one.kernel.calls for one, _ in known) or 1
    return _Filling(
        ns=whole,
        fill=sum(one.ns * min(1.0, each) for one, each in known) / whole,
        under_one=sum(one.ns for one, each in known if each < 1) / whole,
        under_half=sum(one.ns for one, each in known if each < 0.5) / whole,
        mean_ns=sum(one.kernel.total_ns for one, _ in known) / calls,
        starved_ns=starved_ns,
        passes=passes,
        is_accumulating=is_accumulating,
    )


def _is_starved(filling: _Filling, mean_step: MeanStep, starved_share: float, most_busy: float) -> bool:
    """Whether nearly always the GPU finishes a kernel before the next one is launched."""
    return (
        filling.mean_ns < SHORT_NS
        and mean_step.share(filling.starved_ns) >= starved_share
        and mean_step.share(mean_step.busy_ns) <= most_busy
    )


def _starved(step_ops: Iterable[StepOp], mean_step: MeanStep) -> float:
    """How long the GPU waits for the model's operators in a step; only launching counts."""
    model = [op for op in step_ops if op.within is None and op.phase in _MODEL]
    most = _LAUNCH_NS * sum(op.launches for op in model)
    return mean_step.with_latency(mean_step.per_step(min(most, sum(op.starved_ns for op in model))))


def _accumulated(step_classes: Iterable[StepClass], step_ops: Iterable[StepOp]) -> int:
    """How many passes of the model a step makes for one optimizer step; 1 where that is not known.

    If all operators of the optimizer run once for every pass as well, each pass is a step of its own.
    """
    _, passes = max(((one.steps, one.backward_passes or 1) for one in step_classes), default=(0, 1))
    updates = [op.per_step for op in step_ops if op.phase == "optimizer" and op.within is None]
    return passes if any(per_step % passes for per_step in updates) else 1


def _replayed(graph_replays: Iterable[GraphReplay], ran: Iterable[Ran], mean_step: MeanStep) -> int:
    """How often a step replays the graph that does nearly all of its work; 1 where there is none."""
    spent: dict[int, list[int]] = defaultdict(list)
    for replay in graph_replays:
        if replay.step is not None and replay.device == mean_step.device:
            spent[replay.graph].append(replay.work_ns)
    replays = max(spent.values(), key=sum, default=[])
    is_all = mean_step.per_step(sum(replays)) >= 0.8 * sum(one.ns for one in ran)
    if not is_all or any(_CHOOSES.search(one.name) for one in ran):
        return 1
    return max(1, round(len(replays) / mean_step.steps)) if mean_step.steps else 1


def _saving(
    ran: list[Ran], multiprocessors: int, filling: _Filling, step_ops: Iterable[StepOp], mean_step: MeanStep
) -> Saving:
    if filling.passes == 1:
        wasted = sum(one.ns * (1 - _fill(one, multiprocessors)) for one in ran)
        return Saving(device_ns=(0.0, min(wasted, mean_step.busy_ns)))
    less = 1 - 1 / filling.passes
    low, high = 0.0, 0.0
    for one in ran:
        fill = _fill(one, multiprocessors)
        # What does not run in every pass, such as the optimizer's kernels, stays.
        if one.kernel.calls % filling.passes == 0 and (fill < 1 or one.kernel.mean_ns < SHORT_NS):
            low += one.ns * min(less, 1 - fill)
            high += one.ns * less
    updates = sum(op.starved_ns for op in step_ops if op.within is None and op.phase == "optimizer")
    outside = max(
        filling.starved_ns, mean_step.starved_ns - mean_step.with_latency(mean_step.per_step(updates))
    )
    sure = 1.0 if filling.is_accumulating else 0.0
    # Host and GPU save parts of the same passes: what the GPU worked in between goes with them, whichever of
    # the two sets the pace.
    return Saving(starved_ns=(sure * less * filling.starved_ns, less * outside), waited_ns=(sure * low, high))


def _fill(one: Ran, multiprocessors: int) -> float:
    """The part of the multiprocessors that get a block."""
    return min(1.0, (one.blocks or multiprocessors) / multiprocessors)


def _room(memory: Iterable[DeviceMemory], facts: Facts, mean_step: MeanStep, passes: int) -> tuple[bool, str]:
    """Whether a batch that many times larger certainly fits, and what is known about the memory."""
    device = facts.device(mean_step.device)
    peak = next((row.peak_bytes for row in memory if row.device == mean_step.device), None)
    if not facts.memory or peak is None or device is None or not device.memory_bytes:
        shows = "profile_memory=True" if facts.kind == "kineto" else "nvidia-smi or rocm-smi"
        return False, f"{shows} shows how much memory is free"
    fits = peak * passes < device.memory_bytes
    return fits, f"memory peaks at {units.size(peak)} of {units.size(device.memory_bytes)}"


def _because(filling: _Filling, multiprocessors: int, mean_step: MeanStep) -> str:
    text = f"{_blocks(filling, multiprocessors)}A kernel takes {units.duration(filling.mean_ns)} on average."
    if filling.is_accumulating:
        return f"{text} A step runs the model {filling.passes} times for one optimizer step."
    if filling.passes > 1:
        return f"{text} A step replays one graph {filling.passes} times."
    if mean_step.share(filling.starved_ns) < 0.05:
        return f"{text} Twice the batch would take less than twice as long."
    return (
        f"{text} The GPU waits {units.duration(filling.starved_ns)} of a step for launches, and would wait "
        "no longer with twice the batch. A step would get no shorter, but a sample would take up to "
        f"{units.share(mean_step.share(filling.starved_ns) / 2)} less time."
    )


def _blocks(filling: _Filling, multiprocessors: int) -> str:
    """How much of the kernel time leaves multiprocessors without a block, if any does."""
    one, half = units.share(filling.under_one), units.share(filling.under_half)
    if not filling.under_one:
        return ""
    used = f"{one} of the kernel time is in kernels that use"
    if one == half:
        return f"{used} fewer than half of the GPU's {multiprocessors} multiprocessors. "
    fewer = f" ({half}: fewer than half of them)" if filling.under_half else ""
    return f"{used} only some of the GPU's {multiprocessors} multiprocessors{fewer}. "


def _fix(filling: _Filling, room: str) -> Fix:
    if filling.is_accumulating:
        return fix_of(
            line(
                Change.ACCUMULATION,
                f"criterion(model(batch), labels).backward()    # all {filling.passes} parts at once; {room}",
            )
        )
    if filling.passes > 1:
        return fix_of(
            f"inputs = torch.cat(parts)    # all {filling.passes}, if they are independent; {room}",
            "with torch.cuda.graph(graph): outputs = model(inputs)    # captured once for all",
        )
    return fix_of(
        line(Change.BATCH, f"batch_size *= 4    # {room}", why=room),
        "y = model(torch.stack(parts))    # small inputs together, not one after the other",
        "model(batch[:, :2 * length])    # or longer sequences, if the data has them",
    )


def _locations(step_ops: Iterable[StepOp]) -> tuple[Location, ...]:
    """The functions that launch most of the model's kernels."""
    launches: dict[str, int] = defaultdict(int)
    for op in step_ops:
        if op.user_frame and op.within is None and op.phase in _MODEL:
            launches[op.user_frame] += op.launches
    most = sorted(((count, frame) for frame, count in launches.items() if count), reverse=True)
    return locations_of(
        (frame, f"{units.count(count)} {'launch' if count == 1 else 'launches'} in all steps")
        for count, frame in most
    )
