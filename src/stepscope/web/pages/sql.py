"""Questions in SQL: an editor with the schema beside it, and answers as a table and a chart."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from stepscope.present._blocks import block
from stepscope.present._markup import Markup, el, joined
from stepscope.web.answers.sql import ASKERS, MOST_ROWS, SECONDS
from stepscope.web.answers.sql import sql as answered
from stepscope.web.columns import schema
from stepscope.web.page import page
from stepscope.web.questions import QUESTIONS

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["sql"]


def _query(request: Request) -> str:
    return request.options.get("q", QUESTIONS[0][1])


def _in_file(request: Request) -> dict[str, Any]:
    """The rows of the query in the address."""
    body = json.dumps({"sql": _query(request), "asker": "file"})
    return {f"sql {_query(request)}": answered(request.opened, {"trace": request.trace.key, "body": body})}


@page(title="SQL", order=50, asks=_in_file)
def sql(request: Request) -> Markup:
    """Answers one SELECT over the trace, which is only read."""
    asker = secrets.token_hex(8)
    ASKERS.begin(asker)  # while somebody reads the page, what it takes to answer is made ready
    data = {
        "asker": asker,
        "trace": request.trace.key,
        "schema": schema(),
        "questions": [list(one) for one in QUESTIONS],
        "sql": _query(request),
        "limits": f"Up to {MOST_ROWS:,} rows and {SECONDS:g} s. A trace is only read.",
    }
    return joined([el("h1", "SQL"), block("sql", data, label="SQL")])
