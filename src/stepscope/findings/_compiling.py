"""What the rules on compiled code share: where in the steps it ran, and how long GPUs waited for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope.patterns import late_pattern
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.compilations import Compilation
    from stepscope.analyses.compiled_regions import CompiledRegion
    from stepscope.analyses.iterations import Iteration
    from stepscope.analyses.step_classes import StepClass
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = [
    "LOOKUP",
    "MASK_OF_ONES",
    "RECURRING_STEPS",
    "CompiledCode",
    "compiled_code",
    "holds_code",
    "keeps_capturing",
    "ordinary_step_ns",
    "recompiled",
    "takes_attention_apart",
]

# How torch marks a run of compiled code, the graphs that inductor made for it, autograd's names for forward
# and backward of one, and the search for a version whose guards hold, which precedes a run.
_REGION = late_pattern(r"Torch-Compiled Region")
_GRAPH = late_pattern(r"## Call CompiledFxGraph")
_HALVES = ("CompiledFunction", "CompiledFunctionBackward")
LOOKUP = "TorchDynamo Cache Lookup"
MASK_OF_ONES = "model(input_ids=ids, attention_mask=torch.ones_like(ids))"
"""How a model of transformers keeps its attention fused when it is compiled."""
# How torch marks compiling; it may be inside a run.
_COMPILER = late_pattern(
    r"dynamo|entire_(frame|backward)_compile|(backend|inductor)_compile|.* \(dynamo_timed\)"
)
# Kernels that inductor generates, and operators that it calls directly, if torch does not mark graphs.
_GENERATED = late_pattern(
    r"triton_|aten::(mm|addmm|bmm|baddbmm|_int_mm|_scaled_mm|convolution|_scaled_dot_product|sort|topk|cumsum)"
)
_OF_TORCHS_ATTENTION = late_pattern(r"triton_.*_safe_softmax")
RECURRING_STEPS = 3
"""With fewer steps it is not known whether something recurs."""


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """The runs of compiled code inside the steps, without compiling; sums over all steps."""

    host_ns: int
    starved_ns: int
    """Time in them while a GPU waited for the host."""
    graph_starved_ns: int
    """Of that: inside compiled graphs."""
    python_starved_ns: int
    """Of that: outside of operators and launches, in generated Python and wrappers."""
    forward_graph_starved_ns: int
    """Of `graph_starved_ns`: in forward."""
    around_starved_ns: int
    """In forward: in runs but outside compiled graphs, and in the search for the version to run."""
    frames: tuple[str, ...]
    """The user's functions that ran them."""


def compiled_code(step_ops: Table[StepOp], compiled_regions: Table[CompiledRegion]) -> CompiledCode:
    """Sums up what torch's marks say about compiled code; all 0 where there are none.

    If code was compiled inside the steps, all figures are scaled down to the regions that were not: only the
    first run of a region loads kernels and tunes them.
    """
    rows = list(step_ops)
    outer = [row for row in rows if _is_run(row) and not _is_region(row.within)]
    inside = [row for row in rows if holds_code(row.within) and not holds_code(row.name)]
    compilers = [row for row in inside if _COMPILER.fullmatch(row.name or "")]
    launching = [row for row in inside if row.launches and row not in compilers]
    forward = [row for row in outer if _is_region(row.name)]
    breaks = any(row.regions_inside for row in compiled_regions)
    made = _made(rows, launching, backward=False, breaks=breaks)
    graphs = made + _made(rows, launching, backward=True, breaks=breaks)
    names = {row.name for row in graphs}
    lookups = [row for row in rows if row.name == LOOKUP]
    compiling = _starved(row for row in compilers if row.phase != "backward")
    starved = _starved(outer) - _starved(compilers)
    graph_starved = min(
        starved, _starved(graphs) - _starved(row for row in compilers if not _is_region(row.within))
    )
    host = sum(row.host_ns for row in outer) - sum(row.host_ns for row in compilers)
    frames = [row.user_frame for row in forward if row.user_frame]

    warm = _warm(host, compiled_regions)

    def scaled(starved_ns: int) -> int:
        return round(warm * max(0, starved_ns))

    return CompiledCode(
        host_ns=scaled(host),
        starved_ns=scaled(starved),
        graph_starved_ns=scaled(graph_starved),
        python_starved_ns=scaled(
            graph_starved - _starved(row for row in launching if row.within in names or row in graphs)
        ),
        forward_graph_starved_ns=scaled(_starved(made)),
        around_starved_ns=scaled(_starved(forward) - compiling - _starved(made) + _starved(lookups)),
        frames=tuple(dict.fromkeys(frames)),
    )


