"""Batches that the first call of a new DataLoader iterator gives."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["WITH_WORKERS", "LoaderStart", "loader_starts"]

_RANGE = "enumerate(DataLoader)#"
_SEED, _READ = "aten::random_", "aten::item"
_SHUFFLE = "aten::randperm"
_OF_LISTS = ("aten::resolve_conj", "aten::resolve_neg")
"""Called by tolist() before it makes the list."""
_APART_NS = 200_000
_OF_SEED = 3
"""Operators that draw a seed: so many from one that is read to the next that is read right after."""
WITH_WORKERS = "_MultiProcessingDataLoaderIter"
"""Class of an iterator whose batches other processes load."""
_ENDING_NS = 1_000_000
"""A last call that takes less ends no processes: they are kept."""
_AN_EPOCH = 2
"""Where an iterator is asked so often, the last call finds that it is at its end."""


@dataclass(frozen=True, slots=True)
class LoaderStart:
    """Batches of one kind of DataLoader iterator in the steps."""

    loader: Annotated[str, "Class of the iterator: it tells whether there are workers."]
    user_frame: Annotated[
        str | None, "Function of the user's code that makes most of them; needs with_stack=True."
    ]
    batches: Annotated[int, "Batches that were taken in the steps."]
    starts: Annotated[int, "Those that were the first of a new iterator."]
    steps: Annotated[int, "Steps that took one of these."]
    start_up_ns: Annotated[
        int, "Time from the making of these iterators to their batch, without loading it: workers, shuffling."
    ]
    whole_ns: Annotated[int, "Time from their making to the next operator of the program: the list is freed."]
    making_ns: Annotated[int, "The part of it before the first call of each: with workers, they are started."]
    ending_ns: Annotated[
        int,
        "Time of the last call of as many iterators, which ends their workers; 0 where each gives one batch.",
    ]

    @property
    def has_workers(self) -> bool:
        """Whether other processes load the batches."""
        return self.loader == WITH_WORKERS

    @property
    def ends_workers(self) -> bool:
        """Whether workers were ended with an epoch, and others started for the next."""
        return self.has_workers and self.starts > 0 and self.ending_ns >= _ENDING_NS * self.starts


# A new iterator draws a seed at once. With its first batch, or once its workers are started, a sampler that
# shuffles draws another, permutes all indices and makes a list of them.
_SQL = f"""
    WITH loads AS (
        SELECT s.step, a.thread, split_part(split_part(a.name, '#', 2), '.', 1) AS loader, a.start_ns,
               a.start_ns + coalesce(a.dur_ns, 0) AS end_ns,
               lag(a.start_ns + coalesce(a.dur_ns, 0)) OVER (PARTITION BY a.thread ORDER BY a.start_ns)
                   AS before_ns,
               lag(coalesce(a.dur_ns, 0)) OVER (PARTITION BY a.thread ORDER BY a.start_ns) AS last_ns
        FROM annotations a JOIN steps s ON a.start_ns >= s.host_start_ns AND a.start_ns < s.host_end_ns
        WHERE starts_with(a.name, '{_RANGE}')),
    called AS (
        SELECT event, thread, name, start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns,
               row_number() OVER (PARTITION BY thread ORDER BY start_ns, event) AS number FROM ops
        WHERE depth = 0 AND thread IN (SELECT thread FROM loads)),
    drawn AS (
        SELECT event, thread, name, number, start_ns, lag(start_ns) OVER near AS since,
               lag(name) OVER near = '{_SEED}' AND start_ns - lag(end_ns) OVER near <= {_APART_NS} AS seeds
        FROM called WHERE name IN ('{_SEED}', '{_READ}')
        WINDOW near AS (PARTITION BY thread ORDER BY start_ns)),
    seeded AS (
        SELECT *, CASE WHEN number - lag(number) OVER after <= {_OF_SEED}
                       THEN lag(since) OVER after END AS first_ns
        FROM drawn WHERE seeds AND name = '{_READ}'
        WINDOW after AS (PARTITION BY thread ORDER BY number)),
    started AS (
        SELECT l.*, d.event AS seed,
               CASE WHEN d.first_ns > coalesce(l.before_ns, 0) THEN d.first_ns
                    WHEN d.since > coalesce(l.before_ns, 0) THEN d.since END AS since
        FROM loads l ASOF LEFT JOIN seeded d ON d.thread = l.thread AND d.start_ns <= l.start_ns),
    shuffled AS (
        SELECT t.*, CASE WHEN r.end_ns <= t.end_ns THEN r.end_ns END AS shuffled_ns
        FROM started t ASOF LEFT JOIN (SELECT * FROM called WHERE name = '{_SHUFFLE}') r
          ON r.thread = t.thread AND r.start_ns >= t.start_ns),
    fetched AS (
        SELECT t.*, least(coalesce(c.start_ns, t.start_ns), t.end_ns) AS fetch_ns
        FROM shuffled t ASOF LEFT JOIN (SELECT * FROM called WHERE name NOT IN {_OF_LISTS}) c
          ON c.thread = t.thread AND c.start_ns >= t.shuffled_ns),
    followed AS (
        SELECT t.*, coalesce(c.start_ns, t.end_ns) AS until
        FROM fetched t ASOF LEFT JOIN called c ON c.thread = t.thread AND c.start_ns >= t.end_ns)
    SELECT loader, mode(c.name ORDER BY c.name) FILTER (since IS NOT NULL) AS user_frame,
           count(*) AS batches, count(since) AS starts,
           count(DISTINCT f.step) FILTER (since IS NOT NULL) AS steps,
           coalesce(sum(coalesce(fetch_ns, start_ns) - since), 0)::BIGINT AS start_up_ns,
           coalesce(sum(until - since), 0)::BIGINT AS whole_ns,
           coalesce(sum(f.start_ns - since), 0)::BIGINT AS making_ns,
           coalesce(CASE WHEN batches >= {_AN_EPOCH} * starts
                         THEN starts * avg(last_ns) FILTER (since IS NOT NULL) END, 0)::BIGINT AS ending_ns
    FROM followed f LEFT JOIN call_sites p ON p.event = f.seed LEFT JOIN call_tree c ON c.node = p.user_frame
    GROUP BY loader ORDER BY whole_ns DESC, loader
"""


@analysis(
    reads={
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
        "annotations": ("name", "thread", "start_ns", "dur_ns"),
        "ops": ("event", "thread", "name", "start_ns", "dur_ns", "depth"),
        "call_sites": ("event", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def loader_starts(trace: Trace) -> Table[LoaderStart]:
    """Tells batches that a new iterator of a DataLoader gives from those of one that goes on.

    `for batch in loader` makes one iterator for all batches of an epoch; `next(iter(loader))` makes one for
    each batch, which starts workers and shuffles the whole data set for it.
    """
    if not all(map(trace.may_have_name, (r"^enumerate\(DataLoader\)#", f"^{_SEED}$"))):
        return Table.of(LoaderStart, [], ["No iterator of a DataLoader is made in the profile."])
    rows = trace.query(LoaderStart, _SQL)
    nothing = [] if len(rows) else ["No batch of a DataLoader is taken in a step."]
    return Table.of(LoaderStart, rows, nothing + how_steps_were_found(trace))
