"""A check as JSON, for other programs: the schema `stepscope.check/1`."""

from __future__ import annotations

from json import dumps

from stepscope.compare.check import SCHEMA, CheckResult
from stepscope.present._change_records import change_of, side_of
from stepscope.present.formats import format

__all__ = ["json"]


@format(ending=".json")
def json(check: CheckResult) -> str:
    """JSON for other programs: numbers are not rounded, unknown is null."""
    sides = [check.baseline, check.side] if check.baseline else [check.side]
    written = {
        "schema": SCHEMA,
        "passed": not check.failed,
        "budgets": [
            {
                "budget": one.budget.text,
                "where": one.budget.where,
                "state": one.state,
                "value": one.value,
                "limit": one.budget.limit,
                "relative": one.budget.relative,
                "said": one.said,
            }
            for one in check.outcomes
        ],
        "sides": [side_of(side) for side in sides],
        "change": change_of(check.change, sides) if check.change else None,
    }
    return dumps(written, indent=2, ensure_ascii=False) + "\n"
