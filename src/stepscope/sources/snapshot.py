"""Snapshots of PyTorch's caching allocator: the pickles that `torch.cuda.memory._dump_snapshot` writes."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope import _native, units
from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._frames import told_of_frames
from stepscope.sources.kineto import rank_of
from stepscope.store.columns import arrays, chosen
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["snapshot"]

_PROTOCOLS = re.compile(rb"\x80[\x02-\x05]")
# Protocols 0 and 1 have no header; what torch saves is a dict.
_OLD = re.compile(rb"(\(dp?\d*\n?|\}q\x00\()(V|X....)segments", re.DOTALL)
_DUMP = "write it with torch.cuda.memory._dump_snapshot('snapshot.pickle')"
_MOST_TOLD = 5_000
"""Values of what is no row: settings, and what the program added."""
_LONGEST = 2_000
_WAITING = 4  # batches that may wait to be written
_TOO_EARLY = "it ends too early"
_LATEST_US = 1 << 52
"""Times beyond the year 2100 are none."""


def _is_pickle(given: Input) -> bool:
    return bool(_PROTOCOLS.match(given.head) or _OLD.match(given.head))


@source(sniff=_is_pickle, beside=True)
def snapshot(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads a snapshot of the caching allocator: segments, blocks, what happened before, and the stacks.

    It is a pickle, and is not unpickled: nothing in it is loaded or run.
    """
    if _OLD.match(given.head):
        raise StepscopeError(f"{given.name} is a pickle of protocol 0 or 1, which is not read", hint=_DUMP)
    reader = _native.SnapshotReader(given.as_file())
    try:
        reader.scan()
    except _native.PickleRefused as wanted:
        raise _refused(given, str(wanted)) from None
    with BackgroundWorker(_WAITING) as aside:  # rows are encoded while the next ones are read
        rows = _Rows(reader, writer, aside)
        more = True
        while more:
            more = reader.read()
            rows.hand_over()
            if given.progress:
                given.progress("reading", min(reader.at / max(reader.size, 1), 0.999), reader.at, rows.events)
    if not reader.saw_segments and not reader.saw_traces:
        raise _no_snapshot(given, reader)
    return rows.meta(given)


def _refused(given: Input, wanted: str) -> StepscopeError:
    """The file wants more than plain values: it may be something else, or an attack."""
    shown = ascii(wanted)[1:-1]
    return StepscopeError(
        f"{given.name} is refused: it is a pickle that wants to {shown}, and a snapshot of the allocator has "
        "plain values only. Nothing in it was run",
        hint=_DUMP,
    )


def _no_snapshot(given: Input, reader: _native.SnapshotReader) -> StepscopeError:
    found, _ = reader.rest(1000)
    keys = ", ".join(ascii(key)[1:-1][:40] for key in list(found)[:6]) if isinstance(found, dict) else ""
    what = f"a dict of {keys}" if keys else f"of type {type(found).__name__}"
    why = reader.cut or f"it is {what}"
    return StepscopeError(f"{given.name} is a pickle, but no snapshot of the allocator: {why}", hint=_DUMP)


