"""How long a step would be under a change, as `stepscope whatif` says it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.present.changed_steps import lines, lines_of_run
from stepscope.records import dataclass
from stepscope.runs.changed_run import AskedOfRun, changed_run, profiles_for
from stepscope.simulation.changed_step import changed_step, factor
from stepscope.simulation.changes import CHANGES, UNCHANGED, Change, ChangeName, combined
from stepscope.simulation.simulator import simulator_of

if TYPE_CHECKING:
    from stepscope.runs.many import ManyRanks
    from stepscope.simulation.simulator import Simulator
    from stepscope.web.opened import Opened, OpenTrace

__all__ = ["whatif"]

_MOST_PATTERNS = 50


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the page asks for."""

    named: tuple[ChangeName, ...]
    kernels: tuple[tuple[str, str], ...]
    """Patterns of names, each with a factor as people type it."""
    ranges: tuple[tuple[str, str], ...]
    host: str
    transfers: str
    like_median: bool
    ranks: tuple[int, ...]

    @property
    def scaled(self) -> Change:
        """What is scaled, without what has a name."""
        return Change(
            kernels=tuple((pattern, factor(times)) for pattern, times in self.kernels),
            ranges=tuple((pattern, factor(times)) for pattern, times in self.ranges),
            host_times=factor(self.host),
        )

    @property
    def change(self) -> Change:
        """Everything together, for one trace."""
        return combined([self.scaled, *(CHANGES[name].change for name in self.named)])

    @property
    def of_run(self) -> AskedOfRun:
        """Everything together, for a run."""
        ranks = tuple(sorted(set(self.ranks))) or None
        return AskedOfRun(ranks, self.named, self.scaled, factor(self.transfers), self.like_median)

    def words(self, *, run: bool) -> Iterator[str]:
        """What to type for the same."""
        for name in self.named:
            yield f"--{name.replace('_', '-')}"
        for flag, pairs in (("--kernels", self.kernels), ("--ranges", self.ranges)):
            for pattern, times in pairs:
                yield from (flag, pattern, times)
        if factor(self.host) != 1:
            yield from ("--host", self.host)
        if run and factor(self.transfers) != 1:
            yield from ("--transfers", self.transfers)
        if run and self.like_median:
            yield "--like-median"
        for rank in self.ranks if run else ():
            yield from ("--rank", str(rank))


def whatif(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """Simulates the steps under what the page asks for; with `each`, under every named change alone."""
    trace = opened.trace(given.get("trace"))
    if "each" in given:
        return _each(opened, trace)
    wish = _wished(given.get("body", ""))
    if opened.many is not None:
        return _of_run(opened, opened.many, wish)
    return _of_trace(opened, trace, wish)


def _of_trace(opened: Opened, trace: OpenTrace, wish: _Wish) -> dict[str, Any]:
    with trace.lock:
        step = changed_step(simulator_of(trace.trace), wish.change)
    measured = trace.trace.measured
    told = list(lines(step, measured.said if measured else ""))
    unchanged = wish.change == UNCHANGED
    return {
        "lines": told[:-1] if unchanged else told,
        "recorded_ns": step.recorded_ns,
        "unprofiled_ns": sorted(step.unprofiled_ns),
        "changed_ns": None if unchanged else step.changed_ns,
        "gains": None if unchanged else step.gains,
        "command": _command(_word(opened, trace), wish.words(run=False)),
    }


def _of_run(opened: Opened, many: ManyRanks, wish: _Wish) -> dict[str, Any]:
    asked = wish.of_run
    unknown = sorted(set(asked.ranks or ()) - set(many.ranks))
    if unknown:
        raise StepscopeError(f"the run has no rank {unknown[0]}", hint=f"it has {len(many.ranks)} ranks")
    traces = {rank: opened.trace(f"rank{rank}").trace for rank in profiles_for(asked, many.ranks)}
    again = "choose one rank, and look at it alone"
    with opened.alone:
        run = changed_run(many, asked, traces, again)
    low, high = run.saved_ns
    left = (run.changed_ns, run.changed_ns) if run.is_longer else (run.step_ns - high, run.step_ns - low)
    unchanged = asked == AskedOfRun(asked.ranks)
    told = list(lines_of_run(run))
    return {
        "lines": [one for one in told if not unchanged or one[0] != "changed"],
        "recorded_ns": run.step_ns,
        "unprofiled_ns": run.measured_ns,
        "changed_ns": None if unchanged else left,
        "gains": None if unchanged else [1 - left[1] / run.step_ns, 1 - left[0] / run.step_ns],
        "command": _command(opened.typed, wish.words(run=True)),
    }


def _each(opened: Opened, trace: OpenTrace) -> dict[str, Any]:
    """What every named change gains alone: it tells where to begin."""
    if opened.many is not None:
        run = opened.many

        def gained(name: ChangeName) -> list[float]:
            asked = AskedOfRun(None, (name,))
            if profiles_for(asked, run.ranks):
                return []  # a profile would have to be opened for it
            saved = changed_run(run, asked, {}, "").saved_ns
            step = changed_run(run, asked, {}, "").step_ns
            return [one / step for one in saved]

        return {"gains": trace.once("each change", lambda: {name: gained(name) for name in CHANGES})}
    simulator = trace.once("simulator", partial(simulator_of, trace.trace))
    return {"gains": trace.once("each change", lambda: {name: _alone(simulator, name) for name in CHANGES})}


def _alone(simulator: Simulator, name: ChangeName) -> Sequence[float]:
    return changed_step(simulator, CHANGES[name].change).gains


def _wished(body: str) -> _Wish:
    """What a page sent, looked at piece by piece."""
    try:
        given = json.loads(body or "{}")
        pairs = {key: tuple((str(one), str(two)) for one, two in given.get(key, ())) for key in _PAIRS}
        wish = _Wish(
            named=tuple(name for name in CHANGES if name in given.get("named", ())),
            host=str(given.get("host", "x1")),
            transfers=str(given.get("transfers", "x1")),
            like_median=given.get("like_median") is True,
            ranks=tuple(int(one) for one in given.get("ranks", ())),
            **pairs,
        )
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise StepscopeError('a change is sent as JSON: {"named": ["graph"]}') from error
    if len(wish.kernels) + len(wish.ranges) > _MOST_PATTERNS:
        raise StepscopeError(f"at most {_MOST_PATTERNS} patterns are simulated at once")
    return wish


_PAIRS = ("kernels", "ranges")


def _word(opened: Opened, trace: OpenTrace) -> Sequence[str]:
    return (str(opened.against),) if trace.key == "before" else opened.typed


def _command(words: Sequence[str], more: Iterator[str]) -> str:
    """The same as a command; empty where a command takes one word, and several are open."""
    said = [*more]
    return shlex.join(["stepscope", "whatif", words[0], *said]) if said and len(words) == 1 else ""
