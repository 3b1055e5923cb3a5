"""Questions to a trace, one file each: a function from a trace to a typed table."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_args, get_type_hints

from stepscope.store.trace import Reads, Trace
from stepscope.tables import Table

__all__ = ["analysis", "row_of"]

Row = TypeVar("Row")
Options = ParamSpec("Options")
Analysis = Callable[Concatenate[Trace, Options], Table[Row]]


def analysis(*, reads: Reads) -> Callable[[Analysis[Options, Row]], Analysis[Options, Row]]:
    """Marks a function as an analysis; it sees the views and columns that it names here, and no others.

    What it found is kept with the trace, so that analyses can build on one another without doing work twice.
    """

    def mark(function: Analysis[Options, Row]) -> Analysis[Options, Row]:
        ours = function.__module__.startswith("stepscope.")

        @functools.wraps(function)
        def limited(trace: Trace, *args: Options.args, **options: Options.kwargs) -> Table[Row]:
            asked = (function, args, tuple(sorted(options.items())))
            found = trace.once(asked, lambda: function(trace.reading(reads, ours=ours), *args, **options))
            return cast("Table[Row]", found)

        limited.reads = reads  # type: ignore[attr-defined]
        return cast("Analysis[Options, Row]", limited)

    return mark


def row_of(analysis: Callable[..., Any]) -> type:
    """The class of an analysis's rows; its other annotations may exist for type checkers only."""
    function = inspect.unwrap(analysis)

    def carrier() -> None: ...

    carrier.__annotations__ = {"return": function.__annotations__["return"]}
    names = {"Table": Table, **vars(sys.modules[function.__module__])}
    (row,) = get_args(get_type_hints(carrier, globalns=names)["return"])
    return row  # type: ignore[no-any-return]
