"""How the optimizer updates its tensors, and what one fused kernel for all of them would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal

from stepscope.findings import Bounds, Saving
from stepscope.findings._op_costs import OpCost, cost_of, waits_of
from stepscope.findings.fixes import Change, FixLine, line
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.annotations import Annotation
    from stepscope.analyses.phases import Phase
    from stepscope.analyses.starving_phases import StarvingPhase
    from stepscope.analyses.step_classes import StepClass
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

Kind = Literal["per tensor", "foreach", "fused"]

__all__ = [
    "FINDING_SHARE",
    "Update",
    "accumulates",
    "can_be_fused",
    "cost_of_phase",
    "fused_line",
    "fusing_saves",
    "merged_device_ns",
    "optimizer_time",
    "turns_of",
    "update_of",
]

FINDING_SHARE = 0.15
"""An optimizer that takes more of the step gets a finding of its own."""
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch.optim that have `fused=True`."""
FOREACH = (*FUSED, "NAdam", "RAdam", "RMSprop", "Adadelta", "Adamax", "Rprop", "ASGD")
"""Those that have `foreach=True`."""

# torch names the range of a step `Optimizer.step#AdamW.step`.
_RANGE = late_pattern(r"Optimizer\.step#(\w+)\.step")
# One call for all tensors: torch's own, and an optimizer under torch.compile.
_ONE_CALL = late_pattern(r"fused_(adam|adamw|sgd|adagrad)|^Torch-Compiled Region|^(## )?Call CompiledFxGraph")
_FOREACH = late_pattern(r"^aten::_foreach_(?!norm|zero_|copy)")
# Operators of torch.optim's updates, with how many tensors each reads and writes.
_TRAFFIC = {
    "add": 3, "add_": 3, "sub": 3, "sub_": 3, "mul": 2, "mul_": 2, "div": 2, "div_": 2, "sqrt": 2, "sqrt_": 2,
    "lerp_": 3, "addcmul": 4, "addcmul_": 3, "addcdiv": 4, "addcdiv_": 4, "maximum": 3, "maximum_": 3,
    "reciprocal_": 2, "pow": 2, "neg": 2, "sign": 2, "sign_": 2,
}  # fmt: skip
_FILL = late_pattern(r"aten::(zero_|fill_|_foreach_zero_)")
_PLAIN = late_pattern(rf"^aten::({'|'.join(_TRAFFIC)})$")


@dataclass(frozen=True, slots=True)
class Update:
    """How the tensors are updated, in a mean step."""

    kind: Kind
    name: str | None
    """Of the optimizer's class, if its range was recorded."""
    ops: tuple[StepOp, ...]
    """The operators that do it, without those that only read or count."""
    turns: float
    """How often each of them is called: once for every tensor, or for every list of tensors."""
    calls_per_turn: float
    fills: tuple[StepOp, ...]
    """The operators with which zero_grad fills gradients with zeros."""
    reads: tuple[StepOp, ...]
    """Reads of the step counters, which a fused optimizer does not need."""


def update_of(step_ops: Iterable[StepOp], annotations: Iterable[Annotation]) -> Update | None:
    """How the optimizer of the steps works; None if there is none that launches anything."""
    own = [op for op in step_ops if op.phase == "optimizer" and op.within is None and op.name]
    working = [op for op in own if op.launches]
    names = _names_of(annotations)
    name = names[0] if names else None
    fills = tuple(op for op in working if _FILL.fullmatch(op.name or ""))
    reads = tuple(op for op in own if op.name == "aten::item" and not op.launches)
    fused = tuple(op for op in working if _ONE_CALL.search(op.name or ""))
    lists = tuple(op for op in working if _FOREACH.match(op.name or ""))
    # One optimizer calls lists of tensors beside its kernel to clip; of several, the most expensive counts.
    if fused and (len(names) < 2 or _time(fused) >= _time(lists)):
        return Update("fused", name, fused, sum(op.per_step for op in fused), 1, fills, ())
    plain = tuple(op for op in working if _PLAIN.match(op.name or ""))
    if not lists and not plain:
        return None
    # Clipping calls a few plain operators beside lists of tensors, or the other way round.
    kind: Kind = "foreach" if _launches(lists) >= _launches(plain) else "per tensor"
    ops = lists if kind == "foreach" else plain
    turns, calls = turns_of(ops)
    return Update(kind, name, ops, turns, calls / turns, fills, reads)


def _names_of(annotations: Iterable[Annotation]) -> list[str]:
    """The classes of the optimizers, the most expensive first."""
    found = [(row, match[1]) for row in annotations if (match := _RANGE.match(row.name or ""))]
    return [name for _, name in sorted(found, key=lambda one: -one[0].device_ns - one[0].host_ns)]


def _time(ops: Iterable[StepOp]) -> int:
    """Of the host and of the GPU."""
    return sum(op.host_ns + op.device_ns for op in ops)


def _launches(ops: Iterable[StepOp]) -> int:
    return sum(op.launches for op in ops)


def turns_of(ops: Iterable[StepOp]) -> tuple[float, float]:
    """How often the rarest of the frequent operators is called in a step; and all of them together."""
    counts: dict[str | None, float] = defaultdict(float)
    for op in ops:
        counts[op.name] += op.per_step
    most = max(counts.values())
    return min(count for count in counts.values() if count >= most / 4), sum(counts.values())


