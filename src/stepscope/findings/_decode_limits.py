"""What limits the kernels of a decoding step whose shapes the profile does not have, as in replayed graphs.

A product of R rows with weights of N × K elements computes 2·R·N·K FLOPs and reads N·K elements. The GPUs
that models run on compute 120 to 400 FLOPs in 16 bits for each byte that they read. So up to 32 rows, reading
the weights takes longer than computing with them, also if the weights have 4 bits. One query of attention
uses each key once, and a few heads share it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.patterns import late_pattern

if TYPE_CHECKING:
    from stepscope.analyses.attention import Attention
    from stepscope.analyses.iterations import Iteration
    from stepscope.analyses.rooflines import Roofline
    from stepscope.tables import Table

__all__ = ["decoded_tokens", "read_bound_ns"]

FEW_ROWS = 32
FEW_ROWS_FP32 = 8
"""Without matrix units: a GPU computes about 13 FLOPs in fp32 for each byte that it reads."""
LATENCY_NS = 10_000
"""Kernels that are shorter on average may be limited by latency."""
_NARROW = ("bf16", "fp16", "fp8", "int8", "fp4", "mxfp4")
# Latent attention: all heads share one key, so it computes as much as a product with hundreds of rows.
_LATENT = late_pattern(r"mla|latent", re.IGNORECASE)


def decoded_tokens(tables: Mapping[str, Table[Any]]) -> int | None:
    """The most tokens of a step, if all steps only decode by what their names or shapes say; else None."""
    rows: list[Iteration] = [row for row in tables.get("iterations", ()) if row.kind != "idle"]
    proven = all(row.kind == "decode" and row.kind_basis in ("annotation", "shapes") for row in rows)
    tokens = [row.tokens for row in rows if row.tokens]
    return max(tokens) if proven and rows and len(tokens) == len(rows) else None


def read_bound_ns(tables: Mapping[str, Table[Any]]) -> int:
    """Time of products and attention whose limit is unknown, but can only be the reading of memory."""
    tokens = decoded_tokens(tables)
    if tokens is None:
        return 0
    attention: list[Attention] = list(tables.get("attention", ()))
    latent = any(_LATENT.search(row.longest or "") for row in attention)
    rows: list[Roofline] = [
        row
        for row in tables.get("rooflines_by_family", ())
        if row.bound == "unknown" and row.calls and row.work_ns >= LATENCY_NS * row.calls
    ]
    return sum(
        row.work_ns
        for row in rows
        if (row.family == "matmul" and tokens <= _most_rows(row.data_type))
        or (row.family == "attention" and not latent and tokens <= FEW_ROWS)
    )


def _most_rows(data_type: str | None) -> int:
    return FEW_ROWS if data_type in _NARROW else FEW_ROWS_FP32
