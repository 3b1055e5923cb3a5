"""What a collective is, how many bytes it moves, and how its rate compares with that of a link.

A kernel's own arguments say it best; then the range that torch puts around its launch, and last its name.
Names of kernels are not reliable: RCCL has one kernel for everything, NCCL 2.13 calls all of its kernels
SendRecv, and an all-to-all is made of sends and receives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from stepscope.records import dataclass

__all__ = [
    "UNKNOWN",
    "Collective",
    "bus_factor",
    "collective_of",
    "kind_of_kernel",
    "kind_of_operation",
    "listed_ranks",
    "ranks_in",
    "ranks_text",
    "splits_of",
]

UNKNOWN = "unknown"

_OPERATIONS = (
    ("barrier", "barrier"),
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("reducescatter", "reduce-scatter"),
    ("alltoall", "all-to-all"),
    ("broadcast", "broadcast"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send", "send-receive"),
    ("recv", "send-receive"),
    ("batchisendirecv", "send-receive"),
)
# How kernels of NCCL, RCCL, oneCCL, torch's symmetric memory and serving engines are named.
_KERNELS = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"all[-_ ]?reduce|cross[-_ ]?device[-_ ]?reduce", "all-reduce"),
        (r"all[-_ ]?gather", "all-gather"),
        (r"reduce[-_ ]?scatter", "reduce-scatter"),
        (r"all[-_ ]?(to|2)[-_ ]?all|deep[-_ ]?ep", "all-to-all"),
        (r"broadcast", "broadcast"),
        (r"send[-_ ]?recv", "send-receive"),
        (r"ccl\w*_reduce_", "reduce"),
    )
)
_OF_SENDS = ("all-to-all", "gather", "scatter", "send-receive")
"""What NCCL does with sends and receives, so that a kernel of these may be any of them."""
_TYPES = {
    "float": ("fp32", 4), "double": ("fp64", 8), "half": ("fp16", 2), "bfloat16": ("bf16", 2),
    "long": ("int64", 8), "long int": ("int64", 8), "int": ("int32", 4), "short": ("int16", 2),
    "short int": ("int16", 2), "char": ("int8", 1), "signed char": ("int8", 1), "byte": ("uint8", 1),
    "unsigned char": ("uint8", 1), "bool": ("bool", 1), "complexfloat": ("complex64", 8),
    "complexdouble": ("complex128", 16),
}  # fmt: skip
"""Types of elements as `dtype` of a collective or `Input type` of a range names them, in lower case."""
_LISTED = 64
"""So many ranks are written one by one."""
_MOST_RANKS = 1_000_000


@dataclass(frozen=True, slots=True)
class Collective:
    """What is known about one collective, or about all that were recorded alike."""

    kind: str
    bytes: int | None
    """What NCCL calls the size: all of the larger side, such as what an all-gather receives."""
    dtype: str | None
    group: str | None
    group_size: int | None
    ranks: tuple[int, ...]
    """Of the group; empty if unknown."""
    in_bytes: int | None = None
    """What this rank gives; None if unknown."""
    out_bytes: int | None = None
    """What this rank gets."""


def kind_of_operation(name: str | None) -> str | None:
    """The kind that an operation of torch.distributed asks for: `_allgather_base_`, `nccl:all_to_all`."""
    flat = re.sub(r"[^a-z]", "", (name or "").rpartition(":")[2].lower())
    return next((kind for start, kind in _OPERATIONS if flat.startswith(start)), None)


def kind_of_kernel(name: str | None) -> str | None:
    """The kind that a kernel's name says; None if it says none, as that of RCCL."""
    return next((kind for pattern, kind in _KERNELS if pattern.search(name or "")), None)


def bus_factor(kind: str, group_size: int | None) -> float | None:
    """Bytes over each link for each byte of a collective, as nccl-tests have it; None if unknown."""
    if group_size is None or group_size < 2:
        return None
    of_each = (group_size - 1) / group_size
    if kind == "all-reduce":
        return 2 * of_each
    if kind in ("all-gather", "reduce-scatter", "all-to-all", "gather", "scatter"):
        return of_each
    return 1.0 if kind in ("broadcast", "reduce", "send-receive") else None


