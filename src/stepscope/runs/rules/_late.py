"""Ranks that others wait for, as the rules about them tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.findings import Figure, Location, Saving
from stepscope.findings._simulated import DOUBT
from stepscope.findings.claims import Claim, Part, Time
from stepscope.records import dataclass
from stepscope.runs.simulation import RankChange

if TYPE_CHECKING:
    from stepscope.runs.analyses.stragglers import Straggler
    from stepscope.runs.mean_step import RunMeanStep

__all__ = ["WAITING", "LateRanks", "changes_of", "claims_of", "late_ranks", "named"]

WAITING = frozenset({Claim(Time.WAITED, Part.COMMUNICATION)})
"""What the others wait for a late rank is communication that is exposed."""
OWN_TIME = {
    "input": ("input",),
    "more work": ("compute", "copies"),
    "slower device": ("compute",),
    "host": ("host", "sync"),
    "memory": ("memory",),
    "collector": ("collector",),
    "compiling": ("compiling",),
    "other": ("other",),
}
"""The parts of own time by which a cause shows."""
MOST_NAMED = 4
MAIN, ALONG = "more work", "host"
MINOR = 0.2
"""Causes with less than this part of what a rank's main cause costs are left out."""


@dataclass(frozen=True, slots=True)
class LateRanks:
    """Ranks that are late for one cause, most expensive first."""

    rows: tuple[Straggler, ...]
    cause: str
    saving: Saving
    share: float
    """What could be gained at most, as a part of the step."""

    @property
    def worst(self) -> Straggler:
        """The one that costs most."""
        return self.rows[0]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(row.rank for row in self.rows)

    def story(self, run_step: RunMeanStep, what: str) -> str:
        """Who is late for what, and what the others lose by it."""
        worst = self.worst
        others = (
            f"; so {'are' if len(self.rows) > 2 else 'is'} {named(self.ranks[1:])}" if self.rows[1:] else ""
        )
        return (
            f"{_capital(_who(worst))} {what} and arrives {units.duration(worst.late_ns)} late in a step, "
            f"last in {units.share(worst.last_share)} of its collectives{others}. The others together wait "
            f"{units.duration(sum(row.cost_ns for row in self.rows))} a step for "
            f"{'it' if len(self.rows) == 1 else 'them'}; the run's step takes "
            f"{units.duration(run_step.step_ns)}."
        )

    @property
    def evidence(self) -> dict[str, Figure]:
        """The figures of the most expensive one, and who else there is."""
        worst = self.worst
        return {
            "rank": worst.rank,
            "host": worst.host,
            "ranks": ",".join(map(str, self.ranks)),
            "cause": self.cause,
            "late_ns": worst.late_ns,
            "cost_ns": sum(row.cost_ns for row in self.rows),
            "last_share": worst.last_share,
            "steps": worst.steps,
            "place": worst.place,
        }

    @property
    def locations(self) -> tuple[Location, ...]:
        """Where in the code, if it is known."""
        from stepscope.findings import locations_of

        return locations_of((row.place, f"on rank {row.rank}") for row in self.rows)


def late_ranks(
    stragglers: Iterable[Straggler], cause: str, run_step: RunMeanStep, least_share: float
) -> LateRanks | None:
    """The ranks that are late for a cause, if the run's step loses at least that part by it.

    The gain is played: their time for it comes down to the median rank's. At most it is what they are late
    for it, as nobody waits longer than that in a step. A cause that is minor on a rank which is late for
    something else is left out: once that is fixed, it shows whether it stays.
    """
    every = list(stragglers)
    most_of: dict[int, int] = {}
    for row in every:
        most_of[row.rank] = max(most_of.get(row.rank, 0), row.cost_ns)
    rows = tuple(row for row in every if row.cause == cause and row.cost_ns >= MINOR * most_of[row.rank] > 0)
    rows = tuple(row for row in rows if not _goes_along(row, every))
    if not rows:
        return None
    rows = tuple(row for row in rows if 10 * row.cost_ns >= rows[0].cost_ns)
    changes = changes_of([row.rank for row in rows], cause)
    saving = _at_most(_scaled(run_step.saving(changes), _part(every, rows)), sum(row.late_ns for row in rows))
    along = [row for row in every if row.rank in {one.rank for one in rows} and _goes_along(row, every)]
    if cause == MAIN and along:
        more = changes_of([row.rank for row in rows], ALONG)
        most = run_step.saving([*changes, *more]).waited_ns[1]
        most = min(most, DOUBT[1] * sum(row.late_ns for row in (*rows, *along)))
        saving = Saving(waited_ns=(saving.waited_ns[0], max(saving.waited_ns[1], most)))
    share = run_step.share(saving.waited_ns[1])
    return LateRanks(rows, cause, saving, share) if share >= least_share else None


def _goes_along(row: Straggler, every: Sequence[Straggler]) -> bool:
    """Whether a rank's host is late because of its work: more of it takes more operators and launches."""
    work = max((one.cost_ns for one in every if one.rank == row.rank and one.cause == MAIN), default=0)
    return row.cause == ALONG and work > row.cost_ns


def _part(stragglers: Sequence[Straggler], rows: Sequence[Straggler]) -> float:
    """Which part of the played time is these rows': more work and a slower device both show in computing."""
    ranks, parts = {row.rank for row in rows}, set(OWN_TIME[rows[0].cause])
    alike = [row for row in stragglers if row.rank in ranks and parts & set(OWN_TIME.get(row.cause, ()))]
    return sum(row.cost_ns for row in rows) / max(1, sum(row.cost_ns for row in alike))


def _scaled(saving: Saving, part: float) -> Saving:
    low, high = saving.waited_ns
    return Saving(waited_ns=(low * part, high * part))


def _at_most(saving: Saving, late_ns: float) -> Saving:
    """No more than the lateness, with the doubt of a simulation."""
    low, high = saving.waited_ns
    return Saving(waited_ns=(min(low, DOUBT[0] * late_ns), min(high, DOUBT[1] * late_ns)))


def changes_of(ranks: Sequence[int], cause: str) -> list[RankChange]:
    """What is played for a cause: these ranks spend no more on it than the median rank."""
    return [RankChange(tuple(sorted(ranks)), part, like="median rank") for part in OWN_TIME[cause]]


_CLAIMS = {
    "input": (Claim(Time.WAITED, Part.DATALOADER),),
    "more work": (Claim(Time.DEVICE),),
    "slower device": (Claim(Time.DEVICE),),
    "host": (Claim(Time.STARVED), Claim(Time.WAITED, Part.PYTHON)),
    "memory": (Claim(Time.STARVED, Part.ALLOCATION), Claim(Time.WAITED, Part.ALLOCATION)),
    "collector": (Claim(Time.STARVED, Part.PYTHON), Claim(Time.WAITED, Part.PYTHON)),
    "compiling": (Claim(Time.STARVED, Part.COMPILATION), Claim(Time.WAITED, Part.COMPILATION)),
}
"""What the report on the late rank itself may promise as well."""


def claims_of(cause: str) -> frozenset[Claim]:
    """Which time a finding about a late rank wants to save: the others' waiting, and what that rank does."""
    return WAITING | frozenset(_CLAIMS.get(cause, ()))


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3 and 5`, `ranks 1, 2, 3, 4 and 12 others`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MOST_NAMED:
        shown, rest = [str(rank) for rank in ranks[:MOST_NAMED]], f"{len(ranks) - MOST_NAMED} others"
        return f"ranks {', '.join(shown)} and {rest}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _who(row: Straggler) -> str:
    return f"rank {row.rank}" + (f" on {row.host}" if row.host else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
