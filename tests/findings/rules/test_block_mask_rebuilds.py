from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.findings.drawn import MS, assert_bounded, drawn, facts, mean_step

import stepscope
from stepscope.analyses.attention import Attention
from stepscope.analyses.python_frames import PythonFrame
from stepscope.findings import Advice, NotKnown
from stepscope.findings.build import build_report
from stepscope.findings.rules.block_mask_rebuilds import block_mask_rebuilds

STEP = mean_step()
BUILDS = "torch/nn/attention/flex_attention.py(1838): create_block_mask"
FLEX = drawn(Attention, {"backend": "flex"})


def found(*, stacks: bool = True, **told: Any) -> Advice | None:
    """Ten steps; each builds eight masks."""
    figures = {"name": BUILDS, "calls": 80, "total_ns": 20 * MS, "device_ns": 8 * MS, **told}
    return block_mask_rebuilds(STEP, facts(stacks=stacks), FLEX, drawn(PythonFrame, figures))


def test_each_layer_builds_its_own() -> None:
    advice = assert_bounded(found(), STEP)
    assert advice.saving.device_ns == pytest.approx((0.6 * MS, 0.8 * MS))
    assert advice.saving.starved_ns == (0.0, 2.0 * MS)
    assert "8 times a step, for 2.00 ms on the host and 800 µs on the GPU" in advice.because


def test_one_a_step_may_be_needed() -> None:
    advice = assert_bounded(found(calls=10), STEP)
    assert advice.saving.device_ns == (0.0, 0.8 * MS)
    assert advice.certainty == "possible"


def test_it_is_silent() -> None:
    assert found(calls=1) is None, "built once"
    assert found(total_ns=MS, device_ns=MS // 10) is None, "cheap"
    assert found(name="mine.py(3): create_block_mask") is None
    nothing: list[dict[str, Any]] = []
    assert (
        block_mask_rebuilds(STEP, facts(stacks=False), drawn(Attention), drawn(PythonFrame, *nothing)) is None
    )


def test_without_stacks_it_is_not_known() -> None:
    with pytest.raises(NotKnown) as told:
        found(stacks=False)
    assert told.value.record == "with_stack=True"


@pytest.mark.slow
def test_it_is_seen_in_a_profile(tmp_path: Path) -> None:
    drawing = Drawing()
    for step in range(4):
        at = 1000 * step
        drawing.mark(step, at, 990).frame("train.py(3): step", at + 1, 980)
        drawing.frame(BUILDS, at + 10, 200)
        for place, (start, name) in enumerate([(20, "sort"), (120, "ge"), (300, "gemm")]):
            corr = 3 * step + place + 1
            drawing.op(f"aten::{name}", at + start, 60).launch(
                "cudaLaunchKernel", at + start + 5, 9, corr=corr
            )
            drawing.kernel(name, at + start + 20, 50, corr=corr)
    report = build_report(stepscope.open(drawing.write(tmp_path / "drawn.json"), store=tmp_path / "store"))
    (finding,) = (one for one in report.findings if one.id == "block-mask-rebuilds")
    assert finding.advice.evidence["masks_per_step"] == 1
    assert finding.advice.evidence["device_ns"] == 100_000
