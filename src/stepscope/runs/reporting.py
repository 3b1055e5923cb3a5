"""One report on a run of many ranks: what all of them show together, and one of them in depth.

The rank in depth is the one that sets the pace: the others wait for it, so that what it could save, the run
saves. Beside it a usual rank is looked at: what both of them have holds for all, what only the first has is
what makes it late. Where no rank is late, the usual one is the one in depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepscope import units
from stepscope.findings import Advice, Finding, Location
from stepscope.findings._waits import of_shares
from stepscope.findings.build import Judged
from stepscope.findings.report import Report, RunFacts, Verdict
from stepscope.runs.judging import JudgedRun
from stepscope.runs.many import ManyRanks
from stepscope.tables import Table

__all__ = ["RUN_TABLES", "InDepth", "in_depth", "of_run", "with_run"]

RUN_TABLES = ("stragglers", "clocks", "process_groups", "rank_steps", "run_steps", "critical_ranks")
"""The tables over all ranks that a report shows."""
STRAGGLES_SHARE = 0.03
"""Others that lose this part of the step to one rank wait for it."""
IMBALANCED_SHARE = 0.10
"""If they lose this part of it, that is what limits the run."""
_ALIKE = 0.5
"""A finding of both ranks holds for all if the usual one gains this part of what the other one does."""
_PLACE_SHARE = 0.3
"""The function in which a late rank spends more time than a usual one must explain this part of it."""


@dataclass(frozen=True, slots=True)
class InDepth:
    """The ranks that are opened in depth."""

    judged: int
    compared: int | None
    """A usual rank, if the judged one is none."""
    late_ns: float = 0.0
    """How late the judged one is, in a step."""
    lost_share: float = 0.0
    """Part of the step that each of the others loses by that."""

    @property
    def because(self) -> str:
        """Why the first was chosen, after `which`."""
        return "is usual" if self.compared is None else "sets the pace"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Both of them."""
        return (self.judged,) if self.compared is None else (self.judged, self.compared)


def in_depth(run: ManyRanks) -> InDepth:
    """Which ranks to look at in depth."""
    own = _mean_own(run)
    usual = _middle(own)
    step_ns = _mean_step_ns(run)
    costs: dict[int, float] = {}
    late: dict[int, float] = {}
    for row in run.table("stragglers"):
        costs[row.rank] = costs.get(row.rank, 0.0) + row.cost_ns
        late[row.rank] = late.get(row.rank, 0.0) + row.late_ns
    if not costs or not step_ns or len(run.ranks) < 2:
        return InDepth(usual, None)
    worst = max(costs, key=lambda rank: (costs[rank], -rank))
    lost = costs[worst] / (len(run.ranks) - 1) / step_ns
    if lost < STRAGGLES_SHARE:
        return InDepth(usual, None)
    return InDepth(worst, _middle({rank: ns for rank, ns in own.items() if rank != worst}), late[worst], lost)


def _mean_own(run: ManyRanks) -> dict[int, float]:
    means = run.table("rank_steps").arrow.group_by("rank").aggregate([("own_ns", "mean")])
    own = dict(zip(means["rank"].to_pylist(), means["own_ns_mean"].to_pylist(), strict=True))
    return {rank: own.get(rank, 0.0) for rank in run.ranks}


