"""Kernels that compute in float64."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, rule
from stepscope.findings._phrases import times
from stepscope.findings._products import (
    Products,
    claims_of,
    half_type,
    heaviest,
    off_device,
    peak_of,
    products_in,
    saved_ns,
)
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Fix, fix_of, sixteen_bits
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["dtype_conversions"]

# The data type of a kernel of torch is in the arguments of its functors and lambdas: …Functor<double>,
# ReduceOp<double, …>, {lambda(double)#1}, layer_norm_kernel<double, …>, and complex numbers alike. A bare
# `double` is mostly a scalar argument: a learning rate, the bounds of a clamp. cuFFT's kernels take no
# scalars: vector_fft_r2c<1024u, …, unsigned int, double>; older ones are called dpRadix, as against spRadix.
_DOUBLE = late_pattern(
    r"lambda\((?:c10::complex<)?double|(?:Functor\w*|Ops?|_t|[kK]ernel\w*)<(?:c10::complex<)?double\b"
    r"|\w_fft\w*<.*[ <]double[,>]|\bdp(?:Radix|Vector|RealComplex)"
)
_OTHERS = ("matmul", "attention", "convolution", "optimizer", "communication")
"""Families whose data type the table `precision` tells, or whose arguments say nothing."""
_LONG_NS = 10_000
_MOST_OF_IT = 0.5
_LEAST_LEFT = 1 / 64
"""Of the time in float64: no GPU is more than 64 times faster in float32."""

_FIX = """\
x = torch.as_tensor(array, dtype=torch.float32)           # numpy arrays are float64 by default
scale = torch.tensor(0.5, dtype=x.dtype, device=x.device)
loss_sum = loss_sum + loss.detach().float()               # not .double() in every step"""
_MODEL = "model = model.float()    # and the batches: batch.float(), or float32 when they are loaded"


@rule(category=Category.PRECISION)
def dtype_conversions(
    mean_step: MeanStep,
    facts: Facts,
    kernels: Table[Kernel],
    precision: Table[Precision],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Tensors are converted to float64, or the model is in it, and kernels compute in it.

    Conversions as such are not reported: a trace does not tell a needless one from one that autocast makes.
    float64 is nearly always an accident of numpy's default, and it is in the names of kernels.

    Gain:

    - at most: 63 of 64 parts of the time of these kernels. Conversions go, and GPUs are up to 64 times slower
      in float64. Matrix products, convolutions and attention get faster in the ratio of the GPU's peaks for
      float64 and for 16 bits.
    - at least: half of the time of kernels of 10 µs or more, because they move half the bytes in float32.
      Shorter ones take their time in any data type. Products get faster by the square root of that ratio.
    - at least nothing: for products, if the GPU's peaks are not known.

    It is only possible if most kernels or products are in float64: that may be on purpose.
    """
    found = [row for row in kernels if row.name and row.family not in _OTHERS and _DOUBLE.search(row.name)]
    products = products_in(precision, ("fp64",), mean_step)
    share = sum(row.share or 0.0 for row in found)
    moving_ns = share * mean_step.work_ns
    device_ns = moving_ns + products.ns
    if mean_step.share(device_ns) < least_share or not (found or products.rows):
        return None
    long = sum(row.share or 0.0 for row in found if row.mean_ns >= _LONG_NS) * mean_step.work_ns
    meant = share > _MOST_OF_IT  # then it may be on purpose
    is_model = products.ns > moving_ns
    low, high = _faster_products(products, facts, mean_step)
    return Advice(
        title="The model computes in float64" if is_model else "Some kernels compute in float64",
        because=_because(device_ns, found, products, mean_step),
        saving=off_device((long / 2 + low, (1 - _LEAST_LEFT) * moving_ns + high), mean_step),
        certainty="possible" if meant or is_model else "likely",
        fix=_fix(products, facts, mean_step),
        check="stepscope show kernels: no elementwise kernel with double in its name. Compare the loss, too.",
        evidence={
            "float64_ns": round(device_ns),
            "float64_share": device_ns / mean_step.work_ns if mean_step.work_ns else 0.0,
            "products_ns": round(products.ns),
            "kernels": len(found),
            "longest": max(found, key=lambda row: row.total_ns).name if found else None,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE)} if found else ())
        | claims_of(products.families),
        locations=heaviest(step_ops, mean_step) if is_model else (),
    )


def _faster_products(products: Products, facts: Facts, mean_step: MeanStep) -> Bounds:
    """What products save in 16 bits, at least and at most."""
    device = facts.device(mean_step.device)
    half = half_type(device)
    if device is None or half is None or not peak_of(device, "fp64"):
        return 0.0, products.ns
    return saved_ns(products, half, device, mean_step)


def _because(device_ns: float, found: list[Kernel], products: Products, mean_step: MeanStep) -> str:
    told = (
        f"float64 kernels take {units.duration(device_ns)} of a step "
        f"({units.share(device_ns / mean_step.work_ns)} of the GPU's work)"
    )
    if products.rows:
        return f"{told}, {units.duration(products.ns)} of it in {products.words}."
    return (
        f"{told}: {_kernels(len(found))} called "
        f"{times(max(found, key=lambda row: row.total_ns).calls, 'time')} in the whole trace."
    )


def _fix(products: Products, facts: Facts, mean_step: MeanStep) -> Fix:
    """Of a model in float64 the model comes first, and 16 bits are worth a line."""
    if not products.rows:
        return fix_of(*_FIX.splitlines())
    half = half_type(facts.device(mean_step.device))
    return fix_of(
        _MODEL, *_FIX.splitlines()[:1], *(sixteen_bits(half, "around forward and loss") if half else ())
    )


def _kernels(count: int) -> str:
    """How many there are, for a sentence that goes on with how often one is called."""
    if count == 1:
        return "one kernel, which is"
    return f"{units.count(count)} different kernels, the most expensive of which is"
