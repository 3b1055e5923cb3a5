from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.attention import Attention
from stepscope.analyses.kernel_chains import KernelChain
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.mean_step import FasterDevice, MeanStep
from stepscope.findings.rules.abandoned_compilation import abandoned_compilation

STEP = busy_pace()
LOOK = {"name": "TorchDynamo Cache Lookup", "calls": 80}
CHAIN = {"ops": "aten::add", "kernels": 40, "chains": 10, "device_ns": 60 * MS, "shortest_ns": MS}
ADD = {"name": "aten::add", "phase": "forward", "calls": 400, "launches": 400, "device_ns": 60 * MS}
KERNEL = {"name": "vectorized_elementwise_kernel", "family": "elementwise", "calls": 400,
          "exclusive_ns": 60 * MS, "mean_ns": 150_000}  # fmt: skip


def found(*ops: dict[str, Any], kernel: str = str(KERNEL["name"]), step: MeanStep = STEP) -> Advice | None:
    return abandoned_compilation(
        step,
        drawn(StepOp, *ops),
        drawn(Kernel, KERNEL | {"name": kernel}),
        drawn(KernelFamily, {"family": "elementwise", "exclusive_ns": 60 * MS}),
        drawn(KernelChain, CHAIN),
        drawn(Attention),
    )


def test_code_is_looked_for_and_none_runs() -> None:
    advice = assert_bounded(found(LOOK, ADD), STEP)
    assert advice.title == "torch.compile gave up: no compiled code runs"
    assert "8 times a step" in advice.because
    assert "40 elementwise kernels a step take 6.00 ms" in advice.because
    assert "TORCH_LOGS" in advice.fix
    gain = STEP.gain(advice.saving)
    # 40 kernels in a row of 6 ms, of 10, become one.
    assert (gain.low_share, gain.high_share) == pytest.approx((0.4 * 0.585, 0.585), abs=0.02)


def test_a_host_that_sets_the_pace_calls_less() -> None:
    late = mean_step(
        unprofiled_ns=(8.0 * MS, 8.0 * MS),
        busy_ns=1.0 * MS,
        starved_ns=9.0 * MS,
        faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 1.0, 1.0)),
    )
    add = ADD | {"host_ns": 40 * MS, "device_ns": 1000}
    linear = {"name": "aten::linear", "phase": "forward", "launches": 90, "host_ns": 40 * MS}
    update = {"name": "aten::add_", "phase": "optimizer", "launches": 90, "host_ns": 20 * MS}
    advice = assert_bounded(found(LOOK, add, linear, update, step=late), late)
    gain = late.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.4 * 0.4, 0.4))
    assert "40.0 % of the host's time in operators is in such as could be fused" in advice.because


@pytest.mark.parametrize(
    "ran", ["Torch-Compiled Region: 0/0", "## Call CompiledFxGraph f3 ##", "CompiledFunction"]
)
def test_it_is_silent_where_compiled_code_runs(ran: str) -> None:
    assert found(LOOK, ADD, {"name": ran, "calls": 80}) is None


def test_it_is_silent() -> None:
    assert found(ADD) is None, "nothing is compiled"
    assert found(LOOK, ADD, kernel="triton_poi_fused_add_0") is None, "a torch that does not mark regions"
