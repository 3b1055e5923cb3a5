"""Budgets as people write them, and what is said of those that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.present.drawn_comparison import comparison, side
from tests.present.drawn_report import report

from stepscope.compare.budgets import FIGURES, budget_of, budgets_in, nearest_budgets
from stepscope.compare.check import CheckResult, checked
from stepscope.errors import StepscopeError
from stepscope.findings.thresholds import nearest_thresholds

MS = 1_000_000
GIB = 1 << 30


@pytest.mark.parametrize(
    "text,name,sign,limit,relative",
    [
        ("step_time < +3 %", "step_time", "<", 0.03, True),
        ("step_time<+3%", "step_time", "<", 0.03, True),
        ("step-time <= 12.5 ms", "step_time", "<=", 12.5 * MS, False),
        ("step_time < 900 us", "step_time", "<", 900_000, False),
        ("samples_per_second >= -2 %", "samples_per_second", ">=", -0.02, True),
        ("samples_per_second >= −2 %", "samples_per_second", ">=", -0.02, True),
        ("utilization >= 0.8", "utilization", ">=", 0.8, False),
        ("utilization >= 80 %", "utilization", ">=", 0.8, False),
        ("exposed_communication <= 0.05", "exposed_communication", "<=", 0.05, False),
        ("peak_memory <= 70 GiB", "peak_memory", "<=", 70 * GIB, False),
        ("peak_memory <= 80 gb", "peak_memory", "<=", 80e9, False),
        ("kernels_per_step < 1,000", "kernels_per_step", "<", 1000, False),
        ("finding host-syncs = none", "host-syncs", "<=", 0, False),
        ("finding any <= low", "any", "<=", 1, False),
    ],
)
def test_a_budget_is_read(text: str, name: str, sign: str, limit: float, relative: bool) -> None:
    budget = budget_of(text, "--budget")
    assert (budget.name, budget.sign, budget.relative) == (name, sign, relative)
    assert budget.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    "text,message,hint",
    [
        ("step_tme < +3 %", "'step_tme', which is not a figure", "did you mean step_time?"),
        ("step_time", "cannot be read", "write it like"),
        ("step_time < fast", "'fast' in the budget", "write it like"),
        ("step_time < 12", "has no fitting unit", "ms"),
        ("step_time < 12 GiB", "has no fitting unit", "ms"),
        ("step_time < +3 ms", "has no % sign", "+3 %"),
        ("peak_memory < 70", "has no fitting unit", "gib"),
        ("finding scalar-reeds = none", "no finding 'scalar-reeds'", "did you mean scalar-reads?"),
        ("finding scalar-reads = few", "cannot be read", "= none"),
        ("finding", "cannot be read", "= none"),
    ],
)
def test_what_cannot_be_understood_is_said_with_its_place(text: str, message: str, hint: str) -> None:
    with pytest.raises(StepscopeError) as found:
        budget_of(text, "stepscope.toml:7")
    assert found.value.message.startswith("stepscope.toml:7: ")
    assert message in found.value.message
    assert hint in found.value.hint


def test_budgets_of_a_project(tmp_path: Path) -> None:
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    assert nearest_budgets(inner) == []
    (tmp_path / "pyproject.toml").write_text(
        '[tool.stepscope]\nbudgets = [\n  "step_time < +3 %",\n  "utilization >= 0.8",\n]\n'
        "[tool.stepscope.dataloader-waits]\nfinding_share = 0.2\n",
        encoding="utf-8",
    )
    assert [(one.name, one.where) for one in nearest_budgets(inner)] == [
        ("step_time", "pyproject.toml:3"),
        ("utilization", "pyproject.toml:4"),
    ]
    assert nearest_thresholds(inner) == {"dataloader-waits": {"finding_share": 0.2}}
    (inner / "stepscope.toml").write_text('budgets = ["finding any <= low"]\n', encoding="utf-8")
    assert [one.name for one in nearest_budgets(inner)] == ["any"]


@pytest.mark.parametrize("text", ["budgets = 3", 'budgets = "step_time < 3 ms"', "budgets = [3]"])
def test_budgets_that_are_no_list(text: str, tmp_path: Path) -> None:
    file = tmp_path / "stepscope.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(StepscopeError, match="not a list of strings"):
        budgets_in(file)


def test_an_error_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "stepscope.toml"
    file.write_text('# ours\nbudgets = [\n  "utilization >= 0.8",\n  "speed > 3",\n]\n', encoding="utf-8")
    with pytest.raises(StepscopeError, match=r"stepscope.toml:4: .*'speed'"):
        budgets_in(file)


def judged(*texts: str, strict: bool = False) -> CheckResult:
    """Against a step that went from 64 to 48 ms, with steps that vary by a fiftieth."""
    change = comparison().whole
    return checked(change.after, change, [budget_of(text, "--budget") for text in texts], strict=strict)


@pytest.mark.parametrize(
    "text,state",
    [
        ("step_time < +3 %", "pass"),
        ("step_time < -20 %", "pass"),
        ("step_time < -26 %", "not sure"),
        ("step_time < -40 %", "fail"),
        ("step_time < 50 ms", "pass"),
        ("step_time < 47.9 ms", "not sure"),
        ("step_time < 20 ms", "fail"),
        ("steps_per_second > 20", "pass"),
        ("steps_per_second > 20.9", "not sure"),
        ("steps_per_second > 40", "fail"),
        ("steps_per_second > +30 %", "pass"),
        ("steps_per_second > +60 %", "fail"),
        ("tokens_per_second > 5", "not known"),
        ("utilization >= 0.5", "pass"),
        ("utilization >= 0.8", "fail"),
        ("utilization >= -1 %", "pass"),
        ("exposed_communication <= 0.05", "pass"),
        ("exposed_communication <= 0.01", "fail"),
        ("peak_memory <= 71 GiB", "pass"),
        ("peak_memory <= 70 GiB", "fail"),
        ("finding scalar-reads = none", "fail"),
        ("finding host-syncs = none", "fail"),
        ("finding recomputation = none", "pass"),
        ("finding allocation-churn = none", "not known"),
        ("finding weight-casts <= medium", "pass"),
        ("finding any <= low", "fail"),
    ],
)
def test_a_budget_is_judged(text: str, state: str) -> None:
    check = judged(text)
    (outcome,) = check.outcomes
    assert outcome.state == state, outcome.said
    assert outcome.said.endswith(".")
    assert bool(check.failed) == (state in ("fail", "not known"))
    assert bool(judged(text, strict=True).failed) == (state != "pass")


def test_a_baseline_alone_asks_for_no_slower_step() -> None:
    change = comparison().whole
    assert not checked(change.after, change, []).failed
    (outcome,) = checked(change.after, change, []).outcomes
    assert outcome.budget.text == "step_time <= +0 %"


def test_a_change_needs_a_baseline() -> None:
    with pytest.raises(StepscopeError, match="needs a baseline") as found:
        checked(side("alone", 48 * MS), None, [budget_of("step_time < +3 %", "--budget")])
    assert found.value.exit_code == 2


def test_every_figure_can_be_asked_for() -> None:
    whole = side("whole", 48 * MS)
    known = {name for name, figure in FIGURES.items() if figure.of(whole) is not None}
    assert known == set(FIGURES) - {"tokens_per_second"}
    assert report().overview.mfu_share == FIGURES["mfu"].of(whole)
