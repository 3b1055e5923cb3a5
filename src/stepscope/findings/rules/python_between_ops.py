"""The GPU waits for Python code between operators."""

from __future__ import annotations

from dataclasses import replace

from stepscope import units
from stepscope.analyses.host_functions import HostFunction
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.lines import Line
from stepscope.analyses.loader_starts import LoaderStart
from stepscope.analyses.python_frames import PythonFrame
from stepscope.findings import Advice, Bounds, Category, Location, NotKnown, Saving, rule
from stepscope.findings._fewer_calls import run_ahead
from stepscope.findings._host_work import HostWork, host_works, saving_of
from stepscope.findings._phrases import if_idle, often
from stepscope.findings._starvation import Pauses, Starvation, pauses_of, starvation_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.store.phases import GENERATED
from stepscope.tables import Table

__all__ = ["python_between_ops"]

_PROFILER = late_pattern(r"torch/profiler/profiler\.py\(\d+\): step$")
# Functions outside of torch; what its compiler wrote launches kernels, and what waits for other threads and
# processes does no work of its own.
_OF_PROGRAM = late_pattern(
    rf"(?!torch/|triton/|.*(?:{GENERATED})|threading\.py|queue\.py|selectors\.py|socket\.py|multiprocessing/"
    r"|concurrent/|asyncio/)[^<].*\.py\(\d+\): "
)
_LOADER = "torch/utils/data/"
_MOST = 0.5
_LEAST_SHARE = 0.02
"""Functions that hold less of the steps are left out."""
_FIX = """\
if step % 100 == 0: log(records)              # logging, metrics and callbacks once in many steps
records.append(loss.detach())                 # keep tensors; build, sort and print after the loop
threading.Thread(target=write, args=(records,)).start()    # or a process, for slow work"""


@rule(category=Category.HOST, yields_to=("anomaly_mode",))
def python_between_ops(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    idle_gaps: Table[IdleGap],
    lines: Table[Line],
    python_frames: Table[PythonFrame],
    host_functions: Table[HostFunction],
    loader_starts: Table[LoaderStart],
    *,
    least_share: float = 0.05,
    ordinary_ns: float = 5_000,
    ordinary_share: float = 0.7,
) -> Advice | None:
    """The GPU waits for Python functions outside of operators, or for Python between operators.

    Gain, where stacks name functions that do little else than work of the host, such as preparing data,
    logging or metrics, if these hold most of such waiting, or the rest of it is ordinary:

    - at most: the GPU's waiting for them, less the cost of recording them. The host then launches the next
      step while the GPU works on this one, so the step takes as long as the slower of the two.
    - at least: four fifths of that, because in a thread they still take some of the interpreter's time.

    Gain otherwise: a plain eager program spends about half as much time between its operators as in them.

    - at most: all of the time between operators, except `ordinary_ns` in each gap; the host then runs ahead.
    - at least: with stacks, which slow Python down, what exceeds the time in operators. Without stacks, what
      exceeds `ordinary_share` of it, without the longest single pause.
    - with stacks, no more than the own time of functions outside of torch that take 1 % of the step or more.

    Gain of pauses of a millisecond and more that come again in each step, right after the host waited for the
    GPU: all of them at most, as the GPU waits for them; four fifths of the usual one at least.
    """
    starved = starvation_of(mean_step, idle_gaps)
    works = _works(host_functions, mean_step)
    # Iterators of loaders that are made in each step have a finding of their own.
    making_ns = mean_step.per_step(sum(row.making_ns for row in loader_starts))
    named_ns = mean_step.per_step(sum(work.row.outer_idle_ns for work in works))
    named = _named(mean_step, starved, works) if works and mean_step.device is not None else None
    if named and mean_step.gain(named.saving).low_share < least_share:
        named = None
    if mean_step.device is not None and named_ns > _MOST * starved.python_ns:
        return named
    most = starved.python_ns - making_ns - starved.python_parts * ordinary_ns
    if facts.stacks:
        bounds = _seen(starved, most, python_frames, mean_step)
    else:
        longest = max(making_ns, starved.longest_python_ns)
        low = starved.python_ns - ordinary_share * starved.dispatch_ns - longest
        bounds = max(0.0, low), max(0.0, low, most)
    known = mean_step.device is not None and facts.host_ops
    if not known or mean_step.share(bounds[0]) < least_share:
        alone = known and not facts.stacks and (facts.world_size or 1) == 1
        pauses = pauses_of(mean_step, idle_gaps) if alone else None
        return _paused(mean_step, starved, pauses, least_share) if pauses else named
    if not facts.stacks and (facts.world_size or 1) > 1:
        raise NotKnown(
            "the GPU waits while nothing is recorded on the host: it runs Python, or waits for other ranks",
            record="with_stack=True",
        )
    places = _places(lines, mean_step, starved)
    if facts.stacks and not places:
        return named
    return _advice(mean_step, starved, bounds, places, stacks=facts.stacks)


def _works(rows: Table[HostFunction], mean_step: MeanStep) -> list[HostWork]:
    """Functions that are called in every step; loading data and what some steps do have their own rules."""
    return [
        work
        for work in host_works(rows)
        if work.row.phase != "dataloader"
        and not (work.row.outer or "").startswith(_LOADER)
        and work.row.share >= _LEAST_SHARE
        and not work.occasional(mean_step)
    ]


