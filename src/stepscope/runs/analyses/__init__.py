"""Questions to a run of many ranks, one file each: a function from a run to a typed table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from stepscope.runs.many import ManyRanks
from stepscope.tables import Table

__all__ = ["run_analysis"]

Row = TypeVar("Row")
Options = ParamSpec("Options")
RunAnalysis = Callable[Concatenate[ManyRanks, Options], Table[Row]]


def run_analysis(function: RunAnalysis[Options, Row]) -> RunAnalysis[Options, Row]:
    """Marks a function as an analysis of runs; what it found is kept with the run."""

    @functools.wraps(function)
    def kept(run: ManyRanks, *args: Options.args, **options: Options.kwargs) -> Table[Row]:
        asked = (function, args, tuple(sorted(options.items())))
        return cast("Table[Row]", run.once(asked, lambda: function(run, *args, **options)))

    return cast("RunAnalysis[Options, Row]", kept)
