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
from stepscope.sources import RECORD_ONE, Damage, Input, SourceMeta, source
from stepscope.store.meta import NO_RANK
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter
    from stepscope.streams import ByteStream

__all__ = ["kineto", "new_reader"]

_REPORT_EVERY = 16 << 20
_WAITING = 4  # batches that may wait to be written


def _looks_like_json(given: Input) -> bool:
    return given.head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


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
def kineto(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads a Kineto trace: the JSON that the PyTorch profiler writes."""
    stream, progress = given.stream, given.progress
    if writer.sources:  # the native reader numbers from 0, and two clocks and sets of correlations would mix
        raise StepscopeError(
            f"{given.name} cannot be added to {writer.sources[0].source}: a Kineto trace begins a trace",
            hint="name it first, and the other one with --also",
        )
    _native.keep_memory()
    reader = new_reader()
    with BackgroundWorker(_WAITING) as aside:
        aside.run(writer.open_files)  # beside the first pieces: pyarrow takes a while to import
        reported = 0
        for piece in stream:
            reader.feed(piece)
            _hand_over(reader, writer, aside)
            if reader.dictionary_full:
                aside.run(partial(writer.add_dictionary, reader.take_dictionary(last=False)))
            if reader.refusal:
                break
            if progress and reader.bytes - reported >= _REPORT_EVERY:
                reported = reader.bytes
                done = min(stream.read_bytes / stream.size, 0.999) if stream.size else None
                progress("reading", done, reader.bytes, reader.events)
        reader.finish(stream.cut)
        _hand_over(reader, writer, aside)
        _refuse(stream, reader)
        aside.run(partial(writer.add_dictionary, reader.take_dictionary(last=True)))
        writer.link_early(aside.wait)  # beside the last batches
    if reader.events and not any(writer.phases):
        raise _not_a_trace(stream, "none of its objects has the phase of an event")
    writer.add_threads(reader.threads)
    return _meta(stream, reader)


def _hand_over(reader: _native.Reader, writer: StoreWriter, aside: BackgroundWorker) -> None:
    """Full batches: those that wait for links only wait, and are there at the end; others are encoded."""
    others = []
    for batch in reader.take_batches():
        if writer.waits(batch):
            writer.add(batch)
        else:
            others.append(batch)
    if others:  # one job, for the many of the end too: nothing is to wait for room there
        aside.run(partial(_add_all, writer, others))


def _add_all(writer: StoreWriter, batches: list[_native.Batch]) -> None:
    for batch in batches:
        writer.add(batch)


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


def _meta(stream: ByteStream, reader: _native.Reader) -> SourceMeta:
    metadata = {key: json.loads(text) for key, text in reader.metadata}
    damage = [Damage(reason, count, lost, tuple(at)) for reason, count, lost, at in reader.damage]
    bases = {text for key, text in reader.metadata if key == "baseTimeNanoseconds"}
    if len(bases) > 1:
        damage.append(Damage(f"{len(bases)} base times in one file: all times are taken from the last"))
    rank, rank_source = _rank(metadata, stream.name)
    return SourceMeta(
        base_ns=_integer(metadata.get("baseTimeNanoseconds")) or 0,
        rank=rank,
        rank_source=rank_source,
        damage=tuple(damage),
        metadata=metadata,
        counters={
            "template_hits": reader.template_hits,
            "template_checks": reader.template_checks,
            "template_mismatches": reader.template_mismatches,
        },
    )


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
    return 0, NO_RANK
