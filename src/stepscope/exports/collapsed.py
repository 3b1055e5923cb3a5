"""Collapsed stacks, a line each."""

from __future__ import annotations

from stepscope.exports import export_format
from stepscope.exports._paths import WeighedPath, weighed_paths, write_pieces
from stepscope.present._printable import printable
from stepscope.store.export import Export
from stepscope.store.trace import Trace

__all__ = ["collapsed"]


@export_format(".collapsed.txt", ".folded")
def collapsed(trace: Trace, path: str) -> Export:
    """Writes call stacks of the host as lines `thread;outer;inner NS`, for flame graph tools."""
    return write_pieces(path, (_line(one) for one in weighed_paths(trace, "host")))


def _line(path: WeighedPath) -> bytes:
    """A semicolon ends a name, and the last blank of a line begins its number."""
    names = (printable(name.replace(";", ",")) for name in path.names)
    return f"{';'.join(names)} {path.weight_ns}\n".encode("utf-8", "backslashreplace")
