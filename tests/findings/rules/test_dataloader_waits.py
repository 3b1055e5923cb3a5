from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, changed, drawn, fix_for, mean_step

from stepscope.analyses.annotations import Annotation
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.host_functions import HostFunction
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.program import Framework
from stepscope.findings.rules.dataloader_waits import dataloader_waits

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
STEP = mean_step(steps=5)


def judged(  # noqa: PLR0917  # what is not given is quiet
    waits: list[float],
    name: str = SINGLE,
    host_ms: float = 0.0,
    ops: tuple[dict[str, Any], ...] = (),
    step: MeanStep = STEP,
    replay: tuple[float, float] | None = None,
    functions: tuple[dict[str, Any], ...] = (),
    **thresholds: float,
) -> Advice | None:
    """Steps of 10 ms that wait so many ms."""
    rows = [
        {"step": number, "dur_ns": 10 * MS, "dataloader_ns": round(wait * MS)}
        for number, wait in enumerate(waits)
    ]
    host_ns = round(max(host_ms, sum(waits)) * MS)
    ranges = ({"name": name, "calls": len(waits), "host_ns": host_ns}, {"name": "forward", "calls": 5})
    tables = drawn(Step, *rows), drawn(Annotation, *ranges), drawn(StepOp, *ops)
    played = changed(*replay) if replay else drawn(ChangedStep)
    return dataloader_waits(step, *tables, played, drawn(HostFunction, *functions), **thresholds)


def test_it_fires_where_the_program_loads_itself() -> None:
    advice = assert_bounded(judged([4.0] * 5), STEP)
    # Of the other 6 ms 1 ms is the host's. Four workers work a sixth of the time: that part of 0.5 ms.
    assert advice.saving.starved_ns == pytest.approx((4.0 * MS - MS / 12, 4.0 * MS))
    # Recording made 1 ms of the 5 ms that the host is late, at the least: maybe nothing of the loader's.
    assert advice.saving.waited_ns == pytest.approx((0.0, 4.0 * MS / 5))
    assert advice.certainty == "certain"
    assert "num_workers=2," in advice.fix
    assert "num_workers=0" in advice.because


def test_four_workers_that_do_not_keep_up_leave_a_wait() -> None:
    # A batch takes 9 ms, the rest of the step 1 ms: four workers need 2.25 ms, so 1.25 ms remain.
    step = mean_step(steps=5, starved_ns=9.5 * MS, busy_ns=0.5 * MS)
    advice = assert_bounded(judged([9.0] * 5, step=step), step)
    assert advice.saving.starved_ns == (7.75 * MS, 9.0 * MS)
    assert "num_workers=10," in advice.fix


def test_loading_behind_a_busy_device_may_turn_into_a_head_start() -> None:
    advice = assert_bounded(judged([2.0] * 5, host_ms=15.0), STEP)
    assert advice.saving.starved_ns == pytest.approx((2.0 * MS - 3 / 2 * 3 / 32 * MS, 3.0 * MS))


def test_it_names_the_functions_that_make_items() -> None:
    item = {"phase": "dataloader", "user_frame": "train.py(9): __getitem__", "calls": 300, "host_ns": 5 * MS}
    inside = {**item, "within": "aten::stack"}
    other = {"phase": "forward", "user_frame": "train.py(20): step", "calls": 100, "host_ns": 9 * MS}
    advice = assert_bounded(judged([4.0] * 5, ops=(item, inside, other)), STEP)
    assert [(str(one), one.note) for one in advice.locations] == [
        ("train.py:9 __getitem__", "1.00 ms a step")
    ]


def test_with_workers_at_least_half_of_the_wait_goes() -> None:
    advice = assert_bounded(judged([4.0] * 5, WORKERS), STEP)
    assert advice.saving.waited_ns == (2.0 * MS, 4.0 * MS)
    assert advice.certainty == "likely"
    assert "do not keep up" in advice.because


def test_four_fifths_of_what_a_replay_leaves_remain() -> None:
    def shares(replay: tuple[float, float] | None, waits: list[float]) -> tuple[float, float]:
        gain = STEP.gain(assert_bounded(judged(waits, WORKERS, replay=replay), STEP).saving)
        return gain.low_share, gain.high_share

    assert shares(None, [4.0] * 5) == pytest.approx((2 / 9, 4 / 7))
    assert shares((0.3, 0.35), [4.0] * 5) == pytest.approx((2 / 9, 1 - 0.8 * 0.65))
    # What is reckoned otherwise stays: the replay may have none of the steps that wait.
    assert shares((0.5, 0.5), [4.0] * 5) == pytest.approx((2 / 9, 4 / 7))
    assert shares((0.0, 0.0), [4.0] * 5) == pytest.approx((2 / 9, 2 / 9))
    assert shares((0.0, 0.0), [0.0, 0.0, 8.0, 0.0, 0.0]) == pytest.approx((0.0, 2 / 7))


def test_the_first_step_does_not_count() -> None:
    assert judged([9.0, 0.1, 0.1, 0.1, 0.1], WORKERS) is None
    assert judged([9.0, 0.1, 0.1, 0.1, 0.1]) is None
    advice = assert_bounded(judged([9.0, 2.0, 2.0, 2.0, 2.0], WORKERS), STEP)
    assert advice.evidence["wait_ns"] == 2 * MS


