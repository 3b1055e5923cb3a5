"""One figure of every rank in every step, for the map of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.store.arrow_sql import ask
from stepscope.web.pages.ranks import FIGURES

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.runs.many import ManyRanks
    from stepscope.web.opened import Opened

__all__ = ["rank_steps"]

_MOST_COLUMNS = 400
_COLUMNS = """
SELECT step, (row_number() OVER (ORDER BY step) - 1) // {every} AS place FROM (SELECT DISTINCT step FROM rows)
"""
# Every cell has its place, also one that nobody recorded: the map is as long as it is wide times high.
_MAP = """
WITH longest AS (
    SELECT rank, place, max({figure}) AS value, arg_max(step, {figure}) AS step
    FROM rows JOIN columns USING (step) GROUP BY rank, place)
SELECT value, step FROM ranks CROSS JOIN (SELECT DISTINCT place FROM columns)
LEFT JOIN longest USING (rank, place) ORDER BY rank, place
"""


def rank_steps(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """A figure by rank and column of steps; of steps that share a column, the longest."""
    many, figure = opened.many, given.get("figure", "own_ns")
    if many is None:
        raise StepscopeError("no run is open", hint="stepscope open RUN_FOLDER")
    if figure not in FIGURES:
        raise StepscopeError(f"there is no figure {figure!r}", hint=f"there are {', '.join(FIGURES)}")
    with opened.alone:
        table = many.once("rows of rank steps", lambda: many.table("rank_steps"))
        return _heat_map(table.arrow, figure, many)


def _heat_map(rows: pa.Table, figure: str, many: ManyRanks) -> dict[str, Any]:
    """The map of one figure: its values rank by rank, and column by column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    every = max(1, -(-pc.count_distinct(rows["step"]).as_py() // _MOST_COLUMNS))
    columns = ask(_COLUMNS.format(every=every), rows=rows)
    ranks = pa.table({"rank": pa.array(many.ranks, pa.int64())})
    cells = ask(_MAP.format(figure=figure), rows=rows, columns=columns, ranks=ranks)
    first = columns.group_by("place").aggregate([("step", "min")]).sort_by("place")
    return {
        "ranks": list(many.ranks),
        "hosts": [many.host_of(rank) for rank in many.ranks],
        "columns": first.num_rows,
        "every": every,
        "first_steps": first["step_min"].to_pylist(),
        "values": cells["value"].to_pylist(),
        # Where a column is one step, the column tells it.
        "steps": cells["step"].to_pylist() if every > 1 else None,
    }
