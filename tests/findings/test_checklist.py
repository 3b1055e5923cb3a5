"""The checklist and the phases: whose shares are given, and that healthy runs do not fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.findings.drawn import MS, busy_pace, drawn, facts, mean_step
from tests.samples import reported

from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.phases import Phase
from stepscope.analyses.steps import Step
from stepscope.findings.checklist import checklist_of
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.overview import overview_of
from stepscope.findings.report import ChecklistItem, Overview
from stepscope.present._phrases import phase_shares
from stepscope.tables import Table

GIB = 1 << 30
AHEAD = {"forward": (1, 33), "backward": (1, 60), "optimizer": (1, 7), "other": (7, 0)}
"""Milliseconds on the host and on the device: the host runs ahead and then waits."""


def tables(phases: dict[str, tuple[int, int]], **more: Table[Any]) -> dict[str, Table[Any]]:
    rows = [
        {"phase": name, "stretch_ns": host * MS, "device_ns": device * MS}
        for name, (host, device) in phases.items()
    ]
    steps = drawn(Step, {"dur_ns": 10 * MS, "kernel_ns": 10 * MS})
    return {"phases": drawn(Phase, *rows), "steps_by_any": steps, **more}


def overview(step: MeanStep, phases: dict[str, tuple[int, int]], **more: Table[Any]) -> Overview:
    return overview_of(step, facts(), tables(phases, **more))


def checks(
    step: MeanStep, phases: dict[str, tuple[int, int]], **more: Table[Any]
) -> dict[str, ChecklistItem]:
    shown = tables(phases, **more)
    return {one.name: one for one in checklist_of(step, facts(), overview_of(step, facts(), shown), shown)}


def test_the_device_comes_first_where_it_sets_the_pace() -> None:
    told = overview(busy_pace(), AHEAD)
    assert told.pace_set_by == "device"
    (first, shares), (second, _) = phase_shares(told)
    assert (first, second) == ("device", "host")
    assert shares == [("forward", "33.0 %"), ("backward", "60.0 %"), ("optimizer", "7.0 %")]


def test_the_host_comes_first_where_it_sets_the_pace() -> None:
    told = overview(mean_step(), AHEAD)
    assert [of for of, _ in phase_shares(told)] == ["host", "device"]
    alike = overview(mean_step(), {"forward": (4, 4), "backward": (6, 6)})
    assert [of for of, _ in phase_shares(alike)] == ["host"], "what is the same is said once"


def test_a_simulation_says_who_sets_the_pace() -> None:
    losses: dict[Any, tuple[float, float]] = dict.fromkeys(("device", "host", "communication"), (0.0, 0.1))
    assert overview(mean_step(losses=losses), AHEAD).pace_set_by == "device"
    losses |= {"host": (0.4, 0.5)}
    assert overview(busy_pace(losses=losses), AHEAD).pace_set_by == "host"


def test_work_of_unknown_phases_says_nothing() -> None:
    told = overview(busy_pace(), {"forward": (9, 0), "other": (1, 90)})
    assert told.pace_set_by == "host"


def test_unusual_shares_are_no_failure() -> None:
    found = checks(busy_pace(), AHEAD)
    assert (found["forward share"].state, found["forward share"].value) == ("info", "33.0 %")
    assert (found["backward share"].state, found["backward share"].value) == ("info", "60.0 %")
    assert (found["optimizer share"].state, found["optimizer share"].value) == ("pass", "7.0 %")
    assert found["forward share"].target == "35–40 % of device work"


def test_a_large_optimizer_is_a_failure() -> None:
    found = checks(busy_pace(), {**AHEAD, "optimizer": (1, 30)})
    assert found["optimizer share"].state == "fail"


def test_loading_behind_a_busy_device_is_no_failure() -> None:
    loading = {**AHEAD, "dataloader": (6, 0)}
    assert checks(busy_pace(), loading)["data share"].state == "pass"
    assert checks(mean_step(), loading)["data share"].state == "fail"


@pytest.mark.parametrize("used, state", [(20, "info"), (125, "pass"), (139, "fail")])
def test_memory_that_is_left_is_no_failure(used: int, state: str) -> None:
    memory = drawn(DeviceMemory, {"device": "0", "reserved_peak_bytes": used * GIB})
    assert checks(busy_pace(), AHEAD, memory=memory)["memory"].state == state


@pytest.mark.slow
def test_a_host_that_runs_ahead(sample: Callable[[str], Path]) -> None:
    report = reported(sample("verdicts/resnet_ddp_mi300.json.gz"))
    (first, shares), (second, _) = phase_shares(report.overview)
    assert (first, second) == ("device", "host")
    assert dict(shares)["backward"] == "84.1 %"
    assert [one.name for one in report.checklist if one.state == "fail"] == ["exposed communication"]
