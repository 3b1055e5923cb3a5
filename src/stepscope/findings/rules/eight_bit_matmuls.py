"""Large matrix products in 16 bits on a GPU that has fp8."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._products import heaviest, off_device, peak_of, products_in, saved_ns
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["eight_bit_matmuls"]

_TRAINING = """\
from torchao.float8 import convert_to_float8_training
convert_to_float8_training(model)    # training; then torch.compile(model)"""
_INFERENCE = """\
from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, quantize_
quantize_(model, Float8DynamicActivationFloat8WeightConfig())    # inference"""


@rule(category=Category.PRECISION)
def eight_bit_matmuls(  # noqa: PLR0913  # three of them are thresholds
    mean_step: MeanStep,
    facts: Facts,
    precision: Table[Precision],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.5,
    least_step_share: float = 0.3,
    least_call_ns: int = 100_000,
) -> Advice | None:
    """Large matrix products in 16 bits take most of the GPU's time, and the GPU has fp8.

    Gain:

    - at most: their time falls in the ratio of the GPU's peaks for that type and for fp8.
    - at least: nothing. Scales have to be computed and tensors converted, and the trace does not tell what
      that does to the loss.
    """
    found = products_in(precision, ("bf16", "fp16"), mean_step, families=("matmul",))
    if not found.ns or found.ns < max(least_share * mean_step.busy_ns, least_step_share * mean_step.step_ns):
        return None
    device = facts.device(mean_step.device)
    half = max(found.rows, key=lambda row: row.total_ns).precision
    rate, target = peak_of(device, half), peak_of(device, "fp8")
    if device is None or rate is None or target is None or found.ns < least_call_ns * found.calls:
        return None
    if mean_step.per_step(sum(row.misaligned_ns or 0 for row in found.rows)) > 0.25 * found.ns:
        return None  # products in 8 bits need sizes that are multiples of 16
    _, high = saved_ns(found, "fp8", device, mean_step)
    call_ns = found.ns / found.calls if found.calls else 0.0
    return Advice(
        title="Large matrix products could run in fp8",
        because=f"Matrix products in {half} take {units.duration(found.ns)} of a step "
        f"({units.share(found.ns / mean_step.work_ns)} of the GPU's work), {units.duration(call_ns)} each. "
        f"The peak of {device.name} is {units.tally(target / 1e12)} TFLOP/s in fp8 and "
        f"{units.tally(rate / 1e12)} TFLOP/s in {half}.",
        saving=off_device((0.0, high), mean_step),
        certainty="possible",
        fix=fix_of(line(Change.EIGHT_BITS_TRAINING, _TRAINING), line(Change.EIGHT_BITS, _INFERENCE)),
        check="stepscope show precision: the time moves to fp8 and falls. Compare the loss over a whole run.",
        evidence={
            "matmul_ns": round(found.ns),
            "matmul_calls_per_step": found.calls,
            "busy_share": found.ns / mean_step.work_ns,
            "fp8_peak_flops_per_s": target,
            f"{half}_peak_flops_per_s": rate,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.MATMUL)}),
        locations=heaviest(step_ops, mean_step),
    )
