"""Collectives that take many times what the link needs."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.collective_kinds import CollectiveKind
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._communication import (
    exposed_kinds,
    exposed_of,
    in_words,
    is_slow,
    mean_bytes,
    speed_of,
    telling,
)
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.program import Vendor
from stepscope.tables import Table

__all__ = ["slow_collectives"]

_FIX = (
    "NCCL_DEBUG=INFO torchrun --nproc-per-node {ranks} train.py 2>&1 | grep ' via '"
    "    # P2P is right, SHM and NET are slow\n"
    "{topology}\n"
    'profile(on_trace_ready=tensorboard_trace_handler("traces"))'
    "    # on every rank: the late one has the shortest collectives"
)
_TOPOLOGY = {
    True: "rocm-smi --showtopo    # XGMI between all GPUs; RCCL takes NCCL_DEBUG, too",
    False: "nvidia-smi topo -m    # NV… between all GPUs, not PIX, PHB or SYS",
}


@rule(category=Category.COMMUNICATION)
def slow_collectives(
    mean_step: MeanStep,
    facts: Facts,
    steps_by_any: Table[Step],
    kernel_families: Table[KernelFamily],
    collective_kinds: Table[CollectiveKind],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Collectives on one machine take many times what the link between its GPUs needs.

    Even the fastest of a size takes over ten times as long as the link needs for it, with 50 µs of latency.
    Either a rank is late every time, or the transfers do not use the link.

    Gain:

    - at most: the exposed time of these collectives, less what the link needs for them.
    - at least: nothing. If a rank is late, it has to be found first.
    """
    exposed = exposed_of(steps_by_any, kernel_families, mean_step)
    slow = [row for row in collective_kinds if is_slow(row)]
    # Copies that run beside a collective hide it, too.
    whole = sum(row.exposed_ns for row in collective_kinds)
    part = sum(row.exposed_ns for row in slow) / whole if whole else 0.0
    worst = telling(slow)
    if worst is None or part < 0.5 or mean_step.share(part * exposed.device_ns) < least_share:
        return None
    needed = mean_step.per_step(sum(row.total_ns * (row.link_share or 0.0) for row in slow))
    amd = facts.vendor is Vendor.AMD
    return Advice(
        title="Collectives are far slower than the link",
        because="A rank is late, or the fast path was not taken; one rank's profile cannot tell which. "
        f"{speed_of(worst, mean_step)} For {units.duration(exposed.ns)} of a step "
        f"({units.share(mean_step.share(exposed.ns))}) only collectives run"
        f"{in_words(exposed_kinds(collective_kinds), exposed.ns)}, no other kernel and no copy.",
        saving=Saving(device_ns=(0.0, max(0.0, part * exposed.device_ns - needed))),
        certainty="likely",
        fix=fix_of(line(Change.LINKS, _FIX.format(ranks=worst.group_size, topology=_TOPOLOGY[amd]))),
        check="stepscope show collective_kinds: bus_gb_per_s rises to half of link_gb_per_s or more.",
        evidence={
            "collective": worst.kind,
            "collective_bytes": mean_bytes(worst),
            "collective_ns": worst.total_ns / worst.calls,
            "group_size": worst.group_size,
            "bus_gb_per_s": worst.bus_gb_per_s,
            "best_bus_gb_per_s": worst.best_bus_gb_per_s,
            "link": worst.link,
            "link_gb_per_s": worst.link_gb_per_s,
            "exposed_communication_ns": round(exposed.ns),
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
    )
