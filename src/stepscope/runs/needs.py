"""What only the full pass of a run can tell: what is made of stacks, shapes or events of memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stepscope.patterns import late_pattern

__all__ = ["NEEDED", "SEES_MORE", "needed_by_analysis", "needed_by_sql"]

NEEDED: Mapping[str, str] = {
    "allocations": "memory",
    "encoder_reruns": "shapes",
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
    "repeated_rows": "shapes",
    "rooflines": "shapes",
    "throughput": "shapes",
}
"""Analyses without an answer, or with a poor one, from a light pass; and what they need."""
SEES_MORE: Mapping[str, str] = {
    "block_mask_rebuilds": "stacks",
    "decode_bandwidth": "shapes",
    "misaligned_matmuls": "shapes",
    "multiplied_adapters": "shapes",
    "python_between_ops": "stacks",
    "recomputed_encoder": "shapes",
    "recomputed_tokens": "shapes",
    "tiled_decoding": "stacks",
    "weight_casts": "shapes",
    "written_pairs": "shapes",
}
"""Rules that may find in a full pass what they cannot see in a light one, though they do not say so. What the
others find in a full pass alone is a doing of the full pass, which slows the host."""
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
_ANALYSES = late_pattern(r"\banalyses\s*\.\s*\"?(\w+)", re.IGNORECASE)


def needed_by_analysis(name: str, options: Mapping[str, Any]) -> str:
    """What an analysis needs that a light pass lacks: stacks, shapes or memory; empty for nothing."""
    return _BY.get((name, str(options.get("by"))), "") or NEEDED.get(name, "")


def needed_by_sql(sql: str) -> str:
    """The same for a query, by the words in it."""
    for word, what in _VIEWS.items():
        if re.search(rf"\b{word}\b", sql, re.IGNORECASE):
            return what
    return next((NEEDED[name] for name in map(str.lower, _ANALYSES.findall(sql)) if name in NEEDED), "")