def _made(rows: list[StepOp], launching: list[StepOp], *, backward: bool, breaks: bool) -> list[StepOp]:
    """The compiled graphs, or else autograd's functions for their forward or backward.

    Without either it is everything in a region, or, if the graph breaks there, what looks compiled.
    """
    ours = [row for row in rows if (row.phase == "backward") == backward]
    if graphs := [row for row in ours if _GRAPH.match(row.name or "")]:
        return graphs
    if halves := [row for row in ours if row.name == _HALVES[backward]]:
        return halves
    if not breaks:
        return [row for row in ours if _is_region(row.name)]
    alike = [row for row in launching if _is_region(row.within) and _GENERATED.match(row.name or "")]
    return [row for row in alike if (row.phase == "backward") == backward]


def _warm(host_ns: int, compiled_regions: Table[CompiledRegion]) -> float:
    """The part of this host time that belongs to regions compiled before the steps."""
    rows = list(compiled_regions)
    if host_ns <= 0 or not any(row.compiling_ns for row in rows):
        return 1.0
    kept = sum(row.host_self_ns + row.backward_host_ns for row in rows if not row.compiling_ns)
    return min(1.0, kept / host_ns)


def _is_region(name: str | None) -> bool:
    return bool(_REGION.match(name or ""))


def _is_run(row: StepOp) -> bool:
    return _is_region(row.name) or row.name == _HALVES[1]


def holds_code(name: str | None) -> bool:
    """Whether an operator is a run of compiled code, a graph in it, or autograd's function for one."""
    return name in _HALVES or _is_region(name) or bool(_GRAPH.match(name or ""))


def _starved(rows: Iterable[StepOp]) -> int:
    return sum(row.starved_ns for row in rows)


def ordinary_step_ns(mean_step: MeanStep, step_classes: Table[StepClass]) -> float:
    """The mean of the most frequent class of steps, because steps that compile are not typical."""
    usual = max(step_classes, key=lambda row: row.steps, default=None)
    return min(mean_step.step_ns, usual.mean_ns) if usual else mean_step.step_ns


def keeps_capturing(compilations: Iterable[Compilation], iterations: Iterable[Iteration]) -> frozenset[int]:
    """The steps that capture graphs, if at least three do and one of them is in the last third.

    Warm-up captures as well, but it ends.
    """
    capturing = {row.step for row in compilations if row.kind == "capture" and row.step is not None}
    order = [row.step for row in iterations]
    late = order[-(-2 * len(order) // 3) :]
    lasting = len(capturing) >= RECURRING_STEPS and not capturing.isdisjoint(late)
    return frozenset(capturing) if lasting else frozenset()


def recompiled(compilations: Table[Compilation]) -> frozenset[str]:
    """The regions compiled inside the steps for a frame that had been compiled before."""
    return frozenset(
        row.region
        for row in compilations
        if row.kind == "recompilation" and row.step is not None and row.region
    )


def takes_attention_apart(step_ops: Iterable[StepOp]) -> bool:
    """Whether torch's own attention is in code that its compiler wrote, as products and a softmax."""
    return any(_OF_TORCHS_ATTENTION.match(op.name or "") for op in step_ops)
