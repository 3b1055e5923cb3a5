"""One report on a run of many ranks: what all of them show together, and one of them in depth.

The rank in depth is the one that sets the pace: the others wait for it, so that what it could save, the run
saves. Beside it a usual rank is looked at: what both of them have holds for all, what only the first has is
what makes it late. Where no rank is late, the usual one is the one in depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from stepscope import units
from stepscope.compare import RankOfSide, RanksOfSide
from stepscope.findings import Advice, Finding, Gain, Location
from stepscope.findings._waits import of_shares
from stepscope.findings.build import Judged
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.report import Report, RunFacts, Verdict, Word
from stepscope.records import dataclass
from stepscope.runs.analyses.stragglers import Straggler
from stepscope.runs.judging import JudgedRun
from stepscope.runs.many import ManyRanks
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.simulation import RankChange
from stepscope.tables import Table

__all__ = ["RUN_TABLES", "InDepth", "in_depth", "judged_from_summaries", "of_run", "side_of", "with_run"]

RUN_TABLES = ("stragglers", "clocks", "process_groups", "rank_steps", "run_steps", "critical_ranks")
"""The tables over all ranks that a report shows."""
STRAGGLES_SHARE = 0.03
"""Others that lose this part of the step to one rank wait for it."""
IMBALANCED_SHARE = 0.10
"""If the run could gain this part of it, that is what limits the run."""
_CLEAR_SHARE = 0.3
"""Where only summaries tell, what takes this part of the step is named."""
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
    """Part of the step in which each of the others, on average, does nothing but wait for it."""
    gain: Gain | None = None
    """What the run gains if it comes as early as the median rank, played; None if that cannot be played."""

    @property
    def most_share(self) -> float:
        """Part of the step that the run can gain at most by that."""
        return self.lost_share if self.gain is None else self.gain.high_share

    @property
    def because(self) -> str:
        """Why the first was chosen, after `which`."""
        return "is usual" if self.compared is None else "sets the pace"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Both of them."""
        return (self.judged,) if self.compared is None else (self.judged, self.compared)


def in_depth(run: ManyRanks, step: RunMeanStep) -> InDepth:
    """Which ranks to look at in depth."""
    own = _mean_own(run)
    usual = _middle(own)
    step_ns = _mean_step_ns(run)
    costs: dict[int, float] = {}
    late: dict[int, float] = {}
    for row in run.table("stragglers"):
        costs[row.rank] = costs.get(row.rank, 0.0) + row.exposed_cost_ns
        late[row.rank] = late.get(row.rank, 0.0) + row.late_ns
    if not costs or not step_ns or len(run.ranks) < 2:
        return InDepth(usual, None)
    worst = max(costs, key=lambda rank: (costs[rank], -rank))
    lost = costs[worst] / (len(run.ranks) - 1) / step_ns
    if lost < STRAGGLES_SHARE:
        return InDepth(usual, None)
    usual = _middle({rank: ns for rank, ns in own.items() if rank != worst})
    gain = None
    if step.simulator.is_usable:
        gain = step.gain(step.saving([RankChange((worst,), like="median rank")]))
    return InDepth(worst, usual, late[worst], lost, gain)


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

_ALWAYS_SAID_BY_RUNS = ("exposed_communication",)
"""Rules that cannot tell on one rank what is waiting and what transfer: tables of the run can."""
_SAID_BY_RUNS = {
    "gloo_backend": "gloo_for_device",
    "slow_collectives": "slow_link",
    "small_all_reduces": "small_collectives",
    "small_buckets": "small_collectives",
}
"""Rules about one rank, and those about runs that say the same with more insight."""


def of_run(judged: Judged, usual: Judged | None, told: JudgedRun, chosen: InDepth) -> Judged:
    """What the rules say of the rank in depth, and those about runs of all ranks."""
    step = judged.mean_step
    ours = {}
    for name, advice in judged.advices.items():
        if name in _ALWAYS_SAID_BY_RUNS or _SAID_BY_RUNS.get(name) in told.advices:
            continue
        only = usual is not None and name not in usual.advices
        ours[name] = _at_most(advice, judged, chosen.most_share) if only else advice
    place = _place(judged, usual, chosen)
    runs = {name: _in_terms_of(step, told, one) for name, one in told.advices.items()}
    for name, one in runs.items():
        if place and not one.locations and one.evidence.get("rank") == chosen.judged:
            runs[name] = replace(one, locations=place)
    return replace(
        judged,
        rules={**judged.rules, **told.rules},
        advices={**ours, **runs},
        not_run=(*judged.not_run, *told.not_run),
    )


