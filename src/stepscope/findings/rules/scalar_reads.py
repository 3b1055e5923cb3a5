"""The host reads scalars from the GPU, which has no work left after each of them."""

from __future__ import annotations

from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.python_frames import PythonFrame
from stepscope.analyses.read_checks import ReadCheck
from stepscope.analyses.read_loops import ReadLoops
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Figure, Saving, rule
from stepscope.findings._phrases import often
from stepscope.findings._read_checks import read_checks_said, with_read_checks
from stepscope.findings._read_loops import read_loops_said, with_read_loops
from stepscope.findings._simulated import simulated
from stepscope.findings._waits import (
    Reason,
    Wait,
    WaitCause,
    held_up,
    launch_costs,
    lead_of,
    lead_won,
    locations_of_waits,
    of_shares,
    read_ops,
    waits_of,
)
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, Fix, FixLine, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["scalar_reads"]

# GradScaler divides all gradients with this operator, then reads whether one of them was not finite.
_UNSCALES = "aten::_amp_foreach_non_finite_check_and_unscale_"
_CLIPPING = "torch/nn/utils/clip_grad.py"
_DISTRIBUTIONS, _PRINTING = "torch/distributions/", "torch/_tensor_str.py"

_ADD_UP = """\
total = torch.zeros((), device="cuda")    # once, before the loop
total += loss.detach()                    # instead of loss.item(), float(loss) or print(loss)
if step % 100 == 0: print((total / 100).item()); total.zero_()"""
_AT_ONCE = """\
seen = scores.gather(1, words)    # all numbers at once, not one by one in a loop
scores = scores.scatter(1, words, torch.where(seen < 0, seen * p, seen / p))
counts = torch.bincount(labels * n + guesses, minlength=n * n)    # all classes; read once, at the end"""
_BRANCH = """\
x = torch.where(x.max() > limit, x / limit, x)    # instead of `if x.max() > limit:`"""

_ONE_CHECK = """\
bad |= ~torch.isfinite(loss.detach())    # a flag on the GPU; what is not finite in a layer reaches the loss
if step % 100 == 0: assert not bad.item()    # then look for the layer with hooks, once"""


