"""What the first and last bytes of a file tell: whether it is a profile, of which rank, of how many."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from stepscope.errors import StepscopeError
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.runs.summary import HEAD_BYTES, is_summary, summary_facts
from stepscope.sources import Input, reader_of
from stepscope.store import cache
from stepscope.store.layout import is_store, read_meta
from stepscope.streams import is_url

__all__ = ["Peek", "peek", "rank_in_name"]

_EDGE = 1 << 18
"""How many bytes of the beginning, and of the end, are looked at."""
_OURS = late_pattern(rb'^\s*\{\s*"schema"\s*:\s*"stepscope\.')
_PROFILE = late_pattern(rb'"(traceEvents|schemaVersion|deviceProperties|ph)"\s*:')
_DISTRIBUTED = late_pattern(rb'"distributedInfo"\s*:\s*(?=\{)')
_NUMBER = r'"%s"\s*:\s*"?(\d{1,7})\b'
_NAMED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![a-z])(?<!local[-_.])rank[-_.=]?(\d{1,7})(?!\d)",
        r"(?<![a-z])worker[-_.=]?(\d{1,7})(?!\d)",
        r"(?<![a-z0-9])r(\d{1,6})(?![a-z0-9])",
    )
)
_HOST = late_pattern(r"(?P<host>[A-Za-z][\w.-]*?)_(?P<process>\d+)\.\d{10,20}\.pt\.trace\.json")
"""As torch's handler for TensorBoard names files: machine, process, time."""
_TRACE_NAME = late_pattern(r"trace|profile|rank|\.json", re.IGNORECASE)
"""A file that is called so should be a profile: if it is none, that is worth saying."""
_TIME = late_pattern(r"\.(\d{13,20})\.")


PeekKind = Literal["profile", "beside", "summary", "none", "unreadable"]


@dataclass(frozen=True, slots=True)
class Peek:
    """What is known of a file without reading it."""

    word: str
    kind: PeekKind
    """beside: it adds to a profile. none: something else, which is no part of the run."""
    why: str = ""
    """Why it cannot be read, or is no profile."""
    rank: int | None = None
    """As its metadata say."""
    world_size: int | None = None
    host: str = ""
    begin: bytes = b""
    """Its first bytes."""
    only: str = ""
    """Of what is beside a profile, the source if no second file of that kind can be read with it."""

    @property
    def name(self) -> str:
        """Its name without folders."""
        return PurePosixPath(self.word).name

    @property
    def made(self) -> int:
        """When it was written, where its name says so, in ns or any unit that is the same for all."""
        found = _TIME.search(self.name)
        return int(found[1]) if found else 0


def rank_in_name(word: str) -> int | None:
    """The rank that a file's name says, or else the name of a folder around it."""
    for part in reversed(PurePosixPath(word.partition("://")[2] or word).parts):
        for pattern in _NAMED:
            if found := pattern.search(part):
                return int(found[1])
    return None


def peek(word: str) -> Peek:
    """Looks at a file; what is wrong with it is told, not raised."""
    given = Input(word)
    if given.is_folder:
        return _of_another_kind(given) or Peek(word, "none", "no source reads it as a whole")
    try:
        begin = given.stream.beginning(_enough)
    except StepscopeError as error:
        return Peek(word, "unreadable", error.message)
    if is_summary(begin):
        return _summary(word, begin)
    text = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _OURS.match(begin):
        return Peek(word, "none")
    if not text:
        return Peek(word, "unreadable", given.stream.broken or "it is empty")
    if (other := _of_another_kind(given)) is not None:
        return other
    if text[:1] not in (b"{", b"["):
        kind: PeekKind = "unreadable" if _TRACE_NAME.search(PurePosixPath(word).name) else "none"
        return Peek(word, kind, "no source knows what it is")
    if not _PROFILE.search(begin):
        return Peek(word, "none", "it has no traceEvents")
    told = _distributed(begin) or _distributed(_end(word)) or _stored(word)
    host = _HOST.fullmatch(re.sub(r"\.(gz|zst|xz|bz2|lz4|zip)$", "", PurePosixPath(word).name))
    named = host["host"] if host and rank_in_name(host["host"]) is None else ""
    return Peek(word, "profile", "", told.get("rank"), told.get("world_size"), named, begin[:4096])


def _enough(got: bytearray) -> bool:
    """Whether the first bytes go up to the events."""
    least = HEAD_BYTES if is_summary(bytes(got[:64])) else _EDGE
    return len(got) >= least or (least == _EDGE and b'"traceEvents"' in got)


def _of_another_kind(given: Input) -> Peek | None:
    """What it is if a source other than Kineto's reads it."""
    found = reader_of(given)
    if found is None or found[0] == "kineto":
        return None
    name, reader = found
    if not reader.beside:
        return Peek(given.word, "profile", begin=given.head)
    return Peek(given.word, "beside", begin=given.head, only="" if reader.several else name)


def _summary(word: str, begin: bytes) -> Peek:
    try:
        facts = summary_facts(begin, word)
    except StepscopeError as error:
        return Peek(word, "unreadable", error.message)
    return Peek(word, "summary", "", facts.rank, facts.world_size, facts.host, begin[:4096])


def _end(word: str) -> bytes:
    """The last bytes of a plain file of this machine: some versions of torch write the metadata there."""
    if is_url(word):
        return b""
    try:
        with Path(word).open("rb") as file:
            file.seek(-min(_EDGE, Path(word).stat().st_size), 2)
            return file.read(_EDGE)
    except (OSError, ValueError):
        return b""


def _distributed(text: bytes) -> dict[str, int]:
    """Rank and number of ranks in the metadata of a profile."""
    found = _DISTRIBUTED.search(text)
    if found is None:
        return {}
    plain = text[found.end() :].decode("utf-8", "replace")
    try:
        told: Any = json.JSONDecoder().raw_decode(plain)[0]
    except (ValueError, RecursionError):  # cut short: the rank comes before the long lists
        told = {
            key: one[1] for key in ("rank", "world_size") if (one := re.search(_NUMBER % key, plain[:4096]))
        }
    numbers = {key: str(told.get(key)) for key in ("rank", "world_size")}
    return {key: int(one) for key, one in numbers.items() if re.fullmatch(r"[0-9]{1,7}", one)}


def _stored(word: str) -> dict[str, int]:
    """The same from the store of a profile, if it was read before."""
    try:
        versions = cache.versions([word])
        folder = cache.folder_for(word, cache.root(), versions)
        if folder is None or not is_store(folder):
            return {}
        meta = read_meta(folder)
    except (StepscopeError, OSError, ValueError):
        return {}
    if meta.rank_source != "distributedInfo":
        return {}
    told = meta.metadata["distributedInfo"]
    size = told.get("world_size")
    return {"rank": meta.rank} | ({"world_size": size} if isinstance(size, int) and 0 < size < 10**7 else {})
