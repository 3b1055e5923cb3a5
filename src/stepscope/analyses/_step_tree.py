"""Operators inside the steps with all they called, from the tree of calls: by caller, and by place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from stepscope import _native
from stepscope.store.columns import arrays, view
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BY_CALLER", "BY_PLACE", "COMPUTES_NS", "READS", "StepTree", "rows_of", "step_tree"]

Row = TypeVar("Row")

READS: dict[str, tuple[str, ...]] = {
    "call_tree": (
        "node", "parent", "stored_in", "recursive", "name", "phase", "module", "user_frame", "library_frame",
        "step_self_ns", "starved_ns",
    ),
    "call_sites": ("event", "node", "step", "module", "user_frame", "library_frame"),
    "launches": ("event", "work_ns", "work_events"),
    "memory_events": ("event",),
    "steps": ("step", "source"),
}  # fmt: skip
SUMMED = ("step_self_ns", "computing_ns", "starved_ns", "device_ns", "launches")
"""Figures of a path that are summed over all that begin with it."""
COMPUTES_NS = 50_000
"""An operator with as much time of its own computes: to look at a tensor takes microseconds."""
BY_CALLER = ("name", "phase", "user_frame", "within")
BY_PLACE = ("name", "user_frame", "library_frame", "module", "within")

# Paths of forward have one place each; backward takes its places from forward, and the most common counts.
# Most calls of a path have the same place, so they are counted before the most common one is looked for.
_TREE = """
    WITH begun AS (
        SELECT p.node, p.user_frame{columns}, count(*) AS calls, coalesce(sum(l.work_ns), 0) AS device_ns,
               count(*) FILTER (l.work_events > 0) AS launches
        FROM call_sites p ANTI JOIN memory_events m ON m.event = p.event
        LEFT JOIN launches l ON l.event = p.event WHERE p.step IS NOT NULL
        GROUP BY p.node, p.user_frame{columns}),
    summed AS (
        SELECT node, sum(calls) AS calls, sum(device_ns) AS device_ns, sum(launches) AS launches,
               max({{'known': user_frame IS NOT NULL, 'calls': calls, 'frame': -user_frame{fields}}}) AS most
        FROM begun GROUP BY node)
    SELECT t.parent, t.stored_in = 'ops' AND t.recursive = 0 AS counts, t.stored_in = 'ops' AS is_op, t.name,
           t.phase, f.name AS user_frame, coalesce(b.calls, 0)::BIGINT AS calls, t.step_self_ns,
           CASE WHEN is_op AND t.step_self_ns >= {computes_ns} * b.calls THEN t.step_self_ns
                ELSE 0 END AS computing_ns,
           t.starved_ns, coalesce(b.device_ns, 0)::BIGINT AS device_ns,
           coalesce(b.launches, 0)::BIGINT AS launches{places}
    FROM call_tree t LEFT JOIN summed b ON b.node = t.node
    LEFT JOIN call_tree f ON f.node = coalesce(-b.most.frame, t.user_frame) ORDER BY t.node
