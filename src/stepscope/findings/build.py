"""Builds a report: runs every rule over the tables it wants, and puts what they say in order."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

from stepscope import interrupts, registry
from stepscope.errors import StepscopeError
from stepscope.findings import Advice, NotKnown, Rule, analysis_of, wanted_by
from stepscope.findings.checklist import checklist_of
from stepscope.findings.facts import Facts, facts_of
from stepscope.findings.fixes import fitted
from stepscope.findings.mean_step import MeanStep, mean_step_of
from stepscope.findings.next_steps import TRIED, next_steps_of
from stepscope.findings.overview import overview_of
from stepscope.findings.pictures import PICTURED, pictures_of
from stepscope.findings.places import placed
from stepscope.findings.program import Program
from stepscope.findings.ranking import ranked, unweighed
from stepscope.findings.report import NotRun, Replaced, Report
from stepscope.findings.start_up_time import start_up_ns, without_start_up
from stepscope.findings.thresholds import Thresholds
from stepscope.findings.verdict import verdict_of
from stepscope.memory import is_lack_of_memory, is_limited, release_freed
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.streams import Progress
from stepscope.tables import LateTable, Table
from stepscope.threads import BackgroundWorker

__all__ = [
    "Judged",
    "build_report",
    "crashed",
    "import_all",
    "judged",
    "loaded_rules",
    "replaced",
    "report_of",
    "rule_id",
    "run_rule",
]

_GIVEN = ("mean_step", "facts")
_FOR_MEAN_STEP = ("steps_by_any", "devices", "idle_gaps", "critical_path_sides", "step_limits")
_SHOWN = (
    *PICTURED,
    "attention",
    *(f"changed_steps_by_{name}" for name in TRIED),
    "compilations",
    "compile_units",
    "cpu_parts",
    "iteration_kinds",
    "iterations",
    "kernels",
    "measured_kernels",
    "memory",
    "rooflines_by_family",
    "start_ups",
    "step_classes",
    # They look at the call tree, which the idle time of a first report makes.
    "phases",
    "library_functions",
    "trust",
    # They look at what others of these work out: next to them, one thread would wait for the other.
    "rooflines_by_step",
    "throughput",
)
"""What verdict, overview, checklist and next steps look at beside the mean step."""

_DOING = "working out the report"
MANY_EVENTS = 20_000_000
"""Two queries over more do not fit into 400 MB at a time."""
_TABLES_SHARE = 0.7
"""How much of the work is tables that are wanted in any case; the rest is what single rules look into."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What all rules say of a trace, before it is put in order."""

    facts: Facts
    mean_step: MeanStep
    rules: Mapping[str, Rule]
    advices: Mapping[str, Advice]
    """By the name of the rule; those that yield to another one, too."""
    not_run: tuple[NotRun, ...]
    shown: Mapping[str, Table[Any]]
    """What verdict, overview, checklist and next steps look at."""
    tables: Mapping[str, Table[Any]]
    """What a format shows beside that."""


def build_report(
    trace: Trace,
    *,
    thresholds: Thresholds | None = None,
    tables: Iterable[str] = (),
    progress: Progress | None = None,
) -> Report:
    """The report on a trace; `tables` are further analyses that a format shows."""
    return report_of(judged(trace, thresholds=thresholds, tables=tables, progress=progress))


