"""Compile logs: what torch.compile writes under TORCH_TRACE (structured) and TORCH_LOGS (text)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._torch_log import Entry, entries, looks_like_log
from stepscope.store.meta import NO_RANK

if TYPE_CHECKING:
    from stepscope.sources._compile_rows import CompileRows
    from stepscope.store.writer import StoreWriter

__all__ = ["compile_log"]

RECORD = "TORCH_TRACE=traces python train.py"
_RANK = re.compile(r"(?:^|[_.\-])rank[_\-]?(\d{1,6})(?=\D|$)")
_MOST_FILES = 4096
_LOOKED_AT = 64
"""Files of a folder whose beginnings decide."""
_JOIN = 1 << 20
"""Bytes of one message of several lines."""


def _is_compile_log(given: Input) -> bool:
    if not given.is_folder:
        return looks_like_log(given.head)
    files = _files(given)[:_LOOKED_AT]
    heads = []
    for file in files:
        head = _head(file)
        if head is None or (head and not looks_like_log(head)):
            return False
        heads.append(head)
    return any(heads)  # some ranks may have compiled nothing


def _head(file: Path) -> bytes | None:
    """Its first bytes; None if it cannot be read."""
    one = Input(str(file))
    try:
        return one.head
    except StepscopeError:
        return None
    finally:
        one.close()


def _files(given: Input) -> list[Path]:
    """The files of a folder, if it holds nothing else."""
    folder = given.path or Path()
    found = [folder / name for name in given.listing if not name.startswith(".")]
    return found if all(one.is_file() for one in found) else []


@source(sniff=_is_compile_log, beside=True)
def compile_log(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads what torch.compile logged: breaks, recompilations, caches, kernels and their time."""
    from stepscope.sources._compile_rows import CompileRows

    rows = CompileRows(writer)
    ranks: list[int] = []
    damage: list[Damage] = []
    files = _files(given)[:_MOST_FILES] if given.is_folder else [None]
    for file in files:
        one = Input(str(file)) if file else given
        name = file.name if file else Path(given.word).name
        found = _RANK.search(name)
        rank = int(found[1]) if found else None
        ranks += [rank] if rank is not None else []
        rows.begin_file(rank)
        try:
            cut = _read(one, rows)
        finally:
            if file:
                one.close()
        unfinished = rows.end_file()
        if file and one.stream.broken:
            damage.append(Damage(one.stream.broken))
        if cut:
            damage.append(Damage("an entry of the log that is too long, cut short", bytes=cut))
        if unfinished:
            damage.append(
                Damage("a phase of compiling without its begin or end: the log was cut short", unfinished)
            )
    if rows.unreadable:
        damage.append(Damage("an entry of the log that is cut or no JSON, left out", rows.unreadable))
    if not rows.entries:
        raise StepscopeError(f"{given.name} has no entry of torch.compile", hint=f"record one: {RECORD}")
    return _meta(writer, rows, ranks, tuple(damage))


def _read(given: Input, rows: CompileRows) -> int:
    """Reads one file; the bytes that were left out."""
    cut = 0
    # Lines of several ranks may be mixed: each process has a message of its own that may go on.
    waiting: dict[tuple[int | None, int], tuple[Entry, list[bytes]]] = {}
    for entry in entries(_told(given)):
        cut += entry.cut
        structured = entry.text[:1] == b"{" and not entry.channel
        whose = (entry.rank, entry.process)
        if whose in waiting and (structured or not _goes_on(waiting[whose][0], entry, waiting[whose][1])):
            _add_message(rows, *waiting.pop(whose))
        if structured:
            rows.add(entry)
        elif whose in waiting:
            waiting[whose][1].append(entry.text)
        else:
            waiting[whose] = (entry, [entry.text])
    for first, lines in waiting.values():
        _add_message(rows, first, lines)
    return cut


def _add_message(rows: CompileRows, first: Entry, lines: list[bytes]) -> None:
    rows.add_message(first, b"\n".join(lines).decode("utf-8", "replace"))


def _told(given: Input) -> Iterator[bytes]:
    """The pieces of a file, while the user is told how far they are."""
    stream = given.stream
    for piece in stream:
        yield piece
        if given.progress:
            done = min(stream.read_bytes / stream.size, 0.999) if stream.size else None
            given.progress("reading", done, stream.given_bytes, 0)


def _goes_on(first: Entry, entry: Entry, lines: list[bytes]) -> bool:
    """Whether a line belongs to the same message: torch repeats the prefix on each of its lines."""
    same = all(
        getattr(first, name) == getattr(entry, name)
        for name in ("rank", "clock_ns", "process", "where", "region", "channel")
    )
    return same and len(lines) < 5000 and sum(map(len, lines[-50:])) < _JOIN


def _meta(writer: StoreWriter, rows: CompileRows, ranks: list[int], damage: tuple[Damage, ...]) -> SourceMeta:
    first = writer.sources[0] if writer.sources else None
    said = sorted(set(ranks) or rows.said_ranks)
    notes = [
        "A compile log says what torch.compile did, not how long steps take or what the device does"
        + (": those come from the trace that it was given with." if first else "."),
    ]
    if ranks and rows.said_ranks and not set(ranks) <= rows.said_ranks:
        notes.append(
            f"Entries of the log say rank {_listed(rows.said_ranks)}, the names of its files "
            f"{_listed(said)}: the names are believed."
        )
    if not rows.counts["logged_compilations"]:
        notes.append(
            "The log has no compilations, only messages: TORCH_TRACE=DIR also has times, caches and kernels."
        )
    return SourceMeta(
        rank=said[0] if said else 0,
        rank_source=("file name" if ranks else "compile log") if said else NO_RANK,
        damage=damage,
        notes=tuple(notes),
        joined="by region and name",
        metadata={"torch_version": rows.torch_version} if rows.torch_version and not first else {},
    )


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