def _middle(own: Mapping[int, float]) -> int:
    """The rank whose own time is the median."""
    order = sorted(own, key=lambda rank: (own[rank], rank))
    return order[(len(order) - 1) // 2]


def _mean_step_ns(run: ManyRanks) -> float:
    lengths: list[int] = run.table("run_steps").arrow["step_ns"].to_pylist()
    return sum(lengths) / len(lengths) if lengths else 0.0


# ---------------------------------------------------------------- findings


def of_run(judged: Judged, usual: Judged | None, told: JudgedRun, chosen: InDepth) -> Judged:
    """What the rules say of the rank in depth, and those about runs of all ranks."""
    step = judged.mean_step
    most = chosen.late_ns / step.step_ns if step.step_ns and usual is not None else 1.0
    ours = {}
    for name, advice in judged.advices.items():
        only = usual is not None and not _holds_for_all(name, judged, usual)
        ours[name] = _at_most(advice, judged, most) if only else advice
    place = _place(judged, usual, chosen)
    runs = {
        name: replace(one, locations=place) if place and name == _STRAGGLING and not one.locations else one
        for name, one in told.advices.items()
    }
    return replace(
        judged,
        rules={**judged.rules, **told.rules},
        advices={**ours, **runs},
        not_run=(*judged.not_run, *told.not_run),
    )


_STRAGGLING = "straggling_rank"


def _holds_for_all(name: str, judged: Judged, usual: Judged) -> bool:
    ours, theirs = judged.advices[name], usual.advices.get(name)
    if theirs is None:
        return False
    gained = judged.mean_step.gain(ours.saving).high_share
    return usual.mean_step.gain(theirs.saving).high_share >= _ALIKE * gained


def _at_most(advice: Advice, judged: Judged, most_share: float) -> Advice:
    """An advice for one rank alone gains no more than that rank is late: then the others set the pace."""
    gain = judged.mean_step.gain(advice.saving)
    if gain.high_share <= most_share:
        return advice
    less = most_share / gain.high_share
    return replace(advice, saving=of_shares(judged.mean_step, less * gain.low_share, most_share))


def _place(judged: Judged, usual: Judged | None, chosen: InDepth) -> tuple[Location, ...]:
    """The function of the program in which a late rank spends more time than a usual one."""
    ours, theirs = judged.tables.get("lines"), usual.tables.get("lines") if usual else None
    if not ours or theirs is None or usual is None:
        return ()
    found: list[tuple[float, Location]] = []
    for column in ("idle_ns", "host_ns", "device_ns"):
        before = {_key(row): getattr(row, column) / max(1, usual.mean_step.steps) for row in theirs}
        for row in ours:
            more = getattr(row, column) / max(1, judged.mean_step.steps) - before.get(_key(row), 0.0)
            if row.file is not None and row.line is not None and more >= _PLACE_SHARE * chosen.late_ns:
                note = f"{units.duration(more)} more a step than on rank {chosen.compared}"
                found.append((more, Location(row.file, row.line, row.function or "", note)))
        if found:
            break
    found.sort(key=lambda one: -one[0])
    return tuple(location for _, location in found[:2])


def _key(row: Any) -> tuple[Any, ...]:
    return row.file, row.line, row.function


# ---------------------------------------------------------------- the report


def with_run(
    report: Report, run: ManyRanks, chosen: InDepth, usual: Judged | None, tables: Mapping[str, Table[Any]]
) -> Report:
    """The report on a rank as one on its run."""
    verdict = report.verdict
    if chosen.lost_share >= IMBALANCED_SHARE:
        verdict = Verdict("imbalanced", _lateness(run, chosen, tables), verdict.promise)
    findings = tuple(_of_ranks(one, usual, chosen) for one in report.findings)
    return replace(report, verdict=verdict, findings=findings, run=_facts(run, chosen, tables))


def _of_ranks(finding: Finding, usual: Judged | None, chosen: InDepth) -> Finding:
    name = finding.id.replace("-", "_")
    if usual is None or name not in usual.rules:
        return finding
    theirs = usual.advices.get(name)
    gained = usual.mean_step.gain(theirs.saving).high_share if theirs else 0.0
    if theirs is not None and gained >= _ALIKE * finding.gain.high_share:
        return finding
    return replace(finding, ranks=(chosen.judged,))


def _lateness(run: ManyRanks, chosen: InDepth, tables: Mapping[str, Table[Any]]) -> str:
    rows = [row for row in tables["stragglers"] if row.rank == chosen.judged]
    rows.sort(key=lambda row: -row.late_ns)
    host = run.host_of(chosen.judged)
    where = f" (on {host})" if host else ""
    last = max(row.last_share for row in rows)
    causes = _causes(rows)
    step = units.duration(_mean_step_ns(run))
    others = len(run.ranks) - 1
    loses = "the other rank waits" if others == 1 else f"each of the {units.count(others)} other ranks waits"
    return (
        f"Rank {chosen.judged}{where} comes last to {units.percent(last)} of its collectives, "
        f"{units.duration(chosen.late_ns)} late in a step of {step}{causes}. On average {loses} "
        f"{units.percent(chosen.lost_share)} of the step for it."
    )


_WHY = {
    "input": "it waits for data",
    "more work": "it has more work to do",
    "slower device": "its device is slower at the same work",
    "host": "its host launches work later",
    "memory": "it allocates and frees memory",
    "collector": "Python's garbage collector runs",
    "compiling": "it compiles",
    "other": "of something that was not recorded",
}


def _causes(rows: Sequence[Any]) -> str:
    whole = sum(row.late_ns for row in rows if row.late_ns > 0)
    named = [_WHY.get(row.cause, row.cause) for row in rows if row.late_ns > 0.25 * whole][:2]
    return f", because {' and '.join(named)}" if named else ""


def _facts(run: ManyRanks, chosen: InDepth, tables: Mapping[str, Table[Any]]) -> RunFacts:
    hosts: dict[str, tuple[int, ...]] = {}
    for one in run.summaries:
        hosts[one.facts.host] = (*hosts.get(one.facts.host, ()), one.facts.rank)
    failed = tuple(
        f"{one.source} could not be read: {one.reason}" if one.rank is None
        else f"Rank {one.rank} could not be read: {one.reason} ({one.source})"
        for one in run.failed
    )  # fmt: skip
    return RunFacts(
        name=run.name,
        ranks=run.ranks,
        missing=run.missing,
        failed=failed,
        hosts=hosts,
        steps=len(tables["run_steps"]),
        step_ns=round(_mean_step_ns(run)),
        judged_rank=chosen.judged,
        judged_because=chosen.because,
        compared_rank=chosen.compared,
        notes=(*_missing(run), *run.notes),
        tables=tables,
    )


def _missing(run: ManyRanks) -> tuple[str, ...]:
    if not run.missing:
        return ()
    listed = ", ".join(map(str, run.missing[:8])) + (", …" if len(run.missing) > 8 else "")
    few = f"Rank {listed} has" if len(run.missing) == 1 else f"Ranks {listed} have"
    return (f"{few} no profile: what the others wait for may be there.",)
