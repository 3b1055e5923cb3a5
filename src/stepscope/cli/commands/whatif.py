"""Says how long a step would be under a change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stepscope import units
from stepscope.cli.traces import open_with_progress
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.analyses._replay import Change, Player

__all__ = ["whatif"]


def whatif(  # noqa: PLR0913  # one option for each change
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, or a store"] = None,
    *,
    no_sync: Annotated[bool, "calls that wait for the device return at once"] = False,
    graph: Annotated[bool, "the host's part of a step costs one launch, but for waiting and loading"] = False,
    no_loader: Annotated[bool, "the dataloader is waited for no more"] = False,
    overlap_copies: Annotated[bool, "copies to the device run beside compute"] = False,
    kernels: Annotated[
        tuple[tuple[str, str], ...], "device work by its name takes so much: '*sgemm*' x0.4; repeatable"
    ] = (),
    ranges: Annotated[
        tuple[tuple[str, str], ...], "operators, calls and ranges of the host: 'Optimizer.step*' x0.1"
    ] = (),
    host: Annotated[str, "all host work takes so much of its time: x0.5"] = "x1",
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    store: Annotated[Path | None, "the folder that keeps what was read, instead of the cache"] = None,
) -> None:
    """Says how long a step would be under a change, by playing the recorded steps again.

    How long host work, kernels and copies take is as recorded, but for the change and for what recording
    cost the host; when they start follows from what waits for what. docs/replay.md says how, and how far it
    can be trusted. `stepscope show step_replays TRACE` has the steps one by one.
    """
    from stepscope.analyses._replay import ANY_OPERATOR, UNCHANGED, Change, player_of

    change = Change(
        no_sync=ANY_OPERATOR if no_sync else (),
        graph=graph,
        no_loader=no_loader,
        overlap_copies=overlap_copies,
        kernels=tuple((pattern, _factor(times)) for pattern, times in kernels),
        ranges=tuple((pattern, _factor(times)) for pattern, times in ranges),
        host_times=_factor(host),
    )
    if change == UNCHANGED:
        raise StepscopeError("no change was named", hint="stepscope whatif TRACE --no-sync", exit_code=2)
    player = player_of(open_with_progress(trace, store=store, demo=demo))
    if not player.steady:
        raise StepscopeError("the trace has no steps to play again", hint="record some with torch.profiler")
    for label, text in _lines(player, change):
        print(f"{label:<12}{text}")


def _lines(player: Player, change: Change) -> Iterator[tuple[str, str]]:
    """The mean step: as it was, played again, without the profiler, and under the change."""
    from stepscope.analyses._replay import UNCHANGED

    plain = player.play(UNCHANGED)
    recorded, replayed, explained = map(
        player.mean_of, (player.recorded_ns, plain.dur_ns, plain.explained_ns)
    )
    yield "recorded", f"{units.duration(recorded)} a step, {_which(player)}"
    error = f"{units.share(abs(replayed - recorded) / recorded)} off"
    doubt = f"{units.share(max(0, replayed - explained) / recorded)} of it delays that nothing explains"
    yield "replayed", f"{units.duration(replayed)} unchanged: {error}, {doubt}"
    high, low = (player.mean_ns(replace(UNCHANGED, spared=spared)) for spared in player.spared)
    yield "unprofiled", f"{units.between(low, high)}, without what recording costs the host"
    changed_high, changed_low = (player.mean_ns(replace(change, spared=spared)) for spared in player.spared)
    gains = sorted((1 - changed_low / max(1, low), 1 - changed_high / max(1, high)))
    least, most = sorted((changed_low, changed_high))
    yield "changed", f"{units.between(least, most)}, {_said(*gains)}"


def _which(player: Player) -> str:
    """Which steps were played."""
    played = len(player.steady)
    many = "1 step" if played == 1 else f"{units.count(played)} steps"
    return f"the mean of {many}" + (", without a cold first one" if played < len(player.recorded_ns) else "")


def _said(low: float, high: float) -> str:
    """How much shorter a step is, or longer."""
    if high <= 0:
        low, high, word = -high, -low, "longer"
    else:
        word = "shorter"
    if low < 0:
        return f"from {units.share(-low)} longer to {units.share(high)} shorter"
    ends = [f"{100 * end:.0f}" for end in (low, high)]
    return f"{ends[0] if ends[0] == ends[1] else '–'.join(ends)} % {word}"


def _factor(text: str) -> float:
    """How much of its time something takes, as in `x0.4`."""
    try:
        times = float(text.removeprefix("x"))
    except ValueError:
        times = -1.0
    if not 0 <= times <= 1000:
        hint = "write how much of its time it takes, from x0 to x1000: '*sgemm*' x0.4"
        raise StepscopeError(f"{text} is no factor", hint=hint, exit_code=2)
    return times
