"""Workspaces of libraries take much of the memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.allocator_holders import AllocatorHolder
from stepscope.analyses.allocators import Allocator
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._snapshots import fullest
from stepscope.findings.claims import Claim, Part, Time
from stepscope.tables import Table

__all__ = ["large_workspaces"]

_FIX = """\
CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8 python train.py      # 8 MiB for each handle and stream
torch.backends.cudnn.benchmark_limit = 5                  # fewer trials with large workspaces"""


@rule(category=Category.MEMORY)
def large_workspaces(
    allocators: Table[Allocator],
    allocator_holders: Table[AllocatorHolder],
    *,
    least_share: float = 0.05,
    least_bytes: int = 128 << 20,
) -> Advice | None:
    """CuBLAS or cuDNN keep workspaces that take much of the memory in use.

    Gain: none in time; smaller workspaces may make some products slower.
    """
    held = fullest(allocators)
    if held is None:
        return None
    rows = [row for row in allocator_holders if row.device == held.device and row.category == "workspaces"]
    total, blocks = sum(row.bytes for row in rows), sum(row.blocks for row in rows)
    if total < max(least_bytes, least_share * held.active_bytes):
        return None
    return Advice(
        title="Workspaces of libraries take much of the memory",
        because=f"{units.counted(blocks, 'workspace')} of cuBLAS or cuDNN hold {units.size(total)}, "
        f"{units.share(total / held.active_bytes)} of what is in use. There is one for each handle and "
        "stream.",
        saving=Saving(),
        certainty="likely",
        fix=_FIX,
        check="stepscope show allocator_holders: fewer bytes of workspaces.",
        evidence={"workspaces_bytes": total, "workspaces": blocks, "in_use_bytes": held.active_bytes},
        claims=frozenset({Claim(Time.MEMORY, Part.MATMUL)}),
        locations=locations_of((row.site, units.size(row.bytes)) for row in rows),
    )
