"""Says how long a step would be under a change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stepscope.cli.output import say
from stepscope.cli.signature import with_flags
from stepscope.cli.traces import (
    PassOption,
    WantedPass,
    at_work,
    open_run_with_progress,
    open_with_progress,
)
from stepscope.errors import StepscopeError
from stepscope.simulation.changes import CHANGES, UNCHANGED, Change, combined

if TYPE_CHECKING:
    from stepscope.runs.changed_run import AskedOfRun

__all__ = ["whatif"]


@with_flags({name: named.help for name, named in CHANGES.items()})
def whatif(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, a run, or a store"] = None,
    *,
    kernels: Annotated[
        tuple[tuple[str, str], ...], "scale device work by its name: '*sgemm*' x0.4; repeatable"
    ] = (),
    ranges: Annotated[
        tuple[tuple[str, str], ...],
        "scale operators, runtime calls and ranges of the host: 'Optimizer.step*' x0.1; repeatable",
    ] = (),
    host: Annotated[str, "scale all host work: x0.5"] = "x1",
    transfers: Annotated[str, "of a run, scale transfers between ranks: x0.5"] = "x1",
    like_median: Annotated[bool, "of a run, the ranks take no longer for anything than the median"] = False,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: Annotated[tuple[int, ...], "of a run, the ranks that are changed; default: all; repeatable"] = (),
    pass_: PassOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
    **named: bool,
) -> None:
    """Says how long a step would be under a change, by simulating the recorded steps.

    Host work, kernels and copies take as long as recorded, except for the change and the cost of recording.
    When they start follows from what waits for what. `stepscope show simulated_steps TRACE` shows how close
    the simulation comes to each recorded step.

    Of a run with several ranks, all of them are played together, and wait for one another in their
    collectives. With --pass, the profile of one rank is played alone.
    """
    from stepscope.present.changed_steps import lines
    from stepscope.runs.changed_run import AskedOfRun
    from stepscope.runs.finding import run_of
    from stepscope.simulation.changed_step import changed_step, factor
    from stepscope.simulation.simulator import simulator_of

    scaled = Change(
        kernels=tuple((pattern, factor(times)) for pattern, times in kernels),
        ranges=tuple((pattern, factor(times)) for pattern, times in ranges),
        host_times=factor(host),
    )
    wished = tuple(name for name in CHANGES if named.get(name))
    asked = AskedOfRun(tuple(sorted(set(rank))) or None, wished, scaled, factor(transfers), like_median)
    run = None if demo or trace is None or pass_ is not None else run_of((trace,))
    if run is not None and len(run.profiled) > 1:
        _say_of_run(str(trace), asked, store)
        return
    change = combined([scaled, *(CHANGES[name].change for name in wished)])
    if change == UNCHANGED:
        raise StepscopeError("no change given", hint="stepscope whatif TRACE --no-sync", exit_code=2)
    wanted = WantedPass(_one(rank), pass_)
    opened = open_with_progress(trace, store=store, demo=demo, wanted=wanted)
    measured = opened.measured.said if opened.measured else ""
    for label, text in lines(changed_step(simulator_of(opened), change), measured):
        say(f"{label:<12}{text}")


def _say_of_run(trace: str, asked: AskedOfRun, store: Path | None) -> None:
    """The run's step under a change of some ranks."""
    from stepscope.present.changed_steps import lines_of_run
    from stepscope.runs.changed_run import AskedOfRun, changed_run, profiles_for

    run = open_run_with_progress(trace, at_work("local", None, None, store))
    unknown = sorted(set(asked.ranks or ()) - set(run.ranks))
    if unknown:
        known = ", ".join(map(str, run.ranks[:20]))
        raise StepscopeError(f"{trace} has no rank {unknown[0]}", hint=f"it has: {known}", exit_code=2)
    if asked == AskedOfRun(asked.ranks):
        raise StepscopeError(
            "no change given", hint=f"stepscope whatif {trace} --rank {run.ranks[0]} --no-loader", exit_code=2
        )
    traces = {
        rank: open_with_progress(trace, store=store, wanted=WantedPass(rank))
        for rank in profiles_for(asked, run.ranks)
    }
    again = f"stepscope whatif {trace} --rank {run.ranks[0]} --pass light --no-loader"
    for label, text in lines_of_run(changed_run(run, asked, traces, again)):
        say(f"{label:<12}{text}")


def _one(ranks: tuple[int, ...]) -> int | None:
    if len(ranks) > 1:
        raise StepscopeError("one rank is played alone, not several", hint="leave --pass out", exit_code=2)
    return ranks[0] if ranks else None