"""
_COLUMNS = ", p.library_frame, p.module"
_FIELDS = ", 'library': -library_frame, 'module': -module"
_PLACES = """, coalesce(-b.most.library, t.library_frame) AS library,
    coalesce(-b.most.module, t.module) AS module, t.module AS around, t.stored_in = 'launches' AS is_call"""
_MODULE = r"^nn\.Module: (.*?)(_\d+)?$"


class StepTree(NamedTuple):
    """Operators with all they called, summed up in two ways; recursion counts once."""

    steps: int
    by_caller: list[dict[str, Any]]
    by_place: list[dict[str, Any]]
    """Empty if no frames were recorded."""


def step_tree(trace: Trace) -> StepTree:
    """Sums up the tree of calls inside the steps; once for a trace, for both are of the same rows."""

    def summed() -> StepTree:
        frames = trace.has("python_frames")
        parts = {"columns": _COLUMNS, "fields": _FIELDS, "places": _PLACES}
        placed = parts if frames else dict.fromkeys(parts, "")
        tree = trace.arrow(_TREE.format(computes_ns=COMPUTES_NS, **placed))
        steps = trace.rows("SELECT count(*) AS steps FROM steps")[0]["steps"]
        if not tree.num_rows:
            return StepTree(steps, [], [])
        by_caller = _grouped(tree.drop_columns(["is_call"]) if frames else tree, BY_CALLER)
        return StepTree(steps, by_caller, _grouped(_with_places(tree), BY_PLACE) if frames else [])

    found: StepTree = trace.once("step tree", summed)
    return found


def rows_of(
    kind: Callable[..., Row],
    grouped: Sequence[dict[str, Any]],
    keys: Sequence[str],
    steps: int,
    figures: Sequence[str] = SUMMED[1:],
) -> list[Row]:
    """Rows of a table, of operators that were grouped by these columns; the most expensive come first."""
    rows = [
        kind(
            **{key: row[key] for key in keys},
            calls=row["calls_sum"],
            per_step=row["calls_sum"] / steps,
            host_ns=row["step_self_ns_sum"],
            **{figure: row[f"{figure}_sum"] for figure in figures},
        )
        for row in grouped
    ]

    def order(row: Any) -> tuple[Any, ...]:
        return -row.starved_ns - row.device_ns, -row.host_ns, *(str(getattr(row, key)) for key in keys)

    return sorted(rows, key=order)


def _with_places(tree: pa.Table) -> pa.Table:
    """The tree with the names of library frames and modules in place of their numbers."""
    import pyarrow.compute as pc

    library = pc.take(tree["name"], tree["library"])
    tree = tree.append_column("library_frame", library)
    return tree.set_column(tree.column_names.index("module"), "module", _module_names(tree))


def _module_names(tree: pa.Table) -> pa.Array:
    """Of each path the class of the innermost nn.Module, after the one of the module around it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = tree["name"].combine_chunks().dictionary_encode()
    bare = pc.replace_substring_regex(names.dictionary, _MODULE, r"\1")
    classes = pc.take(bare, names.indices)
    module = tree["module"].combine_chunks()
    outer = pc.take(tree["around"].combine_chunks(), pc.take(tree["parent"].combine_chunks(), module))
    inner_name, outer_name = pc.take(classes, module), pc.take(classes, outer)
    both = pc.binary_join_element_wise(outer_name, inner_name, pa.scalar("."))
    return pc.coalesce(both, inner_name)


def _grouped(tree: pa.Table, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The operators of the tree by these columns; `within` is the operator right around."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parent = view(tree["parent"])
    numbers = pa.array(range(tree.num_rows), pa.int64())
    own = pc.if_else(tree["is_op"].combine_chunks(), numbers, pa.scalar(None, pa.int64()))
    nearest = arrays([_native.inherited(parent, view(own))])[0]
    around = pc.take(nearest, tree["parent"].combine_chunks())
    columns = {name: tree[name] for name in ("counts", "calls", *keys) if name != "within"}
    columns["within"] = pc.take(tree["name"], around)
    for name in SUMMED:
        columns[name] = arrays([_native.subtree_sums(parent, view(tree[name]))])[0]
    if "is_call" in tree.column_names:  # runtime calls of the program itself, such as synchronize()
        bare = pc.and_(tree["is_call"].combine_chunks(), pc.is_null(around))
        columns["counts"] = pc.or_kleene(tree["counts"].combine_chunks(), bare)
    ops = pa.table(columns)
    ops = ops.filter(pc.fill_null(ops["counts"], fill_value=False))
    summed: list[dict[str, Any]] = (
        ops.group_by(list(keys)).aggregate([(name, "sum") for name in ("calls", *SUMMED)]).to_pylist()
    )
    return [row for row in summed if row["calls_sum"] or row["step_self_ns_sum"]]
