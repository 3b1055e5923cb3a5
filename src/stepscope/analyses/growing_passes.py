"""Passes over sequences that grow by one token each time."""

from __future__ import annotations

import re
from math import prod
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["GrowingPasses", "growing_passes"]

LEAST_PASSES = 4
"""Shorter runs may be chance: batches of different lengths, one after the other."""


@dataclass(frozen=True, slots=True)
class GrowingPasses:
    """Embeddings of one table, one after the other, each with one token more than the one before."""

    thread: Annotated[int, "Thread that they ran on."]
    table: Annotated[str, "Size of the table of embeddings."]
    batch: Annotated[int, "Sequences in each."]
    passes: Annotated[int, "How many there are."]
    first_length: Annotated[int, "Tokens of a sequence in the first."]
    last_length: Annotated[int, "Tokens of a sequence in the last."]
    tokens: Annotated[int, "Tokens of all of them, padding included."]
    start_ns: Annotated[int, "When the first began, in ns since the epoch."]
    dur_ns: Annotated[int, "From there until the last began."]


# The indices of an embedding are its second input, and the length of the sequences is its last dimension.
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
    placed AS (
        SELECT *, length - row_number() OVER calls AS run FROM sized
        WINDOW calls AS (PARTITION BY thread, size, batch ORDER BY start_ns, event))
    SELECT thread, size, batch, count(*) AS passes, min(length) AS first_length, max(length) AS last_length,
           sum(length)::BIGINT AS lengths, min(start_ns) AS start_ns,
           max(start_ns) - min(start_ns) AS dur_ns
    FROM placed GROUP BY thread, size, batch, run HAVING count(*) >= {LEAST_PASSES}
    ORDER BY min(start_ns), size
"""


@analysis(reads={"ops": ("event", "name", "thread", "start_ns", "args")})
def growing_passes(trace: Trace) -> Table[GrowingPasses]:
    """Lists runs of forward passes in which every sequence gets one token longer, from recorded shapes.

    This is how text is generated without a cache of keys and values: every pass computes all tokens again.
    With a cache, passes after the first have one token.
    """
    if not trace.may_have_name("^aten::embedding$"):
        return Table.of(GrowingPasses, [], ["Nothing is embedded."])
    rows = [
        GrowingPasses(
            thread=run["thread"],
            table=" × ".join(re.findall(r"\d+", run["size"])),
            batch=(batch := prod(map(int, re.findall(r"\d+", run["batch"])))),
            passes=run["passes"],
            first_length=run["first_length"],
            last_length=run["last_length"],
            tokens=batch * run["lengths"],
            start_ns=run["start_ns"],
            dur_ns=run["dur_ns"],
        )
        for run in trace.rows(_SQL)
    ]
    nothing = [] if rows else ["No run of passes grows by one token each, or no shapes were recorded."]
    return Table.of(GrowingPasses, rows, nothing)
