"""Passes over sequences that grow by one token each time."""

from __future__ import annotations

import re
from math import prod
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["GrowingPasses", "growing_passes"]

MOST_TABLES = 3
"""Embeddings of a pass: of tokens, of positions and of kinds of tokens, or those of an encoder."""
LEAST_PASSES = 4
"""Shorter runs may be chance: batches of different lengths, one after the other."""


@dataclass(frozen=True, slots=True)
class GrowingPasses:
    """Embeddings of one table, one after the other, each with one token more than the one before."""

    thread: Annotated[int, "Thread that they ran on."]
    table: Annotated[str, "Size of the table of embeddings; without shapes, its place among those of a pass."]
    batch: Annotated[int, "Sequences in each."]
    passes: Annotated[int, "How many there are."]
    first_length: Annotated[int, "Tokens of a sequence in the first."]
    last_length: Annotated[int, "Tokens of a sequence in the last."]
    tokens: Annotated[int, "Tokens of all of them, padding included."]
    start_ns: Annotated[int, "When the first began, in ns since the epoch."]
    dur_ns: Annotated[int, "From there until the last began."]


# The indices of an embedding are its second input, the length of the sequences is their last dimension. Where
# an encoder shares the table, its lookups stand between those that grow.
_SQL = f"""
    WITH looked_up AS (
        SELECT event, thread, start_ns,
               regexp_extract(args->>'$."Input Dims"', '^\\[\\[([\\d, ]+)\\], ?\\[((?:\\d+, ?)*)(\\d+)\\]',
                              ['size', 'batch', 'length']) AS dims
        FROM ops WHERE name = 'aten::embedding' AND start_ns IS NOT NULL),
    sized AS (
        SELECT event, thread, start_ns, dims.size AS size, dims.batch AS batch,
               try_cast(dims.length AS BIGINT) AS length
        FROM looked_up WHERE dims.length <> ''),
    numbered AS (
        SELECT *, row_number() OVER (PARTITION BY thread, size, batch ORDER BY start_ns, event) AS number
        FROM sized),
    placed AS (
        SELECT n.*, tables.range AS tables, n.number % tables.range AS place,
               length - row_number() OVER calls AS run
        FROM numbered n, range(1, {MOST_TABLES + 1}) tables
        WINDOW calls AS (
            PARTITION BY thread, size, batch, tables.range, n.number % tables.range ORDER BY number))
    SELECT thread, size, batch, count(*) AS passes, min(length) AS first_length, max(length) AS last_length,
           sum(length)::BIGINT AS lengths, min(start_ns) AS start_ns,
           max(start_ns) - min(start_ns) AS dur_ns
    FROM placed GROUP BY thread, size, batch, tables, place, run HAVING count(*) >= {LEAST_PASSES}
    ORDER BY min(start_ns), size
"""

# Without shapes: the kernel of a lookup has a block for each token. A pass may look up in several tables, so
# each place among the first few is tried; sequences grow by one token, so lookups grow by the batch.
_LAUNCHED = f"""
    WITH looked_up AS (
        SELECT e.event, e.thread, e.start_ns, try_cast((w.grid::JSON->>0) AS BIGINT) AS tokens
        FROM device_work w JOIN ops o ON o.event = w.op
        LEFT JOIN ops i ON i.event = o.parent LEFT JOIN ops e ON e.event = i.parent
        WHERE e.name = 'aten::embedding' AND w.name LIKE '%vectorized_gather_kernel%' AND w.grid IS NOT NULL),
    numbered AS (
        SELECT *, row_number() OVER (PARTITION BY thread ORDER BY start_ns, event) AS number FROM looked_up),
    placed AS (
        SELECT n.*, tables.range AS tables, n.number % tables.range AS place,
               tokens - lag(tokens) OVER calls AS batch, lag(n.start_ns) OVER calls AS before_ns,
               row_number() OVER calls AS call
        FROM numbered n, range(1, {MOST_TABLES + 1}) tables
        WINDOW calls AS (PARTITION BY thread, tables.range, n.number % tables.range ORDER BY number)),
    runs AS (
        SELECT *, call - row_number() OVER (PARTITION BY thread, tables, place, batch ORDER BY call) AS run
        FROM placed WHERE batch > 0),
    found AS (
        SELECT thread, tables, place, batch, count(*) + 1 AS passes, min(tokens) - batch AS first,
               max(tokens) AS last, min(before_ns) AS start_ns, max(start_ns) - min(before_ns) AS dur_ns
        FROM runs GROUP BY thread, tables, place, batch, run
        HAVING count(*) + 1 >= {LEAST_PASSES} AND (min(tokens) - batch) % batch = 0 AND min(tokens) > batch)
    SELECT thread, 'table ' || (place + 1) AS size, batch::VARCHAR AS batch, passes,
           first // batch AS first_length, last // batch AS last_length,
           (passes * (first + last) // 2 // batch)::BIGINT AS lengths, start_ns, dur_ns
    FROM found WHERE tables = (SELECT min(tables) FROM found) ORDER BY start_ns, size
"""


@analysis(
    reads={
        "ops": ("event", "name", "parent", "thread", "start_ns", "args"),
        "device_work": ("op", "name", "grid"),
    }
)
def growing_passes(trace: Trace) -> Table[GrowingPasses]:
    """Lists runs of forward passes in which every sequence gets one token longer.

    This is how text is generated without a cache of keys and values: every pass computes all tokens again.
    With a cache, passes after the first have one token. Lengths are those of recorded shapes, or else follow
    from the launches of embeddings, which have a block for each token in recent versions of torch.
    """
    if not trace.may_have_name("^aten::embedding$"):
        return Table.of(GrowingPasses, [], ["Nothing is embedded."])
    rows = [
        GrowingPasses(
            thread=run["thread"],
            table=" × ".join(part.strip() for part in run["size"].split(",")),
            batch=(batch := prod(map(int, re.findall(r"\d+", run["batch"])))),
            passes=run["passes"],
            first_length=run["first_length"],
            last_length=run["last_length"],
            tokens=batch * run["lengths"],
            start_ns=run["start_ns"],
            dur_ns=run["dur_ns"],
        )
        for run in trace.rows(_SQL) or _launched(trace)
    ]
    nothing = [] if rows else ["No run of passes grows by one token each, or no shapes were recorded."]
    return Table.of(GrowingPasses, rows, nothing)


def _launched(trace: Trace) -> list[dict[str, Any]]:
    """Runs in a profile without shapes; in training no text is generated."""
    trains = trace.has_name("^autograd::engine")
    return [] if trains or not trace.may_have_name("vectorized_gather_kernel") else trace.rows(_LAUNCHED)
