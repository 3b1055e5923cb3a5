"""Many layers that are alike are compiled as one graph."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.compile_units import CompileUnit
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings.claims import Claim, Time
from stepscope.tables import Table

__all__ = ["layers_compiled_together"]

_FIX = """\
for block in model.layers: block.compile()             # in place of torch.compile(model)
torch._dynamo.config.inline_inbuilt_nn_modules = True  # before torch 2.5: all layers share the result"""


@rule(category=Category.COMPILE)
def layers_compiled_together(
    compile_units: Table[CompileUnit], *, least_layers: int = 8, least_seconds: float = 20.0
) -> Advice | None:
    """A whole model with many layers that are alike is compiled as one graph.

    Gain: none in a step. Compiling takes as long as there are layers; a layer that is compiled by itself is
    compiled once, and the others use the result.
    """
    rows = [row for row in compile_units if row.kind == "frame"]
    large = [
        row for row in rows if (row.layers or 0) >= least_layers and (row.dur_ns or 0) >= least_seconds * 1e9
    ]
    if not large:
        return None
    longest = max(large, key=lambda row: row.dur_ns or 0)
    total = sum(row.dur_ns or 0 for row in large)
    again = f", {units.count(len(large))} times" if len(large) > 1 else ""
    return Advice(
        title="Many layers are compiled as one graph",
        because=f"Region {longest.region} holds {units.count(longest.layers)} layers of one list and "
        f"{units.count(longest.graph_ops)} operators; compiling this took {units.duration(total)}{again}. "
        "If the layers are alike, one of them is enough.",
        saving=Saving(),
        certainty="possible",
        fix=_FIX,
        check="stepscope show compile_units: one row for the layer, in a fraction of the time.",
        evidence={
            "layers": longest.layers,
            "graph_ops": longest.graph_ops,
            "compiling_ns": total,
            "graphs": len(large),
        },
        claims=frozenset({Claim(Time.RECORDING)}),
        locations=locations_of((row.function, f"{units.count(row.layers)} layers") for row in large),
    )
