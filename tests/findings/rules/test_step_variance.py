from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.classed_steps import ClassedStep
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.host_functions import HostFunction
from stepscope.analyses.loader_starts import LoaderStart
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.steps import Step
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.step_variance import step_variance

STEP = mean_step(steps=6, step_ns=15.0 * MS, unprofiled_ns=(15.0 * MS, 15.0 * MS), starved_ns=10.0 * MS)
LIKE = {
    "backward_passes": 1,
    "optimizer": True,
    "launched_by": "eager",
    "kernels_min": 100,
    "kernels_max": 100,
}


def judged(
    times: list[int],
    part: str = "other_ns",
    classes: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (),
    compiled: tuple[int, ...] = (),
    step: MeanStep = STEP,
    functions: tuple[dict[str, Any], ...] = (),
    *,
    starts: tuple[dict[str, Any], ...] = (),
    **thresholds: float,
) -> Advice | None:
    """Steps of so many ms, all alike but for those of other classes; what varies is in one part."""
    of_class = {number: place for place, (members, _) in enumerate(classes, 1) for number in members}
    numbers = [number for number in range(len(times)) if number not in of_class]
    usual = {
        **LIKE,
        "steps": len(numbers),
        "mean_ns": sum(times[number] for number in numbers) / len(numbers) * MS,
    }
    others = [
        {**row, "step_class": place, "steps": len(members)} for place, (members, row) in enumerate(classes, 1)
    ]
    rows = [
        {
            "step": number,
            "start_ns": number,
            "dur_ns": time * MS,
            "kernel_ns": 5 * MS,
            part: time * MS - 5 * MS,
        }
        for number, time in enumerate(times)
    ]
    classed = [{"step": number, "step_class": of_class.get(number, 0)} for number in range(len(times))]
    return step_variance(
        step,
        drawn(StepClass, usual, *others),
        drawn(ClassedStep, *classed),
        drawn(Step, *rows),
        drawn(Compilation, *({"step": number} for number in compiled)),
        drawn(HostFunction, *functions),
        drawn(LoaderStart, *starts),
        **thresholds,
    )


def test_it_fires_for_like_steps_and_is_not_sure() -> None:
    # Without the first: 10, 10, 30, 10, 30; mean 18, median 10.
    advice = assert_bounded(judged([10, 10, 10, 30, 10, 30]), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.0, 8.0 * MS * 5 / 6))
    assert advice.saving.waited_ns == (0.0, 0.0)
    assert advice.evidence["grown_most"] == "other"
    assert advice.evidence["slow_steps"] == 2
    assert "(steps 3, 5)" in advice.because


def test_what_recording_does_not_stretch_is_a_wait() -> None:
    advice = assert_bounded(judged([10, 10, 10, 30, 10, 30], "dataloader_ns"), STEP)
    assert advice.saving.waited_ns == pytest.approx((0.0, 8.0 * MS * 5 / 6))
    assert "waiting for data" in advice.because
    assert "num_workers" in advice.fix


def test_it_fires_for_steps_that_do_more() -> None:
    more = {
        **LIKE,
        "kernels_min": 150,
        "kernels_max": 150,
        "mean_ns": 40.0 * MS,
    }
    advice = assert_bounded(judged([10, 10, 10, 40, 10, 10], "memcpy_ns", (((3,), more),)), STEP)
    assert advice.saving.waited_ns == (2.5 * MS, 5.0 * MS)
    assert advice.certainty == "likely"
    assert "more than the usual 100 kernels" in advice.because


def test_the_first_step_counts_with_the_length_of_later_ones() -> None:
    more = {**LIKE, "kernels_min": 150, "kernels_max": 150}
    advice = assert_bounded(
        judged([90, 10, 10, 40, 10, 10], "memcpy_ns", (((0, 3), {**more, "mean_ns": 65.0 * MS}),)), STEP
    )
    assert advice.saving.waited_ns == (5.0 * MS, 10.0 * MS)
    alone = {**more, "mean_ns": 90.0 * MS}
    assert judged([90, 10, 10, 10, 10, 10], classes=(((0,), alone),)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"kernels_min": 90, "kernels_max": 90},
        {"backward_passes": 2},
        {"optimizer": False},
        {"kind": "prefill"},
        {"mean_ns": 10.5 * MS},
    ],
)
def test_other_kinds_of_steps_are_not_compared(change: dict[str, Any]) -> None:
    more = {
        **LIKE,
        "kernels_min": 150,
        "kernels_max": 150,
        "mean_ns": 40.0 * MS,
    }
    assert judged([10, 10, 10, 40, 10, 10], classes=(((3,), {**more, **change}),)) is None


