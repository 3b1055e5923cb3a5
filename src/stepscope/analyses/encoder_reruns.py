"""Encoders that run again for every token, though nothing about their input changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from math import prod
from statistics import fmean
from typing import Annotated, Any, NamedTuple

from stepscope.analyses import analysis
from stepscope.analyses._around import is_shape
from stepscope.analyses._blame import names_of_nodes
from stepscope.analyses._windows import how_steps_were_found
from stepscope.analyses.growing_passes import GrowingPasses, growing_passes
from stepscope.costs.tensor_shapes import dims_of
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["EncoderReruns", "encoder_reruns"]

_LEAST_LAYERS = 4
"""Products of weights in an encoder. In a decoder, fewer lie between two operators whose work grows."""
_LEAST_NORMS = 2
"""Layer norms of constant size, which tell an encoder from a small decoder where shapes were not recorded:
their kernels have a block for each token."""
_INPUT_BYTES = 16
"""Of a token: its id and its mask. If more comes from the host, it may be new for each pass."""
_MOST_OPS = 1 << 14
"""In a pass. Those of larger ones are not compared."""
_LEAST_TURNS = 3
_LEAST_GROWING = 4
"""Operators of a decoder that do more in each pass: a layer has more of them."""
_NAMED = 6
_BLOCKS = "TRY_CAST((w.grid::JSON->>0) AS BIGINT)"
_GATHERED, _WIDEST = 1024, 16_384
"""Numbers of a block of torch's kernel for rows that are not aligned, and of a row at most: without shapes, a
lookup reads so many rows at least."""
_LONGER = 1.5
"""Times the products of one row of each sequence: so much longer are those of many rows, at least."""
_INDICES = late_pattern(r"\[\[[\d, ]+\], ?\[(\d[\d, ]*)\]")

# What has weights, and what is as large as the sequence in a decoder, which has products of any size.
_PRODUCT = r"^aten::(linear|addmm|mm|matmul|bmm|baddbmm|einsum|_?convolution|conv[123]d)$"
_LAYERS = r"^aten::(_transformer_encoder_layer_fwd|_native_multi_head_attention|lstm|gru|rnn_\w+)$"
_WIDE = r"attention|norm|softmax"
# Operators that choose a token. An encoder before the next pass comes after the last of them.
_CHOICE = r"^aten::(argmax|multinomial|topk|sort|max)$"


@dataclass(frozen=True, slots=True)
class EncoderReruns:
    """One encoder in a run of passes over sequences that grow by one token each time."""

    user_frame: Annotated[
        str | None, "Function of the user's code that calls most of it; needs with_stack=True."
    ]
    thread: Annotated[int, "Thread that it ran on."]
    reruns: Annotated[int, "How often it runs in the run of passes, less one."]
    passes: Annotated[int, "Passes in the run."]
    first_length: Annotated[
        int | None, "Tokens of a growing sequence in the first pass; NULL if keys and values are cached."
    ]
    last_length: Annotated[int | None, "The same in the last pass."]
    ops: Annotated[int, "Operators of the encoder; those inside them do not count."]
    first_ops: Annotated[str, "The first of them."]
    host_ns: Annotated[int, "From its first operator to the end of its last, in all reruns."]
    device_ns: Annotated[int, "Device time of the work in that time."]
    start_ns: Annotated[int, "When the first of these began, in ns since the epoch."]


# The lookups of a run of passes cut it into turns: from one that grows to the next. In turns of as many
# operators, those at the same place are compared: by their name, and by their shapes or by what they launch.
_SQL = f"""
    WITH runs AS (
        SELECT unnest($numbers::BIGINT[]) AS run, unnest($threads::BIGINT[]) AS thread,
               unnest($passes::BIGINT[]) AS passes, unnest($starts::BIGINT[]) AS since,
               unnest($ends::BIGINT[]) AS until),
    called AS (
        SELECT r.run, r.passes, r.thread, o.event, o.name, o.start_ns, p.user_frame,
               o.start_ns + coalesce(o.dur_ns, 0) AS end_ns, coalesce(o.device_once_ns, 0) AS device_ns,
               CAST(o.args->'$."Input Dims"' AS VARCHAR) AS dims
        FROM runs r JOIN ops o ON o.thread = r.thread AND o.start_ns >= r.since AND o.start_ns < r.until
        JOIN call_sites p ON p.event = o.event WHERE o.depth = 0 AND p.step IS NOT NULL),
    lookups AS (
        SELECT run, start_ns, row_number() OVER (PARTITION BY run ORDER BY start_ns, event) - 1 AS number,
               count(*) OVER (PARTITION BY run) AS lookups, passes - 1 AS turns
        FROM called WHERE name = 'aten::embedding'),
    turns AS (
        SELECT run, start_ns, turns, number // (lookups // turns) AS turn FROM lookups
        WHERE lookups % turns = 0 AND number % (lookups // turns) = 0),
    worked AS (
        SELECT c.event, list(coalesce(w.grid, w.bytes::VARCHAR, '') ORDER BY l.start_ns, w.event) AS work,
               coalesce(
                   max({_BLOCKS}) FILTER (w.name LIKE '%vectorized_gather_kernel%'),
                   max({_BLOCKS} * {_GATHERED} // {_WIDEST}) FILTER (w.name LIKE '%scatter_gather_elem%')
               ) AS rows_read,
               count(*) FILTER (w.name ILIKE '%layer_norm%') AS norms,
               sum(w.bytes) FILTER (regexp_matches(w.name, 'HtoD|HostToDevice')) AS brought,
               sum(w.bytes) FILTER (regexp_matches(w.name, 'DtoH|DeviceToHost')) AS taken
        FROM device_work w JOIN launches l ON l.event = w.launch
        ASOF JOIN called c ON c.thread = l.thread AND c.start_ns <= l.start_ns
        WHERE l.start_ns < c.end_ns GROUP BY c.event),
    placed AS (
        SELECT c.*, t.turns, t.turn, w.rows_read, w.norms, w.brought, w.taken,
               coalesce(c.dims, CAST(w.work AS VARCHAR), '') AS alike_by,
               row_number() OVER (PARTITION BY c.run, t.turn ORDER BY c.start_ns, c.event) AS place,
               count(*) OVER (PARTITION BY c.run, t.turn) AS ops
        FROM called c ASOF JOIN turns t ON t.run = c.run AND t.start_ns <= c.start_ns
        LEFT JOIN worked w ON w.event = c.event),
    usual AS (SELECT run, mode(ops ORDER BY ops) AS ops FROM placed GROUP BY run)
    SELECT p.run, p.place, min(p.name) AS name, count(*) AS turns, max(p.turns) AS all_turns,
           count(DISTINCT p.name) = 1 AND count(DISTINCT p.alike_by) = 1 AS alike,
           count(p.dims) > 0 AS shaped, regexp_matches(min(p.name), '{_PRODUCT}') AS product,
           regexp_matches(min(p.name), '{_LAYERS}') AS layers,
           regexp_matches(min(p.name), '{_CHOICE}') AS choice,
           regexp_matches(min(p.name), '{_WIDE}') AS wide, min(p.dims) AS dims,
           min(p.rows_read) AS rows_read, coalesce(min(p.norms), 0) AS norms,
           coalesce(max(p.brought), 0) AS brought, coalesce(max(p.taken), 0) AS taken,
           sum(p.start_ns - r.since)::BIGINT AS starts, sum(p.end_ns - r.since)::BIGINT AS ends,
           sum(p.device_ns)::BIGINT AS device_ns, min(p.start_ns) AS start_ns,
           mode(p.user_frame ORDER BY p.user_frame) AS user_frame
    FROM placed p JOIN usual u ON u.run = p.run AND u.ops = p.ops JOIN runs r ON r.run = p.run
    WHERE u.ops <= {_MOST_OPS} GROUP BY p.run, p.place ORDER BY p.run, p.place
"""

# With a cache each pass reads the tokens that were chosen just before: it begins with the lookup after that.
_CACHED = f"""
    WITH called AS (
        SELECT o.thread, o.start_ns, o.name, p.step
        FROM ops o JOIN call_sites p ON p.event = o.event
        WHERE o.depth = 0 AND p.step IS NOT NULL
          AND (o.name = 'aten::embedding' OR regexp_matches(o.name, '{_CHOICE}'))),
    passes AS (
        SELECT DISTINCT l.thread, l.step, l.start_ns
        FROM (SELECT * FROM called WHERE name <> 'aten::embedding') c
        ASOF JOIN (SELECT * FROM called WHERE name = 'aten::embedding') l
            ON l.thread = c.thread AND l.start_ns >= c.start_ns)
    SELECT thread, count(*) AS passes, min(start_ns) AS start_ns, max(start_ns) AS end_ns
    FROM passes GROUP BY thread, step HAVING count(*) > {_LEAST_TURNS} ORDER BY thread, step
"""

_Place = dict[str, Any]
"""An operator of a pass, as it is in all passes of a run."""


@analysis(
    reads={
        "steps": ("source",),
        "ops": ("event", "name", "thread", "start_ns", "dur_ns", "depth", "args", "device_once_ns"),
        "launches": ("event", "thread", "start_ns"),
        "device_work": ("event", "name", "launch", "grid", "bytes"),
        "call_sites": ("event", "step", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def encoder_reruns(trace: Trace) -> Table[EncoderReruns]:
    """Finds encoders that run again in every pass of a loop that generates token by token, in inference.

    In each pass of a run as `growing_passes` lists them, the sequence is one token longer. With a cache, a
    pass reads what was chosen just before, and attention reads more keys each time. Operators that do work of
    the same size in every pass, many in a row, between the choice of a token and the decoder that reads it,
    are an encoder whose result does not change.
    """
    if trace.may_have_name("^autograd::engine::evaluate_function"):
        return Table.of(EncoderReruns, [], ["The program trains: its encoder has to run in each pass."])
    runs = _growing(growing_passes(trace)) or _cached(trace)
    if not runs:
        return Table.of(EncoderReruns, [], ["No text is generated token by token."])
    rows = list(_found(trace, runs))
    nothing = [] if rows else ["In no run of passes an encoder does the same again in each."]
    return Table.of(EncoderReruns, rows, nothing + how_steps_were_found(trace))


class _Run(NamedTuple):
    """Passes of a decoder, one after the other."""

    thread: int
    passes: int
    start_ns: int
    end_ns: int
    """When the last began."""
    lengths: tuple[int, int] | None
    """Of its sequences, in the first and in the last; None if keys and values are cached."""
    batch: int | None


def _growing(passes: Table[GrowingPasses]) -> list[_Run]:
    """Runs that do not overlap: tokens and their positions grow at once, and tokens come as a batch."""
    runs: list[_Run] = []
    for run in sorted(passes, key=lambda run: (run.thread, run.start_ns)):
        if runs and runs[-1].thread == run.thread and run.start_ns < runs[-1].end_ns:
            # The earlier lookup cuts passes better; the larger batch tells how many sequences there are.
            runs[-1] = runs[-1]._replace(batch=max(run.batch, runs[-1].batch or 0))
        else:
            lengths = run.first_length, run.last_length
            end_ns = run.start_ns + run.dur_ns
            runs.append(_Run(run.thread, run.passes, run.start_ns, end_ns, lengths, run.batch))
    return runs


def _cached(trace: Trace) -> list[_Run]:
    """Runs of passes that read one token of each sequence, each after a choice of tokens."""
    if not trace.may_have_name(_CHOICE) or not trace.may_have_name("^aten::embedding$"):
        return []
    return [_Run(**row, lengths=None, batch=None) for row in trace.rows(_CACHED)]


def _found(trace: Trace, runs: list[_Run]) -> Iterator[EncoderReruns]:
    places = trace.rows(
        _SQL,
        numbers=list(range(len(runs))),
        threads=[run.thread for run in runs],
        passes=[run.passes for run in runs],
        starts=[run.start_ns for run in runs],
        ends=[run.end_ns for run in runs],
    )
    frames = names_of_nodes(trace, {place["user_frame"] for place in places})
    for number, of_run in groupby(places, key=lambda place: place["run"]):
        turn = list(of_run)
        run = _with_batch(runs[number], turn)
        encoder = _encoder(turn, run)
        if encoder:
            yield EncoderReruns(
                user_frame=frames.get(_usual_frame(encoder)),
                thread=run.thread,
                reruns=encoder[0]["turns"],
                passes=run.passes,
                first_length=run.lengths and run.lengths[0],
                last_length=run.lengths and run.lengths[1],
                ops=len(encoder),
                first_ops=", ".join(place["name"] for place in encoder[:_NAMED]),
                host_ns=encoder[-1]["ends"] - encoder[0]["starts"],
                device_ns=sum(place["device_ns"] for place in encoder),
                start_ns=encoder[0]["start_ns"],
            )


def _with_batch(run: _Run, turn: list[_Place]) -> _Run:
    """The run with the number of its sequences: with a cache, a pass looks up one token of each."""
    looked_up = [_looked_up(place) for place in turn if _is_lookup(place)]
    return run if run.batch else run._replace(batch=min(looked_up, default=0) or None)


def _encoder(turn: list[_Place], run: _Run) -> list[_Place]:
    """The longest stretch of a turn that is an encoder of an input that does not change; or nothing."""
    length = run.lengths[1] if run.lengths else 1
    most_bytes = _INPUT_BYTES * (run.batch or 1) * length
    repeated = 2 * turn[0]["turns"] > turn[0]["all_turns"] >= _LEAST_TURNS
    if not repeated or sum(place["brought"] for place in turn) > most_bytes:
        return []
    found: list[list[_Place]] = [[]]
    first = 0
    for alike, group in groupby(
        turn, key=lambda place: bool(place["alike"]) and not _may_be_tokens(place, run)
    ):
        after = first + len(list(group))
        start, end = _layers_in(turn, first, after) if alike else (after, after)
        stretch = turn[start:end]
        taken = sum(place["taken"] for place in stretch)
        if _layers(stretch) >= _LEAST_LAYERS and taken <= most_bytes and _is_encoder(turn, start, end, run):
            found.append(stretch)
        first = after
    return max(found, key=lambda stretch: stretch[-1]["ends"] - stretch[0]["starts"] if stretch else 0)


def _layers_in(turn: list[_Place], first: int, end: int) -> tuple[int, int]:
    """From the first to the last layer, or lookup, after the last choice of a token in these places."""
    chosen = max((at + 1 for at in range(first, end) if turn[at]["choice"]), default=first)
    layers = [at for at in range(chosen, end) if _is_large(turn[at]) or _is_lookup(turn[at])]
    return (layers[0], layers[-1] + 1) if layers else (end, end)


def _is_encoder(turn: list[_Place], start: int, end: int, run: _Run) -> bool:
    """Whether nothing that grows or was chosen leads to this stretch, and a decoder that grows follows.

    A turn begins with the lookup that grows. An encoder comes either before it, at the end of the turn and
    after the choice of a token, or after it, before the layers of the decoder and the choice.
    """
    choices = [at for at, place in enumerate(turn) if place["choice"]]
    before = [at for at in choices if at < start]
    if before:
        leads, decoder = turn[before[-1] : end], turn[: before[-1]]
        between = turn[before[-1] : start] + turn[end:]
    elif choices:
        leads, decoder = turn[:end], turn[end : choices[-1]]
        between = turn[:start]
        # Small decoders launch the same for a few tokens more or less: shapes tell, and layer norms.
        norms = sum(place["norms"] for place in turn[start:end])
        if run.lengths and not turn[0]["shaped"] and norms < _LEAST_NORMS:
            return False
    else:
        return False
    grows = sum(_grows(place) for place in decoder)
    return (
        grows >= _LEAST_GROWING
        and (run.lengths is not None or _reads_more(turn[start:end], decoder, run))
        and not any(_is_large(place) and not place["alike"] for place in between)
        and not any(place["alike"] and _may_be_tokens(place, run) for place in leads)
    )


def _grows(place: _Place) -> bool:
    """Whether it does more in each pass; a join to a cache may launch the same for a few tokens more."""
    return not place["alike"] or (place["name"] == "aten::cat" and not place["shaped"])


def _reads_more(stretch: list[_Place], decoder: list[_Place], run: _Run) -> bool:
    """Whether layers work on more than a row of each sequence, as those that follow a chosen token do."""
    if stretch[0]["shaped"]:
        read = [next(iter(dims_of(place["dims"])), None) for place in stretch if place["product"]]
        return any(is_shape(sizes) and prod(sizes[:-1]) > (run.batch or 1) for sizes in read)
    times = [
        [place["device_ns"] for place in places if place["product"] or place["layers"]]
        for places in (stretch, decoder)
    ]
    return bool(times[1]) and fmean(times[0]) > _LONGER * fmean(times[1])


def _may_be_tokens(place: _Place, run: _Run) -> bool:
    """Whether it looks up one row for each sequence, as for the chosen tokens, or nobody knows how many."""
    return _is_lookup(place) and _looked_up(place) in {0, 1, run.batch}


def _layers(places: list[_Place]) -> int:
    """Products in these; an operator of a whole layer has several."""
    return sum(_LEAST_LAYERS if place["layers"] else bool(place["product"]) for place in places)


def _is_large(place: _Place) -> bool:
    return bool(place["product"] or place["layers"] or place["wide"])


def _is_lookup(place: _Place) -> bool:
    return bool(place["name"] == "aten::embedding")


def _looked_up(place: _Place) -> int:
    """How many rows a lookup reads; 0 if that is not known."""
    indices = _INDICES.match(place["dims"] or "")
    return prod(map(int, indices[1].split(","))) if indices else place["rows_read"] or 0


def _usual_frame(places: list[_Place]) -> int | None:
    """The function that most of these are called from."""
    frames = Counter(place["user_frame"] for place in places if place["user_frame"] is not None)
    return max(sorted(frames), key=frames.__getitem__, default=None)
