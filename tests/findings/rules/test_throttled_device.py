from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import assert_bounded, busy_pace, drawn, fix_for, mean_step

from stepscope.analyses.gpu_health import GpuHealth
from stepscope.analyses.rooflines import Roofline
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.program import Framework
from stepscope.findings.rules.throttled_device import throttled_device

# Half of the time too hot: 1485 MHz of 1980 on average, a quarter is lost; 1800 while nothing held it back.
HOT = {
    "device": 0,
    "samples": 100,
    "busy_samples": 100,
    "sm_clock_mhz": 1485.0,
    "top_sm_clock_mhz": 1980,
    "free_sm_clock_mhz": 1800.0,
    "temperature_c": 91,
    "thermal_share": 0.5,
    "throttled_share": 0.5,
    "power_limit_w": 700.0,
    "default_power_limit_w": 700.0,
}
QUIET = {**HOT, "thermal_share": 0.0, "throttled_share": 0.0}
WORK = ({"work_ns": 60, "bound": "compute"}, {"work_ns": 40, "bound": "memory"})


def judged(*gpus: dict[str, Any], step: MeanStep | None = None, **thresholds: float) -> Advice | None:
    return throttled_device(
        step or busy_pace(), drawn(GpuHealth, *gpus), drawn(Roofline, *WORK), **thresholds
    )


def test_a_hot_gpu() -> None:
    step = busy_pace()
    advice = assert_bounded(judged(HOT), step)
    assert advice.title == "The GPU is too hot and slows down"
    least, most = advice.saving.device_ns
    assert most == pytest.approx(step.busy_ns * 0.25)
    assert least == pytest.approx(step.busy_ns * 0.6 * (1 - 1485 / 1800))
    assert "91 °C" in advice.because


def test_without_a_time_in_which_nothing_held_it_back_nothing_is_sure() -> None:
    advice = assert_bounded(judged({**HOT, "free_sm_clock_mhz": None}), busy_pace())
    assert advice.saving.device_ns[0] == 0


def test_a_lowered_power_limit_is_one_and_the_usual_is_not() -> None:
    capped = {**QUIET, "power_share": 0.9, "throttled_share": 0.9}
    assert judged(capped) is None
    advice = assert_bounded(judged({**capped, "power_limit_w": 300.0}), busy_pace())
    assert "300 W, lowered from 700 W" in advice.because
    assert "-pl 700" in advice.fix


@pytest.mark.parametrize(
    "share,word", [("hardware_share", "board"), ("set_clock_share", "set"), ("thermal_share", "hot")]
)
def test_the_most_frequent_reason_is_named(share: str, word: str) -> None:
    shares = {"hardware_share": 0.3, "set_clock_share": 0.3, "thermal_share": 0.3, share: 0.8}
    advice = assert_bounded(judged({**QUIET, **shares}), busy_pace())
    assert word in advice.title


def test_it_is_silent_where_nothing_holds_it_back_or_nothing_is_known() -> None:
    assert judged() is None
    assert judged(QUIET) is None
    assert judged({**HOT, "thermal_share": 0.1}) is None
    assert judged({**HOT, "sm_clock_mhz": 1975.0}) is None
    assert judged({**HOT, "sm_clock_mhz": None}) is None
    assert judged({**HOT, "device": 1}) is None
    assert judged(HOT, step=mean_step(device=None, busy_ns=0.0)) is None
    assert judged(HOT, throttled_share=0.6) is None
    assert judged(HOT, least_share=0.9) is None


def test_the_machine_is_nobodys_code() -> None:
    assert "nvidia-smi" in fix_for(judged(HOT), Framework.VLLM)
