"""Perfetto traces: the protobuf files (.pftrace) that newer PyTorch profilers and other tools write."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._protobuf import leading_fields
from stepscope.sources._reading import begins_a_trace, new_reader, read_events
from stepscope.sources.kineto import rank_of
from stepscope.store.leftovers import scratch

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from stepscope.store.writer import StoreWriter

__all__ = ["OWN_CATEGORY", "pftrace"]

OWN_CATEGORY = "stepscope"
"""Of what `stepscope export` adds to a file; it is not read back, for it is nothing that the program did."""

_RECORD = "record one with torch.profiler.profile(...).export_chrome_trace('trace.pftrace')"
_KNOWN = frozenset({8, 10, 11, 12, 13, 33, 41, 42, 43, 44, 50, 52, 53, 58, 59, 60, 79, 87, 89, 128})
"""Fields that the first packets of real traces have, and other protobuf files do not."""

_MOST_FIELD = 1 << 16
"""Above all numbers that Perfetto and those who extend it give to fields of a packet."""
_MOST_WAITING = 1 << 18  # readings
_PACKED_PIECE = 1 << 16
_PLAIN_PIECE = 1 << 20
_MOST_PLAIN = 256 << 20
"""What packets that are compressed together may come to; Perfetto compresses them by some 100 KB."""
_ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS
_UNIT = re.compile(r"\(([^()]{1,16})\)\s*$")


def _looks_like_packets(given: Input) -> bool:
    """Whether it begins with a packet of known fields; other protobuf files begin with the same byte."""
    fields = leading_fields(given.first_bytes, 1)
    numbers = {number for number, _ in fields or ()}
    return bool(_KNOWN & numbers) and max(numbers) < _MOST_FIELD


@source(sniff=_looks_like_packets)
def pftrace(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads a Perfetto trace: the protobuf file (.pftrace) of newer PyTorch profilers and other tools."""
    begins_a_trace(given, writer, "a Perfetto trace")
    reader = new_reader()
    packets = _native.PftraceReader(reader, str(scratch()), OWN_CATEGORY, {})

    def refuse() -> None:
        if reader.events or packets.counters:
            return
        said = (
            "it is empty" if not packets.packets else "none of its packets is a slice, GPU work or a counter"
        )
        if given.stream.broken:
            said = given.stream.broken
        raise StepscopeError(f"{given.name} is no Perfetto trace of a program: {said}", hint=_RECORD)

    fed = _Packets(packets, writer)
    read_events(given, writer, reader, fed, refuse)
    return _meta(given, reader, fed, memory=bool(writer.rows["memory_events"]))


class _Packets:
    """The native reader, which gives away readings of counters before they are many.

    Packets may be compressed inside of one (`compressed_packets`, if the recording was configured with
    `compression_type: COMPRESSION_TYPE_DEFLATE`). They are unpacked here, piece by piece.
    """

    def __init__(self, native: _native.PftraceReader, writer: StoreWriter) -> None:
        self.native = native
        self.damage: Counter[str] = Counter()
        self._writer = writer
        self._inside: Iterator[bytes] | None = None
        """The pieces of what is being unpacked."""

    def feed(self, piece: Buffer) -> bool:
        """Takes a piece; true if something is unpacked, and it is to be called again with nothing."""
        if self._inside is None:
            self.native.feed(piece)
        more = self._unpack()
        if self.native.waiting >= _MOST_WAITING:
            _add_counters(self.native, self._writer)
        return more

    def finish(self, source_cut: bool) -> bool:
        """There are no more; true while something is unpacked, or slices that waited are written."""
        more = self._inside is not None or self.native.finish_some(source_cut)
        if self._unpack() or more:
            return True
        _add_counters(self.native, self._writer)
        return False

    def _unpack(self) -> bool:
        """Takes one piece of what is compressed, if anything is; false if nothing was."""
        if self._inside is None:
            packed = self.native.take_packed()
            if not packed:
                return False
            self._inside = self._unpacked(packed)
        piece = next(self._inside, None)
        if piece is None or not self.native.feed_packed(piece):
            self._inside = None
        return True

    def _unpacked(self, packed: bytes) -> Iterator[bytes]:
        """What is in it, up to a limit: memory does not grow with it, but time and disk would."""
        decoder, plain, why = zlib.decompressobj(_ZLIB_OR_GZIP), 0, ""
        at, left = 0, b""
        while not why and not decoder.eof:
            if not left:
                at, left = at + _PACKED_PIECE, packed[at : at + _PACKED_PIECE]
            given = bool(left)
            try:
                piece = decoder.decompress(left, _PLAIN_PIECE)
            except zlib.error:
                why = "compressed packets that cannot be unpacked, read up to there"
                break
            left, plain = decoder.unconsumed_tail, plain + len(piece)
            if plain > _MOST_PLAIN:
                why = f"compressed packets of more than {_MOST_PLAIN >> 20} MiB, read up to there"
            elif piece:
                yield piece
            elif not given:
                break
        if not why and not decoder.eof:
            why = "compressed packets that end too early, read up to there"
        self.damage.update([why] if why else ())
        self.native.end_packed(whole=not why)

    @property
    def bytes(self) -> int:
        """How many there were."""
        return self.native.bytes


