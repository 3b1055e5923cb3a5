"""Leads to a step of a rank in the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from stepscope.errors import StepscopeError
from stepscope.runs.aligned import aligned
from stepscope.web.links import link

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["rank_step"]


def rank_step(opened: Opened, given: Mapping[str, str]) -> Response:
    """The timeline of a rank at a step of the run; its profile is opened for it."""
    many = opened.many
    if many is None:
        raise StepscopeError("no run is open", hint="stepscope open RUN_FOLDER")
    try:
        rank, step = int(given["rank"]), int(given["step"])
    except (KeyError, ValueError) as error:
        raise StepscopeError("a rank and a step are asked for: ?rank=3&step=7") from error
    own = step - aligned(many).shifts.get(rank, 0)
    rows = next((one.tables["steps"] for one in many.summaries if one.facts.rank == rank), ())
    found = next((row for row in rows if row.step == own), None)
    if found is None:
        raise StepscopeError(f"rank {rank} has no step {step}")
    key = f"rank{rank}"
    base = opened.trace(key).trace.meta.base_ns
    since, until = found.start_ns - base, found.end_ns - base
    return RedirectResponse(link(opened, "timeline", key, **{"from": since, "to": until}), status_code=303)
