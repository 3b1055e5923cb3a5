"""A loop in Python calls the same operators again and again, where one call could do."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.loops import Loop
from stepscope.analyses.phases import Phase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._fewer_calls import fewer_calls
from stepscope.findings._loops import NamedLoop, in_backward_ops, named_loops
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["repeated_calls"]

_LEAST = 0.85
"""Of the host's time that goes at least: gathering inputs and taking results apart costs some."""

_FALLBACK = "model = torch.compile(model)    # if they cannot become one: fewer kernels, less Python"


@rule(category=Category.HOST, yields_to=("eager_decode", "recomputed_encoder", "recomputed_tokens"))
def repeated_calls(
    mean_step: MeanStep,
    loops: Table[Loop],
    step_classes: Table[StepClass],
    step_ops: Table[StepOp],
    phases: Table[Phase],
    *,
    least_share: float = 0.10,
) -> Advice | None:
    """A loop in Python calls the same operators for one thing after another, where one call could do.

    Gain, if all repetitions become one:

    - at most: 1/n is left of the host's time for n repetitions, with the Python around their operators and
      all of their backward pass, and 1/n of the GPU's time in kernels under 50 µs, which seldom fill it. If
      each reads a result, the host waits for the GPU no more, and runs ahead of it. Of tables that are looked
      up one by one, as much of the GPU's time in their gradients.
    - at least: some of what the host saves goes into gathering inputs (15 %), and the GPU saves time only in
      kernels under 10 µs. Of penalties and of loops over classes, nothing of the backward pass: its other
      nodes may take most of it. Nothing at all, if the profile does not tell whether a repetition needs the
      result of another.
    """
    # Of the backward pass, what lies between two operators goes with them at most.
    whole_ns = sum(row.stretch_ns for row in phases if row.phase == "backward")
    backward_ns = in_backward_ops(step_ops), whole_ns
    named = named_loops(loops, step_classes)
    found = [_Merged.of(mean_step, loop, backward_ns, _gradients_ns(loop, step_ops)) for loop in named]
    best = max(found, key=lambda one: mean_step.gain(one.saving).high_share, default=None)
    if best is None or mean_step.gain(best.saving).high_share < least_share:
        return None
    return _advice(best)


@dataclass(frozen=True, slots=True)
class _Merged:
    """A loop, and what a step saves without it."""

    loop: NamedLoop
    host_part: float
    """Of the host's work in a step."""
    saving: Saving

    @classmethod
    def of(cls, mean_step: MeanStep, loop: NamedLoop, backward_ns: Bounds, gradients_ns: int) -> _Merged:
        """What is saved if all repetitions become one.

        Their gradients may take so long on the GPU, in all steps, in kernels of their own.
        """
        part, most = (loop.host_part(mean_step, ns) for ns in backward_ns)
        most = max(part, most)
        times = 2 if loop.has_backward else 1  # it takes as long on the GPU as the forward pass, or longer
        tiny = times * loop.merged(lambda row: row.tiny_ns)
        short = times * loop.merged(lambda row: row.short_ns)
        short += mean_step.per_step(gradients_ns * (1 - 1 / loop.repeats))
        if not loop.can_merge:
            return cls(loop, part, fewer_calls(mean_step, (0.0, most), (0.0, short)))
        least = part if loop.kind.even_backward else loop.host_part(mean_step, 0.0)
        saving = fewer_calls(mean_step, (_LEAST * least, most), (tiny, short), waits_go=loop.reads)
        return cls(loop, part, saving)


def _gradients_ns(loop: NamedLoop, step_ops: Table[StepOp]) -> int:
    """The GPU's time in gradients that become one with the loop."""
    if not loop.kind.node:
        return 0
    return sum(op.device_ns for op in step_ops if op.name == loop.kind.node)


def _advice(merged: _Merged) -> Advice:
    loop = merged.loop
    doubt = " Whether a call needs the result of the one before is not in the profile."
    stays = (
        " Each turn looks up ids (nn.Embedding), and nothing in the loop makes or brings any. If they are "
        "always the same, what is computed from them alone, such as an encoded text, belongs before the loop."
    )
    return Advice(
        title=loop.title,
        because=f"{loop.story} One call for all would save {units.share(merged.host_part)} of the host's "
        f"time in a step.{'' if loop.can_merge else doubt}{stays if loop.ids_may_stay else ''}",
        saving=merged.saving,
        certainty="likely" if loop.can_merge else "possible",
        fix=fix_of(loop.kind.fix, line(Change.COMPILE, _FALLBACK)),
        check="stepscope show loops: the loop is gone; launches: fewer calls.",
        evidence={
            "loop_repeats": loop.repeats,
            "loop_ops": loop.rows[0].ops,
            "loop_host_ns": sum(row.host_ns for row in loop.rows),
            "loop_launches": sum(row.launches for row in loop.rows),
            "host_share": merged.host_part,
            "can_merge": loop.can_merge,
        },
        claims=frozenset({Claim(Time.STARVED), *([Claim(Time.DEVICE)] if loop.kind.node else [])}),
        locations=loop.locations,
    )