def test_warm_up_is_not_variance() -> None:
    assert judged([90, 30, 20, 10, 10, 10]) is None
    assert judged([10, 30, 10, 10, 10, 10]) is None


def test_compiling_is_not_variance() -> None:
    assert judged([10, 10, 10, 30, 10, 30], compiled=(3, 5)) is None


def test_it_is_silent_for_few_or_steady_steps_and_for_noise() -> None:
    assert judged([10, 10, 30]) is None
    assert judged([10, 10, 10, 10, 10, 10]) is None
    assert judged([10, 8, 10, 12, 9, 11]) is None  # the mean is the median
    assert judged([100, 100, 100, 100, 122, 122]) is None  # long ones are not much longer
    nothing = drawn(StepClass), drawn(ClassedStep), drawn(Step), drawn(Compilation), drawn(HostFunction)
    assert step_variance(STEP, *nothing, drawn(LoaderStart)) is None


def test_a_class_may_have_many_steps() -> None:
    advice = judged([10] * 14 + [100, 100], step=mean_step(steps=16, step_ns=20.0 * MS))
    assert advice is not None
    assert advice.evidence["slow_steps"] == 2


def test_the_threshold_works() -> None:
    assert judged([10, 10, 10, 30, 10, 30], variation_share=0.9) is None


SAVE = {
    "function": "<built-in method write_record of PyTorchFileWriter object>",
    "idle_ns": 40 * MS,
    "outer": "train.py(9): after",
    "outer_idle_ns": 48 * MS,
    "outer_calls": 6,
    "share": 0.5,
    "path": "train.py(9): after → torch/serialization.py(945): save → <built-in method write_record of P>",
    "user_frame": "train.py(9): after",
    "phase": "other",
    "calls": 100,
    "recording_low_ns": 1 * MS,
    "recording_high_ns": 2 * MS,
    "long_steps": 1,
    "longest_step": 3,
    "longest_step_ns": 50 * MS,
    "usual_step_ns": 0,
}


def test_it_names_what_only_some_steps_call() -> None:
    times = [7, 7, 7, 57, 7, 7]
    advice = assert_bounded(judged(times, functions=(SAVE,)), STEP)
    assert advice.title == "Some steps are long: they call torch.save()"
    assert "in step 3 for 50.0 ms" in advice.because
    assert "async_save" in advice.fix
    assert [str(place) for place in advice.locations] == [
        "train.py:9 after",
        "torch/serialization.py:945 save",
    ]
    gain = STEP.gain(advice.saving)
    # Of 8 ms a step, 0.17–0.33 ms are recording; four fifths at the least.
    assert gain.low_ns == pytest.approx(0.8 * 46 / 6 * MS, rel=0.01)
    assert gain.high_ns == pytest.approx(47 / 6 * MS, rel=0.01)


def test_workers_that_are_started_for_an_epoch_have_a_rule_of_their_own() -> None:
    epoch = {
        "loader": "_MultiProcessingDataLoaderIter",
        "starts": 1,
        "whole_ns": 20 * MS,
        "ending_ns": 8 * MS,
    }
    times = [7, 7, 7, 57, 7, 7]
    for one, named in (
        (epoch, False),
        (epoch | {"whole_ns": 2 * MS}, True),
        (epoch | {"ending_ns": 0}, True),
    ):
        advice = judged(times, functions=(SAVE,), starts=(one,))
        assert (advice is not None and "torch.save()" in advice.title) == named


def test_collection_is_named_only_where_it_is_recorded() -> None:
    advice = judged([10, 10, 10, 30, 10, 30])
    assert advice is not None
    assert "gc.disable" not in advice.fix
    assert "with_stack=True" in advice.fix
    collected = SAVE | {"function": "Python GC", "outer": "Python GC", "path": "Python GC"}
    advice = judged([10, 10, 10, 30, 10, 30], functions=(collected,))
    assert advice is not None
    assert advice.title == "Some steps are long: they call Python's garbage collector"
    assert "gc.disable" in advice.fix


@pytest.mark.parametrize(
    "change",
    [
        {"longest_step": 0},
        {"share": 0.01},
        {"long_steps": 6},
        {"usual_step_ns": 20 * MS},
        {"long_steps": None},
    ],
)
def test_start_up_and_what_every_step_calls_are_no_variance(change: dict[str, Any]) -> None:
    assert judged([10, 10, 10, 10, 10, 10], functions=(SAVE | change,)) is None


def test_what_is_called_while_compiling_is_left_out() -> None:
    assert judged([10, 10, 10, 10, 10, 10], functions=(SAVE,), compiled=(3,)) is None
