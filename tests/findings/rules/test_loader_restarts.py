from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.loader_starts import LoaderStart
from stepscope.findings import Advice
from stepscope.findings.rules.loader_restarts import loader_restarts

STEP = mean_step(unprofiled_ns=(10.0 * MS, 10.0 * MS))
RESTARTED = {
    "loader": "_SingleProcessDataLoaderIter",
    "user_frame": "train.py(7): step",
    "batches": 20,
    "starts": 10,
    "steps": 10,
    "start_up_ns": 20 * MS,
    "whole_ns": 30 * MS,
    "ending_ns": 0,
}


def found(**changed: Any) -> Advice | None:
    return loader_restarts(STEP, drawn(LoaderStart, RESTARTED | changed))


def test_what_the_start_takes_goes() -> None:
    advice = assert_bounded(found(), STEP)
    assert advice.saving.waited_ns == pytest.approx((2.0 * MS, 3.0 * MS))
    assert "makes a new iterator" in advice.because
    assert "workers" not in advice.because
    assert "batches = iter(loader)" in advice.fix
    assert [place.line for place in advice.locations] == [7]


def test_workers_are_started_as_well() -> None:
    advice = assert_bounded(found(loader="_MultiProcessingDataLoaderIter", starts=20), STEP)
    assert "starts its workers" in advice.because
    assert "makes 2 new iterators" in advice.because


def test_workers_that_are_not_kept_are_started_for_each_epoch() -> None:
    epochs = {"loader": "_MultiProcessingDataLoaderIter", "batches": 170, "ending_ns": 10 * MS}
    advice = assert_bounded(found(**epochs), STEP)
    assert advice.saving.waited_ns == pytest.approx((2.0 * MS, 4.0 * MS))
    assert "for 16 batches each" in advice.because
    assert "Ending it takes 1.00 ms more." in advice.because
    assert "persistent_workers=True" in advice.fix


EPOCHS = {
    "loader": "_MultiProcessingDataLoaderIter", "batches": 12, "starts": 2, "steps": 2,
    "making_ns": 8 * MS, "start_up_ns": 12 * MS, "whole_ns": 14 * MS, "ending_ns": 4 * MS,
}  # fmt: skip


def test_some_steps_begin_an_epoch() -> None:
    advice = assert_bounded(found(**EPOCHS), STEP)
    assert advice.title == "Workers of a DataLoader are started anew for each epoch"
    assert advice.saving.waited_ns == pytest.approx((1.2 * MS, 1.8 * MS))
    assert "In 10 recorded steps 2 epochs begin" in advice.because
    assert "that takes each time 4.00 ms, and 7.00 ms with the first batch" in advice.because
    assert "ending the workers of the last epoch takes 2.00 ms." in advice.because
    assert advice.fix.startswith("loader = DataLoader(dataset, ..., persistent_workers=True)")


def test_one_epoch_does_not_tell_how_long_they_are() -> None:
    advice = assert_bounded(found(**EPOCHS | {"starts": 1, "steps": 1}), STEP)
    assert advice.saving.waited_ns == pytest.approx((0.0, 1.8 * MS))
    assert "one epoch begins" in advice.because
    assert "How many steps an epoch has was not recorded" in advice.because


@pytest.mark.parametrize("changed", [{"ending_ns": MS}, {"loader": "_SingleProcessDataLoaderIter"}])
def test_workers_that_are_kept_are_not_ended(changed: dict[str, Any]) -> None:
    assert found(**EPOCHS | changed) is None


def test_it_is_silent_at_the_end_of_an_epoch_and_where_it_is_little() -> None:
    assert found(steps=1) is None
    assert found(starts=0, steps=0, start_up_ns=0, whole_ns=0) is None
    assert found(start_up_ns=MS, whole_ns=MS) is None
