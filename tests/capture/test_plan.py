"""Which steps are measured and recorded, and how their times are put together."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stepscope.capture.plan import Plan, has_settled, plan_for
from stepscope.capture.run_folder import RankFile, merge
from stepscope.capture.settings import Settings
from stepscope.capture.timing import StepClock, summary

MS = 1_000_000


def settings(**told: object) -> Settings:
    return Settings(folder="/nowhere", **told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "steps_ns, settled",
    [
        ([10 * MS] * 5, True),
        ([10 * MS] * 4, False),
        ([9000 * MS, 4000 * MS, 30 * MS, 12 * MS, 10 * MS], False),
        ([9000 * MS, 4000 * MS, 30 * MS, 10 * MS, 10 * MS, 10 * MS, 10 * MS, 10 * MS], True),
        ([MS * (60 - at) ** 3 for at in range(50)], True),
    ],
)
def test_when_steps_no_longer_get_shorter_they_have_settled(steps_ns: list[int], settled: bool) -> None:
    assert has_settled(steps_ns, None) is settled


def test_skipped_steps_are_as_many_as_were_asked_for() -> None:
    assert not has_settled([MS] * 2, 3)
    assert has_settled([MS] * 3, 3)


@pytest.mark.parametrize(
    "step_ns, counts",
    [
        (MS, {"unprofiled": 25, "light": 5, "full": 2}),
        (40 * MS, {"unprofiled": 13, "light": 5, "full": 2}),
        (3_000 * MS, {"unprofiled": 5, "light": 2, "full": 1}),
        (60_000 * MS, {"unprofiled": 3, "light": 1, "full": 1}),
    ],
)
def test_long_steps_are_recorded_less_often(step_ns: int, counts: dict[str, int]) -> None:
    assert plan_for(settings(), 8, [step_ns] * 6).counts == counts


def test_passes_follow_each_other_with_a_step_to_warm_up() -> None:
    plan = Plan(8, {"unprofiled": 10, "light": 5, "full": 2})
    assert [(one.name, one.start, one.first, one.end) for one in plan.spans] == [
        ("unprofiled", 8, 8, 18),
        ("light", 18, 19, 24),
        ("full", 24, 25, 27),
    ]
    assert [one.end for one in plan.extended("unprofiled", 3).spans] == [21, 27, 30]


def test_settings_survive_the_way_to_the_program() -> None:
    given = settings(command=("python", "train.py"), steps=3, module="Net", passes=("unprofiled", "light"))
    assert Settings.read(given.environment()["STEPSCOPE_CAPTURE"]) == given


def test_the_interval_of_a_mean() -> None:
    assert summary([]) is None
    assert summary([100]) == {"mean": 100, "median": 100, "low": 100, "high": 100, "steps": 1}
    found = summary([90_000, 110_000] * 8)
    assert found is not None
    assert (found["mean"], found["median"], found["steps"]) == (100_000, 100_000, 16)
    assert found["high"] - found["low"] == pytest.approx(2 * 2.13 * 10_328 / 4, rel=0.01)


@pytest.mark.slow  # imports torch
def test_the_clock_takes_the_time_between_marks() -> None:
    clock = StepClock(3)
    for _ in range(4):
        clock.mark()
        time.sleep(0.01)
    steps = clock.steps_ns()
    assert len(steps) == 3
    assert min(steps) >= 10 * MS


def test_one_process_records_a_rank_and_run_json_has_all_of_them(tmp_path: Path) -> None:
    first, second = RankFile(str(tmp_path), 0), RankFile(str(tmp_path), 1)
    assert first.claim()
    assert not RankFile(str(tmp_path), 0).claim()
    first.tell(command=["python"], world_size=2, started="2026-01-01T00:00:01Z", ended=None, environment={})
    second.tell(
        command=["python"], world_size=2, started="2026-01-01T00:00:00Z", ended="2026-01-01T00:01:00Z"
    )
    second.note("It was cut short.")
    second.note("It was cut short.")
    run = merge(tmp_path, 3, ended=True)
    assert run is not None
    assert run["schema"] == "stepscope.run/1"
    assert (run["started"], run["exit_code"], run["world_size"]) == ("2026-01-01T00:00:00Z", 3, 2)
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1]
    assert run["ranks"][1]["notes"] == ["It was cut short."]
    assert merge(tmp_path / "empty") is None
