"""What a window is about: a trace or a run, and perhaps one to compare it with, opened in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cluster.comparing import run_with_ranks, sides_of
from stepscope.cluster.opening import open_run
from stepscope.cluster.reporting import report_on_ranks
from stepscope.compare.build import compare, names_of
from stepscope.errors import StepscopeError
from stepscope.findings.build import MANY_EVENTS, build_report
from stepscope.findings.thresholds import Thresholds
from stepscope.opening import check_pipes, open_pass, open_trace, recordings_of, report_on_run
from stepscope.present.formats import needs_of
from stepscope.present.report.html import html
from stepscope.records import dataclass
from stepscope.runs.choosing import choose_pass, choose_rank
from stepscope.runs.finding import run_of
from stepscope.store.timeline import prepare_timeline
from stepscope.web.background import Background, Kept, State
from stepscope.web.page import listed
from stepscope.web.report_process import report_of_child

if TYPE_CHECKING:
    from stepscope.compare import Comparison, RanksOfSide
    from stepscope.findings.report import Report
    from stepscope.runs import Run
    from stepscope.runs.many import ManyRanks
    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = ["OpenTrace", "Opened", "State"]


@dataclass(eq=False)
class OpenTrace:
    """One trace of a window, with what was worked out of it. Many may ask at once."""

    key: str
    """Names it in addresses: `t` for the only one, `rank3` of a run, `before` of two."""
    name: str
    trace: Trace
    make_report: Callable[[], Report]
    also: tuple[Trace, ...] = ()
    """Further recordings of the same program, for a comparison."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """For who has to be alone with it."""
    _kept: Kept = field(default_factory=Kept)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once; who asks for the same meanwhile waits for it."""
        return self._kept.once(key, make)

    def report(self) -> Report:
        """The report on it; of the rank of a run, on that rank alone."""
        found: Report = self.once("report", self.make_report)
        return found