def _in_terms_of(step: MeanStep, told: JudgedRun, advice: Advice) -> Advice:
    """An advice about the run as the same part of the step of a rank."""
    gain = told.mean_step.gain(advice.saving)
    return replace(advice, saving=of_shares(step, gain.low_share, gain.high_share))


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
    our, their = _per_step(ours, judged), _per_step(theirs, usual)
    for column in ("idle_ns", "host_ns", "device_ns"):
        before = {_key(row): getattr(row, column) * their for row in theirs}
        for row in ours:
            more = getattr(row, column) * our - before.get(_key(row), 0.0)
            if row.file is not None and row.line is not None and more >= _PLACE_SHARE * chosen.late_ns:
                note = f"{units.duration(more)} more a step than on rank {chosen.compared}"
                found.append((more, Location(row.file, row.line, row.function or "", note)))
        if found:
            break
    found.sort(key=lambda one: -one[0])
    return tuple(location for _, location in found[:2])


def _per_step(lines: Table[Any], judged: Judged) -> float:
    """What times of a table of lines are multiplied with to be those of a step.

    They may be of a full pass with fewer and longer steps than the judged one: all of its host time counts.
    """
    whole = sum(row.host_ns for row in lines)
    return judged.mean_step.step_ns / whole if whole else 0.0


def _key(row: Any) -> tuple[Any, ...]:
    return row.file, row.line, row.function


def judged_from_summaries(run: ManyRanks) -> Judged:
    """A rank of which there is no profile here: nothing is known of it but its step."""
    step_ns = _mean_step_ns(run)
    facts = Facts(
        source=run.name,
        rank=run.ranks[0],
        world_size=run.world_size,
        backend=None,
        devices=(),
        stacks=False,
        shapes=False,
        memory=False,
        modules=False,
        device_work=False,
        host_ops=False,
        cuda=None,
    )
    step = MeanStep(
        steps=len(run.table("run_steps")),
        step_ns=step_ns,
        unprofiled_ns=(step_ns, step_ns),
        device=None,
        busy_ns=0.0,
        starved_ns=0.0,
        latency_ns=0.0,
        waiting_ns=0.0,
        host_path_share=0.0,
        steady_ns=step_ns,
    )
    return Judged(facts, step, rules={}, advices={}, not_run=(), shown={}, tables={})


# ---------------------------------------------------------------- the report


def with_run(
    report: Report, run: ManyRanks, chosen: InDepth, usual: Judged | None, tables: Mapping[str, Table[Any]]
) -> Report:
    """The report on a rank as one on its run."""
    verdict = report.verdict
    late = "" if chosen.compared is None else _lateness(run, chosen, tables)
    if chosen.most_share >= IMBALANCED_SHARE:
        verdict = Verdict("imbalanced", late, verdict.promise)
    elif sum(report.overview.parts.values()):
        verdict = replace(verdict, sentence=" ".join(filter(None, (verdict.sentence, late))))
    else:
        report = replace(report, overview=replace(report.overview, found_by="marks"))
        verdict = Verdict(*_from_summaries(run, tables), verdict.promise)
    findings = tuple(_of_ranks(one, usual, chosen) for one in report.findings)
    tables = {**tables, "stragglers": _with_place(tables["stragglers"], findings, chosen)}
    facts = replace(report.facts, source=PurePath(run.name).name or run.name, world_size=run.world_size)
    told = _facts(run, chosen, tables)
    return replace(report, facts=facts, verdict=verdict, findings=findings, run=told)


def _with_place(
    stragglers: Table[Straggler], findings: Sequence[Finding], chosen: InDepth
) -> Table[Straggler]:
    """The stragglers with the function that a finding about the judged rank names, at its first cause."""
    about = [one.advice for one in findings if one.advice.evidence.get("rank") == chosen.judged]
    places = [str(place) for one in about for place in one.locations]
    rows = list(stragglers)
    first = next((place for place, row in enumerate(rows) if row.rank == chosen.judged), None)
    if not places or first is None:
        return stragglers
    rows[first] = replace(rows[first], place=places[0])
    return Table.of(Straggler, rows, stragglers.notes)


