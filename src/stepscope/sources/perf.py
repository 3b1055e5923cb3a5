"""Linux perf: samples as `perf script` prints them, and counters of `perf stat`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._perf_stat import looks_like_stat, read_stat
from stepscope.sources._stack_rows import read_stacks

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["perf"]

EXPORT = "perf script -i {} > samples.txt"
_BINARY = (b"PERFILE2", b"2ELIFREP", b"PERFFILE")
_HEADER = re.compile(
    rb"^ *\S[^\n]{0,200}?\s+\d+(?:/\d+)?\s+(?:\[\d+\]\s+)?(?:\d+\.\d+:\s+)?(?:\d+\s+)?"
    rb"[\w.:/\-=,@{}%()]+:[ \t]*"
    rb"(?:\r?\n[ \t]+[0-9a-f]{1,16} |[0-9a-f]{6,16} [^\n]*\([^\n]*\)\r?$)"
    # With a time in front, an address may be short.
    rb"|^ *\S[^\n]{0,64}?\s\d+(?:/\d+)?\s+(?:\[\d+\]\s+)?\d+\.\d+:\s+(?:\d+\s+)?[\w.:/\-=,@{}%()]+:[ \t]+"
    rb"[0-9a-f]{1,16} [^\n]*\([^\n]*\)\r?$",
    re.MULTILINE,
)
_REPORT = re.compile(
    rb"^#\s*(?:Children\s+Self|Overhead\s+(?:Samples|Command|Shared))|^# Samples: .* of event", re.MULTILINE
)
_NOTE = (
    "Samples of perf have a clock of their own: they are joined with a trace by thread, not by time, and say "
    "what threads did over the whole recording."
)
_COUNTED = "perf stat counts over a whole run: what it says holds for the program, not for a step."


def _is_perf(given: Input) -> bool:
    if given.is_folder:
        return False
    head = given.head
    described = b"# captured on" in head and b"# perf version" in head
    known = described or head.startswith(_BINARY) or looks_like_stat(head) or _REPORT.search(head)
    return bool(known or _HEADER.search(_without_comments(head)))


def _without_comments(head: bytes) -> bytes:
    return b"\n".join(line for line in head.split(b"\n") if not line.startswith(b"#"))


@source(sniff=_is_perf, beside=True, several=True)
def perf(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads what Linux perf sampled or counted: the text of perf script or perf stat."""
    head, name = given.head, Path(given.word).name
    if head.startswith(_BINARY):
        raise StepscopeError(
            f"{given.name} is a binary recording of perf", hint=f"print it: {EXPORT.format(name)}"
        )
    if looks_like_stat(head):
        rows = read_stat(given, writer)
        if not rows:
            raise StepscopeError(
                f"{given.name} has no counter of perf stat", hint="perf stat -x, -o x.csv COMMAND"
            )
        return SourceMeta(notes=(_COUNTED,), joined="by thread")
    if _REPORT.search(head) and not _HEADER.search(_without_comments(head)):
        raise StepscopeError(
            f"{given.name} is a report of perf: it has no samples and no stacks",
            hint=f"print the samples: {EXPORT.format('perf.data')}",
        )
    reader = read_stacks(given, writer, collapsed=False)
    if not reader.samples:
        raise StepscopeError(f"{given.name} has no sample of perf", hint=EXPORT.format("perf.data"))
    lines = reader.odd_lines
    damage = (Damage("a line that is no part of a sample, left out", lines),) if lines else ()
    return SourceMeta(damage=damage, notes=(_NOTE,), joined="by thread")
