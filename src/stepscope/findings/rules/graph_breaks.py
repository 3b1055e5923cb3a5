"""Compiled code returns to Python within a step."""

from __future__ import annotations

from collections import Counter

from stepscope import units
from stepscope.analyses.compiled_regions import CompiledRegion
from stepscope.analyses.graph_break_lines import GraphBreakLine
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Certainty, Location, Saving, locations_of, rule
from stepscope.findings._compile_log import break_places, breaks_said
from stepscope.findings._compiling import CompiledCode, compiled_code, ordinary_step_ns
from stepscope.findings._phrases import often, times
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["graph_breaks"]

LEAST_PARTS = 4
"""From this many different parts in a step, side by side, a break is suspected. A model, a loss and an
optimizer that were compiled separately are fewer."""
OFTEN = 0.9
"""A read that breaks the graph happens about once for each run of the part before it."""
ENTRY_NS = 50_000
"""What guards and wrappers of one entry cost the host in a recording: 50 and 90 µs were measured. More than
that may be Python that the program needs."""
# As torch marks a run of compiled code.
_REGION = late_pattern(r"Torch-Compiled Region.*")
# What reads a tensor's value back to Python, the usual reason for a graph break.
_READ = late_pattern(r"aten::(item|is_nonzero|_local_scalar_dense|nonzero|equal)")
_FIX = """\
TORCH_LOGS="graph_breaks" python train.py       # prints each line that breaks the graph, and why
torch._dynamo.explain(model)(batch)             # the same for one call"""
_FULL = "torch.compile(model, fullgraph=True)            # then: raises an error at a graph break"
_READS = "# move print(), .item() and `if tensor > 0:` out of the compiled code, or use torch.where(...)"