def judged(
    trace: Trace,
    *,
    thresholds: Thresholds | None = None,
    tables: Iterable[str] = (),
    progress: Progress | None = None,
) -> Judged:
    """What all rules say of a trace; `tables` are further analyses that a format shows."""
    asked = _Tables(trace, progress)
    not_run: list[NotRun] = []
    rules = loaded_rules(not_run)
    asked.work_out([*_FOR_MEAN_STEP, *_SHOWN, *tables])
    mean_step = mean_step_of(*(asked.table(name) for name in _FOR_MEAN_STEP), measured=trace.measured)
    facts = facts_of(trace)
    given: dict[str, MeanStep | Facts] = {"mean_step": mean_step, "facts": facts}
    said: dict[str, Advice | NotRun | None] = {}

    def run(name: str) -> None:
        said[name] = run_rule(name, rules[name], given, asked.table, thresholds or {})

    _for_each(rules, run, trace, progress, since=_TABLES_SHARE)
    in_order = {name: said[name] for name in rules}
    not_run += [one for one in in_order.values() if isinstance(one, NotRun)]
    advices = {name: one for name, one in in_order.items() if isinstance(one, Advice)}
    shown = asked.known((*_FOR_MEAN_STEP, *_SHOWN), not_run)
    program = _program(facts, shown)
    starting_ns = start_up_ns(mean_step, shown.get("start_ups", ()), shown.get("compilations", ()))
    places = shown.get("library_functions", ())
    finished = {
        name: placed(fitted(without_start_up(one, mean_step, starting_ns), program), places)
        for name, one in advices.items()
    }
    for_format = asked.known(tuple(tables), not_run)
    return Judged(facts, mean_step, rules, finished, tuple(not_run), shown, for_format)


def report_of(judged: Judged) -> Report:
    """Puts in order what the rules say."""
    facts, mean_step, shown = judged.facts, judged.mean_step, judged.shown
    yielding = replaced(judged.advices, judged.rules)
    kept = [
        (rule_id(name), judged.rules[name].category, one)
        for name, one in judged.advices.items()
        if name not in yielding
    ]
    findings = ranked(kept, mean_step)
    if not mean_step.steps:
        findings = unweighed(findings)
    overview = overview_of(mean_step, facts, shown)
    verdict = verdict_of(mean_step, facts, overview, findings, shown)
    return Report(
        facts=facts,
        trust=tuple(shown.get("trust", ())),
        overview=overview,
        verdict=verdict,
        findings=findings,
        not_run=judged.not_run,
        checklist=checklist_of(mean_step, facts, overview, shown),
        next_steps=next_steps_of(mean_step, facts, verdict, findings, judged.not_run, shown),
        tables=judged.tables,
        pictures=pictures_of(shown),
        replaced=tuple(Replaced(rule_id(name), rule_id(by)) for name, by in yielding.items()),
    )


def _program(facts: Facts, shown: Mapping[str, Table[Any]]) -> Program:
    """Whose program it is, and whether it trains: what a fix has to fit."""
    classes = list(shown.get("step_classes", ()))
    known = any(one.backward_passes is not None for one in classes)
    trains = any(one.backward_passes or one.optimizer for one in classes)
    return Program(facts.frameworks, facts.vendor, trains if known else None)


def import_all() -> None:
    """Imports what a report needs; it takes longer than reading a small profile, and can be done beside."""
    import pyarrow.parquet  # noqa: F401

    for rule in loaded_rules([]).values():
        for name in wanted_by(rule)[0]:
            if name not in _GIVEN:
                registry.load("analyses", analysis_of(name)[0])


def loaded_rules(failed: list[NotRun], folder: str = "findings.rules") -> dict[str, Rule]:
    """All rules of a folder, those of other packages too; one that cannot be loaded is said."""
    rules: dict[str, Rule] = {}
    for name, _ in registry.names(folder, installed=True):
        try:
            loaded = registry.load(folder, name)
        except Exception as error:  # noqa: BLE001
            interrupts.pass_on()
            failed.append(crashed(rule_id(name), error))
            continue
        if hasattr(loaded, "category"):
            rules[name] = cast("Rule", loaded)
        else:
            reason = "it is no rule: it has no @rule(category=…)"
            failed.append(NotRun(rule_id(name), reason, "", crashed=True))
    return rules


def replaced(advices: Mapping[str, Advice], rules: Mapping[str, Rule]) -> dict[str, str]:
    """The rules that yield to one that found something, too, each with the first such."""
    yielding = {
        name: [other for other in rules[name].yields_to if other in advices and other != name]
        for name in advices
    }
    return {name: others[0] for name, others in yielding.items() if others}


def rule_id(name: str) -> str:
    """How reports call a rule."""
    return name.replace("_", "-")


