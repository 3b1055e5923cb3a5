"""Autograd records a graph that no backward pass uses."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.recorded_graphs import RecordedGraph
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._fewer_calls import fewer_calls, host_part
from stepscope.findings._inference import infers
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["autograd_in_inference"]

_LESS, _MORE = 0.08, 0.35
"""What recording a node takes of the host's time for an operator, with gradients against inference mode: 14 %
(convolutions) to 30 % (small operators of attention) on an H200's host, 18 to 36 % without a GPU."""
_FIX = fix_of(
    "with torch.inference_mode():    # or torch.no_grad(), if results go into training later",
    "    output = model(batch)",
)


@rule(category=Category.INFERENCE)
def autograd_in_inference(
    mean_step: MeanStep,
    step_classes: Table[StepClass],
    step_ops: Table[StepOp],
    recorded_graphs: Table[RecordedGraph],
    *,
    least_share: float = 0.03,
) -> Advice | None:
    """Inference runs with gradients on: autograd records what no backward pass will use.

    It also keeps all intermediate results until the output is freed, so memory limits the batch sooner.

    Gain: the host's time for operators with a node, where the GPU waits for the host.

    - at most: seven twentieths of it.
    - at least: eight hundredths.
    """
    if not infers(step_classes) or not recorded_graphs:
        return None
    nodes = sum(row.nodes for row in recorded_graphs)
    ops = sum(row.ops for row in recorded_graphs)
    called = [op for op in step_ops if op.within is None]
    recorded = min(1.0, nodes / ops) if ops else 0.0
    part = host_part(called, called) * recorded
    saving = fewer_calls(mean_step, (_LESS * part, _MORE * part), (0.0, 0.0))
    if mean_step.gain(saving).high_share < least_share:
        return None
    host_ns = sum(row.host_ns for row in recorded_graphs)
    return Advice(
        title="Inference records a graph for gradients",
        because=f"Autograd records {often(nodes, 'node')} for {ops} operators, which take the host "
        f"{units.duration(host_ns)}, and no backward pass uses them. Intermediate results are kept as well.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show recorded_graphs: no nodes.",
        evidence={"nodes_per_step": nodes, "ops_per_step": ops},
        claims=frozenset({Claim(Time.STARVED, Part.PYTHON)}),
        locations=locations_of(
            (
                op.user_frame,
                f"{units.duration(mean_step.per_step(op.host_ns))} of host time a step",
                (op.name,),
            )
            for op in sorted(called, key=lambda op: -op.host_ns)[:3]
        ),
    )
