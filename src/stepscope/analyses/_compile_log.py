"""What the analyses of compile logs share."""

from __future__ import annotations

__all__ = ["NO_LOG", "PLACE"]

NO_LOG = (
    "No compile log was given that has this: record one with TORCH_TRACE=DIR, and name it beside the profile."
)
PLACE = "{0}.file || '(' || coalesce({0}.line, 0) || '): ' || coalesce({0}.function, '?')"
"""SQL for a line as profilers name it."""
