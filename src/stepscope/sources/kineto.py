"""Kineto traces: the JSON that the PyTorch profiler writes, in Chrome's trace event format."""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources import RECORD_ONE, Damage, Input, SourceMeta, source
from stepscope.sources._reading import begins_a_trace, new_reader, read_events
from stepscope.store.meta import NO_RANK

if TYPE_CHECKING:
    from stepscope import _native
    from stepscope.store.writer import StoreWriter
    from stepscope.streams import ByteStream

__all__ = ["kineto", "new_reader", "rank_of"]


def _looks_like_json(given: Input) -> bool:
    return given.head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


@source(sniff=_looks_like_json)
def kineto(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads a Kineto trace: the JSON that the PyTorch profiler writes."""
    begins_a_trace(given, writer, "a Kineto trace")
    stream, reader = given.stream, new_reader(from_day_before=True)
    read_events(given, writer, reader, reader, lambda: _refuse(stream, reader))
    if reader.events and not any(writer.phases):
        raise _not_a_trace(stream, "none of its objects has the phase of an event")
    return _meta(stream, reader)


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
    rank, rank_source = rank_of(metadata, stream.name)
    return SourceMeta(
        base_ns=(_integer(metadata.get("baseTimeNanoseconds")) or 0) + reader.origin,
        taken_off_ns=reader.origin,
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


def rank_of(metadata: dict[str, Any], name: str) -> tuple[int, str]:
    """The rank, and where it was found; 0 where nothing says it."""
    distributed = metadata.get("distributedInfo")
    rank = _integer(distributed.get("rank")) if isinstance(distributed, dict) else None
    if rank is not None:
        return rank, "distributedInfo"
    found = re.search(r"rank[-_.]?(\d{1,7})", PurePath(name).name, re.IGNORECASE)
    if found:
        return int(found[1]), "file name"
    return 0, NO_RANK
