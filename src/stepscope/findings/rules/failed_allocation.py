"""An allocation failed: the GPU ran out of memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.allocation_failures import AllocationFailure
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.tables import Table

__all__ = ["failed_allocation"]

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
_LIMIT = line(
    Change.ALLOCATOR,
    "torch.cuda.set_per_process_memory_fraction(1.0)    # or leave the call out: it set the limit",
)
_SEGMENT_BYTES = 20 << 20
"""What the allocator asks the driver for, at least, when it needs a block of some size."""


@rule(category=Category.MEMORY)
def failed_allocation(allocation_failures: Table[AllocationFailure]) -> Advice | None:
    """The allocator could not give what was asked for: the snapshot says who held the memory then.

    Gain: none in time. The run failed, or had to go on with less.
    """
    if not len(allocation_failures):
        return None
    rows = list(allocation_failures)
    last = [row for row in rows if (row.device, row.nth) == (rows[-1].device, rows[-1].nth)]
    first = last[0]
    fragmented = first.unused_bytes is not None and first.unused_bytes >= (first.asked_bytes or 0)
    free, needed = first.device_free_bytes, max(first.asked_bytes or 0, _SEGMENT_BYTES)
    limited = free is not None and free >= 2 * needed
    asked = units.size(first.asked_bytes) if first.asked_bytes is not None else "An unknown size"
    said = [f"{asked} was asked for on device {first.device}"]
    if free is not None:
        said[0] += f", and {units.size(free)} was free"
        said[0] += ": the device was not full, the process had reached its limit" if limited else ""
    if first.active_bytes is not None:
        said.append(
            f"{units.size(first.active_bytes)} was in use, and {units.size(first.unused_bytes)} was reserved "
            "and unused" + (": in pieces that were too small" if fragmented else "")
        )
    changes = (_SEGMENTS, *_SMALLER) if fragmented else (*_SMALLER, _SEGMENTS)
    held = [(row.holder_site, f"held {units.size(row.holder_bytes)}: {row.holder_category}") for row in last]
    times = len({(row.device, row.nth) for row in rows})
    return Advice(
        title="An allocation failed: out of memory",
        because=". ".join(said) + "." + (f" {units.count(times)} allocations failed." if times > 1 else ""),
        saving=Saving(),
        certainty="certain",
        fix=fix_of(*((_LIMIT, *changes) if limited else changes)),
        check="stepscope show allocation_failures: none is left.",
        evidence={
            "asked_bytes": first.asked_bytes,
            "device_free_bytes": first.device_free_bytes,
            "active_bytes": first.active_bytes,
            "reserved_bytes": first.reserved_bytes,
            "unused_bytes": first.unused_bytes,
            "failures": times,
        },
        claims=frozenset({Claim(Time.MEMORY)}),
        locations=locations_of(held),
        risk=True,
    )
