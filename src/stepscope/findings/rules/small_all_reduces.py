"""All-reduces of tensor parallelism are so small that they cost mostly latency."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.collective_kinds import CollectiveKind
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.step_classes import StepClass
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._communication import of_kind
from stepscope.findings._inference import infers
from stepscope.findings._phrases import times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["small_all_reduces"]

# Of vLLM and SGLang it is cross_device_reduce_1stage, of torch multimem_all_reduce_kernel and
# one_shot_all_reduce_kernel, of FlashInfer allreduce_fusion_kernel.
_NCCL = late_pattern(r"nccl|rccl", re.IGNORECASE)
ONE_SHOT_NS = 5_000
"""What an all-reduce takes at least if it reads the memory of its peers."""
_ANY = """\
t = torch.distributed._symmetric_memory.empty(shape, dtype=torch.bfloat16, device="cuda")
torch.ops.symm_mem.one_shot_all_reduce(t, "sum", group.group_name)    # or multimem_all_reduce_"""


@rule(category=Category.COMMUNICATION)
def small_all_reduces(  # noqa: PLR0913  # one parameter for each table and threshold
    mean_step: MeanStep,
    iterations: Table[Iteration],
    step_classes: Table[StepClass],
    collective_kinds: Table[CollectiveKind],
    *,
    least_calls: int = 16,
    most_mean_ns: int = 50_000,
    least_share: float = 0.05,
) -> Advice | None:
    """Tensor parallelism makes many small all-reduces, which cost mostly latency.

    Gain: an all-reduce that reads its peers' memory in one kernel takes a few microseconds, or less if it is
    fused with the normalisation after it.

    - at most: all of their time except 5 µs for each.
    - at least: nothing. Part of the time is waiting for a peer that arrived later, and the GPUs may not be
      able to access each other's memory.
    """
    if not infers(step_classes) and not any(row.kind for row in iterations):
        return None
    all_reduces = of_kind(collective_kinds, "all-reduce")
    calls = mean_step.per_step(sum(row.calls for row in all_reduces))
    whole = min(mean_step.per_step(sum(row.total_ns for row in all_reduces)), mean_step.busy_ns)
    if calls < least_calls or whole / calls > most_mean_ns or mean_step.share(whole) < least_share:
        return None
    nccl = sum(row.total_ns for row in all_reduces if _NCCL.search(row.kernel or ""))
    plain = nccl > 0.5 * sum(row.total_ns for row in all_reduces)
    return Advice(
        title="Many small all-reduces cost mostly latency",
        because=f"A step has {times(calls, 'NCCL all-reduce' if plain else 'all-reduce')} of "
        f"{units.duration(whole / calls)} each. They take {units.duration(whole)}, "
        f"{units.share(mean_step.share(whole))} of the step, including the wait for peers.",
        saving=Saving(device_ns=(0.0, max(0.0, whole - calls * ONE_SHOT_NS))),
        certainty="likely",
        fix=fix_of(line(Change.CUSTOM_ALL_REDUCE if plain else Change.FUSED_ALL_REDUCE, _ANY)),
        check="stepscope show kernels: all-reduces other than NCCL's, or fewer and shorter ones.",
        evidence={
            "all_reduces_per_step": calls,
            "all_reduce_mean_ns": whole / calls,
            "all_reduce_ns": round(whole),
            "nccl": plain,
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
    )
