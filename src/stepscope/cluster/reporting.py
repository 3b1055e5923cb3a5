"""The report on a run: all ranks by their summaries, one or two of them in depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.opening import judged_passes
from stepscope.runs.choosing import choose_rank
from stepscope.runs.judging import judged_run
from stepscope.runs.merging import merged_passes, merged_report
from stepscope.runs.reporting import RUN_TABLES, in_depth, of_run, with_run

if TYPE_CHECKING:
    from stepscope.findings.report import Report
    from stepscope.findings.thresholds import Thresholds
    from stepscope.runs import Run
    from stepscope.runs.many import ManyRanks
    from stepscope.streams import Progress

__all__ = ["report_on_ranks"]

_FOR_PLACES = "lines"
"""Where a late rank spends more time than a usual one."""


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
    chosen = in_depth(many)
    shown = tuple(dict.fromkeys((*tables, _FOR_PLACES)))
    ranks = {rank: choose_rank(run, rank) for rank in chosen.ranks}
    found = {
        rank: judged_passes(one, thresholds=thresholds, tables=shown, store=store, progress=progress)
        for rank, one in ranks.items()
    }
    usual = None if chosen.compared is None else merged_passes(found[chosen.compared])
    report = merged_report(
        ranks[chosen.judged], found[chosen.judged], lambda judged: of_run(judged, usual, told, chosen)
    )
    return with_run(report, many, chosen, usual, {name: many.table(name) for name in RUN_TABLES})
