from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step
from tests.findings.test_library import LIBRARY
from tests.samples import reported

from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.uncompiled_flex import uncompiled_flex

FLEX = "FlexAttentionAutogradOp"
CALLS = {
    "name": FLEX,
    "within": "Torch-Compiled Region: 0/0",
    "per_step": 2.0,
    "device_ns": 40 * MS,
    "host_ns": 60 * MS,
    "user_frame": "reader.py(12): forward",
}
REGION = {"name": "Torch-Compiled Region: 0/0", "host_ns": 62 * MS, "device_ns": 40 * MS}
SOFTMAX = {"name": "aten::_safe_softmax", "within": FLEX, "device_ns": 20 * MS}
PRODUCTS = {"name": "aten::matmul", "within": FLEX, "device_ns": 20 * MS}


def found(*rows: dict[str, Any]) -> Advice | None:
    return uncompiled_flex(mean_step(), drawn(StepOp, *rows))


def test_host_and_gpu_time_go() -> None:
    advice = assert_bounded(found(REGION, CALLS, SOFTMAX, PRODUCTS), mean_step())
    assert "torch.compile(flex_attention)" in advice.fix
    assert "4.00 ms" in advice.because
    assert "6.00 ms" in advice.because
    assert [place.line for place in advice.locations] == [12]


def test_backward_counts() -> None:
    name = f"autograd::engine::evaluate_function: {FLEX}Backward"
    backward = {"name": name, "phase": "backward", "device_ns": 5 * MS, "host_ns": 5 * MS}
    advice = found(REGION, CALLS, SOFTMAX, PRODUCTS, backward)
    assert advice is not None
    assert advice.evidence["attention_ns"] == 4.5 * MS


def test_compiled_attention_is_left_alone() -> None:
    assert found(REGION, CALLS) is None  # no softmax of its own: one kernel
    assert found(REGION) is None


@pytest.mark.slow
def test_a_reader_of_long_texts() -> None:
    """A real program: compiled, its step is 85 % shorter."""
    report = reported(LIBRARY / "twelfth_long_reader.faulty.light.pt.trace.json.gz")
    assert report.findings[0].id == "uncompiled-flex"
    assert report.findings[0].gain.low_share < 0.85 < report.findings[0].gain.high_share
    assert "unfused-attention" not in [one.id for one in report.findings]
