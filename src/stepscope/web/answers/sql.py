"""Rows of a query that somebody wrote in the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.web.askers import Askers
from stepscope.web.columns import described
from stepscope.web.sql_process import Question

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["ASKERS", "MOST_ROWS", "SECONDS", "sql"]

MOST_ROWS = 5_000
SECONDS = 60.0
ASKERS = Askers()
"""A server is one window, so its pages share one set of processes."""


def sql(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """Answers one SELECT, in a process of its own that only reads; a page that asks anew stops the last.

    The body is JSON: `sql`, `asker` (any word that names the page), and `stop` to only stop.
    """
    asked = _asked(given.get("body", ""))
    asker = str(asked.get("asker", ""))[:64]
    if asked.get("stop"):
        ASKERS.stop(asker)
        return {}
    text = asked.get("sql")
    if not isinstance(text, str) or not text.strip():
        raise StepscopeError("there is no query", hint="write a SELECT, and press Ctrl-Enter")
    seconds = asked.get("seconds", SECONDS)
    if not isinstance(seconds, int | float) or not 0 < seconds <= SECONDS:
        seconds = SECONDS
    trace = opened.trace(given.get("trace")).trace
    question = Question(str(trace.folder), trace.measured, text, MOST_ROWS, float(seconds))
    found = ASKERS.ask(asker, question)
    return {**found, "columns": described(found["columns"])}


def _asked(body: str) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except (RecursionError, ValueError):  # one of a hundred thousand brackets is none either
        asked = None
    if not isinstance(asked, dict):
        raise StepscopeError('a query is sent as JSON: {"sql": "SELECT …"}')
    return asked
