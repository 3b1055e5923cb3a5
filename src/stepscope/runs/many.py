"""A run of many ranks as the head sees it: their summaries, and tables over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from stepscope import registry
from stepscope.records import dataclass
from stepscope.runs import FailedRank
from stepscope.runs.summary import SUMMARY_TABLES, RankSummary
from stepscope.showing import InNotebook
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FailedRank", "ManyRanks", "Shelf"]


class Shelf(Protocol):
    """Where tables over all ranks are kept between commands."""

    def table(
        self, name: str, options: Mapping[str, Any], row: type, make: Callable[[], Table[Any]]
    ) -> Table[Any]:
        """A table with rows of that class: the one that was kept, or a new one."""


@dataclass(frozen=True)
class ManyRanks(InNotebook):
    """The summaries of a run, in the order of ranks."""

    name: str
    """What the user named."""
    summaries: Sequence[RankSummary]
    world_size: int | None = None
    failed: tuple[FailedRank, ...] = ()
    notes: tuple[str, ...] = ()
    """What has to be said of the run: how ranks were told apart, what is doubled or left out."""
    shelf: Shelf | None = None
    """Keeps the tables of analyses; None where nothing is kept."""
    _known: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a summary."""
        return tuple(one.facts.rank for one in self.summaries)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks below the world size without a summary."""
        there = set(self.ranks)
        return tuple(rank for rank in range(self.world_size or 0) if rank not in there)

    def host_of(self, rank: int) -> str:
        """The machine of a rank; empty if not known."""
        hosts: dict[int, str] = self.once(
            "hosts", lambda: {one.facts.rank: one.facts.host for one in self.summaries}
        )
        return hosts.get(rank, "")

    def stacked(self, name: str) -> pa.Table:
        """One of the `SUMMARY_TABLES` of all ranks, below one another, with the column `rank` first."""

        def stack() -> pa.Table:
            import pyarrow as pa

            if not self.summaries:
                empty = Table.of(SUMMARY_TABLES[name], []).arrow
                return empty.add_column(0, "rank", pa.array([], pa.int64()))
            return pa.concat_tables(
                one.tables[name].arrow.add_column(
                    0, "rank", pa.repeat(pa.scalar(one.facts.rank, pa.int64()), len(one.tables[name]))
                )
                for one in self.summaries
            )

        return self.once(("stacked", name), stack)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once for the run."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def table(self, name: str, /, **options: Any) -> Table[Any]:
        """The table of an analysis of runs, as `stepscope show` has it."""
        found: Table[Any] = registry.load("runs.analyses", name)(self, **options)
        return found
