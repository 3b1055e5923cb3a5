"""Threads, streams and devices over time, with everything that happened on them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from stepscope.present._blocks import block
from stepscope.present._markup import Markup, el, joined
from stepscope.store.timeline import begin_timeline
from stepscope.web.clocks import clocked
from stepscope.web.page import page
from stepscope.web.timeline_in_file import timeline_answers

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["timeline"]


@page(title="Timeline", order=12, wide=True, asks=timeline_answers)
def timeline(request: Request) -> Markup:
    """Shows what happened when, on every thread and stream."""
    key = request.trace.key
    begin_timeline(request.trace.trace)  # it is made while the browser loads the scripts
    data = {
        "trace": key,
        "traces": clocked(request.opened, key),
        "address": urlencode(request.options),
    }
    waiting = el("p", "The timeline is being opened …", class_="muted tl-waiting", role="status")
    return joined(
        [el("h1", "Timeline", class_="tl-heading"), block("timeline", data, waiting, label="Timeline")]
    )
