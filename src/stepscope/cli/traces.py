"""What every command does with its TRACE: opens it with progress, or takes the small one of the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from stepscope import units
from stepscope.cli._quick_arrow import quick_arrow
from stepscope.cli.output import notice
from stepscope.errors import StepscopeError
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.cluster.opening import EngineName, Where
    from stepscope.compare import Comparison, RanksOfSide
    from stepscope.runs import Pass, PassName, Run
    from stepscope.runs.choosing import ChosenRank
    from stepscope.runs.many import ManyRanks
    from stepscope.store.trace import Trace

__all__ = [
    "DEMO",
    "AddressOption",
    "ComparedRankOption",
    "EngineOption",
    "PassOption",
    "RankOption",
    "RanksOption",
    "WantedPass",
    "WorkersOption",
    "at_work",
    "chosen_rank",
    "compared",
    "here",
    "open_run_with_progress",
    "open_with_progress",
]

RankOption = Annotated[int | None, "of a run, the rank; default: the lowest with a profile"]
ComparedRankOption = Annotated[
    int | None, "of runs, the rank; default: of several ranks the one that sets the pace of the first run"
]
RanksOption = Annotated[
    int | Literal["all"] | None, "of a run, the rank, or all of them; default: the lowest with a profile"
]
PassOption = Annotated[
    Literal["light", "full"] | None, "of a run, the profile; default: light for times, full for places"
]
"""What commands take whose TRACE may be the folder of a run."""

EngineOption = Annotated[
    Literal["local", "ray"], "what reads the ranks of a run: processes on this machine, or a cluster of Ray"
]
AddressOption = Annotated[str | None, "the cluster of Ray; default: $RAY_ADDRESS, or one on this machine"]
WorkersOption = Annotated[int | None, "how many ranks are read at a time; default: as fit the machine"]
"""What commands take that look at all ranks of a run."""

DEMO = Path(__file__).parent.parent / "demo" / "slow_item.pt.trace.json.gz"
"""A real profile in the package: ten steps on an H200 of a loop that reads a scalar in every layer."""


def open_with_progress(
    trace: str | None,
    *,
    also: Sequence[str] = (),
    store: Path | None = None,
    demo: bool = False,
    refresh: bool = False,
    wanted: WantedPass | None = None,
) -> Trace:
    """Opens the trace of a command line; of a run the pass that is wanted, and says which that is."""
    import stepscope
    from stepscope.cli.progress import ProgressLine
    from stepscope.opening import open_pass

    quick_arrow()
    if (trace is None) != demo:
        problem = "give either a trace or --demo, not both" if demo else "no trace given"
        raise StepscopeError(problem, hint="name a profile, or use --demo", exit_code=2)
    source = str(DEMO) if trace is None else trace
    wanted = wanted or WantedPass()
    if (chosen := chosen_rank(source, wanted)) is not None:
        one = _told(chosen, wanted)
        return open_pass(chosen, one, also=also, store=store, refresh=refresh, progress=ProgressLine())
    return stepscope.open(source, also=also, store=store, refresh=refresh, progress=ProgressLine())


def at_work(engine: EngineName, address: str | None, workers: int | None, store: Path | None) -> Where:
    """Where the ranks of a run are read, as the options say."""
    from stepscope.cluster.opening import Where

    return Where(engine, address, workers, store)


def open_run_with_progress(run: Run | str | Sequence[str], where: Where) -> ManyRanks:
    """Opens a run, and says which of its ranks could not be read."""
    from stepscope.cli.progress import ProgressLine
    from stepscope.cluster.opening import open_run

    quick_arrow()
    opened = open_run(
        run,
        engine=where.engine,
        address=where.address,
        workers=where.workers,
        store=where.store,
        progress=ProgressLine(),
    )
    for one in opened.failed:
        notice(f"rank {one.rank} could not be read: {one.reason} ({one.source})")
    return opened


@dataclass(frozen=True, slots=True)
class WantedPass:
    """Which profile of a run a command is about."""

    rank: int | None = None
    """The one that was typed; None for the lowest with a profile."""
    name: PassName | None = None
    """The one that was typed."""
    needed: str = ""
    """What only a full pass has and the command needs: stacks, shapes or memory."""


def chosen_rank(word: str, wanted: WantedPass) -> ChosenRank | None:
    """The rank of the run that a word names; None if it names no run, and then nothing can be chosen."""
    from stepscope.runs.choosing import choose_rank
    from stepscope.runs.finding import is_one_profile
    from stepscope.runs.reading import read_run, run_folder

    folder = run_folder(word)
    if folder is not None:
        return choose_rank(read_run(folder), wanted.rank)
    if wanted.name is None and not is_one_profile(word):
        from contextlib import suppress

        from stepscope.runs.finding import find_run

        if wanted.rank is not None:
            return choose_rank(find_run([word]), wanted.rank)
        run = None
        with suppress(StepscopeError):  # opening it will say what is wrong with it
            run = find_run([word])
        if run is not None and len(run.told) == 1 and run.told[0].beside:
            for note in run.notes:
                notice(note)
            return choose_rank(run)
    if wanted.rank is not None or wanted.name is not None:
        option = "--pass" if wanted.rank is None else "--rank"
        raise StepscopeError(
            f"{word} is not the folder of a run, so {option} has nothing to choose from",
            hint="stepscope run writes such a folder",
            exit_code=2,
        )
    return None


def _told(chosen: ChosenRank, wanted: WantedPass) -> Pass:
    """The pass that a command takes, once it was said which."""
    from stepscope.runs.choosing import choose_pass

    one = choose_pass(chosen, wanted.name, wanted.needed)
    kind = "profile" if one.name == "profile" else f"{one.name} pass"
    said = f"{kind} of rank {chosen.record.rank}: {one.word}"
    others = {other.name for other in chosen.record.passes} - {one.name}
    if wanted.needed and wanted.name is None and others:
        said += f", for only it has {wanted.needed} (--pass light takes the other)"
    elif wanted.needed and wanted.name is None and one.name == "light":
        said += f", which has no {wanted.needed}: there is no full pass"
    if len(chosen.ranks) > 1 and wanted.rank is None:
        said += f"; --rank N takes another of {units.count(len(chosen.ranks))}"
    notice(said)
    return one


def compared(words: Sequence[str], *, store: Path | None = None, rank: int | None = None) -> Comparison:
    """Compares the sides of a command line, each a word that names one recording or several.

    Of runs with many ranks, the rank that sets the pace of the first is compared in depth.
    """
    from stepscope.cli.progress import ProgressLine
    from stepscope.cluster.comparing import run_with_ranks
    from stepscope.compare.build import compare, names_of
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.opening import check_pipes, recordings_of

    thresholds = nearest_thresholds(here())
    runs = [run_with_ranks([word]) for word in words]
    ranks: list[RanksOfSide] = []
    if rank is None and all(runs):
        rank, ranks = _together([one for one in runs if one], store)
    found = [[word] if run else recordings_of(word) for word, run in zip(words, runs, strict=True)]
    check_pipes([one for side in found for one in side])
    traces = [
        [_rank_of(run, rank, store)] if run else [_side(one, store, rank) for one in side]
        for run, side in zip(runs, found, strict=True)
    ]
    named = zip(names_of(words), traces, strict=True)
    return compare(list(named), thresholds=thresholds, ranks=ranks, progress=ProgressLine())


def _together(runs: Sequence[Run], store: Path | None) -> tuple[int, list[RanksOfSide]]:
    """The rank to compare in depth, and what all ranks of each side show together."""
    from stepscope.cluster.comparing import sides_of

    return sides_of(runs, [open_run_with_progress(run, at_work("local", None, None, store)) for run in runs])


def _rank_of(run: Run, rank: int | None, store: Path | None) -> Trace:
    """A rank of a run to compare."""
    from stepscope.cli.progress import ProgressLine
    from stepscope.opening import open_pass
    from stepscope.runs.choosing import choose_rank

    chosen = choose_rank(run, rank)
    return open_pass(chosen, _told(chosen, WantedPass(rank)), store=store, progress=ProgressLine())


def _side(word: str, store: Path | None, rank: int | None) -> Trace:
    """A recording to compare: of a run the light pass, as long as it has one."""
    return open_with_progress(word, store=store, wanted=WantedPass(rank))


def here() -> Path:
    """The folder in which the command was typed; the root of all where it is gone."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")
