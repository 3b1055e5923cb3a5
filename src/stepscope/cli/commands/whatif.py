"""Says how long a step would be under a change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stepscope import units
from stepscope.cli.output import say
from stepscope.cli.signature import with_flags
from stepscope.cli.traces import PassOption, RankOption, WantedPass, open_with_progress
from stepscope.errors import StepscopeError
from stepscope.simulation.changes import CHANGES, UNCHANGED, Change, combined

if TYPE_CHECKING:
    from stepscope.simulation.simulator import Simulator
    from stepscope.store.measured import MeasuredStep

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
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: RankOption = None,
    pass_: PassOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
    **named: bool,
) -> None:
    """Says how long a step would be under a change, by simulating the recorded steps.

    Host work, kernels and copies take as long as recorded, except for the change and the cost of recording.
    When they start follows from what waits for what. `stepscope show simulated_steps TRACE` shows how close
    the simulation comes to each recorded step.
    """
    from stepscope.simulation.simulator import simulator_of

    scaled = Change(
        kernels=tuple((pattern, _factor(times)) for pattern, times in kernels),
        ranges=tuple((pattern, _factor(times)) for pattern, times in ranges),
        host_times=_factor(host),
    )
    change = combined([scaled, *(CHANGES[name].change for name in CHANGES if named.get(name))])
    if change == UNCHANGED:
        raise StepscopeError("no change given", hint="stepscope whatif TRACE --no-sync", exit_code=2)
    wanted = WantedPass(rank, pass_)
    opened = open_with_progress(trace, store=store, demo=demo, wanted=wanted)
    simulator = simulator_of(opened)
    if not simulator.steady:
        raise StepscopeError("the trace has no steps to simulate", hint="record some with torch.profiler")
    for label, text in _lines(simulator, change, opened.measured):
        say(f"{label:<12}{text}")


def _lines(simulator: Simulator, change: Change, measured: MeasuredStep | None) -> Iterator[tuple[str, str]]:
    """The mean step: as it was, simulated, without the profiler, and under the change."""
    plain = simulator.run(UNCHANGED)
    recorded, simulated, explained = map(
        simulator.mean_of, (simulator.recorded_ns, plain.dur_ns, plain.explained_ns)
    )
    yield "recorded", f"{units.duration(recorded)} per step, {_which(simulator)}"
    error = f"{units.share(abs(simulated - recorded) / recorded)} off"
    unexplained = f"{units.share(max(0, simulated - explained) / recorded)} of it unexplained delays"
    yield "simulated", f"{units.duration(simulated)} unchanged: {error}, {unexplained}"
    high, low = (simulator.mean_ns(replace(UNCHANGED, spared=spared)) for spared in simulator.spared)
    if measured:
        yield "measured", f"{measured.said}, without the profiler"
    yield "unprofiled", f"{units.between(low, high)}, without the cost of recording"
    changed_high, changed_low = (
        simulator.mean_ns(replace(change, spared=spared)) for spared in simulator.spared
    )
    gains = sorted((1 - changed_low / max(1, low), 1 - changed_high / max(1, high)))
    least, most = sorted((changed_low, changed_high))
    yield "changed", f"{units.between(least, most)}, {_said(*gains)}"


def _which(simulator: Simulator) -> str:
    """Which steps were simulated."""
    count = len(simulator.steady)
    without = ", without the first (warm-up)" if count < len(simulator.recorded_ns) else ""
    return f"mean of {units.counted(count, 'step')}{without}"


def _said(low: float, high: float) -> str:
    """How much shorter a step is, or longer."""
    if high <= 0:
        low, high, word = -high, -low, "longer"
    else:
        word = "shorter"
    if low < 0:
        return f"from {units.share(-low)} longer to {units.share(high)} shorter"
    return f"{units.percents(low, high)} {word}"


def _factor(text: str) -> float:
    """How much of its time something takes, as in `x0.4`."""
    try:
        times = float(text.removeprefix("x"))
    except ValueError:
        times = -1.0
    if not 0 <= times <= 1000:
        hint = "write the factor of its time, from x0 to x1000: '*sgemm*' x0.4"
        raise StepscopeError(f"{text} is not a factor", hint=hint, exit_code=2)
    return times
