"""Call paths of the host as other tools take them: the names from the thread to the innermost call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from stepscope.analyses.call_paths import call_paths
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.store.export import Export, end_file, output_file
from stepscope.store.trace import Trace

__all__ = ["WeighedPath", "Weight", "weighed_paths", "write_pieces"]

Weight = Literal["host", "device"]
"""host: time in which a call was the innermost of its thread. device: the work that it launched itself."""


@dataclass(frozen=True, slots=True)
class WeighedPath:
    """One path of calls, its thread first, and the ns that belong to it and not to a longer one."""

    names: tuple[str, ...]
    weight_ns: int


def weighed_paths(trace: Trace, weight: Weight) -> Iterator[WeighedPath]:
    """All paths with a weight, in the order of threads and calls. Every ns is in one of them."""
    table = call_paths(trace).arrow
    if not table.num_rows:
        raise StepscopeError(
            f"{trace.path} has no call stacks of the host", hint="record with activities=[CPU, …]"
        )
    nodes, parents, names = (table[name].to_pylist() for name in ("node", "parent", "name"))
    own = table["self_ns"].to_pylist() if weight == "host" else _own_device_ns(table)
    paths: dict[int, tuple[str, ...]] = {}
    for node, parent, name, weight_ns in zip(nodes, parents, names, own, strict=True):
        paths[node] = (*paths.get(parent, ()), name or "unnamed")
        if weight_ns > 0:
            yield WeighedPath(paths[node], weight_ns)


def _own_device_ns(table: object) -> list[int]:
    """Device work that the last call of a path launched itself: all of the path less that of longer ones."""
    from stepscope.store.arrow_sql import ask

    sql = """
        SELECT p.node, p.device_ns - coalesce(sum(c.device_ns), 0)::BIGINT AS own
        FROM paths p LEFT JOIN paths c ON c.parent = p.node GROUP BY p.node, p.device_ns ORDER BY p.node
    """
    found: list[int] = ask(sql, paths=table)["own"].to_pylist()
    return found


def write_pieces(path: str, pieces: Iterable[bytes]) -> Export:
    """Writes a file, compressed as its name says, and counts the pieces."""
    count = 0
    with output_file(path) as (file, raw):
        for piece in pieces:
            file.write(piece)
            count += 1
        return Export(count, end_file(file, raw))
