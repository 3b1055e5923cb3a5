"""The way of events from a stream of bytes through a native reader into a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.schema import METADATA_KEYS, STORED, native_tables
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from stepscope.sources._input import Input
    from stepscope.store.writer import StoreWriter

__all__ = ["Fed", "begins_a_trace", "new_reader", "read_events", "store_events", "why_no_json"]

_REPORT_EVERY = 16 << 20
_WAITING = 4  # batches that may wait to be written


class Fed(Protocol):
    """What takes the bytes: the reader itself, or one that writes events for it."""

    def feed(self, piece: Buffer) -> bool | None:
        """Takes a piece; true if there are events to take, and it is to be called again with nothing."""

    def finish(self, source_cut: bool) -> bool | None:
        """There are no more; true if there are events to take, and it is to be called again."""

    @property
    def bytes(self) -> int:
        """How many there were."""


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


def begins_a_trace(given: Input, writer: StoreWriter, what: str) -> None:
    """Refuses what cannot be added: native readers number from 0, and two sets of correlations would mix."""
    if writer.sources:
        raise StepscopeError(
            f"{given.name} cannot be added to {writer.sources[0].source}: {what} begins a trace of its own",
            hint="name it first, and the other one with --also; or read it on its own: "
            f"stepscope report {given.name}",
        )


def read_events(
    given: Input, writer: StoreWriter, reader: _native.Reader, fed: Fed, refuse: Callable[[], None]
) -> None:
    """Feeds everything and stores the events; `refuse` raises, when all is read, if it is no trace."""
    stream, progress = given.stream, given.progress

    def read(take: Callable[[], None]) -> None:
        reported = 0
        for piece in stream:
            more = fed.feed(piece)
            take()
            while more:
                more = fed.feed(b"")
                take()
            if reader.refusal:
                break
            if progress and fed.bytes - reported >= _REPORT_EVERY:
                reported = fed.bytes
                done = min(stream.read_bytes / stream.size, 0.999) if stream.size else None
                progress("reading", done, fed.bytes, reader.events)
        while fed.finish(stream.cut):
            take()

    store_events(writer, reader, read, refuse)


def store_events(
    writer: StoreWriter,
    reader: _native.Reader,
    read: Callable[[Callable[[], None]], None],
    refuse: Callable[[], None],
) -> None:
    """Stores the events that `read` makes the reader find; it calls what it is given now and then."""
    _native.keep_memory()
    with BackgroundWorker(_WAITING) as aside:
        aside.run(writer.open_files)  # beside the first pieces: pyarrow takes a while to import

        def take() -> None:
            _hand_over(reader, writer, aside)
            if reader.dictionary_full:
                aside.run(partial(writer.add_dictionary, reader.take_dictionary(last=False)))

        read(take)
        _hand_over(reader, writer, aside)
        refuse()
        aside.run(partial(writer.add_dictionary, reader.take_dictionary(last=True)))
        writer.link_early(aside.wait)  # beside the last batches
    writer.add_threads(reader.threads)


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


def why_no_json(error: Exception) -> str:
    """What is wrong with JSON that Python could not read, in a few words."""
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
