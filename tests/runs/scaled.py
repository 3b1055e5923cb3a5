"""Runs of very many ranks for tests of scale: a few drawn ranks, each taken many times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stepscope.runs.many import ManyRanks
from stepscope.runs.rank_lists import ranks_text
from stepscope.runs.summary import SUMMARY_TABLES, RankSummary
from stepscope.tables import Table

__all__ = ["many_times"]


def many_times(run: ManyRanks, times: int, per_host: int = 8) -> ManyRanks:
    """Every rank so many times, as ranks of one large group on hosts whose clocks are off."""
    few = len(run.summaries)
    everyone = ranks_text(range(few * times))
    summaries = []
    for rank in range(few * times):
        host = rank // per_host
        one = run.summaries[rank % few]
        summaries.append(_moved(one, rank, few * times, everyone, host))
    return ManyRanks(run.name, summaries, world_size=few * times)


def _moved(one: RankSummary, rank: int, size: int, everyone: str, host: int) -> RankSummary:
    """A rank under another number, on a host whose clock is late by some milliseconds."""
    tables: dict[str, Table[Any]] = {}
    for name, table in one.tables.items():
        arrow = table.arrow
        for column in ("start_ns", "end_ns", "asked_ns"):
            if column in arrow.column_names:
                moved = pc.add(arrow[column], host * 1_234_567)
                arrow = arrow.set_column(arrow.column_names.index(column), arrow.schema.field(column), moved)
        if name == "calls":
            for column, value in (("group_ranks", everyone), ("group_size", size)):
                place = arrow.column_names.index(column)
                field = arrow.schema.field(column)
                arrow = arrow.set_column(place, field, pa.repeat(pa.scalar(value, field.type), len(arrow)))
        tables[name] = Table(SUMMARY_TABLES[name], arrow)
    return RankSummary(replace(one.facts, rank=rank, host=f"node{host}", world_size=size), tables)
