"""A comparison as JSON, for other programs: the schema `stepscope.diff/1`."""

from __future__ import annotations

from json import dumps

from stepscope.compare import SCHEMA, Comparison
from stepscope.present._change_records import change_of, side_of
from stepscope.present.formats import format

__all__ = ["json"]


@format(ending=".json")
def json(comparison: Comparison) -> str:
    """JSON for other programs: numbers are not rounded, unknown is null."""
    sides = comparison.sides
    written = {
        "schema": SCHEMA,
        "sides": [side_of(side) for side in sides],
        "changes": [change_of(change, sides) for change in comparison.changes],
        "overall": change_of(comparison.overall, sides) if comparison.overall else None,
    }
    return dumps(written, indent=2, ensure_ascii=False) + "\n"