def fusing_saves(update: Update, mean_step: MeanStep, starving_phases: Table[StarvingPhase]) -> Saving:
    """What a fused kernel would save of a step.

    The host: n calls for every tensor become one call for all. The Python that looks up each tensor and its
    state costs as much as two of the calls. At least n/(n+2) of the waiting goes, because that Python
    stays. At most all of it goes, because that Python may run while the GPU is still busy with backward. If
    lists of tensors are updated, that Python stays as it is, and all calls except one go, with the reads of
    the step counters.

    The GPU: a fused kernel reads and writes a weight, its gradient and its states once. Every operator goes
    through two to four tensors, which gives the time of one such pass: the median over the operators. At
    least 85 % of the difference goes, because fused kernels do not quite reach the bandwidth of simple
    ones. At most all but one of n operators go, because short kernels take the same time whatever they
    move.
    """
    work = cost_of(update.ops, mean_step)
    n = update.calls_per_turn
    device = merged_device_ns(update.ops, update.turns, n, mean_step)
    if update.kind == "fused":
        return Saving()
    if update.kind == "foreach":
        starved_ns = cost_of(update.reads, mean_step).starved_ns + work.starved_ns * (1 - 1 / n)
        return Saving(
            starved_ns=waits_of(starved_ns, work.launches * (1 - 1 / n), mean_step, starving_phases),
            device_ns=device,
        )
    phase = cost_of_phase(mean_step, starving_phases)
    fills = cost_of(update.fills, mean_step)
    without, _ = waits_of(
        max(0.0, phase.starved_ns - fills.starved_ns), work.launches, mean_step, starving_phases
    )
    _, everything = waits_of(phase.starved_ns, phase.launches, mean_step, starving_phases)
    starved = without * n / (n + 2), everything
    return Saving(starved_ns=starved, device_ns=(device[0], device[1] + fills.device_ns))


def cost_of_phase(mean_step: MeanStep, starving_phases: Iterable[StarvingPhase]) -> OpCost:
    """The optimizer's phase in a mean step, including its Python."""
    rows = [row for row in starving_phases if row.phase == "optimizer"]
    return OpCost(
        calls=0.0,
        starved_ns=mean_step.per_step(sum(row.starved_ns for row in rows)),
        device_ns=mean_step.per_step(sum(row.device_ns for row in rows)),
        launches=mean_step.per_step(sum(row.launches for row in rows)),
    )


def merged_device_ns(
    ops: Sequence[StepOp], turns: float, calls_per_turn: float, mean_step: MeanStep
) -> Bounds:
    """GPU time that one kernel instead of these operators saves; `fusing_saves` explains why."""
    whole_ns = cost_of(ops, mean_step).device_ns
    fused_ns = min(whole_ns, _passes(ops) * turns * _pass_ns(ops, mean_step))
    return 0.85 * (whole_ns - fused_ns), max(whole_ns - fused_ns, whole_ns * (1 - 1 / calls_per_turn))


def _passes(ops: Iterable[StepOp]) -> int:
    """Tensors that a fused update reads and writes: weight and gradient, and each state twice."""
    used = {_short(op.name) for op in ops}
    if used & {"addcmul_", "addcdiv_", "addcmul", "addcdiv"}:
        return 7
    return 5 if "mul_" in used else 3


def _pass_ns(ops: Iterable[StepOp], mean_step: MeanStep) -> float:
    """GPU time of going through one tensor (or list) once."""
    times = [
        mean_step.per_step(op.device_ns) / (op.per_step * _TRAFFIC.get(_short(op.name), 3))
        for op in ops
        if op.per_step
    ]
    return median(times) if times else 0.0


def _short(name: str | None) -> str:
    return (name or "").removeprefix("aten::").removeprefix("_foreach_")


def optimizer_time(
    mean_step: MeanStep, phases: Iterable[Phase], starving_phases: Iterable[StarvingPhase]
) -> float:
    """How long a mean step spends in its optimizer, in ns.

    As far as the host sets the pace, it is the host's time in that phase; otherwise the GPU's work for it and
    the idle time before its launches.
    """
    stretch_ns = mean_step.per_step(sum(row.stretch_ns for row in phases if row.phase == "optimizer"))
    phase = cost_of_phase(mean_step, starving_phases)
    device_ns = phase.device_ns + mean_step.with_latency(phase.starved_ns)
    return mean_step.host_path_share * stretch_ns + (1 - mean_step.host_path_share) * device_ns


def accumulates(step_classes: Iterable[StepClass]) -> bool:
    """Whether most steps have several backward passes, as with gradient accumulation."""
    passes = [(row.backward_passes or 0, row.steps) for row in step_classes]
    several = sum(steps for count, steps in passes if count > 1)
    return several * 2 > sum(steps for _, steps in passes)


def can_be_fused(update: Update) -> bool:
    """Whether torch has a fused kernel for it, as far as its name is known."""
    return update.kind != "fused" and (update.name is None or update.name in FUSED)


def fused_line(name: str | None) -> FixLine:
    """The line of code that makes the optimizer fused, or at least uses lists of tensors."""
    if name is None or name in FUSED:
        text = f"optimizer = torch.optim.{name or 'AdamW'}(parameters, lr=lr, fused=True)"
        # Frameworks choose a fused optimizer by name, and have one for Adam.
        adam = name is None or name.startswith("Adam")
        return line(Change.OPTIMIZER, text, optimizer=name or "AdamW") if adam else FixLine(None, text)
    if name in FOREACH:
        return FixLine(None, f"optimizer = torch.optim.{name}(parameters, lr=lr, foreach=True)")
    return FixLine(
        None, "step = torch.compile(optimizer.step)    # and call step() instead of optimizer.step()"
    )
