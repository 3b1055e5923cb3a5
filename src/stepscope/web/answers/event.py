"""All that is known of one event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.analyses._event_details import event_details
from stepscope.web.numbers import whole

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["event"]


def event(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """Arguments, links, stack and the like of `event`; `wait=1` has tables made that it needs."""
    trace = opened.trace(given.get("trace"))
    return event_details(trace.trace, whole(given, "event"), wait=given.get("wait") == "1")