class Opened:
    """What was named on the command line, opened in a thread of its own."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        against: str | None = None,
        store: Path | None = None,
        thresholds: Thresholds | None = None,
        listener: Progress | None = None,
    ) -> None:
        self.words = tuple(words)
        self.typed = self.words
        """How commands name the same: `--demo` has no path that anybody should type."""
        self.against = against
        self.run: Run | None = None
        self.many: ManyRanks | None = None
        """All ranks together; None where one trace was named."""
        self._store = store
        self._thresholds = thresholds
        self._default = ""
        self._traces: dict[str, OpenTrace] = {}
        self._lock = threading.Lock()
        self._ranks: dict[str, Background[OpenTrace]] = {}
        self.alone = threading.RLock()
        """For who has to be alone with all ranks."""
        self._kept = Kept()
        self._sides: list[RanksOfSide] = []
        self._all = Background(self._open_all, listener)

    @property
    def state(self) -> State:
        """How far the opening is."""
        return self._all.state

    def start(self) -> None:
        """Begins to open; `state` tells how far it is."""
        self._all.begin()

    def wait(self) -> None:
        """Returns when all is open; raises what went wrong."""
        self._all.found()

    def ended(self, seconds: float | None = None) -> bool:
        """Waits, at most so long; whether the opening is done or has failed."""
        return self._all.ended(seconds)

    @property
    def name(self) -> str:
        """What is shown for all that is open."""
        return self.words[0] if len(self.words) == 1 else f"{self.words[0]} and {len(self.words) - 1} more"

    @property
    def keys(self) -> list[str]:
        """The traces that can be looked at, opened already or not."""
        if self.run is not None and self.many is not None:
            return [f"rank{record.rank}" for record in self.run.profiled]
        return list(self._traces)

    def state_of(self, key: str | None = None) -> State:
        """How far one trace is; a rank that nobody looked at yet begins to be opened."""
        if not self.state.ready or not self.keys:
            return self.state
        wanted = self._known(key)
        return self.state if wanted in self._traces else self._rank(wanted).state

    def trace(self, key: str | None = None) -> OpenTrace:
        """A trace by its key; of a run, a rank is opened when it is first looked at."""
        wanted = self._known(key)
        return self._traces.get(wanted) or self._rank(wanted).found()

    def report(self) -> Report:
        """The report on all that is open: of a run, on all of its ranks."""
        run, many = self.run, self.many
        if run is None or many is None:
            return self.trace().report()
        found: Report = self._kept.once(
            "report",
            lambda: report_on_ranks(
                run,
                many,
                thresholds=self._thresholds,
                tables=needs_of(html).tables,
                store=self._store,
                progress=self._all.progress,
            ),
        )
        return found

    def comparison(self) -> Comparison:
        """What changed from the one trace to the other."""
        sides = [self.trace("before"), self.trace("after")]
        names = names_of([str(self.against), self.words[0]])
        found: Comparison = self._kept.once(
            "comparison",
            lambda: compare(
                [(name, [side.trace, *side.also]) for name, side in zip(names, sides, strict=True)],
                thresholds=self._thresholds,
                ranks=self._sides,
            ),
        )
        return found

    def _known(self, key: str | None) -> str:
        wanted = key or self._default
        if not self.keys:
            raise StepscopeError("no rank of this run has a profile here", hint="look at findings and ranks")
        if wanted not in self.keys:
            few = ", ".join(self.keys[:9])
            raise StepscopeError(f"there is no trace {wanted[:99]!r}", hint=f"there are {few}")
        return wanted

    def _rank(self, key: str) -> Background[OpenTrace]:
        run = self.run
        if run is None:
            raise StepscopeError("no run is open")
        with self._lock:
            known = self._ranks.get(key)
            # One that failed is tried again: what was wrong may have been put right.
            if known is None or known.state.problem:
                rank = int(key.removeprefix("rank"))
                known = Background(lambda progress: self._of_run(run, key, rank, progress)).begin()
                self._ranks[key] = known
            return known

    def _open_all(self, progress: Progress) -> None:
        if self.against is not None:
            self._open_two(self.against, progress)
            return
        run = run_of(self.words)
        if run is not None and len(run.told) > 1:
            self._open_run(run, progress)
        elif run is not None:
            self._traces["t"] = self._of_run(run, "t", None, progress)
            self._default = "t"
        else:
            self._traces["t"] = self._side("t", self.words, progress)
            self._default = "t"
        for one in self._traces.values():
            threading.Thread(target=_prepare, args=(one.trace,), name="preparing", daemon=True).start()

    def _open_two(self, against: str, progress: Progress) -> None:
        """Both sides of a comparison; of two runs all ranks, and one and the same rank to look at."""
        check_pipes([*self.words, against])
        words = {"before": [against], "after": [*self.words]}
        runs = [run for one in words.values() if (run := run_with_ranks(one)) is not None]
        rank = None
        if len(runs) == 2:
            opened = [open_run(run, store=self._store, progress=progress) for run in runs]
            rank, self._sides = sides_of(runs, opened)
        for key, named in words.items():
            self._traces[key] = self._side(key, named, progress, rank)
        self._default = "after"

    def _open_run(self, run: Run, progress: Progress) -> None:
        """All ranks by their summaries; those with a profile are opened when they are first looked at."""
        many = open_run(run, store=self._store, progress=progress)
        failed = {one.rank for one in many.failed}
        for record in (*(one for one in run.profiled if one.rank not in failed), *run.profiled)[:1]:
            self._default = f"rank{record.rank}"
        self.run, self.many = run, many

    def _side(self, key: str, words: Sequence[str], progress: Progress, rank: int | None = None) -> OpenTrace:
        """A profile, a rank of a run, or several recordings of one program."""
        run = None
        with suppress(StepscopeError):  # two profiles of one rank are repetitions
            run = run_of(words)
        if run is not None:
            return self._of_run(run, key, rank, progress)
        recordings = [one for word in words for one in recordings_of(word)]
        first, *more = (open_trace(one, store=self._store, progress=progress) for one in recordings)
        return OpenTrace(key, recordings[0], first, lambda: self._report_on(first), tuple(more))

    def _of_run(self, run: Run, key: str, rank: int | None, progress: Progress) -> OpenTrace:
        chosen = choose_rank(run, rank)
        one = choose_pass(chosen)
        trace = open_pass(chosen, one, store=self._store, progress=progress)
        name = one.word if rank is None else f"rank {rank}"
        if chosen.light is None and chosen.full is None:
            return OpenTrace(key, name, trace, lambda: self._report_on(trace))
        return OpenTrace(
            key,
            name,
            trace,
            lambda: report_on_run(
                chosen, thresholds=self._thresholds, tables=needs_of(html).tables, store=self._store
            ),
        )

    def _report_on(self, trace: Trace) -> Report:
        if trace.meta.events > MANY_EVENTS:
            return report_of_child(trace, self._thresholds, needs_of(html).tables)
        return build_report(trace, thresholds=self._thresholds, tables=needs_of(html).tables)


def _prepare(trace: Trace) -> None:
    """While the browser starts: every page names all others, and the timeline takes longest to show."""
    listed()
    with suppress(StepscopeError):  # who needs what is damaged will be told
        prepare_timeline(trace)
