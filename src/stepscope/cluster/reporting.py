"""The report on a run: all ranks by their summaries, one or two of them in depth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cluster.opening import open_run
from stepscope.findings.build import build_report, judged, report_of
from stepscope.opening import judged_passes, open_trace, report_on_run
from stepscope.records import dataclass
from stepscope.runs.choosing import choose_rank
from stepscope.runs.finding import run_of
from stepscope.runs.judging import judged_run
from stepscope.runs.merging import merged_passes, merged_report
from stepscope.runs.reporting import RUN_TABLES, in_depth, judged_from_summaries, of_run, with_run
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    from stepscope.findings.build import Judged
    from stepscope.findings.report import Report
    from stepscope.findings.thresholds import Thresholds
    from stepscope.runs import PassName, RankRecord, Run
    from stepscope.runs.many import ManyRanks
    from stepscope.streams import Progress

__all__ = ["report", "report_on_ranks"]

_FOR_PLACES = "lines"
"""Where a late rank spends more time than a usual one."""


@dataclass(frozen=True, slots=True)
class _Depth:
    """How ranks are looked at in depth."""

    run: Run
    thresholds: Thresholds | None
    tables: Sequence[str]
    store: str | Path | None
    progress: Progress | None

    def passes(self, rank: int) -> dict[PassName, Judged]:
        """What the rules say of a rank that `stepscope run` recorded, by pass."""
        chosen = choose_rank(self.run, rank)
        return judged_passes(
            chosen, thresholds=self.thresholds, tables=self.tables, store=self.store, progress=self.progress
        )

    def profile(self, record: RankRecord) -> Judged:
        """What they say of its last profile."""
        last = record.spans[-1]
        trace = open_trace(last.word, also=record.also(last), store=self.store, progress=self.progress)
        return judged(trace, thresholds=self.thresholds, tables=self.tables, progress=self.progress)


def report(trace: Trace | str | Path | Sequence[str | Path]) -> Report:
    """What costs time in a trace, a profile or a run, and what to change; thresholds are the rules' own.

    A run is its folder, or the profiles of its ranks: a folder or pattern, a prefix of URLs, or a list.
    """
    if isinstance(trace, Trace):
        return build_report(trace)
    words = [str(trace)] if isinstance(trace, str | Path) else [str(one) for one in trace]
    run = run_of(words)
    if run is not None and len(run.told) > 1:
        return report_on_ranks(run, open_run(run))
    if run is not None and run.profiled and run.profiled[0].named("profile") is None:
        return report_on_run(choose_rank(run))
    if run is None:
        return build_report(open_trace(words[0]))
    record = run.profiled[0]
    return build_report(open_trace(record.spans[-1].word, also=record.also(record.spans[-1])))


def report_on_ranks(
    run: Run,
    many: ManyRanks,
    *,
    thresholds: Thresholds | None = None,
    tables: Sequence[str] = (),
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """The report on all ranks of a run."""
    told = judged_run(many, thresholds=thresholds)
    chosen = in_depth(many, told.mean_step)
    depth = _Depth(run, thresholds, tuple(dict.fromkeys((*tables, _FOR_PLACES))), store, progress)
    records = {record.rank: record for record in run.ranks}
    shown = {name: many.table(name) for name in RUN_TABLES}
    recorded = all(records[rank].named("light") or records[rank].named("full") for rank in chosen.ranks)
    if recorded:
        found = {rank: depth.passes(rank) for rank in chosen.ranks}
        usual = None if chosen.compared is None else merged_passes(found[chosen.compared])
        joined = partial(of_run, usual=usual, told=told, chosen=chosen)
        report = merged_report(choose_rank(run, chosen.judged), found[chosen.judged], joined)
    elif all(records[rank].passes for rank in chosen.ranks):
        one = {rank: depth.profile(records[rank]) for rank in chosen.ranks}
        usual = None if chosen.compared is None else one[chosen.compared]
        report = report_of(of_run(one[chosen.judged], usual, told, chosen))
    else:  # summaries alone are here: the profiles lie elsewhere
        usual = None
        report = report_of(of_run(judged_from_summaries(many), None, told, chosen))
    return with_run(report, many, chosen, usual, shown)
