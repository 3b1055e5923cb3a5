from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.annotations import Annotation
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.buffer_broadcasts import buffer_broadcasts

STEP = mean_step(latency_ns=0.0)


def op(name: str, per_step: float, starved_ms: float, device_ms: float = 0.0, **more: Any) -> dict[str, Any]:
    """In ten steps."""
    given = {"name": name, "phase": "forward", "per_step": per_step, "calls": round(10 * per_step)}
    return {
        **given,
        "starved_ns": round(10 * starved_ms * MS),
        "device_ns": round(10 * device_ms * MS),
        **more,
    }


SENT = op("c10d::broadcast_", 2, 0.1, 0.1)
JOINED = op("aten::flatten_dense_tensors", 2, 0.1)
NORMS = op("aten::batch_norm", 20, 1.0)
COPIES = op("aten::copy_", 120, 0.8, 0.2)


def judged(
    *rows: dict[str, Any], name: str = "DistributedDataParallel.forward", **thresholds: Any
) -> Advice | None:
    return buffer_broadcasts(
        STEP, drawn(Annotation, {"name": name, "calls": 10}), drawn(StepOp, *rows), **thresholds
    )


def test_three_buffers_of_each_norm_are_copied_back() -> None:
    # 60 of 120 copies are of buffers: 0.4 of 0.8 ms.
    advice = assert_bounded(judged(SENT, JOINED, NORMS, COPIES), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.3 * MS, 0.6 * MS))
    assert advice.saving.device_ns == pytest.approx((0.0, 0.2 * MS))
    assert advice.evidence["copies_per_step"] == 60
    assert "broadcast_buffers=False" in advice.fix


def test_copies_without_norms_may_be_any() -> None:
    advice = assert_bounded(judged(SENT, JOINED, COPIES), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.1 * MS, 0.2 * MS))
    assert "copies back" not in advice.because


def test_it_is_silent_without_ddp_or_broadcasts() -> None:
    assert judged(SENT, JOINED, NORMS, COPIES, name="forward") is None
    assert judged(NORMS, COPIES) is None
    assert judged({**SENT, "phase": "other"}, NORMS, COPIES) is None


def test_it_is_silent_where_it_costs_little() -> None:
    little = op("c10d::broadcast_", 2, 0.02)
    assert judged(little) is None
    assert judged(little, least_share=0.001) is not None
