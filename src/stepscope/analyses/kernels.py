"""Which kernels ran, and how long."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from stepscope.analyses import analysis
from stepscope.analyses._device_time import spent_by_group, whole_span
from stepscope.costs.families import family_of
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Kernel", "kernels"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """All runs of the kernels of one name, or of one name and launch shape."""

    name: Annotated[str | None, "Name of the kernel."]
    calls: Annotated[int, "How often it ran."]
    total_ns: Annotated[int, "Summed duration over all devices and streams."]
    mean_ns: Annotated[float, "Mean duration."]
    min_ns: Annotated[int, "Shortest duration."]
    max_ns: Annotated[int, "Longest duration."]
    share: Annotated[float | None, "Share of the summed time of all kernels."]
    exclusive_ns: Annotated[
        int, "The same with kernels that ran at once on a device sharing the time; adds up to kernel time."
    ]
    family: Annotated[str, "What kind of work it does, as in `kernel_families`; by most of its time."]
    grid: Annotated[str | None, "Blocks in x, y, z; NULL if its runs differ."]
    block: Annotated[str | None, "Threads of a block in x, y, z; NULL if its runs differ."]
    registers: Annotated[int | None, "Registers of a thread; NULL if its runs differ."]
    shared_bytes: Annotated[int | None, "Shared memory of a block; NULL if its runs differ."]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Kernels of one name and launch shape: by the operators that launched them, and their time."""

    parts: list[dict[str, Any]]
    exclusive_ns: int


_SHAPE = ("grid", "block", "registers", "shared_bytes")
# By number and hash: texts would have to be written and compared for millions of kernels.
_KERNELS = f"""
    SELECT *, (hash({", ".join(("name_id", *_SHAPE))}) >> 1)::BIGINT AS grouped
    FROM device_work WHERE kind = 'kernel'
"""
_GROUPS = f"""
    SELECT grouped, any_value(k.name) AS name, o.name AS op, communicates, count(*) AS calls,
           sum(coalesce(dur_ns, 0))::BIGINT AS total_ns, min(coalesce(dur_ns, 0)) AS min_ns,
           max(coalesce(dur_ns, 0)) AS max_ns, {", ".join(f"any_value({c}) AS {c}" for c in _SHAPE)}
    FROM ({_KERNELS}) k LEFT JOIN (SELECT event, name FROM ops) o ON o.event = k.op
    GROUP BY grouped, o.name, communicates ORDER BY name, {", ".join(_SHAPE)}, op
"""
_TIMES = f"SELECT device_name, start_ns, coalesce(dur_ns, 0) AS dur_ns, grouped FROM ({_KERNELS})"


@analysis(
    reads={
        "device_work": (
            "name",
            "name_id",
            "device_name",
            "start_ns",
            "dur_ns",
            "kind",
            "communicates",
            "op",
            *_SHAPE,
        ),
        "ops": ("event", "name"),
    }
)
def kernels(
    trace: Trace,
    *,
    by: Annotated[
        Literal["name", "shape"], "What is summed up: a name, or a name with a launch shape."
    ] = "name",
) -> Table[Kernel]:
    """Sums up kernels by name: calls, time, and share of all kernel time.

    The figures are those of the whole trace, not of its steps alone.
    """
    shapes: dict[int, _Shape] = trace.once("kernels by shape", lambda: _shapes(trace))
    groups: dict[Any, list[_Shape]] = defaultdict(list)
    for grouped, shape in shapes.items():
        groups[shape.parts[0]["name"] if by == "name" else grouped].append(shape)
    rows = _rows(list(groups.values()))
    nothing = [] if groups else ["No kernels: the profile has no device work, or only copies and fills."]
    return Table.of(Kernel, sorted(rows, key=_order), nothing)


def _shapes(trace: Trace) -> dict[int, _Shape]:
    """The kernels of each name and launch shape; those of a name are these together."""
    parts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in trace.rows(_GROUPS):
        parts[row["grouped"]].append(row)
    numbers = {grouped: number for number, grouped in enumerate(parts)}
    spent = spent_by_group(trace, _TIMES, numbers, whole_span(trace))
    return {
        grouped: _Shape(of_it, time.exclusive_ns)
        for (grouped, of_it), time in zip(parts.items(), spent, strict=True)
    }


def _rows(groups: list[list[_Shape]]) -> Iterator[Kernel]:
    whole = sum(part["total_ns"] for shapes in groups for shape in shapes for part in shape.parts)
    for shapes in groups:
        parts = [part for shape in shapes for part in shape.parts]
        calls = sum(part["calls"] for part in parts)
        total = sum(part["total_ns"] for part in parts)
        yield Kernel(
            name=parts[0]["name"],
            calls=calls,
            total_ns=total,
            mean_ns=total / calls,
            min_ns=min(part["min_ns"] for part in parts),
            max_ns=max(part["max_ns"] for part in parts),
            share=total / whole if whole else None,
            exclusive_ns=sum(shape.exclusive_ns for shape in shapes),
            family=_family(parts),
            **{column: _same([part[column] for part in parts]) for column in _SHAPE},
        )


def _family(parts: list[dict[str, Any]]) -> str:
    """The family of most of the time: one kernel may serve operators of several."""
    times: dict[str, int] = defaultdict(int)
    for part in parts:
        family = "communication" if part["communicates"] else family_of(part["name"], part["op"])
        times[family] += part["total_ns"]
    return max(sorted(times), key=times.__getitem__)


def _same(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _order(row: Kernel) -> tuple[Any, ...]:
    return -row.total_ns, row.name is None, row.name or "", json.dumps([row.grid, row.block])
