"""The GPU's memory is nearly full."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.memory import DeviceMemory
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._device_memory import memory_use
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.tables import Table

__all__ = ["memory_limit"]

FRAGMENTED_SHARE = 0.10
"""Reserved and unused at the peak, as a part of the GPU's memory: this much is more than rounding."""
_SMALLER = (
    line(
        Change.SMALLER_BATCH,
        "batch_size //= 2; accumulation *= 2    # the same gradients, fewer activations",
    ),
    line(
        Change.RECOMPUTE,
        "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)   # computes activations again",
    ),
)
_SEGMENTS = line(
    Change.ALLOCATOR,
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py   # less unused memory between blocks",
)


@rule(category=Category.MEMORY, yields_to=("failed_allocation",))
def memory_limit(
    facts: Facts, memory: Table[DeviceMemory], *, high_share: float = 0.95, risk_share: float = 0.98
) -> Advice | None:
    """The GPU's memory is nearly full: a longer sequence or a larger batch fails.

    Gain: none in time. The run may fail: surely so if tensors take the memory or a request failed. If only
    the allocator's cache takes it, the allocator gives memory back before it fails, which makes the host
    wait for the GPU.
    """
    use = memory_use(memory, facts)
    if use is None:
        return None
    failed = next((note for note in memory.notes if note.startswith("Requests for memory that failed")), None)
    if use.reserved_share < high_share and failed is None:
        return None
    unused = use.held.unused_at_peak_bytes or 0
    fragmented = unused > FRAGMENTED_SHARE * use.memory_bytes
    risk = use.peak_share >= risk_share or failed is not None
    return Advice(
        title="Memory may run out" if risk else "Memory is nearly full",
        because=f"At the peak, tensors took {units.size(use.held.peak_bytes)} of "
        f"{units.size(use.memory_bytes)} ({units.share(use.peak_share)}). The allocator reserved "
        f"{units.share(use.reserved_share)}"
        + (f", of which {units.size(unused)} were unused." if unused else ".")
        + (f" {failed}" if failed else ""),
        saving=Saving(),
        certainty="likely" if risk else "possible",
        fix=fix_of(*((_SEGMENTS, *_SMALLER) if fragmented else (*_SMALLER, _SEGMENTS))),
        check=f"stepscope show memory: reserved_peak_bytes is below {units.share(high_share)} of the memory.",
        evidence={
            "peak_bytes": use.held.peak_bytes,
            "reserved_peak_bytes": use.held.reserved_peak_bytes,
            "unused_at_peak_bytes": use.held.unused_at_peak_bytes,
            "memory_bytes": use.memory_bytes,
            "peak_share": use.peak_share,
            "reserved_share": use.reserved_share,
        },
        claims=frozenset({Claim(Time.MEMORY)}),
        risk=risk,
    )
