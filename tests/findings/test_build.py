"""The rule loop: every rule is asked, a crash or a lack is one line, and the rest of the report stands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analyses.oddities import ODDITIES, open_odd
from tests.analyses.test_code import training_step
from tests.samples import KEPT

import stepscope
from stepscope import registry
from stepscope.cli.traces import DEMO
from stepscope.findings import Advice, Category, NotKnown, Saving, analysis_of, rule, wanted_by
from stepscope.findings.build import build_report
from stepscope.findings.claims import Claim, Time
from stepscope.present.report.json import json as json_text
from stepscope.store import connection
from stepscope.store.trace import Trace

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "src" / "stepscope" / "findings" / "pages"
RULES = [name for name, _ in registry.names("findings.rules")]
GIVEN = ("mean_step", "facts")


@rule(category=Category.HOST)
def crashing(mean_step: Any) -> Advice | None:
    raise ZeroDivisionError("no luck")


@rule(category=Category.HOST)
def lacking(mean_step: Any) -> Advice | None:
    raise NotKnown("no luck recorded", record="luck=True")


@rule(category=Category.HOST)
def asking(nonsense: Any) -> Advice | None:
    raise AssertionError("there is no such analysis")


@rule(category=Category.HOST)
def saying(mean_step: Any, steps: Any, *, loud: float = 0.5) -> Advice | None:
    late = Saving(starved_ns=(0.0, loud * mean_step.starved_ns))
    texts: dict[str, Any] = {
        "title": "It is slow",
        "because": "Look.",
        "fix": "x = 1",
        "check": "Look again.",
    }
    return Advice(
        **texts,
        saving=late,
        certainty="likely",
        evidence={"steps": len(steps)},
        claims=frozenset({Claim(Time.STARVED)}),
    )


@rule(category=Category.INPUT, yields_to=("better", "best"))
def vague(mean_step: Any, steps: Any) -> Advice | None:
    return saying(mean_step, steps)


@rule(category=Category.SYNC, yields_to=("best",))
def better(mean_step: Any, steps: Any) -> Advice | None:
    return saying(mean_step, steps)


@rule(category=Category.DEVICE)
def best(mean_step: Any, steps: Any, *, silent: float = 0.0) -> Advice | None:
    return None if silent else saying(mean_step, steps)


def unmarked(mean_step: Any) -> Advice | None:
    raise AssertionError("it is no rule")


@pytest.fixture
def demo() -> Trace:
    return stepscope.open(DEMO, store=KEPT)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of our own in place of all others."""
    rules = {
        "crashing": crashing,
        "lacking": lacking,
        "asking": asking,
        "loud_rule": saying,
        "unmarked": unmarked,
    }
    replace_rules(monkeypatch, rules)


