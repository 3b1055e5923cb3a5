"""The ledger: a line a trial, whatever happens to the file or beside it."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.errors import StepscopeError
from stepscope.present._trial import history_text, trial_text
from stepscope.trials import Agreement, Estimate, Measurement, Promise, Trial
from stepscope.trials.ledger import LEDGER, add, entries, record_of

TRIAL = Trial(
    date="2026-11-16T09:30:00.000Z",
    command=("/usr/bin/python3", "train.py", "--epochs", "3"),
    tried="patch fix.diff",
    commit="9da07b9+",
    before=(Measurement((12_300_000,) * 25),) * 3,
    after=(Measurement((10_400_000,) * 25, notes=("A note.",)),) * 3,
    estimate=Estimate(0.152, 0.144, 0.16, 3),
    losses=Agreement("equal", "Losses agree: the first 20 are equal.", 20, 0.0, 0.0),
    promise=Promise(0.12, 0.18, "scalar-reads"),
    wanted_half_width=0.01,
    took_s=38.2,
)


def test_a_trial_is_read_as_it_was_written(tmp_path: Path) -> None:
    add(tmp_path / "new", record_of(TRIAL))
    add(tmp_path / "new", record_of(TRIAL))
    found, lost = entries(tmp_path / "new")
    assert found == [record_of(TRIAL)] * 2
    assert lost == 0
    assert found[0]["measured"]["pairs"] == [{"before_ns": 12_300_000, "after_ns": 10_400_000}] * 3
    assert (found[0]["verdict"], found[0]["promise_kept"]) == ("faster", "inside")


def test_there_is_nothing_at_first(tmp_path: Path) -> None:
    assert entries(tmp_path) == ([], 0)


def test_a_line_that_was_cut_short_is_left_alone(tmp_path: Path) -> None:
    add(tmp_path, record_of(TRIAL))
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-20])
    add(tmp_path, record_of(TRIAL))
    assert entries(tmp_path) == ([record_of(TRIAL)], 1)


def test_other_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text('{"schema": "else/1"}\n[]\n\n')
    assert entries(tmp_path) == ([], 2)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StepscopeError, match="cannot write"):
        add(tmp_path / "file" / "inside", record_of(TRIAL))


def _add_many(folder: Path) -> None:
    for _ in range(50):
        add(folder, record_of(TRIAL))


@pytest.mark.slow
def test_two_at_once_do_not_mix_their_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_add_many, args=(tmp_path,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    found, lost = entries(tmp_path)
    assert (len(found), lost) == (100, 0)


def test_the_text_of_a_trial() -> None:
    assert trial_text(TRIAL, width=100, color=False) == (
        "patch fix.diff · train.py --epochs 3 · commit 9da07b9+ · 3 pairs of runs, 150 steps · 38.2 s\n"
        "\n"
        "   FASTER   The step is 15.2 ± 0.8 % shorter: 12.3 ms → 10.4 ms.\n"
        "            Promised by scalar-reads: 12–18 %. The measured gain is inside.\n"
        "            Losses agree: the first 20 are equal.\n"
        "            A note.\n"
    )


def test_the_text_of_the_ledger() -> None:
    assert history_text([record_of(TRIAL)], width=120, color=False) == (
        "date              commit    tried           promised  measured      verdict              losses\n"
        "2026-11-16 09:30  9da07b9+  patch fix.diff  12–18 %   15.2 ± 0.8 %  faster, as promised  equal\n"
    )


@pytest.mark.parametrize(
    "gain,low,high,told",
    [
        (0.11, 0.10, 0.13, "faster, as promised"),
        (0.05, -0.1, 0.2, "no change, not certain"),
        (0.0, -0.01, 0.01, "no change, less than promised"),
        (-0.05, -0.06, -0.04, "slower, less than promised"),
        (0.3, 0.25, 0.35, "faster, more than promised"),
    ],
)
def test_how_promises_are_judged_in_the_ledger(gain: float, low: float, high: float, told: str) -> None:
    record = record_of(replace(TRIAL, estimate=Estimate(gain, low, high, 3)))
    assert told in history_text([record], width=140, color=False)


def test_the_text_of_a_trial_that_got_slower_and_is_not_certain() -> None:
    trial = replace(TRIAL, estimate=Estimate(-0.05, -0.07, -0.03, 3), promise=None)
    text = trial_text(trial, width=100, color=False)
    assert "   SLOWER   The step is 5.0 ± 2.0 % longer: 12.3 ms → 10.4 ms.\n" in text
    assert "The error is above 1.0 %: more pairs make it smaller (--pairs 6)" in text
    unsure = replace(TRIAL, estimate=Estimate(0.05, -0.1, 0.2, 3))
    text = trial_text(unsure, width=100, color=False)
    assert "   NO CHANGE   No change beyond noise: 5 ± 15 %, 12.3 ms → 10.4 ms.\n" in text
    assert "The measurement neither shows nor excludes it." in text