def run_rule(
    name: str,
    rule: Rule,
    given: Mapping[str, Any],
    table: Callable[[str], Table[Any]],
    thresholds: Thresholds,
) -> Advice | NotRun | None:
    """What a rule says; one that lacks something or crashes is a line of its own, and the rest stands."""
    id_ = rule_id(name)
    try:
        seen = [given[one] if one in given else table(one) for one in wanted_by(rule)[0]]
        return rule(*seen, **thresholds.get(id_, {}))
    except NotKnown as unknown:
        return NotRun(id_, unknown.reason, unknown.record)
    except Exception as error:  # noqa: BLE001  # a crash is the result of this rule alone
        interrupts.pass_on()
        return crashed(id_, error)


def crashed(what: str, error: Exception) -> NotRun:
    """A crash of one rule or table, as a line of the report."""
    if is_lack_of_memory(error):
        raise error  # of all rules, not of this one: what it would have said is not known
    if isinstance(error, StepscopeError):
        # Its hint is for who typed something, not for who records.
        return NotRun(what, error.message, "", crashed=True)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    reason = f"it crashed: {type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"
    return NotRun(what, reason, "", crashed=True)


def _for_each(
    names: Iterable[str],
    do: Callable[[str], None],
    trace: Trace,
    progress: Progress | None,
    *,
    since: float = 0.0,
    until: float = 1.0,
) -> None:
    """Does something for each name, two at a time: one thread waits for the database, one computes.

    Of many events one at a time where memory is limited: two large queries at once would not fit.

    It is the part of the report from `since` to `until`, of 1.
    """
    asked = list(names)
    waiting = deque(asked)
    too_large = trace.meta.events > MANY_EVENTS and is_limited()

    def work(tell: Progress | None) -> None:
        while waiting:
            if tell:
                done = until - (until - since) * len(waiting) / len(asked)
                tell(_DOING, min(0.99, done), 0, trace.meta.events)
            try:
                name = waiting.popleft()
            except IndexError:  # the other thread was faster
                return
            do(name)
            if too_large:
                release_freed()

    # Of few events, threads that wait for one another cost more than they bring.
    if trace.is_small or too_large:
        work(progress)
    else:
        with BackgroundWorker() as beside:
            try:
                beside.run(partial(work, None))
                work(progress)
            finally:
                waiting.clear()
    if progress and until == 1:
        progress(_DOING, 1, 0, 0)


class _Tables:
    """The analyses that a report asks for, each worked out once."""

    def __init__(self, trace: Trace, progress: Progress | None) -> None:
        self._trace = trace
        self._progress = progress
        self._found: dict[str, Table[Any] | Exception] = {}
        self._one_line: dict[str, Table[Any]] = {}

    def work_out(self, shown: Iterable[str]) -> None:
        """Works out what is wanted in any case; what only rules want waits until one looks into it.

        Most rules decide by their first table.
        """
        names = [name for name in dict.fromkeys(shown) if name not in _GIVEN]
        _for_each(names, self._try, self._trace, self._progress, until=_TABLES_SHARE)

    def table(self, name: str) -> Table[Any]:
        """A table by its name; one that failed fails again."""
        if name not in self._one_line and name in self._found:
            self._one_line[name] = self._worked_out(name)
        elif name not in self._one_line:
            registry.load("analyses", analysis_of(name)[0])  # one that does not exist fails without a look
            self._one_line[name] = LateTable(partial(self._worked_out, name))
        return self._one_line[name]

    def known(self, names: Iterable[str], failed: list[NotRun]) -> dict[str, Table[Any]]:
        """Those of the tables that could be worked out; the others are said."""
        found = {name: self._found[name] for name in names}
        failed += [crashed(name, error) for name, error in found.items() if isinstance(error, Exception)]
        return {name: table for name, table in found.items() if isinstance(table, Table)}

    def _worked_out(self, name: str) -> Table[Any]:
        if name not in self._found:
            self._try(name)
        found = self._found[name]
        if isinstance(found, Exception):
            raise found
        return found.one_line()  # what a rule writes may be code of several lines

    def _try(self, name: str) -> None:
        analysis, options = analysis_of(name)
        try:
            self._found[name] = registry.load("analyses", analysis)(self._trace, **options)
        except Exception as error:  # noqa: BLE001  # each rule that wants it says so
            interrupts.pass_on()
            self._found[name] = error
