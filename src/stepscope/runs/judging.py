"""What the rules about runs say of a run, in order of what each gains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.findings import Advice, Finding, Rule, analysis_of
from stepscope.findings.build import loaded_rules, replaced, rule_id, run_rule
from stepscope.findings.ranking import ranked
from stepscope.findings.report import NotRun, Replaced
from stepscope.findings.thresholds import Thresholds
from stepscope.records import dataclass
from stepscope.runs.many import ManyRanks
from stepscope.runs.mean_step import RunFacts, RunMeanStep, run_facts_of, run_mean_step_of
from stepscope.tables import Table

__all__ = ["JudgedRun", "judged_run"]


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """What all rules say of a run."""

    facts: RunFacts
    mean_step: RunMeanStep
    findings: tuple[Finding, ...]
    """Most valuable first; those that yield to another one are left out."""
    not_run: tuple[NotRun, ...]
    replaced: tuple[Replaced, ...]
    advices: Mapping[str, Advice]
    """By the name of the rule; those that yield, too."""
    rules: Mapping[str, Rule]


def judged_run(run: ManyRanks, *, thresholds: Thresholds | None = None) -> JudgedRun:
    """What all rules about runs say of a run."""
    not_run: list[NotRun] = []
    rules: dict[str, Rule] = loaded_rules(not_run, "runs.rules")
    facts, mean_step = run_facts_of(run), run_mean_step_of(run)
    given = {"run_step": mean_step, "run_facts": facts}

    def table(name: str) -> Table[Any]:
        analysis, options = analysis_of(name)
        return run.table(analysis, **options).one_line()

    advices: dict[str, Advice] = {}
    for name, rule in rules.items():
        found = run_rule(name, rule, given, table, thresholds or {})
        if isinstance(found, NotRun):
            not_run.append(found)
        elif found is not None:
            advices[name] = found
    yielding = replaced(advices, rules)
    kept = [
        (rule_id(name), rules[name].category, one) for name, one in advices.items() if name not in yielding
    ]
    return JudgedRun(
        facts=facts,
        mean_step=mean_step,
        findings=ranked(kept, mean_step),
        not_run=tuple(not_run),
        replaced=tuple(Replaced(rule_id(name), rule_id(by)) for name, by in yielding.items()),
        advices=advices,
        rules=rules,
    )
