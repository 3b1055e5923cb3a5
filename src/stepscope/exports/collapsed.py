"""Collapsed stacks, a line each."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.exports import export
from stepscope.exports._paths import weighed_paths
from stepscope.present._printable import printable
from stepscope.store.trace import Trace

__all__ = ["collapsed"]


@export(ending=".collapsed.txt")
def collapsed(
    trace: Trace,
) -> Iterator[bytes]:
    """Writes call stacks of the host as lines `thread;outer;inner NS`, for flame graph tools."""
    for path in weighed_paths(trace, "host"):
        # A semicolon ends a name, and the last blank of a line begins its number.
        names = (printable(name.replace(";", ",")) for name in path.names)
        yield f"{';'.join(names)} {path.weight_ns}\n".encode("utf-8", "backslashreplace")
