"""Kineto traces: the JSON that the PyTorch profiler writes, in Chrome's trace event format."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.schema import METADATA_KEYS, STORED, native_tables
from stepscope.sources import RECORD_ONE, source
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter
    from stepscope.streams import ByteStream, Progress

__all__ = ["kineto", "new_reader"]

_REPORT_EVERY = 16 << 20
_WAITING = 4  # batches that may wait to be written


def _looks_like_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def new_reader(**options: int | bool) -> _native.Reader:
    """A native reader that sorts events into the stored tables."""
    return _native.Reader(
        native_tables(),
        {
            f"{table.phase} {category}": number
            for number, table in enumerate(STORED)
            for category in table.categories
        },
        {phase: number for number, table in enumerate(STORED) for phase in table.phases},
        METADATA_KEYS,
        options,
    )


@source(sniff=_looks_like_json)
def kineto(stream: ByteStream, writer: StoreWriter, progress: Progress | None = None) -> None:
    """Reads a Kineto trace: the JSON that the PyTorch profiler writes."""
    _native.keep_memory()
    reader = new_reader()
    with BackgroundWorker(_WAITING) as aside:
        reported = 0
        for piece in stream:
            reader.feed(piece)
            for batch in reader.take_batches():
                aside.run(partial(writer.add, batch))
            if reader.dictionary_full:
                aside.run(partial(writer.add_dictionary, reader.take_dictionary(last=False)))
            if reader.refusal:
                break
            if progress and reader.bytes - reported >= _REPORT_EVERY:
                reported = reader.bytes
                done = min(stream.read_bytes / stream.size, 0.999) if stream.size else None
                progress("reading", done, reader.bytes, reader.events)
        reader.finish(bool(stream.broken))
        for batch in reader.take_batches():
            aside.run(partial(writer.add, batch))
        _refuse(stream, reader)
        aside.run(partial(writer.add_dictionary, reader.take_dictionary(last=True)))
    if reader.events and not any(writer.phases):
        raise _not_a_trace(stream, "none of its objects has the phase of an event")
    writer.finish(reader.threads, _meta(stream, reader))


def _not_a_trace(stream: ByteStream, why: str) -> StepscopeError:
    if stream.broken:
        return StepscopeError(f"{stream.name} is damaged: {stream.broken}; {why}", hint="copy it once more")
    return StepscopeError(
        f"{stream.name} is not a trace: {why}",
        hint=RECORD_ONE,
    )


def _refuse(stream: ByteStream, reader: _native.Reader) -> None:
    if reader.refusal:
        raise _not_a_trace(stream, reader.refusal)
    if not reader.saw_events and not reader.events:
        keys = ", ".join(key for key, _ in reader.metadata[:6])
        raise _not_a_trace(stream, f"it has no traceEvents (its keys: {keys or 'none'})")


def _meta(stream: ByteStream, reader: _native.Reader) -> dict[str, Any]:
    metadata = {key: json.loads(text) for key, text in reader.metadata}
    damage = [
        {"reason": reason, "count": count, "bytes": lost, "offsets": offsets}
        for reason, count, lost, offsets in reader.damage
    ]
    said = [stream.broken] if stream.broken else []
    bases = {text for key, text in reader.metadata if key == "baseTimeNanoseconds"}
    if len(bases) > 1:
        said.append(f"{len(bases)} base times in one file: all times are taken from the last")
    damage += [{"reason": reason, "count": 1, "bytes": 0, "offsets": []} for reason in said]
    rank, rank_source = _rank(metadata, stream.name)
    return {
        "source": stream.name,
        "kind": "kineto",
        "compressed_bytes": stream.read_bytes,
        "bytes": reader.bytes,
        "events": reader.events,
        "base_ns": _integer(metadata.get("baseTimeNanoseconds")) or 0,
        "rank": rank,
        "rank_source": rank_source,
        "damage": damage,
        "template_hits": reader.template_hits,
        "template_checks": reader.template_checks,
        "template_mismatches": reader.template_mismatches,
        "metadata": metadata,
    }


def _integer(value: Any) -> int | None:
    """A whole number, written as one or as text, that leaves room for times to be added to it."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62
    return value if fits else None


def _rank(metadata: dict[str, Any], name: str) -> tuple[int, str]:
    """The rank, and where it was found; 0 where nothing says it."""
    distributed = metadata.get("distributedInfo")
    rank = _integer(distributed.get("rank")) if isinstance(distributed, dict) else None
    if rank is not None:
        return rank, "distributedInfo"
    found = re.search(r"rank[-_.]?(\d{1,7})", PurePath(name).name, re.IGNORECASE)
    if found:
        return int(found[1]), "file name"
    return 0, "nothing says it; taken as 0"