def test_a_long_first_step_does_not_hide_the_wait() -> None:
    """Steps of 10 ms, the first of 30: the mean step of 14 ms waits 40 % of its time."""
    rows = ({"step": number, "dur_ns": 30 * MS if number == 0 else 10 * MS} for number in range(5))
    steps = drawn(Step, *({**row, "dataloader_ns": 4 * MS} for row in rows))
    ranges = drawn(Annotation, {"name": WORKERS, "calls": 5, "host_ns": 20 * MS})
    tables = steps, ranges, drawn(StepOp), drawn(ChangedStep), drawn(HostFunction)
    advice = dataloader_waits(mean_step(steps=5, step_ns=14.0 * MS), *tables)
    assert advice is not None
    assert advice.evidence["wait_ns"] == round(0.4 * 14 * MS)


def test_without_a_device_the_wait_is_all_there_is() -> None:
    step = mean_step(
        steps=5, device=None, busy_ns=0.0, starved_ns=0.0, latency_ns=0.0, unprofiled_ns=(10.0 * MS,) * 2
    )
    advice = judged([4.0] * 5, step=step)
    assert advice is not None
    assert advice.saving.starved_ns[1] == 4.0 * MS
    assert "device" not in advice.because
    assert "GPU" not in advice.because


def test_of_one_slow_batch_nothing_is_promised() -> None:
    advice = assert_bounded(judged([0.0, 0.0, 8.0, 0.0, 0.0], WORKERS), STEP)
    assert advice.saving.waited_ns == (0.0, 2.0 * MS)
    assert advice.certainty == "possible"
    assert "step 2" in advice.because


def test_a_single_step_may_be_that_in_which_workers_start() -> None:
    advice = assert_bounded(judged([4.0], WORKERS, step=mean_step(steps=1)), STEP)
    assert advice.saving.waited_ns == (0.0, 4.0 * MS)
    assert advice.certainty == "possible"
    advice = assert_bounded(judged([4.0], step=mean_step(steps=1)), STEP)
    assert advice.saving.starved_ns[0] > 0


def test_a_short_wait_is_a_note() -> None:
    advice = assert_bounded(judged([0.7] * 5), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.0, 0.7 * MS))
    assert advice.certainty == "likely"


def test_it_is_silent_where_batches_are_there() -> None:
    assert judged([0.4] * 5) is None
    assert judged([0.0] * 5) is None
    assert judged([4.0] * 5, name="load") is None
    # To take a batch from a queue costs something on any machine.
    short = mean_step(
        steps=5, step_ns=1.0 * MS, unprofiled_ns=(MS, MS), busy_ns=0.5 * MS, starved_ns=0.5 * MS
    )
    assert judged([0.15] * 5, WORKERS, step=short) is None


def test_the_thresholds_work() -> None:
    assert judged([0.7] * 5, note_share=0.08) is None
    advice = judged([0.7] * 5, finding_share=0.06)
    assert advice is not None
    assert advice.saving.starved_ns[0] > 0.6 * MS


def test_it_names_the_function_that_loading_goes_to() -> None:
    zoom = {
        "function": "<built-in function zoom_shift>",
        "idle_ns": 17 * MS,
        "outer": "transformers/pipelines/detection.py(1): preprocess",
        "outer_idle_ns": 19 * MS,
        "outer_calls": 5,
        "path": "transformers/pipelines/detection.py(1): preprocess → "
        "scipy/ndimage/_interpolation.py(7): zoom → <built-in function zoom_shift>",
        "user_frame": "serve.py(4): main",
        "phase": "dataloader",
    }
    advice = assert_bounded(judged([4.0] * 5, functions=(zoom,)), STEP)
    assert "of it 3.40 ms for `zoom_shift()` of scipy" in advice.because
    assert [str(place) for place in advice.locations] == [
        "serve.py:4 main",
        "transformers/pipelines/detection.py:1 preprocess",
        "scipy/ndimage/_interpolation.py:7 zoom",
    ]
    assert "pipe(inputs, num_workers=2)" in fix_for(advice, Framework.HF_PIPELINE)
    for other in ({"phase": "forward"}, {"outer_idle_ns": 9 * MS}):
        assert assert_bounded(judged([4.0] * 5, functions=(zoom | other,)), STEP).locations == ()


def test_samples_that_are_taken_one_by_one() -> None:
    taken = {"name": "aten::select", "phase": "dataloader", "per_step": 512.0, "calls": 2560}
    advice = assert_bounded(judged([4.0] * 5, ops=(taken,)), STEP)
    assert "samples one by one from tensors: 512 operators a step" in advice.because
    assert advice.fix.index("BatchSampler") < advice.fix.index("num_workers")
    stacked = {"name": "aten::stack", "phase": "dataloader", "per_step": 1.0, "calls": 5, "launches": 5}
    advice = assert_bounded(judged([4.0] * 5, ops=(taken, stacked)), STEP)
    assert "from tensors on the GPU" in advice.because
    assert "num_workers" not in advice.fix
    few = {**taken, "per_step": 8.0}
    assert "BatchSampler" not in assert_bounded(judged([4.0] * 5, ops=(few, stacked)), STEP).fix


def test_samples_that_the_loader_sends_to_the_gpu() -> None:
    sent = {"name": "aten::to", "phase": "dataloader", "per_step": 600.0, "calls": 3000, "launches": 2560}
    advice = assert_bounded(judged([4.0] * 5, ops=(sent,)), STEP)
    assert "It copies 512 tensors a step to the GPU, one by one" in advice.because
    assert advice.fix.index("__getitem__") < advice.fix.index("num_workers")
    few = sent | {"launches": 40}
    assert "__getitem__" not in assert_bounded(judged([4.0] * 5, ops=(few,)), STEP).fix
