"""Which operators ran, how long the host spent in them, and what they launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from stepscope import _native, units
from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.columns import record_batch, view
from stepscope.store.links import Run, sweep_thread
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Op", "OpOfFrame", "OpOfModule", "OpOfShape", "ops"]


@dataclass(frozen=True, slots=True)
class Op:
    """All calls of the operators of one name."""

    name: Annotated[str | None, "Name of the operator."]
    calls: Annotated[int, "How often it was called."]
    host_total_ns: Annotated[int, "Time in which it was open, per thread; recursion counts once."]
    host_self_ns: Annotated[int, "Time in which it was the innermost operator of its thread."]
    host_self_no_runtime_ns: Annotated[int, "The same without the runtime calls of that thread."]
    device_self_ns: Annotated[int, "Device work launched with it as the innermost operator."]
    device_total_ns: Annotated[int, "Device work launched while it was open, once for the name."]


@dataclass(frozen=True, slots=True)
class OpOfShape(Op):
    """All calls of one operator with inputs of the same sizes and types."""

    input_dims: Annotated[str | None, "Sizes of its inputs, as a JSON list; NULL where none are recorded."]
    input_types: Annotated[str | None, "Types of its inputs, as a JSON list; NULL where none are recorded."]


@dataclass(frozen=True, slots=True)
class OpOfFrame(Op):
    """All calls of one operator from one place in the user's code."""

    user_frame: Annotated[
        str | None,
        "Innermost frame of the user's own code, in backward that of the forward operator; NULL without one.",
    ]


@dataclass(frozen=True, slots=True)
class OpOfModule(Op):
    """All calls of one operator in one nn.Module."""

    module: Annotated[
        str | None,
        "Innermost nn.Module, class and number, in backward that of the forward operator; NULL without one.",
    ]


_ROWS = {"name": Op, "shape": OpOfShape, "user_frame": OpOfFrame, "module": OpOfModule}
_MORE = {"name": "", "shape": ", input_dims, input_types", "user_frame": ", user_frame", "module": ", module"}
# What an operator was given is few distinct texts: each is read once.
_GROUPED = {
    "name": "SELECT * FROM ops",
    "shape": """
        SELECT o.*, s.input_dims, s.input_types
        FROM ops o LEFT JOIN (
            SELECT args, args->>'$."Input Dims"' AS input_dims,
                   coalesce(args->>'$."Input type"', args->>'$."Input Type"') AS input_types
            FROM (SELECT DISTINCT args FROM ops)) s USING (args)
    """,
    "user_frame": """
        SELECT o.*, t.name AS user_frame
        FROM ops o LEFT JOIN call_sites p USING (event) LEFT JOIN call_tree t ON t.node = p.user_frame
    """,
    "module": """
        SELECT o.*, regexp_replace(t.name, '^nn\\.Module: ', '') AS module
        FROM ops o LEFT JOIN call_sites p USING (event) LEFT JOIN call_tree t ON t.node = p.module
    """,
}
_SUMS = """
    SELECT name, count(*) AS calls, sum(total_once_ns)::BIGINT AS host_total_ns,
           sum(self_ns)::BIGINT AS host_self_ns,
           sum(self_no_runtime_ns)::BIGINT AS host_self_no_runtime_ns,
           sum(device_self_ns)::BIGINT AS device_self_ns,
           sum(device_once_ns)::BIGINT AS device_total_ns{more}
    FROM ({grouped}) GROUP BY name{more} ORDER BY host_self_ns DESC, name{more}
"""
_BESIDE = """
    SELECT coalesce(sum(dur_ns) FILTER (launch IS NOT NULL AND op IS NULL), 0)::BIGINT AS outside,
           coalesce(sum(dur_ns) FILTER (launch IS NULL), 0)::BIGINT AS unlinked
    FROM device_work
"""
# Operators inside others of their name count once for the name, but not for what they were given: these are
# nested anew, told apart by all that they are grouped by.
_NESTED = """
    WITH inside AS (SELECT DISTINCT name FROM ops WHERE total_once_ns < dur_ns),
         chosen AS (SELECT * FROM ({grouped}) WHERE name IN (FROM inside)),
         numbered AS (SELECT *, dense_rank() OVER (ORDER BY name{more}) AS number FROM chosen)
"""
_THREADS = "SELECT DISTINCT thread FROM numbered ORDER BY thread"
_OPENED = """
    SELECT event, start_ns, dur_ns, number FROM numbered WHERE thread = $thread AND start_ns IS NOT NULL
    ORDER BY start_ns, dur_ns DESC, event
"""
_LAUNCHED = """
    SELECT event, start_ns, dur_ns, work_ns FROM launches
    WHERE thread = $thread AND work_ns > 0 AND start_ns IS NOT NULL ORDER BY start_ns, dur_ns DESC, event
"""
_NUMBERS = "SELECT DISTINCT number, name{more} FROM numbered ORDER BY number"


