"""torch.compile looks for compiled code, and none runs."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.attention import Attention
from stepscope.analyses.kernel_chains import ANCHORS, FUSED, KernelChain
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.costs.families import family_of
from stepscope.findings import Advice, Category, rule
from stepscope.findings._chains import chains_of, fusible, saved_by_fusing
from stepscope.findings._compiling import LOOKUP, holds_code
from stepscope.findings._fewer_calls import called_as, fewer_calls, host_part
from stepscope.findings._op_costs import places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["abandoned_compilation"]

_LEAST_SHARE = 0.02
_SURE = 0.4
"""Of the host's time in operators that can be fused. Five programs on an H200 whose host sets the pace saved
0.4 to 1.0 of it, without CUDA graphs; compiled code has costs of its own."""
_FIX = fix_of(
    'TORCH_LOGS="recompiles,graph_breaks" python train.py    # which value differs, or what stops it',
    'self.count = torch.zeros((), device="cuda")    # what differs from call to call: no number in Python',
    line(Change.COMPILE, "torch.compile(model, dynamic=True)    # if sizes differ from call to call"),
    line(Change.GRAPHS, 'torch.compile(model, mode="reduce-overhead")    # once it compiles: CUDA graphs'),
)


@rule(category=Category.COMPILE)
def abandoned_compilation(
    mean_step: MeanStep,
    step_ops: Table[StepOp],
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    kernel_chains: Table[KernelChain],
    attention: Table[Attention],
) -> Advice | None:
    """Torch looks for compiled code and runs none: compiling was given up, and operators run one by one.

    Gain: what compiled code gains, if all of it is compiled.

    - at most: elementwise operators in a row, with norms, reductions and casts beside them, become one
      kernel. Of the host's time in such operators and their gradients, nothing is left.
    - at least: 0.4 of that.
    """
    looks = [op for op in step_ops if op.name == LOOKUP]
    if not looks or any(holds_code(op.name) for op in step_ops):
        return None
    if any(FUSED.match(row.name or "") for row in kernels):
        return None
    chains = chains_of(mean_step, kernels, kernel_families, step_ops)
    host = host_part((op for op in step_ops if _can_be_fused(op)), step_ops)
    device = saved_by_fusing(mean_step, fusible(kernel_chains, attention), chains)
    saving = fewer_calls(mean_step, (_SURE * host, host), device)
    if mean_step.gain(saving).high_share < _LEAST_SHARE:
        return None
    calls = mean_step.per_step(sum(op.calls for op in looks))
    return Advice(
        title="torch.compile gave up: no compiled code runs",
        because=f"Torch looks for compiled code {often(calls, 'time')} and never runs any: a function was "
        "compiled for one value after the other, until torch's limit of versions (recompile_limit), or "
        "nothing in it could be compiled. Its operators run one by one: "
        f"{often(chains.calls, 'elementwise kernel')} take {units.duration(chains.time_ns)}, and "
        f"{units.share(host)} of the host's time in operators is in such as could be fused.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show compiled_regions: there are some; and kernels are named triton_….",
        evidence={
            "lookups_per_step": calls,
            "elementwise_ns": chains.time_ns,
            "kernels_per_step": chains.calls,
            "host_part": host,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE), Claim(Time.STARVED, Part.ELEMENTWISE)}),
        locations=places_of(looks),
    )


def _can_be_fused(op: StepOp) -> bool:
    """Whether it launches work of forward or backward that a compiler makes one kernel of with others."""
    launching = op.within is None and op.launches and op.phase != "optimizer"
    return bool(launching) and family_of(None, called_as(op)) not in ANCHORS
