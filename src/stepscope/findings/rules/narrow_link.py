"""The GPU's link to the host runs with fewer lanes, or at a lower generation, than it can."""

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

__all__ = ["narrow_link"]

_FULL = 0.7
"""Copies that reach this part of a link's rate are limited by it; a wider one gives them at least as much."""


@rule(category=Category.COPIES)
def narrow_link(
    mean_step: MeanStep, gpu_health: Table[GpuHealth], copies: Table[Copy], *, least_share: float = 0.01
) -> Advice | None:
    """The GPU's PCIe link runs with fewer lanes than it has, and copies to or from the host take longer.

    Gain: copies that the link limits take time in inverse proportion to its rate.

    - at most: the time of copies between host and GPU with no kernel beside them, less what they take on the
      whole link.
    - at least: the same for copies from pinned memory, if they reach 7/10 of the rate that the link has now,
      and if they reach no more than 7/10 of the whole one. Nothing if something else limits them.

    Links that idle go down in generation, not in width. A lower generation counts only if it was the highest
    seen while the GPU was busy.
    """
    row = gpu_of(gpu_health, mean_step.device)
    if row is None or not row.link_width or not row.max_link_width:
        return None
    top = row.max_link_generation
    generation = min(row.link_generation or 0, top or 0) if row.busy_samples else top
    now, whole = link_gb_per_s(generation, row.link_width), link_gb_per_s(top, row.max_link_width)
    if not now or not whole:  # the generation is not known: lanes alone tell the part
        now, whole = float(row.link_width), float(row.max_link_width)
    kept = now / whole
    every, pinned = HostCopies(copies, mean_step), HostCopies(copies, mean_step, "pinned")
    most = every.exposed_ns * (1 - kept)
    if kept >= 1 or mean_step.share(most) < least_share:
        return None
    full = generation and pinned.gb_per_s is not None and pinned.gb_per_s >= _FULL * now
    least = pinned.exposed_ns * max(0.0, 1 - kept / _FULL) if full else 0.0
    reach = f" at {pinned.gb_per_s:.0f} GB/s" if pinned.gb_per_s else ""
    return Advice(
        title="The GPU's link to the host is narrower than it can be",
        because=f"The PCIe link runs with {row.link_width} of {row.max_link_width} lanes"
        + (f", at generation {generation} of {top}" if generation and top else "")
        + f": {units.share(kept)} of its rate. Copies between host and GPU take "
        f"{units.duration(every.exposed_ns)} of a step with no kernel beside them{reach}.",
        saving=Saving(waited_ns=(min(least, most), most)),
        certainty="likely",
        fix=fix_of(
            line(
                Change.MACHINE,
                "nvidia-smi -q -d PCIE    # Link Width, Current against Max: reseat the card or its riser, "
                "look at the slot and the BIOS",
            )
        ),
        check="stepscope show gpu_health: link_width equals max_link_width.",
        evidence={
            "link_width": row.link_width,
            "max_link_width": row.max_link_width,
            "link_generation": generation,
            "max_link_generation": top,
            "exposed_ns": round(every.exposed_ns),
            "pinned_gb_per_s": pinned.gb_per_s,
        },
        claims=frozenset({Claim(Time.WAITED, Part.COPY)}),
    )