@analysis(
    reads={
        "ops": (
            "event",
            "name",
            "thread",
            "start_ns",
            "dur_ns",
            "args",
            "total_once_ns",
            "self_ns",
            "self_no_runtime_ns",
            "device_self_ns",
            "device_once_ns",
        ),
        "launches": ("event", "thread", "start_ns", "dur_ns", "work_ns"),
        "device_work": ("dur_ns", "launch", "op"),
        "call_sites": ("event", "user_frame", "module"),
        "call_tree": ("node", "name"),
    }
)
def ops(
    trace: Trace,
    *,
    by: Annotated[
        Literal["name", "shape", "user_frame", "module"],
        "What is summed up: a name, or a name with the sizes and types of its inputs, with the user's frame, "
        "or with the nn.Module.",
    ] = "name",
) -> Table[Op]:
    """Sums up operators by name: calls, host time, and the device work they launched.

    The figures are those of the whole trace, not of its steps alone. By shape, `input_dims` and `input_types`
    come after the other columns; by user frame, `user_frame`; by module, `module`.
    """
    table = trace.arrow(_SUMS.format(grouped=_GROUPED[by], more=_MORE[by]))
    if by != "name" and table.num_rows:
        table = _with_totals(table, trace, by)
    beside = trace.rows(_BESIDE)[0]
    notes = [
        f"Device work launched outside any operator: {_some(beside['outside'])}.",
        f"Device work whose launch is not in the profile: {_some(beside['unlinked'])}.",
    ]
    # Rows of a class with more columns are rows of an operator too.
    return cast("Table[Op]", Table(_ROWS[by], table, [*notes, *_missing(trace, table, by)]))


def _some(ns: int) -> str:
    return units.duration(ns) if ns else "none"


def _missing(trace: Trace, table: pa.Table, by: str) -> Iterator[str]:
    if not table.num_rows:
        yield "No operators: record with ProfilerActivity.CPU."
    elif by == "shape" and table["input_dims"].null_count == table.num_rows:
        yield "No shapes: record with record_shapes=True."
    elif by in ("user_frame", "module") and not trace.has("python_frames"):
        yield "No Python frames: record with with_stack=True."


def _with_totals(table: pa.Table, trace: Trace, by: str) -> pa.Table:
    """The table with totals in which calls inside calls count once for each row, not once for the name."""
    import pyarrow as pa

    keys = ["name", *_MORE[by].removeprefix(", ").split(", ")]
    rows = [tuple(row[key] for key in keys) for row in table.to_pylist()]
    nested = {tuple(row[key] for key in keys): row for row in _nested_totals(trace, by)}
    for column in ("host_total_ns", "device_total_ns"):
        values = [
            nested[row][column] if row in nested else once
            for row, once in zip(rows, table[column].to_pylist(), strict=True)
        ]
        at = table.schema.get_field_index(column)
        table = table.set_column(at, column, pa.array(values, pa.int64()))
    return table


def _nested_totals(trace: Trace, by: str) -> list[dict[str, Any]]:
    names = {"grouped": _GROUPED[by], "more": _MORE[by]}
    nested = _NESTED.format(**names)
    rows: list[dict[str, Any]] = trace.rows(nested + _NUMBERS.format(**names))
    totals = {row["number"]: row | {"host_total_ns": 0, "device_total_ns": 0} for row in rows}
    sweep = _native.ThreadSweep([1, 1])
    for thread in [row["thread"] for row in trace.rows(nested + _THREADS)]:
        opened = trace.arrow(nested + _OPENED, thread=thread)
        launched = trace.arrow(_LAUNCHED, thread=thread)
        runs = [
            Run(0, _pieces(opened), 0, opens=True, group=0),
            Run(0, _pieces(launched), 1, opens=False, weight=0),
        ]
        sweep_thread(sweep, runs, lambda: None)
        for number, host_ns, device_ns in _sums(sweep.take(0, 0)):
            totals[number]["host_total_ns"] += host_ns
            totals[number]["device_total_ns"] += device_ns
        sweep.take(1, 0)
    return list(totals.values())


def _pieces(table: pa.Table) -> Iterator[Any]:
    for batch in table.to_batches():
        *place, payload = (view(column) for column in batch.columns)
        yield *place, [payload]


def _sums(found: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """For each group its number, its time and its device work."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.int64()) for name in ("number", "host", "device")])
    batch = record_batch(schema, [found["payload"][0], found["fresh"], found["weight_once"]])
    table = pa.Table.from_batches([batch]).group_by("number")
    summed = table.aggregate([("host", "sum"), ("device", "sum")])
    yield from zip(*(summed[name].to_pylist() for name in ("number", "host_sum", "device_sum")), strict=True)
