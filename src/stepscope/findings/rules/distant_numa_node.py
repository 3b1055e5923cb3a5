"""The process runs on CPUs of another NUMA node than its GPU's."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.gpu_health import GpuHealth
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._gpu_state import HostCopies, gpu_of, link_gb_per_s
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["distant_numa_node"]


@rule(category=Category.COPIES)
def distant_numa_node(
    mean_step: MeanStep, gpu_health: Table[GpuHealth], copies: Table[Copy], *, least_share: float = 0.01
) -> Advice | None:
    """The process may only use CPUs of a NUMA node that its GPU is not attached to.

    Gain: what is copied between host and GPU crosses the link between the nodes, which is slower than the
    GPU's own and is shared.

    - at most: the time of these copies with no kernel beside them, less what the GPU's own link takes for as
      many bytes.
    - at least: nothing, because the profile does not tell what else slows them down.
    """
    row = gpu_of(gpu_health, mean_step.device)
    if row is None or row.numa_node is None or not row.process_numa_nodes:
        return None
    nodes = row.process_numa_nodes.split(", ")
    if str(row.numa_node) in nodes:
        return None
    found = HostCopies(copies, mean_step)
    rate = link_gb_per_s(row.max_link_generation or row.link_generation, row.link_width)
    most = max(0.0, found.exposed_ns - (found.exposed_bytes / rate if rate else 0.0))
    if mean_step.share(most) < least_share:
        return None
    theirs = "node" if len(nodes) == 1 else "nodes"
    return Advice(
        title="The process runs far from its GPU (NUMA)",
        because=f"The GPU is attached to NUMA node {row.numa_node}, and the process may only use CPUs of "
        f"{theirs} {row.process_numa_nodes}. Copies between host and GPU take "
        f"{units.duration(found.exposed_ns)} of a step with no kernel beside them"
        + (f", at {found.gb_per_s:.0f} GB/s" if found.gb_per_s else "")
        + ".",
        saving=Saving(waited_ns=(0.0, most)),
        certainty="possible",
        fix=fix_of(
            line(
                Change.MACHINE,
                f"numactl --cpunodebind={row.numa_node} --membind={row.numa_node} python train.py ..."
                "    # for each rank, that of its GPU: nvidia-smi topo -m",
            )
        ),
        check="stepscope show gpu_health: process_numa_nodes contains numa_node.",
        evidence={
            "numa_node": row.numa_node,
            "process_numa_nodes": row.process_numa_nodes,
            "exposed_ns": round(found.exposed_ns),
            "gb_per_s": found.gb_per_s,
            "link_gb_per_s": rate,
        },
        claims=frozenset({Claim(Time.WAITED, Part.COPY)}),
    )