@rule(category=Category.COMPILE)
def graph_breaks(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    compiled_regions: Table[CompiledRegion],
    step_ops: Table[StepOp],
    starving_phases: Table[StarvingPhase],
    step_classes: Table[StepClass],
    graph_break_lines: Table[GraphBreakLine] | None = None,
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """Compiled code returns to Python within a step: a graph break is suspected, or a log names it.

    Gain:

    - at most: the time the GPU waits for what runs between the compiled parts, and for entering all parts
      but one: each part has its own guards, wrappers and generated Python.
    - at least: nothing, because parts may be compiled separately on purpose, and what is between them may be
      needed.
    - at least, if a value is read for each run of a part: the reads, which break the graph, and entering all
      parts but one.
    - at least, for parts entered from inside other compiled code: their guards and wrappers.

    A compile log names lines and reasons. Of a log alone, the gain is not known; nor is it where the steps do
    not show what the log says, as when a whole function was left uncompiled.
    """
    if not mean_step.steps:
        return _of_log(graph_break_lines)
    nested, beside = _runs_of(compiled_regions, mean_step)
    code, (reads, read) = compiled_code(step_ops, compiled_regions), _reads_of(step_ops)
    parts = nested + beside.runs
    others = 1 - 1 / max(1.0, parts)
    looped = beside.broken_by(_between_parts(reads, code, looped=beside.turns >= 2))
    apart = beside.parts >= LEAST_PARTS or looped
    breaking = looped or (bool(nested) and 2 * read >= parts)
    if not nested and not apart:
        return _of_log(graph_break_lines)
    around = _between(code, starving_phases) if apart else code.around_starved_ns
    most = mean_step.with_latency(mean_step.per_step(around + others * code.python_starved_ns))
    gained = mean_step.gain(Saving(starved_ns=(0.0, most))).high_ns
    if gained < least_share * ordinary_step_ns(mean_step, step_classes):
        return None
    least = mean_step.per_step(others * code.around_starved_ns + _outside_ns(reads)) if breaking else 0.0
    least = max(least, _entering(mean_step, nested, parts, code, step_ops))
    return Advice(
        title="Compiled code returns to Python within a step",
        because=_because(parts, nested, most, read) + breaks_said(graph_break_lines),
        saving=Saving(starved_ns=(min(least, most), most)),
        certainty=_certainty(graph_break_lines, nested or breaking),
        fix=fix_of(_FIX, line(Change.FULL_GRAPH, _FULL), *((_READS,) if read or nested else ())),
        check="stepscope show compiled_regions: fewer runs a step, and regions_inside is 0.",
        evidence={
            "runs_per_step": parts,
            "runs_inside_others_per_step": nested,
            "reads_per_step": read,
            "starved_around_ns": round(mean_step.per_step(around)),
            "starved_in_generated_python_ns": round(mean_step.per_step(code.python_starved_ns)),
        },
        claims=frozenset({Claim(Time.STARVED)}),
        locations=break_places(graph_break_lines) or _locations(reads, code),
    )


def _certainty(lines: Table[GraphBreakLine] | None, seen: float) -> Certainty:
    """A log says that there are breaks; without one they are suspected."""
    return "certain" if lines is not None and len(lines) else "likely" if seen else "possible"


def _of_log(lines: Table[GraphBreakLine] | None) -> Advice | None:
    """What a log says where there is no profile."""
    rows = list(lines or ())
    if not rows:
        return None
    breaks, regions = sum(row.breaks for row in rows), sum(row.regions for row in rows)
    hints = [f"# torch: {row.hint}" for row in rows if row.hint]
    return Advice(
        title="Compiled code returns to Python",
        because=f"Torch met {times(breaks, 'graph break')} at {times(len(rows), 'line')} while it compiled. "
        f"Each splits a function into two graphs with Python in between.{breaks_said(rows)}",
        saving=Saving(known=False),
        certainty="certain",
        fix=fix_of(*dict.fromkeys(hints[:2]), line(Change.FULL_GRAPH, _FULL), _READS),
        check="stepscope show graph_break_lines: no rows.",
        evidence={"breaks": breaks, "lines": len(rows), "regions": regions},
        claims=frozenset({Claim(Time.STARVED)}),
        locations=break_places(rows),
    )


def _runs_of(regions: Table[CompiledRegion], mean_step: MeanStep) -> tuple[float, _Beside]:
    """Runs of compiled code in a mean step: inside other runs, and side by side."""
    rows = [row for row in regions if row.calls]
    return mean_step.per_step(sum(row.regions_inside for row in rows)), _Beside.of(rows, mean_step)


@dataclass(frozen=True, slots=True)
class _Beside:
    """Runs of compiled code side by side, in a mean step."""

    runs: float
    parts: int
    """Different ones: a part that runs several times is called so often by a loop, which breaks nothing."""
    turns: float
    """Runs of the most frequent part."""
    entered: bool
    """Whether the only part is the first that torch compiled: nothing around it was given up."""

    @classmethod
    def of(cls, rows: list[CompiledRegion], mean_step: MeanStep) -> _Beside:
        """Versions of one frame are one part, because each run chooses one of them."""
        calls: Counter[str] = Counter()
        for row in rows:
            if row.inside is None:
                calls[row.frame or row.region] += row.calls
        runs = mean_step.per_step(sum(calls.values()))
        turns = mean_step.per_step(max(calls.values(), default=0))
        return cls(runs, len(calls), turns, set(calls) == {"0"})

    def broken_by(self, reads: float) -> bool:
        """Whether so many reads of values in a step are what is between the runs."""
        return self.runs >= 2 and not self.entered and reads >= OFTEN * self.turns


def _reads_of(step_ops: Table[StepOp]) -> tuple[list[StepOp], float]:
    """Operators of forward that read values, and how many such reads a step has."""
    reads = [row for row in step_ops if row.phase == "forward" and _is_read(row)]
    return reads, sum(row.per_step for row in reads)


def _outside_ns(reads: list[StepOp]) -> int:
    """How long the GPU waited for reads outside of compiled code."""
    return sum(row.starved_ns for row in reads if row.within is None)


def _between_parts(reads: list[StepOp], code: CompiledCode, *, looped: bool) -> float:
    """Reads in a step that may be between compiled parts of one function, as far as functions are known.

    What is read inside of a part that runs several times is read by the function that was compiled: it is
    called by another one, in a loop.
    """
    return sum(
        row.per_step
        for row in reads
        if not row.user_frame
        or not code.frames
        or row.user_frame in code.frames
        or (looped and _REGION.fullmatch(row.within or ""))
    )


def _entering(
    mean_step: MeanStep, nested: float, parts: float, code: CompiledCode, step_ops: Table[StepOp]
) -> float:
    """How long GPUs wait in a step for the guards and wrappers of parts inside others."""
    plain = sum(
        row.starved_ns
        for row in step_ops
        if _REGION.fullmatch(row.within or "") and (row.name or "").startswith("aten::")
    )
    around = max(0.0, mean_step.per_step(code.around_starved_ns - plain))
    return min(around / parts, ENTRY_NS) * nested if parts else 0.0


def _is_read(row: StepOp) -> bool:
    """Whether it reads a value, and was not called by another operator that does."""
    return bool(_READ.fullmatch(row.name or "")) and not _READ.fullmatch(row.within or "")


def _between(code: CompiledCode, starving_phases: Table[StarvingPhase]) -> int:
    """How long GPUs waited for forward and for Python of no phase, outside of compiled graphs."""
    starved = sum(row.starved_ns for row in starving_phases if row.phase in ("forward", "other"))
    return max(0, starved - code.forward_graph_starved_ns)


def _because(parts: float, nested: float, most: float, read: float) -> str:
    told = f"Compiled code is entered {often(parts, 'time')}"
    told += f", {units.tally(nested)} of them from inside other compiled code" if nested else ""
    told += f". The GPU waits up to {units.duration(most)} of a step for this and for the Python in between."
    if read:
        told += f" Python also reads the values of tensors ({often(read, 'read')})."
    return told


def _locations(reads: list[StepOp], code: CompiledCode) -> tuple[Location, ...]:
    reading = [(row.user_frame, f"{row.name}: {often(row.per_step, 'call')}", (row.name,)) for row in reads]
    return locations_of([*reading, *((frame, "runs compiled code") for frame in code.frames)])
