"""Fourier transforms have lengths with a large prime factor."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._op_costs import part_in_steps, places_of
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["awkward_transforms"]

_KERNEL = late_pattern(r"(?i).*bluestein")
_OP = late_pattern(r"aten::(fft_|_fft_)\w+")
_SAVED = (0.6, 1.1)
"""Of the time of these kernels. On an H200 26 transforms of 257 to a million points saved 0.7 to 1.2 of it
with the next length without large prime factors; those of real numbers lose other kernels, too."""
_FIX = fix_of(
    "n = 1 << (length - 1).bit_length()    # a power of two; or scipy.fft.next_fast_len(length, real=True)",
    "spectrum = torch.fft.rfft(x, n=n)    # zeros are added; for a convolution: irfft(…, n=n)[..., :length]",
)


@rule(category=Category.DEVICE)
def awkward_transforms(
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.03,
) -> Advice | None:
    """Fourier transforms have lengths for which cuFFT has only Bluestein's algorithm.

    Gain, with a length that has no prime factor above 7:

    - at most: 1.1 times the time of the kernels of that algorithm; others go with it for real numbers.
    - at least: 60 % of it. It makes two transforms of at least twice the length out of each, and multiplies.
    """
    found = [row for row in kernels if _KERNEL.match(row.name or "")]
    if not found:
        return None
    inside = part_in_steps(kernels, kernel_families)
    time_ns = mean_step.per_step(sum(row.exclusive_ns for row in found) * inside)
    saving = off_device((_SAVED[0] * time_ns, _SAVED[1] * time_ns), mean_step)
    if mean_step.gain(saving).high_share < least_share:
        return None
    calls = mean_step.per_step(sum(row.calls for row in found) * inside)
    ops = [op for op in step_ops if op.within is None and _OP.fullmatch(op.name or "")]
    return Advice(
        title="Fourier transforms have an awkward length",
        because=f"{often(calls, 'kernel')} of Bluestein's algorithm take {units.duration(time_ns)}, "
        f"{units.share(time_ns / mean_step.work_ns)} of the GPU's work. It is for lengths with a large prime "
        "factor, and makes two transforms of at least twice the length out of one.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show kernels: none with bluestein in its name.",
        evidence={"kernels_per_step": calls, "bluestein_ns": round(time_ns)},
        claims=frozenset({Claim(Time.DEVICE, Part.KERNELS)}),
        locations=places_of(ops),
    )
