"""cuDNN does not try which algorithm is fastest, although shapes stay the same."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.rooflines import Roofline
from stepscope.analyses.run_settings import RunSetting
from stepscope.analyses.step_classes import StepClass
from stepscope.findings import Advice, Category, NotKnown, Saving, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["untuned_convolutions"]

_FIX = fix_of(
    line(
        Change.TUNED_CONVOLUTIONS,
        "torch.backends.cudnn.benchmark = True    # once, before the first step; cuDNN tries each shape once",
    )
)


@rule(category=Category.DEVICE)
def untuned_convolutions(
    mean_step: MeanStep,
    run_settings: Table[RunSetting],
    kernel_families: Table[KernelFamily],
    rooflines_by_family: Table[Roofline],
    step_classes: Table[StepClass],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Convolutions have the same shapes in every step, but cudnn.benchmark is off.

    Gain: cuDNN then guesses which of its algorithms is fastest for a shape, and does not try them.

    - at most: the time of the convolutions above what the peak of the GPU allows for their FLOPs and bytes;
      where these are not known, all of it.
    - at least: nothing, because the guess may be right.
    """
    switches = {row.name: row.value for row in run_settings if row.part == "torch"}
    reproducible = "true" in (switches.get("deterministic_algorithms"), switches.get("cudnn_deterministic"))
    if switches.get("cudnn_benchmark") != "false" or switches.get("cudnn_enabled") == "false" or reproducible:
        return None
    spent = sum(row.exclusive_ns for row in kernel_families if row.family == "convolution")
    spent_ns = min(mean_step.per_step(spent), mean_step.busy_ns)
    if mean_step.share(spent_ns) < least_share:
        return None
    shapes = {row.batch for row in step_classes}
    if None in shapes:
        raise NotKnown("whether shapes stay the same was not recorded", "record_shapes=True")
    if len(shapes) != 1:
        return None
    near = _near_roof(rooflines_by_family)
    at_peak = f", at {units.share(near)} of what the GPU can do" if near else ""
    return Advice(
        title="cuDNN does not try which convolution is fastest",
        because="torch.backends.cudnn.benchmark is off, and every step has the same shapes. Convolutions "
        f"take {units.duration(spent_ns)} of a step ({units.share(mean_step.share(spent_ns))}){at_peak}.",
        saving=Saving(device_ns=(0.0, spent_ns * (1 - min(1.0, near or 0.0)))),
        certainty="possible",
        fix=_FIX,
        check="stepscope show kernel_families: convolution takes less time.",
        evidence={
            "convolution_ns": round(spent_ns),
            "convolution_share": mean_step.share(spent_ns),
            "roof_share": near,
            "steps": mean_step.steps,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.CONVOLUTION)}),
    )


def _near_roof(rows: Iterable[Roofline]) -> float | None:
    """How near convolutions come to what computing or memory allows; None if that is not known."""
    for row in rows:
        if row.family == "convolution" and (row.covered_share or 0.0) >= 0.5:
            shares = [share for share in (row.peak_share, row.bandwidth_share) if share is not None]
            return max(shares, default=None)
    return None