def _named(mean_step: MeanStep, starved: Starvation, works: list[HostWork]) -> Advice:
    first, *others = works
    places = dict.fromkeys(place for work in works for place in work.locations(mean_step))
    more = ", ".join(f"`{work.called}`" for work in others)
    own_ns = mean_step.per_step(sum(work.row.outer_idle_ns - work.row.recording_low_ns for work in works))
    return Advice(
        title=f"The GPU waits for {first.title}",
        because=first.story(mean_step) + (f" It waits for {more} as well." if more else ""),
        saving=run_ahead(mean_step, saving_of(mean_step, works), own_ns),
        certainty="likely",
        fix=fix_of(*dict.fromkeys(work.kind.fix for work in works[:2])),
        check="stepscope show host_functions: the function is gone, or takes less of the step.",
        evidence={
            "function": first.row.function,
            "function_idle_ns": round(mean_step.per_step(first.row.idle_ns)),
            "outer_function": first.row.outer,
            "outer_idle_ns": round(mean_step.per_step(first.row.outer_idle_ns)),
            "python_starved_ns": round(starved.python_ns),
            "calls_per_step": mean_step.per_step(first.row.calls),
        },
        claims=frozenset({Claim(Time.STARVED, Part.PYTHON), Claim(Time.WAITED, Part.PYTHON)}),
        locations=tuple(places)[:4],
    )


def _advice(
    mean_step: MeanStep, starved: Starvation, bounds: Bounds, places: tuple[Location, ...], *, stacks: bool
) -> Advice:
    saving = Saving(starved_ns=bounds) if stacks else Saving(waited_ns=bounds)
    return Advice(
        title="The GPU waits for Python code between operators",
        because=f"The GPU waits {units.duration(starved.python_ns)} of a step "
        f"({units.share(mean_step.share(starved.python_ns))}) while the host runs Python between operators."
        + if_idle(starved.dispatch_ns, "It waits {} while the host is inside operators.")
        + ("" if stacks else " Record with with_stack=True to see which functions it is."),
        saving=run_ahead(mean_step, saving, bounds[1]),
        certainty="likely" if stacks else "possible",
        fix=fix_of(line(Change.LOG_LESS, _FIX)),
        check="stepscope show idle_gaps: less of 'Python between ops' than of 'host op'.",
        evidence={
            "python_starved_ns": round(starved.python_ns),
            "python_starved_share": mean_step.share(starved.python_ns),
            "operators_starved_ns": round(starved.dispatch_ns),
            "python_gaps_per_step": starved.python_parts,
        },
        claims=frozenset({Claim(Time.STARVED, Part.PYTHON)}),
        locations=places,
    )


def _paused(mean_step: MeanStep, starved: Starvation, pauses: Pauses, least_share: float) -> Advice | None:
    """Advice about pauses whose functions are not known."""
    saving = run_ahead(mean_step, Saving(waited_ns=pauses.bounds), pauses.bounds[1])
    if mean_step.gain(saving).low_share < least_share:
        return None
    told = _advice(mean_step, starved, pauses.bounds, (), stacks=False)
    return replace(
        told,
        title="The GPU waits for Python after results are read",
        because=f"Right after the host waited for the GPU ({pauses.call}, {often(pauses.per_step, 'time')}), "
        f"it is in no operator for {units.duration(pauses.mean_ns)}, and the GPU waits: for metrics, logs, "
        "decoded text or files, for instance. Record with with_stack=True to see which functions it is.",
        saving=saving,
        evidence={
            **told.evidence,
            "pauses_per_step": pauses.per_step,
            "pause_ns": round(pauses.mean_ns),
        },
    )


def _seen(starved: Starvation, most_ns: float, frames: Table[PythonFrame], mean_step: MeanStep) -> Bounds:
    """The bounds of the gain, where stacks show which time is the program's own."""
    own, programs = _profilers_ns(frames, mean_step), _programs_ns(frames, mean_step)
    low = min(programs, max(0.0, starved.excess_python_ns - own))
    return low, min(programs, max(low, most_ns - own))


def _profilers_ns(frames: Table[PythonFrame], mean_step: MeanStep) -> float:
    return mean_step.per_step(sum(row.total_ns for row in frames if _PROFILER.match(row.name or "")))


def _programs_ns(frames: Table[PythonFrame], mean_step: MeanStep) -> float:
    own = [mean_step.per_step(row.self_ns) for row in frames if _OF_PROGRAM.match(row.name or "")]
    return sum(ns for ns in own if mean_step.share(ns) >= 0.01)


def _places(lines: Table[Line], mean_step: MeanStep, starved: Starvation) -> tuple[Location, ...]:
    """Functions in which the GPU waits far longer for each launch than operators and Python take."""
    rows = [row for row in lines if row.file and row.line is not None and row.function]
    launches = mean_step.per_step(sum(row.launches for row in rows))
    usual = 2 * starved.dispatch_ns / launches if launches else 0.0
    beyond = [(mean_step.per_step(row.idle_ns - row.launches * usual), row) for row in rows]
    guilty = sorted(
        ((ns, row) for ns, row in beyond if ns > 0.1 * starved.excess_python_ns), key=lambda pair: -pair[0]
    )
    return tuple(
        Location(
            row.file or "", row.line or 0, row.function or "", f"the GPU waits {units.duration(ns)} a step"
        )
        for ns, row in guilty[:3]
    )
