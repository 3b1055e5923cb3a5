"""Collapsed stacks, as py-spy (raw) and the scripts of flame graphs write them: root;…;innermost 12."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._stack_rows import read_stacks

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["collapsed"]

_LINE = re.compile(rb"^(?:[^\s#{\[<\"]|[<\[]\w)[^\n]*;[^\n]* \d{1,18}\r?$")
_ALONE = re.compile(rb"^(?:[^\s#{\[<\"]|[<\[]\w)[^\n]* \d{1,18}\r?$")
_NOTE = (
    "Collapsed stacks have no times, and threads only if they were recorded with them (py-spy --threads, "
    "stackcollapse-perf.pl --tid): they say what was running, over the whole recording."
)


def _is_collapsed(given: Input) -> bool:
    """Nearly all lines end in a count, and several have frames with semicolons between."""
    if given.is_folder:
        return False
    lines = [line for line in given.head.split(b"\n") if line.strip() and not line.startswith(b"#")]
    whole = lines if len(given.head) < 4096 else lines[:-1]
    stacks = sum(bool(_LINE.match(line)) for line in whole)
    fitting = sum(bool(_ALONE.match(line)) for line in whole)
    return stacks > 0 and fitting >= 0.9 * len(whole)


@source(sniff=_is_collapsed, beside=True)
def collapsed(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads collapsed stacks: what py-spy records as raw, and flame graphs are drawn from."""
    reader = read_stacks(given, writer, collapsed=True)
    lines = reader.odd_lines
    damage = (Damage("a line that is no stack with a count, left out", lines),) if lines else ()
    return SourceMeta(damage=damage, notes=(_NOTE,))
