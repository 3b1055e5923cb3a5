"""Which modules of the model the time was spent in."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._windows import LAUNCHED, LAUNCHED_READS, PLACED, how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Module", "modules"]


@dataclass(frozen=True, slots=True)
class Module:
    """One nn.Module in the tree of calls; a module comes before those it calls."""

    path: Annotated[str, "Modules from the outermost to this one, each with the profiler's number for it."]
    name: Annotated[str, "The module: its class and number."]
    depth: Annotated[int, "How many modules are around it."]
    calls: Annotated[int, "How often it was called, recomputation included."]
    host_forward_self_ns: Annotated[int, "Time inside the steps in it and in no module that it calls."]
    host_forward_total_ns: Annotated[int, "The same with the modules that it calls."]
    host_backward_self_ns: Annotated[int, "Time of the backward operators of its own forward operators."]
    host_backward_total_ns: Annotated[int, "The same with the modules that it calls."]
    device_forward_self_ns: Annotated[int, "Device work that it launched itself, backward left out."]
    device_forward_total_ns: Annotated[int, "The same with the modules that it calls."]
    device_backward_self_ns: Annotated[int, "Device work of the backward of its own forward operators."]
    device_backward_total_ns: Annotated[int, "The same with the modules that it calls."]
    device_recomputation_ns: Annotated[int, "Of the forward's total: launched again inside backward."]
    device_share: Annotated[float | None, "Share of all device work in the steps, forward and backward."]


_NODES = """
    SELECT t.node, t.name, t.calls, around.module AS parent, t.phase = 'recomputation' AS again
    FROM call_tree t LEFT JOIN call_tree around ON around.node = t.parent
    WHERE t.module = t.node ORDER BY t.phase = 'recomputation', t.node
"""
# Figures of a module's own; operators and launches are placed one by one: backward belongs to its forward.
_OWN = f"""
    WITH launched AS ({LAUNCHED})
    SELECT module, 'host_forward' AS figure, sum(step_self_ns)::BIGINT AS ns FROM call_tree
    WHERE stored_in IN ('python_frames', 'annotations') AND module IS NOT NULL
      AND thread NOT IN ({PLACED}) GROUP BY module
    UNION ALL
    SELECT module, CASE WHEN phase = 'backward' THEN 'host_backward' ELSE 'host_forward' END,
           sum(step_self_ns)::BIGINT
    FROM call_sites WHERE module IS NOT NULL GROUP BY 1, 2
    UNION ALL
    SELECT module, CASE WHEN phase = 'backward' THEN 'device_backward' ELSE 'device_forward' END,
           sum(ns)::BIGINT
    FROM launched GROUP BY 1, 2
    UNION ALL
    SELECT module, 'device_recomputation', sum(ns)::BIGINT FROM launched
    WHERE phase = 'recomputation' GROUP BY 1
"""
_FIGURES = ("host_forward", "host_backward", "device_forward", "device_backward", "device_recomputation")


@analysis(
    reads={
        **LAUNCHED_READS,
        "call_tree": (
            "node",
            "parent",
            "thread",
            "stored_in",
            "name",
            "calls",
            "module",
            "step_self_ns",
            "phase",
        ),
        "call_sites": ("step_self_ns", *LAUNCHED_READS["call_sites"]),
        "steps": ("source",),
    }
)
def modules(trace: Trace) -> Table[Module]:
    """Sums up the tree of nn.Modules: host and device, own and total, forward and backward.

    Work of backward belongs to the module whose forward operator it is the backward of, and that of a
    replayed graph to the module that launched the same kernels one by one, where the profile has that. Steps
    only.
    """
    nodes = trace.rows(_NODES)
    if not nodes:
        note = "No nn.Module in the stacks: record with with_stack=True."
        return Table.of(Module, [], [note])
    own, launched = _own_figures(trace)
    found = _tree(nodes, own)
    rows = [_row(path, found[path], launched) for path in _in_order(found)]
    inside = sum(
        figures["device_forward_self"] + figures["device_backward_self"] for figures in found.values()
    )
    outside = f"Device work in the steps that belongs to no module: {units.duration(launched - inside)}."
    return Table.of(Module, rows, [outside, *how_steps_were_found(trace)])


def _own_figures(trace: Trace) -> tuple[dict[int, dict[str, int]], int]:
    """What each path that ends at a module has of its own, and all device work in the steps."""
    own: defaultdict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_FIGURES, 0))
    launched = 0
    for row in trace.rows(_OWN):
        if row["figure"] in ("device_forward", "device_backward"):
            launched += row["ns"]
        if row["module"] is not None:
            own[row["module"]][row["figure"]] += row["ns"]
    return own, launched


def _tree(
    nodes: list[dict[str, Any]], own: dict[int, dict[str, int]]
) -> dict[tuple[str, ...], dict[str, int]]:
    """Figures by the chain of modules: paths that differ only in the frames between are one."""
    chains: dict[int, tuple[str, ...]] = {}
    first: dict[str, tuple[str, ...]] = {}
    found: defaultdict[tuple[str, ...], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for node in nodes:  # parents come first
        name = node["name"].removeprefix("nn.Module: ")
        chain = (*chains.get(node["parent"], ()), name)
        if node["again"]:
            chain = first.get(name, chain)  # autograd's thread does not know the modules around it
        chains[node["node"]] = chain
        first.setdefault(name, chain)
        found[chain]["calls"] += node["calls"]
        for figure, ns in own.get(node["node"], {}).items():
            found[chain][f"{figure}_self"] += ns
            for length in range(1, len(chain) + 1):
                found[chain[:length]][f"{figure}_total"] += ns
    return found


def _in_order(found: dict[tuple[str, ...], dict[str, int]]) -> list[tuple[str, ...]]:
    """Each module before those it calls, and these in the order in which they were first called."""
    place = {path: at for at, path in enumerate(found)}
    return sorted(found, key=lambda path: [place[path[:length]] for length in range(1, len(path) + 1)])


def _row(path: tuple[str, ...], figures: dict[str, int], launched: int) -> Module:
    times = {
        f"{figure}_{part}_ns": figures[f"{figure}_{part}"]
        for figure in _FIGURES[:4]
        for part in ("self", "total")
    }
    device = figures["device_forward_total"] + figures["device_backward_total"]
    return Module(
        path=".".join(path),
        name=path[-1],
        depth=len(path) - 1,
        calls=figures["calls"],
        **times,
        device_recomputation_ns=figures["device_recomputation_total"],
        device_share=device / launched if launched else None,
    )
