"""What only the full pass of a run can tell: what is made of stacks, shapes or events of memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stepscope.findings import Rule, wanted_by

__all__ = ["NEEDED", "needed_by_analysis", "needed_by_rule", "needed_by_sql"]

NEEDED: Mapping[str, str] = {
    "allocations": "memory",
    "growing_passes": "shapes",
    "host_functions": "stacks",
    "library_functions": "stacks",
    "lines": "stacks",
    "memory": "memory",
    "memory_curves": "memory",
    "memory_peaks": "memory",
    "memory_steps": "memory",
    "modules": "stacks",
    "python_frames": "stacks",
    "rooflines": "shapes",
    "throughput": "shapes",
}
"""Analyses without an answer, or with a poor one, from a light pass; and what they need."""
_BY: Mapping[tuple[str, str], str] = {
    ("ops", "shape"): "shapes",
    ("ops", "user_frame"): "stacks",
    ("copies", "frame"): "stacks",
}
_VIEWS: Mapping[str, str] = {
    "python_frames": "stacks",
    "user_frame": "stacks",
    "library_frame": "stacks",
    "module": "stacks",
    "memory_events": "memory",
    "Input Dims": "shapes",
}
"""Views, columns and arguments that a query can name."""
_ANALYSES = re.compile(r"\banalyses\s*\.\s*\"?(\w+)", re.IGNORECASE)


def needed_by_analysis(name: str, options: Mapping[str, Any]) -> str:
    """What an analysis needs that a light pass lacks: stacks, shapes or memory; empty for nothing."""
    return _BY.get((name, str(options.get("by"))), "") or NEEDED.get(name, "")


def needed_by_rule(rule: Rule) -> str:
    """The same for a rule, by the tables that it wants."""
    wanted = (needed_by_analysis(*one) for one in wanted_by(rule)[0].values())
    return next(filter(None, wanted), "")


def needed_by_sql(sql: str) -> str:
    """The same for a query, by the words in it."""
    for word, what in _VIEWS.items():
        if re.search(rf"\b{word}\b", sql, re.IGNORECASE):
            return what
    return next((NEEDED[name] for name in map(str.lower, _ANALYSES.findall(sql)) if name in NEEDED), "")