@pytest.fixture
def yielding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rules that say the same."""
    replace_rules(monkeypatch, {"vague": vague, "better": better, "best": best})


def replace_rules(monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]) -> None:
    load, names = registry.load, registry.names

    def fake_names(folder: str, **options: Any) -> list[tuple[str, str]]:
        ours = [(name, "") for name in (*rules, "broken")]
        return ours if folder == "findings.rules" else names(folder, **options)

    def fake_load(folder: str, name: str) -> Any:
        if name == "broken":
            raise ImportError("no module named luck")
        return rules[name] if folder == "findings.rules" else load(folder, name)

    monkeypatch.setattr(registry, "names", fake_names)
    monkeypatch.setattr(registry, "load", fake_load)


@pytest.mark.usefixtures("only")
def test_a_crash_or_a_lack_is_one_line_and_the_rest_stands(demo: Trace) -> None:
    report = build_report(demo)
    said = {one.id: (one.reason, one.record) for one in report.not_run}
    assert said["lacking"] == ("no luck recorded", "luck=True")
    assert re.fullmatch(r"it crashed: ZeroDivisionError: no luck \(crashing, line \d+\)", said["crashing"][0])
    assert said["asking"][0] == "unknown analysis 'nonsense'"
    assert said["broken"][0].startswith("it crashed: ImportError: no module named luck")
    assert said["unmarked"][0] == "it is no rule: it has no @rule(category=…)"
    assert [finding.id for finding in report.findings] == ["loud-rule"]
    assert report.findings[0].advice.evidence == {"steps": 10}


@pytest.mark.usefixtures("yielding")
def test_a_finding_gives_way_to_one_that_says_it_better(demo: Trace) -> None:
    report = build_report(demo)
    assert [(finding.id, finding.category) for finding in report.findings] == [("best", Category.DEVICE)]
    # The one that a rule names first took its place, though it gave way itself.
    assert {(one.id, one.by) for one in report.replaced} == {("vague", "better"), ("better", "best")}


@pytest.mark.usefixtures("yielding")
def test_a_finding_stands_where_the_better_rule_found_nothing(demo: Trace) -> None:
    report = build_report(demo, thresholds={"best": {"silent": 1.0}})
    assert [finding.id for finding in report.findings] == ["better"]
    assert [(one.id, one.by) for one in report.replaced] == [("vague", "better")]


@pytest.mark.usefixtures("only")
def test_thresholds_are_handed_over(demo: Trace) -> None:
    quiet = build_report(demo, thresholds={"loud-rule": {"loud": 0.0}})
    assert quiet.findings[0].gain.high_ns == 0


@pytest.mark.usefixtures("only")
def test_tables_that_a_face_asks_for_are_there(demo: Trace) -> None:
    report = build_report(demo, tables=("kernels", "ops_by_user_frame"))
    assert set(report.tables) == {"kernels", "ops_by_user_frame"}
    assert hasattr(next(iter(report.tables["ops_by_user_frame"])), "user_frame")


def test_progress_is_told_and_taken_away(demo: Trace) -> None:
    told: list[tuple[str, float | None]] = []
    build_report(demo, progress=lambda doing, done, *_: told.append((doing, done)))
    doing, done = told.pop()
    assert (doing, done) == ("working out the report", 1.0)
    shares = [done for doing, done in told if doing == "working out the report"]
    assert shares == sorted(shares, key=lambda share: share or 0)
    assert all(share is not None and share < 1 for share in shares)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ODDITIES))
def test_an_odd_profile_gets_a_report(name: str) -> None:
    """No rule crashes, whatever is missing or strange."""
    report = build_report(open_odd(name))
    assert not [one for one in report.not_run if "crashed" in one.reason]
    assert report.verdict.sentence


def test_a_drawn_step_is_reported_on(tmp_path: Path) -> None:
    trace = stepscope.open(training_step().write(tmp_path / "a.json"), store=tmp_path / "store")
    report = build_report(trace)
    assert report.overview.step_ns == sum(report.overview.parts.values()) == 200_000
    assert report.overview.found_by == "marks"


# ---------------------------------------------------------------- what holds for every rule


@pytest.mark.parametrize("name", RULES)
def test_a_rule_asks_for_what_there_is(name: str) -> None:
    rule = registry.load("findings.rules", name)
    tables, thresholds = wanted_by(rule)
    known = {analysis for analysis, _ in registry.names("analyses")}
    for parameter in tables:
        assert parameter in GIVEN or analysis_of(parameter)[0] in known
    assert all(isinstance(value, int | float) for value in thresholds.values())
    assert re.search(r"\bGain[:,]", rule.__doc__ or ""), "a rule argues its gain in its docstring"


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_its_page(name: str) -> None:
    """What it means, how it is computed with every threshold, how to fix it, when to ignore it."""
    rule_id = name.replace("_", "-")
    text = (PAGES / f"{rule_id}.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ .*$", text, re.MULTILINE)
    assert headings == [
        f"# {rule_id}",
        "## What it means",
        "## How it is computed",
        "## How to fix it",
        "## When to ignore it",
    ]
    for threshold, value in wanted_by(registry.load("findings.rules", name))[1].items():
        told = re.findall(rf"`{threshold}`\s\(([\d.,]*\d)", text)
        assert [float(number.replace(",", "")) for number in told] == [value], threshold


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_tests_of_its_own(name: str) -> None:
    text = (ROOT / "tests" / "findings" / "rules" / f"test_{name}.py").read_text(encoding="utf-8")
    assert "assert_bounded" in text, "that its gain is bounded"
    assert " is None" in text, "that it stays silent"


def test_there_is_a_page_for_every_rule_and_no_other() -> None:
    pages = {page.stem for page in PAGES.glob("*.md")} - {"README"}
    of_runs = {name for name, _ in registry.names("runs.rules")}
    assert pages == {name.replace("_", "-") for name in {*RULES, *of_runs}}


MOST_QUERIES = 135
"""What a report on a small trace may ask the database: each question costs milliseconds at any size."""


@pytest.mark.slow
def test_a_small_report_asks_few_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("fetch", "few", "run"):
        monkeypatch.setattr(connection, name, _counting(getattr(connection, name), asked))
    for number, source in enumerate((DEMO, training_step().write(tmp_path / "drawn.json"))):
        asked.clear()
        build_report(stepscope.open(source, store=tmp_path / str(number)))
        assert 0 < len(asked) <= MOST_QUERIES


def _counting(ask: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def counted(cursor: Any, sql: str, *more: Any) -> Any:
        asked.append(sql)
        return ask(cursor, sql, *more)

    return counted


@pytest.mark.slow
def test_a_report_is_the_same_however_large_a_trace_is_taken_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = stepscope.open(DEMO, store=tmp_path)
    texts = []
    for small, many in ((10**9, 10**9), (0, 10**9), (0, 0)):
        monkeypatch.setattr("stepscope.store.database.SMALL_EVENTS", small)
        monkeypatch.setattr("stepscope.findings.build.MANY_EVENTS", many)
        monkeypatch.setattr("stepscope.memory._limit", [600_000_000])
        trace = Trace(opened.folder)
        assert trace.is_small == (small > 0)
        texts.append(json_text(build_report(trace)))
    assert texts[1:] == texts[:2]
