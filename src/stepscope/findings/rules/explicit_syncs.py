"""The program itself waits for the GPU in the loop."""

from __future__ import annotations

from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._phrases import often
from stepscope.findings._simulated import simulated
from stepscope.findings._waits import Wait, WaitCause, held_up, locations_of_waits, waits_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["explicit_syncs"]

_WRITTEN = {
    "Device": "torch.cuda.synchronize()",
    "Ctx": "torch.cuda.synchronize()",
    "Stream": "stream.synchronize()",
    "Event": "event.synchronize()",
}
_FIX = """\
# remove {calls} from the loop; to time phases without waiting:
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record(); loss = model(batch); end.record()
pairs.append((start, end))    # after the loop: torch.cuda.synchronize(), start.elapsed_time(end)"""


@rule(category=Category.SYNC)
def explicit_syncs(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    host_syncs: Table[HostSync],
    step_ops: Table[StepOp],
    changed_steps_by_no_explicit_sync: Table[ChangedStep],
    *,
    least_share: float = 0.01,
    least_calls: float = 0.1,
) -> Advice | None:
    """The program waits for the GPU, because torch.cuda.synchronize() was left in the loop.

    Gain: without these waits the host gets ahead of the GPU by the time that they took, until something else
    waits. Nothing replaces them.

    - at most and at least: what a simulation says in which they return at once, with its error either way.
    """
    if mean_step.device is None:
        return None
    waits = waits_of(host_syncs, step_ops)
    mine = [
        wait for wait in waits if wait.cause is WaitCause.EXPLICIT and _asked_for(wait, stacks=facts.stacks)
    ]
    calls = mean_step.per_step(sum(wait.calls for wait in mine))
    if calls < least_calls:  # none of the loop's
        return None
    waited = mean_step.per_step(sum(wait.waited_ns for wait in mine))
    saving = simulated(mean_step, changed_steps_by_no_explicit_sync)
    if mean_step.gain(saving).high_share < least_share:
        return None
    starved = mean_step.per_step(sum(wait.starved_ns for wait in mine))
    return Advice(
        title="The loop synchronises with the GPU",
        because=f"The program itself waits for the GPU ({often(calls, 'wait')}): "
        f"{held_up(mean_step, waited, mine)}",
        saving=saving,
        certainty="certain",
        fix=_FIX.format(calls=_written(host_syncs)),
        check="stepscope show host_syncs: no row without an operator.",
        evidence={
            "waits_per_step": calls,
            "waited_ns": round(waited),
            "starved_ns": round(starved),
            "starved_share": mean_step.share(starved),
        },
        claims=frozenset({Claim(Time.STARVED, Part.SYNCS)}),
        locations=locations_of_waits(mine, mean_step.steps, "wait"),
    )


def _asked_for(wait: Wait, *, stacks: bool) -> bool:
    """Whether the program made it: no GPU starves because of a library's thread, as of collectives."""
    return bool(wait.frame) if stacks else wait.starved_ns > 0


def _written(host_syncs: Table[HostSync]) -> str:
    """The calls, as a program writes them."""
    calls = [row.call or "" for row in host_syncs if row.op is None]
    found = [text for part, text in _WRITTEN.items() if any(f"{part}Synchronize" in call for call in calls)]
    return " and ".join(dict.fromkeys(found)) or "synchronize()"
