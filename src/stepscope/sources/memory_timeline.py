"""Memory timelines: what `torch.profiler`'s `export_memory_timeline` writes, by kind of tensor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["memory_timeline"]

# A list of lists of four numbers, or a list of times and one of lists of nine.
_RAW = re.compile(rb"\s*\[\s*\[\s*-?\d+\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*[0-7]\s*\]")
_COALESCED = re.compile(rb"\s*\[\s*\[[-\d,\s]+(\]\s*,\s*\[\s*\[\s*0\s*,|\Z)")
"""All times, then a list of sizes for each, which begins with 0; or more times than can be seen."""
_PAGE = re.compile(
    rb"<img src='data:image/png;base64|<meta charset='utf-8' /><title>Cuda Memory Timeline", re.IGNORECASE
)
_KINDS = (
    "parameters",
    "optimizer state",
    "inputs",
    "temporaries",
    "activations",
    "gradients",
    "autograd detail",
    "unknown",
)
_LACKS = (
    "A memory timeline has sizes by kind of tensor, and neither names nor lines of code. It does not say of "
    "which device it is."
)
_ACTIONS = ("there before", "created", "changed", "freed")
_EXPORT = "write it with profiler.export_memory_timeline('memory.raw.json.gz', device='cuda:0')"


def _is_timeline(given: Input) -> bool:
    return bool(_RAW.match(given.head) or _COALESCED.match(given.head) or _PAGE.search(given.head[:400]))


@source(sniff=_is_timeline, beside=True)
def memory_timeline(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads a memory timeline of torch.profiler: how much each kind of tensor took, over time."""
    if _PAGE.search(given.head[:400]):
        raise StepscopeError(
            f"{given.name} is a page with a picture: its figures cannot be read", hint=_EXPORT
        )
    raw = bool(_RAW.match(given.head))
    rows = _Changes(writer)
    damage = []
    try:
        for numbers in _raw_rows(given) if raw else _coalesced_rows(given):
            rows.add(numbers)
    except _NotNumbers as error:
        damage.append(Damage(f"the memory timeline ends too early or is damaged: {error}"))
    if rows.odd:
        damage.append(Damage("a row of the memory timeline that is none, not kept", rows.odd))
    if not rows.kept:
        raise StepscopeError(f"{given.name} is a memory timeline without any row", hint=_EXPORT)
    return SourceMeta(
        base_ns=0 if writer.sources else rows.base_ns,
        damage=tuple(damage),
        joined="by time",
        metadata={"memory_timeline": {"form": "raw" if raw else "coalesced", "rows": rows.kept}},
        notes=(_LACKS,),
    )


class _NotNumbers(Exception):  # noqa: N818  # it ends the reading, not the program
    pass


class _Changes:
    """Gives rows to the writer: time, action, kind and change."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._alone = not writer.sources
        self.base_ns = 0
        self.kept = 0
        self.odd = 0

    def add(self, rows: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        fits = pc.and_(
            pc.and_(_within(rows["kind"], 0, len(_KINDS) - 1), _within(rows["action"], 1, len(_ACTIONS))),
            _within(rows["bytes"], -(1 << 50), 1 << 50),
        )
        kept = rows.filter(fits)
        self.odd += rows.num_rows - kept.num_rows
        times = pc.if_else(_within(kept["time_ns"], 0, 1 << 62), kept["time_ns"], None)
        if self._alone and not self.base_ns and times.null_count < len(times):
            self.base_ns = pc.min(times).as_py()
        name = "start_ns" if self._alone else "epoch_ns"
        columns = {
            "nth": pa.array(range(self.kept, self.kept + kept.num_rows), pa.int64()),
            name: pc.subtract(times, self.base_ns) if self._alone else times,
            "action": pa.array(_ACTIONS).take(pc.subtract(kept["action"].combine_chunks(), 1)),
            "category": pa.array(_KINDS).take(kept["kind"].combine_chunks()),
            "bytes": kept["bytes"],
        }
        self._writer.add_rows("memory_timeline", pa.table(columns))
        self.kept += kept.num_rows


def _within(column: Any, low: int, high: int) -> Any:
    import pyarrow.compute as pc

    return pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))


def _raw_rows(given: Input) -> Iterator[pa.Table]:
    """Rows of four numbers, piece by piece."""
    left = b""
    for piece in given.stream:
        text = left + piece
        end = text.rfind(b"]")
        if end < 0:
            left = text
            continue
        left = text[end + 1 :]
        yield _numbers(text[:end], ("time_ns", "action", "bytes", "kind"))
    if left.strip(b" \r\n\t]"):
        raise _NotNumbers("a row is not whole")


def _numbers(text: bytes, names: tuple[str, ...]) -> pa.Table:
    """Lists of whole numbers, one after another, as columns."""
    import pyarrow as pa
    from pyarrow import csv

    lines = re.sub(rb"\s+", b"", text)
    lines = re.sub(rb"^[\[\],]+|[\[\],]+$", b"", lines).replace(b"],[", b"\n")
    if not lines:
        return pa.table({name: pa.array([], pa.int64()) for name in names})
    try:
        return csv.read_csv(
            pa.BufferReader(lines + b"\n"),
            read_options=csv.ReadOptions(column_names=names),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int64())),
        )
    except pa.ArrowInvalid as error:
        raise _NotNumbers(str(error).splitlines()[0][:200]) from None


def _coalesced_rows(given: Input) -> Iterator[pa.Table]:
    """Times, then the size of every kind at each of them: made into changes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Some ten bytes a number: a timeline of a million instants is 100 MB.
    content = b"".join(given.stream)
    head, _, tail = content.partition(b"]")
    times = _numbers(head.replace(b",", b"],["), ("time_us",))["time_us"]
    names = ("nothing", *map(str, range(len(_KINDS))))
    sizes = _numbers(tail[: tail.rfind(b"]") + 1], names)  # without a row that is not whole
    count = min(len(times), sizes.num_rows)
    for kind in range(len(_KINDS)):
        levels = sizes[str(kind)].combine_chunks().slice(0, count)
        before = pa.concat_arrays([pa.array([0], pa.int64()), levels.slice(0, max(0, count - 1))])[
            : len(levels)
        ]
        changes = pc.subtract(levels, before)
        yield pa.table(
            {
                "time_ns": pc.multiply(times.combine_chunks().slice(0, count), 1000),
                "action": pa.repeat(pa.scalar(3, pa.int64()), count),
                "bytes": changes,
                "kind": pa.repeat(pa.scalar(kind, pa.int64()), count),
            }
        ).filter(pc.not_equal(changes, 0))
    if count < len(times):
        raise _NotNumbers(f"{len(times) - count:,} instants have no sizes")
