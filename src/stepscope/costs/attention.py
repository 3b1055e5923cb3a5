"""Which implementation of attention a kernel belongs to, and for what sizes it ran."""

from __future__ import annotations

import functools
import re

from stepscope.costs.precision import operands
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

__all__ = ["UNKNOWN_BACKEND", "Sizes", "backend_of", "is_backward", "product_sizes", "sizes_of"]

UNKNOWN_BACKEND = "unknown"

# The operator knows best: ROCm's kernels have one name for several backends. The first that matches decides.
_BY_OP = (
    ("paged", r"vllm|sglang|unified_attention|paged|flashinfer|radix_attention|(^|[^a-z])mla_"),
    ("cudnn", r"cudnn_attention"),
    ("memory-efficient", r"efficient_attention|xformers"),
    ("flex", r"flex_attention"),
    ("flash", r"flash_attention|flash_attn"),
)
_BY_KERNEL = (
    ("paged", r"paged|unified_attention|Batch(Prefill|Decode)|Single(Prefill|Decode)|reduce_segments"),
    ("paged", r"merge_attn|(^|[^a-z])mla_|flash_?mla|flash_?decod|fmhaSm\d+"),
    ("cudnn", r"cudnn\w*(sdpa|fmha|attention)"),
    ("memory-efficient", r"fmha_cutlass|PyTorchMemEffAttention|efficient_attention"),
    ("flex", r"flex_attention"),
    ("flash", r"flash|fmha|attn_(fwd|bwd)|bwd_kernel_d[kqv]|bwd_preprocess|(^|[^a-z])mha_(fwd|bwd)"),
)
_BACKWARD = late_pattern(r"bwd|backward|bprop|fmha_cutlassB|Bwd")
# Sizes as (batch, length, heads, head) or (batch, heads, length, head).
_LENGTH_FIRST = late_pattern(r"_(flash|efficient)_attention_(forward|backward)|flash_attn")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of an attention; what was not recorded is None."""

    batch: int | None = None
    heads: int | None = None
    query_length: int | None = None
    key_length: int | None = None
    head_dim: int | None = None


@functools.lru_cache(maxsize=1 << 12)
def backend_of(kernel: str | None, op: str | None) -> str:
    """The implementation that a kernel of attention belongs to."""
    for patterns, text in ((_BY_OP, op), (_BY_KERNEL, kernel)):
        for backend, pattern in patterns:
            if text and re.search(pattern, text, re.IGNORECASE):
                return backend
    return UNKNOWN_BACKEND


def is_backward(kernel: str | None, op: str | None) -> bool:
    """Whether a kernel of attention computes gradients."""
    return bool(_BACKWARD.search(kernel or "") or _BACKWARD.search(op or ""))


@functools.lru_cache(maxsize=1 << 12)
def sizes_of(op: str | None, args: str | None) -> Sizes:
    """The sizes that the operator around a kernel of attention was called with."""
    shapes = operands(op, args).shapes
    first = 1 if _BACKWARD.search(op or "") else 0  # a gradient comes before query, key and value
    if len(shapes) < first + 2:
        return Sizes()
    query, key = shapes[first], shapes[first + 1]
    if len(query) == 3:  # sequences of any length, one after the other
        return Sizes(heads=query[1], head_dim=query[2])
    if len(query) != 4 or len(key) != 4:
        return Sizes()
    heads, length = (2, 1) if _LENGTH_FIRST.search(op or "") else (1, 2)
    return Sizes(query[0], query[heads], query[length], key[length], query[3])


@functools.lru_cache(maxsize=1 << 12)
def product_sizes(op: str | None, args: str | None) -> Sizes:
    """The sizes of an attention whose scores are a batched matrix product; batch and heads are one there."""
    product = operands(op, args).product
    if product is None:
        return Sizes()
    length, keys, head = product
    return Sizes(query_length=length, key_length=keys, head_dim=head)
