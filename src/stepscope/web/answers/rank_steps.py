"""One figure of every rank in every step, for the map of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.store.arrow_sql import ask
from stepscope.web.pages.ranks import FIGURES

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["rank_steps"]

_MOST_COLUMNS = 400
_MAP = """
WITH places AS (
    SELECT step, (row_number() OVER (ORDER BY step) - 1) // {every} AS place
    FROM (SELECT DISTINCT step FROM rows))
SELECT rank, place, max({figure}) AS value, arg_max(step, {figure}) AS step
FROM rows JOIN places USING (step) GROUP BY rank, place ORDER BY rank, place
"""


def rank_steps(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """A figure by rank and column of steps; of steps that share a column, the longest."""
    many, figure = opened.many, given.get("figure", "own_ns")
    if many is None:
        raise StepscopeError("no run is open", hint="stepscope open RUN_FOLDER")
    if figure not in FIGURES:
        raise StepscopeError(f"there is no figure {figure!r}", hint=f"there are {', '.join(FIGURES)}")
    with opened.trace().lock:
        table = many.once("rows of rank steps", lambda: many.table("rank_steps"))
        steps = len(set(table.arrow["step"].to_pylist()))
        every = max(1, -(-steps // _MOST_COLUMNS))
        rows = ask(_MAP.format(every=every, figure=figure), rows=table.arrow)
    return {
        "ranks": list(many.ranks),
        "hosts": [many.host_of(rank) for rank in many.ranks],
        "columns": -(-steps // every),
        "every": every,
        **{name: rows[name].to_pylist() for name in ("rank", "place", "value", "step")},
    }
