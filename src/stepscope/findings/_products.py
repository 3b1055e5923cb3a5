"""Matrix products, convolutions and attention in one data type, and what another type would save.

Shared by the rules about data types, which differ in the types they look for and in the one they advise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Bounds, Location, Saving, locations_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import DeviceFacts
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

__all__ = [
    "NARROW",
    "Products",
    "claims_of",
    "half_type",
    "heaviest",
    "is_tf32",
    "is_worth",
    "off_device",
    "peak_of",
    "products_in",
    "saved_ns",
]

NARROW = ("bf16", "fp16", "fp8", "fp4", "int8")
"""Data types of 16 bits or less."""

_SHORTEST_NS = 2_000
"""What the shortest kernels of matrix products take on an H200, however little they do."""
_SHORT_NS = 6_000
"""What kernels of small products take if the library has none that fits them well."""

_NEARER = {"tf32": 0.8}
"""TF32 kernels stay further below their peak: in one model (H200) at 0.64 of it, bf16 at 0.80."""
_LONG_NS = 10_000
"""Shorter kernels are mostly latency: no data type makes them faster."""

_WORDS = {"matmul": "matrix products", "convolution": "convolutions", "attention": "attention"}
# ATen operators that launch these kernels themselves: matrix products, convolutions and attention.
_HEAVY_OPS = late_pattern(
    r"aten::(_?(add|badd)?b?mm_?|_scaled_mm|(cudnn|miopen|mkldnn)_convolution.*|convolution_backward"
    r"|_(cudnn|miopen)_rnn|_thnn_conv2d_forward|_conv_depthwise2d|_(scaled_dot_product_)?\w+_attention\w*)"
)


@dataclass(frozen=True, slots=True)
class Products:
    """Work in some data types: its time and calls in a mean step."""

    rows: tuple[Precision, ...]
    ns: float
    calls: float

    @property
    def families(self) -> list[str]:
        """matmul, convolution, attention: those with the most time first."""
        times: dict[str, int] = defaultdict(int)
        for row in self.rows:
            times[row.family] += row.total_ns
        return sorted(times, key=lambda family: (-times[family], family))

    @property
    def words(self) -> str:
        """The families, for a sentence."""
        return " and ".join(_WORDS[family] for family in self.families[:2])

    @property
    def subject(self) -> str:
        """The family with the most time, for a title."""
        word = _WORDS[self.families[0]]
        return f"{word[0].upper()}{word[1:]} {'runs' if word == 'attention' else 'run'}"


def products_in(
    rows: Iterable[Precision],
    precisions: Iterable[str],
    mean_step: MeanStep,
    families: Iterable[str] = ("matmul", "convolution", "attention"),
) -> Products:
    """The work in these data types."""
    found = tuple(row for row in rows if row.precision in precisions and row.family in families)
    return Products(
        found,
        mean_step.per_step(sum(row.total_ns for row in found)),
        mean_step.per_step(sum(row.calls for row in found)),
    )


def is_tf32(rows: Iterable[Precision]) -> bool:
    """Whether matrix products and convolutions of fp32 numbers mostly run in TF32.

    Torch's attention has no TF32: in such a program it has to use fp32, and 16 bits fix both.
    """
    times: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.family != "attention":
            times[row.precision] += row.total_ns
    return times["tf32"] > times["fp32"]


def peak_of(device: DeviceFacts | None, precision: str) -> float | None:
    """Operations per second in a data type on matrix units, or without them if they do not support it."""
    peaks = device.peak_flops if device else {}
    return peaks.get(f"{precision}_matrix", peaks.get(precision))


def half_type(device: DeviceFacts | None) -> str | None:
    """The 16-bit data type to advise: bf16 needs no loss scaling, but old GPUs lack it."""
    return next((name for name in ("bf16", "fp16") if peak_of(device, name)), None)


def saved_ns(products: Products, new: str, device: DeviceFacts, mean_step: MeanStep) -> Bounds:
    """What this work would save in another data type, at least and at most.

    At most it gets faster in the ratio of the peaks. At least by the square root of that, because small
    products do not reach the peak. No kernel gets shorter than the shortest kernels are.
    """
    low, high = 0.0, 0.0
    new_rate = peak_of(device, new) or 0.0
    for row in products.rows:
        rate = peak_of(device, row.precision)
        if rate is None or new_rate <= rate:
            continue
        ns, calls, ratio = mean_step.per_step(row.total_ns), mean_step.per_step(row.calls), rate / new_rate
        best = ratio * _NEARER.get(row.precision, 1.0)
        high += ns - max(ns * best, min(ns, calls * _SHORTEST_NS))
        low += ns - max(ns * math.sqrt(ratio), min(ns, calls * _SHORT_NS))
    return low, high


def heaviest(step_ops: Iterable[StepOp], mean_step: MeanStep) -> tuple[Location, ...]:
    """The user's functions whose matrix products, convolutions and attention take the most GPU time."""
    times: dict[str | None, int] = defaultdict(int)
    names: dict[str | None, list[str | None]] = defaultdict(list)
    for op in step_ops:
        # An operator inside another, such as the products of attention, is counted with that one.
        if (
            op.user_frame
            and _HEAVY_OPS.fullmatch(op.name or "")
            and not _HEAVY_OPS.fullmatch(op.within or "")
        ):
            times[op.user_frame] += op.device_ns
            names[op.user_frame].append(op.name)
    longest = sorted(((ns, frame or "") for frame, ns in times.items() if ns), reverse=True)
    return locations_of(
        (frame, f"{units.duration(mean_step.per_step(ns))} of GPU time a step", names[frame])
        for ns, frame in longest
    )


def is_worth(
    found: Products, counted_ns: float, saving: Saving, mean_step: MeanStep, least_gain: float
) -> bool:
    """Whether it is worth a finding: it gains something, or would if the host did not set the pace.

    In the second case it must take enough of the step, in kernels so long that others would be faster.
    """
    would_gain = mean_step.share(counted_ns) >= least_gain and found.ns >= _LONG_NS * found.calls
    return would_gain or mean_step.gain(saving).high_share >= least_gain


def off_device(bounds: Bounds, mean_step: MeanStep) -> Saving:
    """A saving of GPU time, no more than the GPU works."""
    low, high = (min(bound, mean_step.busy_ns) for bound in bounds)
    return Saving(device_ns=(low, high))


def claims_of(families: Iterable[str]) -> frozenset[Claim]:
    """The GPU time that these families take."""
    return frozenset(Claim(Time.DEVICE, Part(family)) for family in families)
