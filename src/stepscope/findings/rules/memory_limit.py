"""The device's memory is nearly full."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.memory import DeviceMemory
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._device_memory import memory_use
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.tables import Table

__all__ = ["memory_limit"]

FRAGMENTED_SHARE = 0.10
"""Reserved, and not used at the peak, of what the device has: so much is more than rounding."""
_SMALLER = """\
batch_size = batch_size // 2; accumulation = 2 * accumulation    # the same gradients, fewer activations
x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)   # computes activations again"""
_SEGMENTS = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py   # less lies unused between blocks"
)


@rule(category=Category.MEMORY)
def memory_limit(
    facts: Facts, memory: Table[DeviceMemory], *, high_share: float = 0.95, risk_share: float = 0.98
) -> Advice | None:
    """The device's memory is nearly full: a longer sequence or a larger batch fails.

    Gain: none in time. It is about a run that may fail: for sure it is near the limit where tensors
    themselves take it, or where a request failed; where only the allocator's cache does, the allocator
    gives memory back before it fails, at the price of waiting for the device.
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
        because=f"Tensors took {units.size(use.held.peak_bytes)} of {units.size(use.memory_bytes)} at the "
        f"peak ({units.share(use.peak_share)}), the allocator held {units.share(use.reserved_share)}; "
        f"{units.size(unused)} of that lay unused." + (f" {failed}" if failed else ""),
        saving=Saving(),
        certainty="likely" if risk else "possible",
        fix="\n".join([_SEGMENTS, _SMALLER] if fragmented else [_SMALLER, _SEGMENTS]),
        check=f"stepscope show memory: reserved_peak_bytes is below {units.share(high_share)} of the device.",
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