class _Rows:
    """Hands batches of rows from the reader to the writer."""

    def __init__(self, reader: _native.SnapshotReader, writer: StoreWriter, aside: BackgroundWorker) -> None:
        self._reader = reader
        self._aside = aside
        self._writer = writer
        self._alone = not writer.sources
        self._base_ns = 0
        self._frames = 0
        self.events = 0
        self._odd_times = 0

    def hand_over(self) -> None:
        """Stores what was read since the last time."""
        reader = self._reader
        self._add("allocator_stacks", self._columns(reader.take_stacks()))
        self._add("allocator_frames", self._frame_columns(reader.take_frames()))
        self._add("allocator_segments", self._columns(reader.take_segments()))
        self._add("allocator_blocks", self._columns(reader.take_blocks()))
        events = self._timed(self._columns(reader.take_events()))
        self.events += len(events["action"])
        self._add("allocator_events", events)
        self._add("allocator_annotations", self._timed(self._columns(reader.take_annotations())))

    def _add(self, table: str, columns: dict[str, Any]) -> None:
        import pyarrow as pa

        rows = pa.table(columns)
        if rows.num_rows:
            self._aside.run(partial(self._writer.add_rows, table, rows))

    def _columns(self, taken: dict[str, Any]) -> dict[str, Any]:
        """Native columns as Arrow has them; texts are few distinct ones."""
        whole = {name: column for name, column in taken.items() if not isinstance(column[0], list)}
        found = dict(zip(whole, arrays(list(whole.values())), strict=True))
        for name, (texts, numbers) in ((name, taken[name]) for name in taken if name not in whole):
            found[name] = chosen([_text(one) for one in texts], numbers)
        return found

    def _frame_columns(self, taken: dict[str, Any]) -> dict[str, Any]:
        import pyarrow as pa

        (lines,) = arrays([taken["line"]])
        first, self._frames = self._frames, self._frames + len(lines)
        columns = {
            "frame": pa.array(range(first, self._frames), pa.int64()),
            "file": pa.array([_text(one) for one in taken["file"]], pa.string()),
            "line": lines,
            "function": pa.array([_text(one) for one in taken["function"]], pa.string()),
        }
        return {**columns, **told_of_frames(columns["file"], lines, columns["function"])}

    def _timed(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Times in ns: since 1970 beside a trace, after the first one of a snapshot alone."""
        import pyarrow.compute as pc

        times = columns.pop("time_us")
        given = len(times) - times.null_count
        possible = pc.and_(pc.greater(times, 0), pc.less(times, _LATEST_US))
        times = pc.multiply(pc.if_else(possible, times, None), 1000)
        self._odd_times += given - (len(times) - times.null_count)
        if not self._alone:
            return {**columns, "epoch_ns": times}
        if not self._base_ns and times.null_count < len(times):
            self._base_ns = pc.min(times).as_py()
        return {**columns, "start_ns": pc.subtract(times, self._base_ns)}

    def meta(self, given: Input) -> SourceMeta:
        """What the snapshot says of itself, and what was lost."""
        told, damage = self._told()
        if self._reader.cut:
            lost = max(0, self._reader.size - self._reader.at)
            how = "cut short" if self._reader.cut == _TOO_EARLY else "damaged"
            reason = f"the snapshot is {how}: {self._reader.cut}"
            damage.append(Damage(reason, 1, lost, (self._reader.at,)))
        for count, reason in (
            (self._reader.odd, "an entry of the snapshot that is none, not kept"),
            (self._odd_times, "a time of the snapshot that cannot be, not kept"),
        ):
            if count:
                damage.append(Damage(reason, count))
        told["cut"] = bool(self._reader.cut)
        told["events"] = self.events
        rank, rank_source = rank_of({}, given.name)
        return SourceMeta(
            base_ns=self._base_ns if self._alone else 0,
            rank=rank,
            rank_source=rank_source,
            damage=tuple(damage),
            joined="by time",
            metadata={"allocator_snapshot": told},
            notes=self._notes(),
        )

    def _told(self) -> tuple[dict[str, Any], list[Damage]]:
        rest, lost = self._reader.rest(_MOST_TOLD)
        kept = rest if isinstance(rest, dict) else {}
        left = ("segments", "device_traces", "external_annotations")
        told = {str(key)[:100]: _plain(value) for key, value in kept.items() if key not in left}
        text = json.dumps(told, allow_nan=False, default=str)
        damage = [Damage("values of the snapshot's settings beyond what is kept")] if lost else []
        return json.loads(text.encode("utf-8", "replace")), damage

    def _notes(self) -> tuple[str, ...]:
        said = []
        if self._alone:
            said.append(
                "A snapshot of the allocator has no kernels and no operators: it says where memory is, "
                "and nothing about speed."
            )
        if not self.events:
            said.append(
                "It has no history: call torch.cuda.memory._record_memory_history() "
                "before the program allocates, and the peak and the growth can be told."
            )
        return (" ".join(said),) if said else ()


def _text(raw: bytes) -> str:
    return raw[:_LONGEST].decode("utf-8", "replace")


def _plain(value: Any, depth: int = 0) -> Any:
    """The same value as JSON can have it."""
    if depth > 6:
        return None
    if isinstance(value, dict):
        return {str(key)[:100]: _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, bytes):
        return units.size(len(value))
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if isinstance(value, str):
        return value[:_LONGEST]
    return value