def collective_of(told: Mapping[str, Any]) -> Collective:
    """What a kernel or a range of the host says about its collective.

    `told` has `kernel`, `own` (the collective that its arguments name), `elements_in`, `elements_out`,
    `dtype`, `group`, `group_size`, `ranks`; and what is around its launch: `range`, `op`, `dims`, `type`.
    """
    kind, surely = _kind(told)
    given, got = _whole(told["elements_in"]) or 0, _whole(told["elements_out"]) or 0
    elements = max(given, got)
    dtype, width = _type(told["dtype"] or told["type"])
    if not elements:
        given = got = elements = _elements(told["dims"])
        if kind == "all-gather":  # a range has the input only
            got = elements = elements * (_whole(told["group_size"]) or 0)
        elif kind == "reduce-scatter":
            got = given // (_whole(told["group_size"]) or given + 1)
    if (one_way := _one_way(told)) is not None:
        given, got = (elements, 0) if one_way == "send" else (0, elements)
    # Of several collectives in one kernel (coalesced) the profiler writes the size of one at most.
    alone = told["own"] is None or kind_of_operation(told["own"]) is not None
    known = surely and alone and elements > 0 and width > 0
    return Collective(
        kind=kind,
        bytes=elements * width if known else None,
        dtype=dtype,
        group=told["group"],
        group_size=_whole(told["group_size"]),
        ranks=listed_ranks(told["ranks"]),
        in_bytes=given * width if known and (given or one_way) else None,
        out_bytes=got * width if known and (got or one_way) else None,
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as a text: `0,1,2,3`, or in short if they are many and evenly spaced: `0-1023`, `0-1016:8`."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 0
    if len(ranks) <= _LISTED or step < 1 or tuple(ranks) != tuple(range(ranks[0], ranks[-1] + 1, step)):
        return ",".join(map(str, ranks))
    return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")


def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks that `ranks_text` has written."""
    if found := re.fullmatch(r"(\d{1,9})-(\d{1,9})(?::([1-9]\d{0,8}))?", text):
        spread = range(int(found[1]), int(found[2]) + 1, int(found[3] or 1))
        if len(spread) > _MOST_RANKS:
            raise ValueError(f"{text} are too many ranks")
        return tuple(spread)
    return tuple(int(one) for one in text.split(",")) if text else ()


def splits_of(text: str | None) -> str | None:
    """Sizes for each rank, written as `[8, 8]`, as `8,8`; None for even parts or a list cut short."""
    return ",".join(map(str, listed_ranks(text))) or None


def _kind(told: Mapping[str, Any]) -> tuple[str, bool]:
    """The kind, and whether the kernel agrees with who asked for it."""
    if own := kind_of_operation(told["own"]):
        return own, True
    by_name = kind_of_kernel(told["kernel"])
    asked = kind_of_operation(told["range"]) or kind_of_operation(_operation(told["op"]))
    if by_name is None:
        return asked or UNKNOWN, True
    if asked is None or asked == by_name or by_name != "send-receive":
        return by_name, asked in (None, by_name)
    return (asked, True) if asked in _OF_SENDS else (UNKNOWN, False)


def _one_way(told: Mapping[str, Any]) -> str | None:
    """Which of send and recv it is, if it is one of them alone."""
    for name in (told["own"], told["range"], _operation(told["op"])):
        if kind_of_operation(name) is not None:
            flat = re.sub(r"[^a-z]", "", str(name).rpartition(":")[2].lower())
            return next((way for way in ("send", "recv") if flat.startswith(way)), None)
    return None


def _operation(op: str | None) -> str | None:
    """The operator, if it is one of torch.distributed."""
    return op if op and re.match(r"_?c10d(_functional)?::", op) else None


def _whole(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number < 1 << 53 else None


def _type(name: str | None) -> tuple[str | None, int]:
    """The usual name of a type, and the bytes of an element; 0 if not known."""
    flat = (name or "").lower().removeprefix("c10::")
    if flat in _TYPES:
        return _TYPES[flat]
    return ("fp8", 1) if flat.startswith("float8") else (name or None, 0)


def _elements(dims: str | None) -> int:
    """The elements of all tensors in a list of sizes: `[[8,1024]]`, or `[[[16],[4]]]` for a list of two."""

    def count(part: Any) -> int:
        if not isinstance(part, list):
            return 0
        if part and all(isinstance(one, int) for one in part):
            return prod(part)
        return sum(count(one) for one in part)

    try:
        return count(json.loads(dims or "[]"))
    except (ValueError, RecursionError):
        return 0


def listed_ranks(text: str | None) -> tuple[int, ...]:
    """A list of ranks as it is written; empty if it was cut short."""
    try:
        read = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(read) if isinstance(read, list) and all(isinstance(one, int) for one in read) else ()
