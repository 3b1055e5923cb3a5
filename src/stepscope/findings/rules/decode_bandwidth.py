"""Decoding takes far longer than reading the weights."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.rooflines import Roofline
from stepscope.findings import Advice, Category, NotKnown, Saving, rule
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["decode_bandwidth"]

_READ = ("matmul", "attention")
_KNOWN = 0.8
_TUNED = 'model = torch.compile(model, mode="max-autotune")    # kernels tuned for matrices with few rows'
_MORE = "outputs = generate(2 * batch_size)    # more sequences at once: the weights are read once for all"


@rule(category=Category.INFERENCE)
def decode_bandwidth(
    mean_step: MeanStep,
    facts: Facts,
    iterations: Table[Iteration],
    rooflines_by_family: Table[Roofline],
    *,
    most_bandwidth: float = 0.4,
    least_share: float = 0.10,
) -> Advice | None:
    """Decoding takes far longer than the GPU needs to read the weights and the cache.

    Gain: a step that makes one token for each request has to read the weights and the cache once.

    - at most: all of the GPU's busy time beyond that.
    - at least: nothing. The kernels may be too small for the GPU. Then only more requests help, which do not
      make a step shorter.
    """
    rows = list(iterations)
    if not rows or any(row.kind != "decode" for row in rows):
        return None  # the kernels of prompts would count, too
    moved = mean_step.per_step(_read_bytes(rooflines_by_family))
    device = facts.device(mean_step.device)
    if device is None or not device.bytes_per_s:
        raise NotKnown("the memory bandwidth of this GPU is not known")
    needed = moved / device.bytes_per_s * 1e9
    high = mean_step.busy_ns - needed
    if not moved or needed > most_bandwidth * mean_step.busy_ns or mean_step.share(high) < least_share:
        return None
    return Advice(
        title="Decoding uses little of the memory bandwidth",
        because=f"A step reads {units.size(moved)} of weights and cache. At "
        f"{units.rate(device.bytes_per_s, 1e9)} that takes {units.duration(needed)}, but the GPU is busy for "
        f"{units.duration(mean_step.busy_ns)} of a step of {units.duration(mean_step.step_ns)}.",
        saving=Saving(device_ns=(0.0, high)),
        certainty="likely",
        fix=fix_of(line(Change.AUTOTUNE, _TUNED), line(Change.MORE_REQUESTS, _MORE)),
        check="stepscope show rooflines --by family: gb_per_s of matmul rises.",
        evidence={
            "read_bytes": round(moved),
            "needed_ns": round(needed),
            "busy_ns": round(mean_step.busy_ns),
            "bandwidth_share": needed / mean_step.busy_ns,
        },
        claims=frozenset({Claim(Time.DEVICE)}),
    )


def _read_bytes(families: Iterable[Roofline]) -> int:
    """Bytes that matrix products and attention have to move, in all steps."""
    read = [row for row in families if row.family in _READ]
    known = sum(row.work_ns * (row.covered_share or 0.0) for row in read)
    if known < _KNOWN * sum(row.work_ns for row in read):
        raise NotKnown(
            "the profile has no sizes of matrix products, so the size of the weights is not known",
            record="record_shapes=True, and some iterations without CUDA graphs",
        )
    return sum(row.bytes or 0 for row in read)
