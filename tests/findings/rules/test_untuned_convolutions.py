from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, fix_for

from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.rooflines import Roofline
from stepscope.analyses.run_settings import RunSetting
from stepscope.analyses.step_classes import StepClass
from stepscope.findings import Advice, NotKnown
from stepscope.findings.program import Framework
from stepscope.findings.rules.untuned_convolutions import untuned_convolutions

OFF = {"cudnn_benchmark": "false", "cudnn_enabled": "true", "deterministic_algorithms": "false"}
# Ten steps, 4 ms of convolutions each, at a quarter of the peak.
SPENT = {"family": "convolution", "exclusive_ns": 40 * MS}
ROOF = {"family": "convolution", "covered_share": 0.9, "peak_share": 0.25, "bandwidth_share": 0.1}
STEPS = {"steps": 10, "batch": "[32, 3, 224, 224]"}


def judged(
    switches: dict[str, str] | None = None,
    spent: dict[str, Any] | None = None,
    roof: dict[str, Any] | None = None,
    classes: tuple[dict[str, Any], ...] = (STEPS,),
    **thresholds: float,
) -> Advice | None:
    told = [{"part": "torch", "name": name, "value": value} for name, value in (switches or OFF).items()]
    return untuned_convolutions(
        busy_pace(),
        drawn(RunSetting, *told),
        drawn(KernelFamily, spent or SPENT),
        drawn(Roofline, roof or ROOF),
        drawn(StepClass, *classes),
        **thresholds,
    )


def test_it_fires_for_what_is_above_the_peak() -> None:
    advice = assert_bounded(judged(), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0, 3 * MS))
    assert advice.certainty == "possible"


def test_what_is_not_known_of_the_peak_is_possible() -> None:
    for roof in ({**ROOF, "covered_share": 0.1}, {**ROOF, "peak_share": None, "bandwidth_share": None}):
        assert assert_bounded(judged(roof=roof), busy_pace()).saving.device_ns == pytest.approx((0, 4 * MS))
    above = assert_bounded(judged(roof={**ROOF, "bandwidth_share": 1.4}), busy_pace())
    assert above.saving.device_ns == (0, 0)


def test_without_shapes_it_says_what_to_record() -> None:
    with pytest.raises(NotKnown) as found:
        judged(classes=({**STEPS, "batch": None},))
    assert found.value.record == "record_shapes=True"


def test_it_is_silent_where_shapes_change_or_the_switch_is_on() -> None:
    assert judged(classes=(STEPS, {**STEPS, "batch": "[16, 3, 224, 224]"})) is None
    assert judged({**OFF, "cudnn_benchmark": "true"}) is None
    assert judged({**OFF, "cudnn_enabled": "false"}) is None
    assert judged({**OFF, "deterministic_algorithms": "true"}) is None
    assert judged({**OFF, "cudnn_deterministic": "true"}) is None
    assert judged({"default_dtype": "float32"}) is None
    assert judged(spent={**SPENT, "exclusive_ns": MS}) is None
    assert judged(spent={**SPENT, "family": "matmul"}) is None
    assert judged(least_share=0.9) is None
    assert judged(classes=()) is None


def test_lightning_has_a_flag() -> None:
    assert fix_for(judged(), Framework.LIGHTNING).startswith("Trainer(benchmark=True)")
