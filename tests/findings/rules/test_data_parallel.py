from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.annotations import Annotation
from stepscope.analyses.copies import Copy
from stepscope.analyses.devices import Device
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.data_parallel import data_parallel


def judged(
    *, devices: int = 4, ranges: int = 10, functions: tuple[str, ...] = ("Broadcast", "Gather"),
    starved_ns: float = 5.0 * MS, **thresholds: Any,
) -> Advice | None:  # fmt: skip
    """Ten steps on several devices, with 40 ms of exposed copies between them."""
    work = [{"device": str(index), "busy_ns": 50 * MS} for index in range(devices)]
    return data_parallel(
        mean_step(starved_ns=starved_ns),
        drawn(Device, {"device": "9"}, *work),
        drawn(Annotation, {"name": "DataParallel.forward", "calls": ranges}),
        drawn(StepOp, *[{"name": name, "host_ns": 10 * MS} for name in functions]),
        drawn(
            Copy, {"direction": "PtoP", "exposed_ns": 40 * MS}, {"direction": "HtoD", "exposed_ns": 9 * MS}
        ),
        **thresholds,
    )


def test_it_fires_and_shares_the_host_out_to_the_devices() -> None:
    advice = assert_bounded(judged(), mean_step())
    assert advice.title == "One process drives 4 GPUs (nn.DataParallel)"
    assert advice.saving.starved_ns == (0.0, 3.75 * MS)
    assert advice.saving.device_ns == (0.5 * MS, 1.0 * MS)
    assert advice.certainty == "certain"
    assert "--nproc-per-node 4" in advice.fix


def test_its_functions_tell_it_too() -> None:
    advice = judged(ranges=0)
    assert advice is not None
    assert advice.certainty == "likely"


@pytest.mark.parametrize("devices", [0, 1])
def test_it_is_silent_for_one_device(devices: int) -> None:
    assert judged(devices=devices) is None


def test_it_is_silent_for_other_programs() -> None:
    assert judged(ranges=0, functions=()) is None
    assert judged(ranges=0, functions=("Gather",)) is None


def test_it_is_silent_where_there_is_nothing_to_gain() -> None:
    assert judged(starved_ns=0.0, least_share=0.2) is None