def _of_ranks(finding: Finding, usual: Judged | None, chosen: InDepth) -> Finding:
    """A finding that a usual rank does not have is one of the judged rank alone."""
    name = finding.id.replace("-", "_")
    if usual is None or name not in usual.rules or name in usual.advices:
        return finding
    return replace(finding, ranks=(chosen.judged,))


def _lateness(run: ManyRanks, chosen: InDepth, tables: Mapping[str, Table[Any]]) -> str:
    rows = [row for row in tables["stragglers"] if row.rank == chosen.judged]
    rows.sort(key=lambda row: -row.late_ns)
    host = run.host_of(chosen.judged)
    where = f" (on {host})" if host else ""
    last = max(row.last_share for row in rows)
    causes = _causes(rows)
    step_ns = _mean_step_ns(run)
    said = (
        f"Rank {chosen.judged}{where} comes last to {units.percent(last)} of its collectives, "
        f"{units.duration(chosen.late_ns)} late in a step of {units.duration(step_ns)}{causes}."
    )
    others = len(run.ranks) - 1
    who = (
        "The other rank does" if others == 1 else f"On average, each of the {units.count(others)} others does"
    )
    waits = f" {who} nothing but wait for it during {units.percent(chosen.lost_share)} of the step."
    if chosen.gain is None:
        return said + waits
    ends = (step_ns * (1 - chosen.gain.high_share), step_ns * (1 - chosen.gain.low_share))
    # A rank that only communicates may wait for its own host: what it then loses is no loss to the run.
    said += waits if chosen.gain.high_share >= chosen.lost_share else ""
    return f"{said} As early as the median rank, it would bring the recorded step to {units.between(*ends)}."


def side_of(run: ManyRanks, chosen: InDepth) -> RanksOfSide:
    """What all ranks show together, for a comparison with another run."""
    means = run.table("rank_steps").arrow.to_pydict()
    count = max(1, len(means["rank"]))
    rows = [row for row in run.table("stragglers") if row.rank == chosen.judged]
    first = max(rows, key=lambda row: row.late_ns, default=None)
    is_late = chosen.compared is not None
    return RanksOfSide(
        ranks=len(run.ranks),
        step_ns=round(_mean_step_ns(run)),
        wait_ns=sum(one or 0 for one in means["exposed_wait_ns"]) // count,
        transfer_ns=sum(one or 0 for one in means["exposed_transfer_ns"]) // count,
        late_rank=chosen.judged if is_late else None,
        late_ns=round(chosen.late_ns),
        cause=first.cause if first and is_late else "",
        each=tuple(
            RankOfSide(
                row.rank, row.host, row.step_ns, row.own_ns, row.exposed_wait_ns, row.exposed_transfer_ns
            )
            for row in run.table("rank_steps", by="rank")
        ),
    )


def _from_summaries(run: ManyRanks, tables: Mapping[str, Table[Any]]) -> tuple[Word, str]:
    """What takes most of the step of all ranks, if only summaries tell."""
    columns = ("step_ns", "exposed_wait_ns", "exposed_transfer_ns", "input_ns", "compute_ns")
    sums = {name: sum(one or 0 for one in tables["rank_steps"].arrow[name].to_pylist()) for name in columns}
    shares = {name: ns / sums["step_ns"] if sums["step_ns"] else 0.0 for name, ns in sums.items()}
    talking = shares["exposed_wait_ns"] + shares["exposed_transfer_ns"]
    said = (
        f"On average over {units.counted(len(run.ranks), 'rank')}, {units.percent(shares['compute_ns'])} of "
        f"the step is computing, {units.percent(talking)} exposed communication and "
        f"{units.percent(shares['input_ns'])} waiting for data. Only summaries are here: ranks were not "
        "looked at in depth."
    )
    if talking >= _CLEAR_SHARE:
        return "communication-bound", said
    return ("input-bound" if shares["input_ns"] >= _CLEAR_SHARE else "unknown"), said


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
        notes=run.notes,
        tables=tables,
    )