@rule(category=Category.SYNC)
def scalar_reads(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    host_syncs: Table[HostSync],
    step_ops: Table[StepOp],
    idle_gaps: Table[IdleGap],
    kernels: Table[Kernel],
    iterations: Table[Iteration],
    python_frames: Table[PythonFrame],
    changed_steps_by_no_reads: Table[ChangedStep],
    read_loops: Table[ReadLoops],
    read_checks: Table[ReadCheck],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """The host reads scalars from the GPU (.item(), float, if) and waits for each.

    Gain: from a simulation of the steps, without the profiler, in which nothing is read.

    - at least: what the simulation gains, less the cheapest operator for each read, to add it up on the GPU.
    - at most: the operator that computed each scalar goes as well, which takes no longer than reading it; and
      the first simulated step, which has no lead from a step before it, does not count.
    - never more than the lead that the host wins: the time of the reads, waits included, as far as the GPU
      waits for the host anywhere in the step. If the GPU waits for the host all the time, the gain is no
      more than the time of the reads.
    - at most, where a loop reads one number after another with little work in between: the whole loop, which
      can be a few operators for all numbers at once.
    - operators that only compute what is read go as well: at most all of them, at least those that look for
      infinities and NaNs, for all reads of a step but one.
    """
    waits = waits_of(host_syncs, step_ops)
    mine = [wait for wait in waits if wait.cause is WaitCause.READ]
    reads = [row for reason, row in read_ops(step_ops) if reason.cause is WaitCause.READ]
    if not mine or mean_step.device is None:
        return None
    per_step = mean_step.per_step(sum(wait.calls for wait in mine))
    waited_ns = sum(wait.waited_ns for wait in mine)
    host = mean_step.per_step(max(_host_ns(reads), waited_ns))
    beside = host - mean_step.per_step(waited_ns)
    cheapest, mean = (per_step * cost for cost in launch_costs(step_ops))
    lead = lead_of(mean_step, (beside - cheapest, beside + min(beside, mean)), kernels, step_ops, iterations)
    others = [wait for wait in waits if wait.cause is not WaitCause.READ]
    saving = lead_won(mean_step, idle_gaps, mine, others, lead)
    instead, part = (cheapest, min(beside, mean)), _part(waits, step_ops)
    saving = _without_reads(mean_step, changed_steps_by_no_reads, saving, instead, part)
    saving = with_read_loops(mean_step, saving, read_loops)
    saving = with_read_checks(mean_step, saving, read_checks, least_share=least_share)
    if mean_step.gain(saving).high_share < least_share:
        return None
    return Advice(
        title="The host reads scalars from the GPU and waits for each",
        because=f"{often(per_step, 'read')}: {held_up(mean_step, host, mine)}"
        f"{read_loops_said(mean_step, read_loops)}{read_checks_said(mean_step, read_checks)}",
        saving=saving,
        certainty="certain",
        fix=_fix(reads, step_ops, python_frames, read_loops, read_checks),
        check="stepscope show host_syncs: no aten::_local_scalar_dense, or only once in many steps.",
        evidence={"reads_per_step": per_step, "host_ns": round(host), **_starved(mean_step, mine)},
        claims=_claims(read_checks),
        locations=locations_of_waits(mine, mean_step.steps, "read"),
    )


def _claims(checks: Table[ReadCheck]) -> frozenset[Claim]:
    """The waits; and what the GPU computes for what is read."""
    computed = [Claim(Time.DEVICE, Part.ELEMENTWISE)] if len(checks) else []
    return frozenset({Claim(Time.STARVED, Part.SYNCS), *computed})


def _starved(mean_step: MeanStep, waits: list[Wait]) -> dict[str, Figure]:
    """How long the GPU waited after them, in ns and as a part of the step."""
    starved = mean_step.per_step(sum(wait.starved_ns for wait in waits))
    return {"starved_ns": round(starved), "starved_share": mean_step.share(starved)}


def _part(waits: list[Wait], step_ops: Table[StepOp]) -> float:
    """The part of all waits for scalars that is for those the program reads itself."""
    reasons = {reason for reason, _ in read_ops(step_ops)} | {Reason(WaitCause.READ)}
    every = sum(wait.waited_ns for wait in waits if wait.reason in reasons)
    mine = sum(wait.waited_ns for wait in waits if wait.cause is WaitCause.READ)
    return mine / every if every else 1.0


def _without_reads(
    mean_step: MeanStep, changed_steps: Table[ChangedStep], lead: Saving, instead: Bounds, part: float
) -> Saving:
    """What a simulation without reads saves of a step; `lead` if there is none.

    `lead` is the upper limit, `instead` the host time of the operators that add scalars up and that compute
    them, and `part` the part of the reads that the program makes itself.
    """
    if not changed_steps:
        return lead
    cheapest, mean = (_of_host(mean_step, ns) for ns in instead)
    (row,) = changed_steps
    modelled, most = mean_step.gain(simulated(mean_step, changed_steps)), mean_step.gain(lead).high_share
    if row.steps > 1:
        most = min(most, modelled.high_share * row.steps / (row.steps - 1) + mean)
    return of_shares(mean_step, min(max(0.0, part * modelled.low_share - cheapest), most), most)


def _of_host(mean_step: MeanStep, host_ns: float) -> float:
    """Recorded host time as a part of the step without the profiler, as far as the GPU waits for it."""
    starved_ns = min(max(0.0, host_ns), mean_step.starved_ns)
    return mean_step.gain(Saving(starved_ns=(0.0, starved_ns))).high_share


def _host_ns(reads: list[StepOp]) -> float:
    """Host time of the reads; if some of a row's calls read host memory, of the part that did not."""
    return sum(row.host_ns * min(1.0, row.launches / row.calls) for row in reads if row.calls)


def _fix(
    reads: list[StepOp],
    step_ops: Table[StepOp],
    frames: Table[PythonFrame],
    loops: Table[ReadLoops],
    checks: Table[ReadCheck],
) -> Fix:
    """What to type, by what reads: a loop over numbers, GradScaler, an `if`, or a number that is logged."""

    def seen(file: str) -> bool:
        return any((row.name or "").startswith(file) for row in frames)

    scaled = sum(row.launches for row in step_ops if row.name == _UNSCALES)
    branches = [row for row in reads if row.within == "aten::is_nonzero"]
    plain = sum(row.launches for row in reads) - sum(row.launches for row in branches)
    lines: list[FixLine | str] = [_AT_ONCE] if len(loops) else []
    if any(row.finite for row in checks):
        lines.append(_ONE_CHECK)
    if plain > scaled:
        lines.append(line(Change.READ_LOSS, _ADD_UP))
    if branches or not scaled:
        lines.append(_BRANCH)
    if scaled:
        lines.append(
            line(
                Change.SCALER,
                'torch.autocast("cuda", torch.bfloat16)    # needs no GradScaler, which reads once a step',
            )
        )
        lines.append(
            line(
                Change.OPTIMIZER,
                "torch.optim.AdamW(…, fused=True)          # or: looks for infinities on the GPU, no read",
            )
        )
    if branches and seen(_DISTRIBUTIONS):
        lines.append(
            "torch.distributions.Distribution.set_default_validate_args(False)    # checks with `if`"
        )
    if seen(_CLIPPING) and any(row.phase == "optimizer" for row in branches):
        lines.append(
            line(Change.CLIPPING, "clip_grad_norm_(…, error_if_nonfinite=False)    # the default: no read")
        )
    if seen(_PRINTING):
        lines.append("if step % 100 == 0: print(tensor)    # print(tensor) reads it, too")
    return fix_of(*lines)
