"""Questions to a run of many ranks, one file each: a function from a run to a typed table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from stepscope.analyses import row_of
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

        def make() -> Table[Any]:
            return function(run, *args, **options)

        # What another package computes may change while our own code stays.
        ours = function.__module__.startswith("stepscope.") and not args
        if (shelf := run.shelf) is not None and ours:
            named = function.__name__, options, row_of(function)
            return cast("Table[Row]", run.once(asked, lambda: shelf.table(*named, make)))
        return cast("Table[Row]", run.once(asked, make))

    return cast("RunAnalysis[Options, Row]", kept)
