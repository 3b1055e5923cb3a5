from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.data_loaders import DataLoader
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.dataloader_waits import dataloader_waits
from stepscope.findings.rules.scarce_cpus import scarce_cpus

# Eight workers on three CPUs, one of which the program needs: a quarter of what they could use.
LOADER = {"num_workers": 8, "batches_per_step": 1.0, "waited_ns": 3 * MS, "available_cpus": 3.0}


def judged(*loaders: dict[str, Any], step: MeanStep | None = None, **thresholds: float) -> Advice | None:
    return scarce_cpus(step or mean_step(), drawn(DataLoader, *loaders), **thresholds)


def test_it_fires_for_the_wait() -> None:
    advice = assert_bounded(judged(LOADER), mean_step())
    assert advice.saving.waited_ns == (0.0, 3.0 * MS)
    assert "8 workers" in advice.because
    assert "3 CPUs" in advice.because
    assert "--cpus-per-task=9" in advice.fix
    assert "num_workers=2" in advice.fix


def test_more_cpus_shorten_it_by_their_factor_at_most() -> None:
    # Eight workers on seven CPUs: an eighth of the step of 10 ms.
    advice = assert_bounded(judged({**LOADER, "available_cpus": 8.0}), mean_step())
    assert advice.saving.waited_ns == pytest.approx((0.0, 10 * MS / 8))


def test_no_more_than_the_gpu_waits() -> None:
    step = mean_step(starved_ns=1.0 * MS)
    assert assert_bounded(judged(LOADER, step=step), step).saving.waited_ns == (0.0, 1.0 * MS)
    step = mean_step(device=None, starved_ns=0.0)
    assert assert_bounded(judged(LOADER, step=step), step).saving.waited_ns == (0.0, 3.0 * MS)


def test_a_part_of_a_cpu() -> None:
    advice = assert_bounded(judged({**LOADER, "available_cpus": 0.5}), mean_step())
    assert "0.5 CPUs" in advice.because
    assert "num_workers=1" in advice.fix


def test_workers_of_all_loaders_count() -> None:
    few = {**LOADER, "num_workers": 2, "available_cpus": 4.0}
    assert judged(few) is None
    assert_bounded(judged(few, few), mean_step())


def test_it_is_silent_where_there_are_enough_or_nobody_waits() -> None:
    assert judged() is None
    assert judged({**LOADER, "available_cpus": 9.0}) is None
    assert judged({**LOADER, "available_cpus": None}) is None
    assert judged({**LOADER, "num_workers": 0}) is None
    assert judged({**LOADER, "batches_per_step": None}) is None
    assert judged({**LOADER, "waited_ns": 10_000}) is None
    assert judged(LOADER, step=busy_pace()) is None
    assert judged(LOADER, least_share=0.5) is None


def test_more_workers_are_not_advised_beside_it() -> None:
    assert "scarce_cpus" in dataloader_waits.yields_to