def _add_counters(packets: _native.PftraceReader, writer: StoreWriter) -> None:
    """Readings of counters, into their side table."""
    import pyarrow as pa

    counters = [(device, _text(name), _text(unit)) for device, name, unit in packets.counters]
    columns = packets.take_readings()
    which, times, values = (
        pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])
        for kind, column in zip((pa.int64(), pa.int64(), pa.float64()), columns, strict=True)
    )
    if not len(which):
        return
    units = [unit or _unit_in(name) for _, name, unit in counters]
    rows = {
        "device": pa.array([device for device, *_ in counters], pa.int64()).take(which),
        "name": pa.array([name for _, name, _ in counters], pa.string()).take(which),
        "unit": pa.array(units, pa.string()).take(which),
        "start_ns": times,
        "value": values,
    }
    writer.add_rows("device_counters", pa.table(rows))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _unit_in(name: str) -> str | None:
    """The unit that stands in brackets behind a counter's name."""
    found = _UNIT.search(name)
    return found[1] if found else None


def _meta(given: Input, reader: _native.Reader, fed: _Packets, *, memory: bool) -> SourceMeta:
    packets = fed.native
    damage = [Damage(reason, count, lost, tuple(at)) for reason, count, lost, at in packets.damage]
    damage += [Damage(reason, count) for reason, count in fed.damage.items()]
    # What the reader of events says is about texts that were written for it: their places mean nothing here.
    damage += [Damage(reason, count) for reason, count, _, _ in reader.damage]
    rank, rank_source = rank_of({}, given.name)
    gpus = [{"id": number, "name": _text(name)} for number, name in enumerate(packets.gpus)]
    return SourceMeta(
        base_ns=packets.base_ns,
        rank=rank,
        rank_source=rank_source,
        damage=tuple(damage),
        metadata={"deviceProperties": gpus} if gpus else {},
        notes=_notes(packets, memory=memory),
        counters={"packets": packets.packets},
    )


def _notes(packets: _native.PftraceReader, *, memory: bool) -> tuple[str, ...]:
    """One note, so that a report does not name the kind of file several times."""
    model = "" if packets.gpus else "GPU model, "
    allocations = "" if memory else ", and has no allocations"
    said = [f"A Perfetto trace names no {model}rank or version{allocations}."]
    if packets.stages:
        said.append(
            "It does not tell the direction of copies, pinned from pageable memory, or static shared memory. "
            "PyTorch ends GPU work there where the next work on its stream starts: kernels that ran at the "
            "same time on one stream are longer in the JSON trace of the same run."
        )
    if packets.uncategorised and packets.slices:
        said.append(
            "Its slices have no categories: operators, annotations and runtime calls were told apart by "
            "their arguments."
        )
    if not packets.epoch_known:
        said.append("It does not tie its clock to the time of day.")
    return (" ".join(said),)
