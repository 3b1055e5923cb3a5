from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.kernel_chains import KernelChain
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.unfused_backend import unfused_backend

REGION, FUNCTION, BACKWARD = "Torch-Compiled Region: 0/0", "CompiledFunction", "CompiledFunctionBackward"


def op(name: str, within: str | None, calls: int, host_ms: int) -> dict[str, Any]:
    """Calls in ten steps."""
    return {"name": name, "within": within, "calls": calls, "launches": calls, "host_ns": host_ms * MS}


OPS = (
    op(REGION, None, 10, 30),
    op(FUNCTION, REGION, 10, 28),
    op("aten::mul", FUNCTION, 300, 6),
    op("aten::_to_copy", FUNCTION, 100, 2),
    op("aten::mm", FUNCTION, 100, 4),
    op(f"autograd::engine::evaluate_function: {BACKWARD}", None, 10, 60),
    op(BACKWARD, f"autograd::engine::evaluate_function: {BACKWARD}", 10, 58),
    op("aten::add", BACKWARD, 400, 8),
    op("aten::mm", BACKWARD, 200, 8),
    op("aten::_fused_adamw_", None, 10, 10),
)
CHAINS = {
    "ops": "aten::mul, aten::add",
    "kernels": 4,
    "chains": 100,
    "device_ns": 20 * MS,
    "shortest_ns": 2 * MS,
}


def found(
    *ops: dict[str, Any], kernel: str = "vectorized_elementwise_kernel", **thresholds: Any
) -> Advice | None:
    kernels = drawn(Kernel, {"name": kernel})
    return unfused_backend(
        busy_pace(), kernels, drawn(KernelChain, CHAINS), drawn(StepOp, *ops), **thresholds
    )


def test_compiled_code_that_calls_operators_one_by_one() -> None:
    advice = assert_bounded(found(*OPS), busy_pace())
    assert advice.evidence["fusible_ops_per_step"] == 80
    assert advice.evidence["host_part"] == pytest.approx(16 / 100)
    gain = busy_pace().gain(advice.saving)
    # Of 2 ms in chains of four the shortest kernel is left of each: 0.4 of the rest goes at least.
    assert (gain.low_share, gain.high_share) == pytest.approx((0.4 * 0.182, 0.182), abs=0.01)
    assert "inductor" in advice.fix


def test_it_is_silent() -> None:
    assert found(*OPS, kernel="triton_poi_fused_add_0") is None, "Inductor fused something"
    assert found(*OPS, op("## Call CompiledFxGraph f3 ##", REGION, 10, 5)) is None
    assert found(op("aten::mul", None, 900, 20)) is None, "nothing is compiled"
    assert found(*OPS[2:]) is None, "a graph that something else than torch.compile traced"
    assert found(OPS[0], OPS[1], OPS[4], op("aten::mul", FUNCTION, 50, 1)) is None, "too few"
