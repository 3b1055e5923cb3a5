"""What a rank file said, for the analyses that show it: values of the types that they should have."""

from __future__ import annotations

from typing import Any

from stepscope.store.trace import Trace

__all__ = ["NO_RANK_FILE", "flag", "mapping", "mappings", "number", "rank_file_of", "text", "whole"]

NO_RANK_FILE = (
    "The profile came alone: `stepscope run` records this beside it, and "
    "`stepscope ingest TRACE --also rank0.json` adds it."
)


def rank_file_of(trace: Trace) -> dict[str, Any] | None:
    """What the rank file said that was added to a trace; None without one.

    What a profile itself says under the same key does not count.
    """
    for one in trace.meta.sources:
        if one.kind == "rank_file":
            return mapping(one.metadata.get("stepscope_rank"))
    return None


def mapping(value: Any) -> dict[str, Any]:
    """An object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """The objects in a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: Any) -> float | None:
    """A number, or None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def text(value: Any) -> str | None:
    """A text, or None."""
    return value if isinstance(value, str) else None


def flag(value: Any) -> bool | None:
    """True or False, or None."""
    return value if isinstance(value, bool) else None
