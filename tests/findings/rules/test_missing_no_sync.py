from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.annotations import Annotation
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice
from stepscope.findings._communication import ACCUMULATES
from stepscope.findings.rules.missing_no_sync import missing_no_sync


def judged(
    *, passes: int = 4, updates: int = 10, put: int = 480, name: str = "torch::distributed::reducer::mul_out",
    **thresholds: Any,
) -> Advice | None:  # fmt: skip
    """Ten steps of 10 ms with 12 parameters, four backward passes and 3 buckets, all of them reduced."""
    return missing_no_sync(
        mean_step(),
        drawn(StepClass, {"steps": 10, "backward_passes": passes, "optimizer": True}),
        drawn(
            Annotation, {"name": "Optimizer.step#AdamW.step", "calls": updates}, {"name": "loss", "calls": 1}
        ),
        drawn(
            StepOp,
            {"name": ACCUMULATES, "phase": "backward", "calls": 480},
            {"name": "c10d::allreduce_", "within": ACCUMULATES, "calls": 120, "device_ns": 30 * MS},
            {"name": name, "within": ACCUMULATES, "calls": put, "device_ns": 2 * MS, "starved_ns": 8 * MS},
            {"name": "torch.distributed.ddp.reducer::copy_bucket_to_grad", "calls": put, "device_ns": 2 * MS},
        ),
        drawn(Step, *[{"dur_ns": 10 * MS, "communication_ns": 2 * MS}] * 10),
        drawn(KernelFamily, {"family": "communication", "total_ns": 30 * MS}),
        **thresholds,
    )


def test_it_fires_with_the_part_that_is_needless() -> None:
    advice = assert_bounded(judged(), mean_step())
    assert advice.evidence["needless_share"] == 0.75
    # 0.4 ms of copies a step; 2 ms exposed, all of it in kernels of communication.
    assert advice.saving.device_ns == (0.3 * MS, 1.8 * MS)
    assert advice.saving.starved_ns == (0.375 * MS, 0.75 * MS)
    assert "no_sync" in advice.fix


def test_views_of_buckets_are_divided_in_place() -> None:
    assert judged(name="aten::div_") is not None
    assert judged(name="torch::distributed::reducer::copy_") is not None


def test_it_is_silent_with_no_sync() -> None:
    assert judged(put=120) is None


def test_it_is_silent_without_accumulation() -> None:
    assert judged(passes=1) is None
    assert judged(updates=40) is None
    assert judged(updates=0) is None


def test_it_is_silent_without_gradients_that_are_reduced() -> None:
    assert judged(name="aten::add") is None
    assert judged(least_share=0.5) is None
