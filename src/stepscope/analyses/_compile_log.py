"""What the analyses of compile logs share."""

from __future__ import annotations

__all__ = ["NO_LOG"]

NO_LOG = (
    "No compile log was given that has this: record one with TORCH_TRACE=DIR, and name it beside the profile."
)
