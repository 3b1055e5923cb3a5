"""Entries of torch's logs: lines with a prefix as glog writes it, and what follows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache

from stepscope.records import dataclass

__all__ = ["PREFIX", "Entry", "entries", "looks_like_log"]

PREFIX = re.compile(
    rb"\n(?:\[(?:rank|default|trainer|worker)(\d{1,6})\]: ?){0,2}[VIWEC]"
    rb"(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) (\d{1,19}) ([^\s\]]+\.py):(\d+)\]"
    rb"(?: (?=\{)|((?: \[[!\d/_-]{1,60}\])?)((?: \[__\w+\])?) ?)"
)
"""After a line break, which makes it fast to find: rank, month, day, time, process, file and line of torch,
region, channel; the message follows."""
# Before torch 2.3: [2023-11-16 16:41:38,267] [0/0] torch._dynamo.symbolic_convert.__graph_breaks: [DEBUG] …
_OLD = re.compile(
    rb"\n((?:\[rank\d{1,6}\]: ?)?)\[\d{4}-(\d\d)-(\d\d) (\d\d:\d\d:\d\d),(\d{3})\]((?: \[[!\d/_-]{1,60}\])?) "
    rb"torch([\w.]{0,200}?)(?:\.__(\w{1,60}))?: \[[A-Z]+\] ?"
)
_TORCH = re.compile(rb"(^|/)(torch|triton)/")
LARGEST = 64 << 20
"""Bytes of an entry: what is beyond is not looked at."""


@dataclass(slots=True)
class Entry:
    """One entry of a log: what its prefix says, its text and the lines below it, indented by a tab."""

    rank: int | None
    clock_ns: int
    """Month, day and time of day, as ns since the start of a year; the log tells neither year nor zone."""
    process: int
    where: str
    region: str | None
    channel: str
    text: bytes
    below: bytes = b""
    cut: int = 0
    """Bytes that were left out, because it is too long."""
    attempt: int = 0
    """How often the region was begun before: `[0/0_1]` is its second attempt."""


def looks_like_log(head: bytes) -> bool:
    """Whether a line of torch's logs is there: structured ones, or those of TORCH_LOGS."""
    head = _modern(b"\n" + head)[1:]
    return any(
        _TORCH.search(found[9]) or head[found.end() - 1 : found.end() + 1] == b'{"'
        for found in PREFIX.finditer(b"\n" + head)
    )


def entries(pieces: Iterable[bytes]) -> Iterator[Entry]:
    """All entries; text between them that is not theirs, as the output of the program, is left out."""
    current: list[bytes] = []
    for block in map(_modern, _whole_lines(pieces)):
        found = list(PREFIX.finditer(block))
        before = block[: found[0].start()] if found else block
        if current and sum(map(len, current)) <= LARGEST:  # of an entry without end only so much is kept
            current.append(before)
        if found:
            yield from _joined(current)
            ends = [one.start() for one in found[1:]]
            yield from (_entry(block, one, end) for one, end in zip(found, ends, strict=False))
            current = [block[found[-1].start() :]]
    yield from _joined(current)


def _whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same text in pieces of whole lines, each of which begins with the line break before it."""
    rest = b"\n"
    for piece in pieces:
        end = piece.rfind(b"\n")
        if end >= 0:
            yield rest + piece[:end]
            rest = piece[end:]
        elif len(rest) <= LARGEST:
            rest += piece
    yield rest


def _modern(block: bytes) -> bytes:
    """The same text with the prefixes of newer versions."""
    if b"] torch." not in block:
        return block
    return _OLD.sub(_new_prefix, block)


def _new_prefix(found: re.Match[bytes]) -> bytes:
    rank, month, day, time, ms, region, module, channel = (part or b"" for part in found.groups())
    where = b"torch" + module.replace(b".", b"/") + b".py:0"
    named = b" [__" + channel + b"]" if channel else b""
    return b"\n%bV%b%b %b.%b000 0 %b]%b%b " % (rank, month, day, time, ms, where, region, named)


def _joined(parts: list[bytes]) -> Iterator[Entry]:
    text = b"".join(parts)
    if parts and (found := PREFIX.match(text)):
        yield _entry(text, found, len(text))


def _entry(text: bytes, found: re.Match[bytes], end: int) -> Entry:
    first = text.find(b"\n", found.end(), end)
    first = end if first < 0 else first
    below_from = min(first + 1, end)
    below = text[below_from:end] if text[below_from : below_from + 1] == b"\t" else b""
    rank, month, day, hour, minute, second, micros, process, where, _, told, channel = found.groups()
    region, _, attempt = (told.strip(b" []").decode() if told else "").partition("_")
    seconds = (_day(month, day) * 24 + int(hour)) * 3600 + int(minute) * 60 + int(second)
    return Entry(
        rank=int(rank) if rank else None,
        clock_ns=seconds * 1_000_000_000 + int(micros) * 1000,
        process=int(process),
        where=where.decode("utf-8", "replace"),
        region=None if region in ("", "-", "-/-") else region,
        channel=channel.strip(b" []_").decode() if channel else "",
        text=text[found.end() : first].rstrip(b"\r"),
        below=below if len(below) <= LARGEST else below[:LARGEST],
        cut=max(0, len(below) - LARGEST),
        attempt=int(attempt) if attempt.isdecimal() and len(attempt) < 7 else 0,
    )


@lru_cache(maxsize=400)
def _day(month: bytes, day: bytes) -> int:
    """Days since the start of a leap year, which has all of them."""
    try:
        return (datetime(2000, int(month), int(day), tzinfo=UTC) - datetime(2000, 1, 1, tzinfo=UTC)).days
    except ValueError:
        return 0
