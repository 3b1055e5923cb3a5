"""torch.use_deterministic_algorithms() is on."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._fewer_calls import fewer_calls, host_part
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["deterministic_algorithms"]

# Memory that is about to be written is filled first in no other case.
_EMPTY = late_pattern(r"aten::(new_)?empty(_strided|_like|_permuted)?")
# What then sorts its indices, or adds one after the other.
_ORDERED = late_pattern(
    r"aten::(_?index_put_impl_|index_put_?|index_add_?|index_copy_?|scatter(_add|_reduce)?_?|cumsum"
    r"|embedding_dense_backward|put_|gather_backward|repeat_interleave)"
)
_QUICKER = 0.8
"""The part of an ordered sum that adding in any order saves, at most."""
_FIX = fix_of(
    "torch.use_deterministic_algorithms(False)    # on only to look for a difference between two runs",
    "torch.utils.deterministic.fill_uninitialized_memory = False    # at least: no fills, same results",
)


@rule(category=Category.DEVICE)
def deterministic_algorithms(
    mean_step: MeanStep, step_ops: Table[StepOp], *, least_share: float = 0.02
) -> Advice | None:
    """Deterministic algorithms are on: new memory is filled, and sums over indices are made in order.

    Gain:

    - at least: the fills of new memory, on the host and on the GPU.
    - at most: eight tenths of index_put, scatter and the like, too. What convolutions would gain with other
      algorithms is not known and comes on top.
    """
    ops = list(step_ops)
    fills = [op for op in ops if op.name == "aten::fill_" and _EMPTY.fullmatch(op.within or "")]
    if not any(op.device_ns for op in fills):
        return None
    ordered = [
        op for op in ops if _ORDERED.fullmatch(op.name or "") and not _ORDERED.fullmatch(op.within or "")
    ]
    fills_ns = mean_step.per_step(sum(op.device_ns for op in fills))
    ordered_ns = mean_step.per_step(sum(op.device_ns for op in ordered))
    low_part = host_part(fills, ops)
    high_part = min(1.0, low_part + _QUICKER * host_part(ordered, ops))
    saving = fewer_calls(mean_step, (low_part, high_part), (fills_ns, fills_ns + _QUICKER * ordered_ns))
    if mean_step.gain(saving).high_share < least_share:
        return None
    number = sum(op.per_step for op in fills)
    sums = f" Sums over indices take {units.duration(ordered_ns)}." if ordered_ns else ""
    return Advice(
        title="Deterministic algorithms are on",
        because=f"New memory is filled before anything is written to it, {often(number, 'time')}: "
        f"{units.duration(fills_ns)} of GPU time. torch does so only after "
        f"torch.use_deterministic_algorithms(True).{sums}",
        saving=saving,
        certainty="certain",
        fix=_FIX,
        check="stepscope show step_ops: no aten::fill_ within aten::empty.",
        evidence={
            "filling_ns": round(fills_ns),
            "ordered_ns": round(ordered_ns),
            "fills_per_step": number,
        },
        claims=frozenset(
            {Claim(Time.DEVICE, Part.FILLS), Claim(Time.DEVICE, Part.INDEXING), Claim(Time.STARVED)}
        ),
        locations=locations_of(
            (op.user_frame, f"filled, {often(op.per_step, 'time')}", (op.within,))
            for op in sorted(fills, key=lambda op: -op.device_ns)
        ),
    )
