"""Sequences of operators that a step calls again and again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.analyses._blame import names_of_nodes
from stepscope.analyses._in_steps import MIDDLE_STEP
from stepscope.analyses._windows import how_steps_were_found
from stepscope.analyses.launches import SHORT_NS
from stepscope.costs.tensor_shapes import dims_of
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.store.columns import view
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Loop", "loops"]

_MOST_PERIOD = 2_048
_LEAST_TIMES = 4
_LEAST_OPS = 16
"""Shorter stretches are no cost worth a row."""
_MOST = 5
_MOST_IN_ALL = 64
_MOST_OPS = 1 << 18
_NAMED = 8
_SELDOM_FILLS_NS = 50_000
_INPUTS = "HtoD|HostToDevice"
_LEAST_INPUT = 64
"""Bytes of a copy from the host: no more is a number, such as the time of a denoising step."""
_NO_LAUNCHES = {
    "launches": 0,
    "launch_share": 0.0,
    "idle_ns": 0,
    "device_ns": 0,
    "tiny_ns": 0,
    "short_ns": 0,
    "inputs": 0,
}
_OF_LAYERS = late_pattern(r"aten::\w*(norm|conv\d|attention|softmax|rsqrt)")
_MOSTLY = 0.5
"""Part of a repetition that its layers take, if it is a network."""
_LEAST_TURNS, _LEAST_TURN = 16, 3
"""Turns of a loop with branches, and operators of each."""
_MOST_TRIED = 64
_UNEVEN = 2
"""The longest turn of such a loop against the usual one."""
_LONG = 0.25
"""Part of the operators of a step that such a loop has."""
_LEAST_STEADY = 0.6
"""Part of its operators that come in each turn."""
_SAME = 0.9
"""Part of the operators that must agree: by chance, what stands before may have the names of a repetition."""


_Stretch = tuple[int, int, int]
"""The first operator, how many a repetition has, and how many there are."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One stretch of a step in which the program calls the same operators in the same order, repeatedly."""

    step: Annotated[int, "The step that was looked at, one in the middle."]
    user_frame: Annotated[str | None, "Function of the user's code that calls them; needs with_stack=True."]
    module: Annotated[str | None, "The first nn.Module that calls one of them; needs with_stack=True."]
    repeats: Annotated[int, "How often they are called."]
    ops: Annotated[
        int,
        "How many operators each repetition calls; those inside them, or called by some of them only, do not "
        "count.",
    ]
    first_ops: Annotated[str, "The first of them."]
    contains: Annotated[str, "All operators of a repetition, also those inside others, by name."]
    layers: Annotated[
        int, "How often operators with a norm, a convolution or attention come again in a repetition; else 0."
    ]
    same_place: Annotated[
        bool | None,
        "Whether all repetitions have the same path of calls: no, where each is another nn.Module, as the "
        "layers of a network are. NULL without Python frames.",
    ]
    same_shapes: Annotated[bool | None, "Whether all have inputs of the same shapes; NULL without shapes."]
    host_ns: Annotated[int, "From the first operator to the end of the last."]
    host_share: Annotated[float, "The same as a part of the step on this thread."]
    op_share: Annotated[float, "Part of the operators of the step outside of backward and optimizer."]
    has_backward: Annotated[bool, "Whether a backward pass follows, before weights are updated."]
    idle_ns: Annotated[int, "Such time while a device was idle and waited for a launch of this thread."]
    launches: Annotated[int, "Launches of device work in it."]
    launch_share: Annotated[float, "The same as a part of the launches of the step on this thread."]
    device_ns: Annotated[int, "Summed duration of the device work that it launches."]
    tiny_ns: Annotated[int, "The part of that in work of less than 10 µs, most of which is latency."]
    short_ns: Annotated[int, "The part of that in work of less than 50 µs, which seldom fills a device."]
    inputs: Annotated[int, "Copies from the host to the device in it, of more than 64 bytes."]
    narrows: Annotated[
        bool | None,
        "Whether the last operator of a repetition gives fewer numbers than the first one takes, so that "
        "none goes on with the result of the one before; NULL if shapes do not tell.",
    ]
    stacked: Annotated[bool, "Whether aten::stack comes right after the last repetition."]
    lookup: Annotated[
        str | None,
        "Which rows of tables (nn.Embedding) a repetition looks up: chosen by one before, with no product or "
        "attention in between, as in decoding, or given to it; NULL if it looks up none.",
    ]


_LOOK_UP, _STACK = "aten::embedding", "aten::stack"
# Operators that choose rows, and those that compute what to choose from.
_CHOICE = late_pattern(
    r"aten::(argmax|argmin|multinomial|topk|sort|argsort|nonzero|randint|randperm|max|min)$"
)
_PRODUCT = late_pattern(r"aten::(linear|addmm|mm|bmm|baddbmm|matmul|einsum|conv\d?d?|scaled_dot_product)")
_LAYER = late_pattern(r"aten::(linear|conv[123]d|matmul|mm|bmm)$")
# What chooses a part of a tensor: results of parts that are single numbers can only be summed up.
_PART = "aten::select"
_BINARY = late_pattern(r"aten::(add|sub|rsub|mul|div)_?$")
# What gives no more numbers than its first input has.
_KEEPS = late_pattern(
    r"aten::(squeeze|view|reshape|flatten|transpose|t|select|slice|mean|sum|sigmoid|tanh|relu|softmax|float|to)$"
)
# What an optimizer, a loader and autograd do in their loops has findings of its own.
_CALLED = f"""
    WITH one AS ({MIDDLE_STEP}),
    called AS (
        SELECT o.event, o.thread, o.name_id, o.name, o.start_ns, coalesce(o.dur_ns, 0) AS dur_ns, p.node,
               p.user_frame, p.module, p.step, s.host_start_ns AS since, s.host_end_ns AS until
        FROM ops o JOIN call_sites p ON p.event = o.event JOIN one s ON p.step = s.step
        WHERE o.depth = 0 AND o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
          AND p.phase IN ('forward', 'other')),
    most AS (SELECT mode(thread ORDER BY thread) AS thread FROM called)
    SELECT c.* FROM called c JOIN most m ON m.thread = c.thread ORDER BY c.start_ns, c.event LIMIT $most
"""
# Stretches of time in which nothing but one of the two begins: backward passes, and updates of an optimizer.
_TURNS = """
    WITH done AS (
        SELECT o.start_ns, p.phase, p.phase <> lag(p.phase) OVER (ORDER BY o.start_ns, o.event) AS turns
        FROM ops o JOIN call_sites p ON p.event = o.event
        WHERE p.step = $step AND o.depth = 0 AND p.phase IN ('backward', 'optimizer')),
    numbered AS (SELECT *, count(*) FILTER (turns) OVER (ORDER BY start_ns) AS turn FROM done)
    SELECT phase, min(start_ns) AS start_ns, max(start_ns) AS last_ns FROM numbered
    GROUP BY turn, phase ORDER BY start_ns
"""
_RANGES = """
    WITH ranges AS (
        SELECT unnest($numbers::BIGINT[]) AS number, unnest($starts::BIGINT[]) AS start_ns,
               unnest($ends::BIGINT[]) AS end_ns, unnest($firsts::BIGINT[]) AS first_end_ns)
"""
_LAUNCHED = f"""
    {_RANGES},
    launched AS (
        SELECT event, start_ns FROM launches
        WHERE thread = $thread AND work_events > 0 AND start_ns >= $since AND start_ns < $until),
    made AS (
        SELECT r.number, count(*) FILTER (l.start_ns >= r.start_ns AND l.start_ns < r.end_ns) AS launches,
               count(*) AS all_launches
        FROM ranges r CROSS JOIN launched l GROUP BY r.number),
    worked AS (
        SELECT r.number, sum(w.dur_ns)::BIGINT AS device_ns,
               coalesce(sum(w.dur_ns) FILTER (w.dur_ns < $tiny), 0)::BIGINT AS tiny_ns,
               coalesce(sum(w.dur_ns) FILTER (w.dur_ns < $short), 0)::BIGINT AS short_ns,
               count(*) FILTER (w.kind = 'memcpy' AND w.bytes > $least AND regexp_matches(w.name, $inputs))
                   AS inputs
        FROM ranges r JOIN launched l ON l.start_ns >= r.start_ns AND l.start_ns < r.end_ns
            JOIN device_work w ON w.launch = l.event
        WHERE w.start_ns >= $since GROUP BY r.number),
    waited AS (
        SELECT r.number, sum(least(g.start_ns + g.launch_delay_ns, r.end_ns)
                             - greatest(g.start_ns, r.start_ns))::BIGINT AS idle_ns
        FROM ranges r JOIN gaps g ON g.start_ns < r.end_ns AND g.start_ns + g.launch_delay_ns > r.start_ns
        WHERE g.thread = $thread AND g.launch_delay_ns > 0 GROUP BY r.number)
    SELECT m.number, m.launches, m.launches / m.all_launches AS launch_share,
           coalesce(w.idle_ns, 0) AS idle_ns, coalesce(d.device_ns, 0) AS device_ns,
           coalesce(d.tiny_ns, 0) AS tiny_ns, coalesce(d.short_ns, 0) AS short_ns,
           coalesce(d.inputs, 0) AS inputs
    FROM made m LEFT JOIN waited w ON w.number = m.number LEFT JOIN worked d ON d.number = m.number
"""
_INSIDE = f"""
    {_RANGES}
    SELECT r.number, o.event, o.name, o.depth, o.start_ns < r.first_end_ns AS is_first,
           CAST(o.args->'$."Input Dims"' AS VARCHAR) AS dims
    FROM ranges r JOIN ops o ON o.start_ns >= r.start_ns AND o.start_ns < r.end_ns
    WHERE o.thread = $thread AND (o.depth = 0 OR o.start_ns < r.first_end_ns)
    ORDER BY r.number, o.start_ns, o.event
"""


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
        "ops": ("event", "thread", "name_id", "name", "start_ns", "dur_ns", "depth", "args"),
        "call_sites": ("event", "node", "step", "phase", "user_frame", "module"),
        "call_tree": ("node", "name"),
        "launches": ("event", "thread", "start_ns", "work_events"),
        "device_work": ("launch", "kind", "name", "start_ns", "dur_ns", "bytes"),
        "gaps": ("start_ns", "thread", "launch_delay_ns"),
    }
)
def loops(trace: Trace) -> Table[Loop]:
    """Finds operators that a step calls again and again in the same order: loops in Python, and layers.

    One step is looked at, the forward pass and what surrounds it. With Python frames, repetitions that come
    from the same place are a loop; where each is another `nn.Module`, they are layers. No repetition lies on
    both sides of an optimizer's update: what comes after it needs the new weights. Where such stretches are
    less than half of the operators, a loop with branches is looked for: operators of some turns are left out.
    """
    if not trace.has("ops"):
        return Table.of(Loop, [], ["No operators in the profile."])
    called = trace.arrow(_CALLED, most=_MOST_OPS).combine_chunks()
    found = _found(called)
    steady = _without_branches(called) if sum(one[2] for one in found) < _MOSTLY * len(called) else None
    rows: list[Loop] = []
    if found or steady:
        turns = _Turns.of(trace, called["step"][0].as_py())
        found = _between_updates(called, turns) if len(turns.updates) > 1 else found
        if trace.has("python_frames"):
            found = [_from_one_place(called, one) for one in found]
        found += _inside(called, found)[: _MOST_IN_ALL - len(found)]
        rows += _rows(trace, called, found, turns, len(called)) if found else []
        # A branch in a loop breaks it into pieces, or hides it.
        if steady and not turns.update(steady["start_ns"][0].as_py(), steady["start_ns"][-1].as_py()):
            found = [one for one in _found(steady) if one[2] >= _LEAST_STEADY * len(steady)]
            rows += _rows(trace, steady, found, turns, len(called)) if found else []
    rows.sort(key=lambda row: (-row.launches, -row.host_ns))
    nothing = [] if rows else ["No operators come again and again in the same order."]
    return Table.of(Loop, rows, nothing + how_steps_were_found(trace))


@dataclass(frozen=True, slots=True)
class _Turns:
    """When a step goes backward, and when it updates weights."""

    backward: list[tuple[int, int]]
    """From its first operator to the begin of its last."""
    updates: list[int]

    @classmethod
    def of(cls, trace: Trace, step: int) -> _Turns:
        """Those of one step."""
        rows = trace.rows(_TURNS, step=step)
        return cls(
            [(row["start_ns"], row["last_ns"]) for row in rows if row["phase"] == "backward"],
            [row["start_ns"] for row in rows if row["phase"] == "optimizer"],
        )

    def update(self, since: int, until: int) -> bool:
        """Whether weights are updated in this time."""
        return any(since < at < until for at in self.updates)

    def goes_back(self, since: int) -> bool:
        """Whether a backward pass begins after that, before weights are updated."""
        until = next((at for at in self.updates if at > since), None)
        return any(last >= since and (until is None or first < until) for first, last in self.backward)


def _found(called: pa.Table) -> list[_Stretch]:
    loops = _native.find_loops(view(called["name_id"]), _MOST_PERIOD, _LEAST_TIMES, _MOST)
    return [one for one in loops if one[2] >= _LEAST_OPS]


def _between_updates(called: pa.Table, turns: _Turns) -> list[_Stretch]:
    """The stretches that repeat between two updates of an optimizer, before the first or after the last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    updates = pa.array(turns.updates, pa.int64())
    ends = [pc.sum(pc.less(called["start_ns"], at)).as_py() for at in updates]
    found: list[_Stretch] = []
    for first, end in pairwise([0, *ends, len(called)]):
        inside = _found(called.slice(first, end - first))
        found += [(first + begin, period, rows) for begin, period, rows in inside]
    return sorted(found, key=lambda one: -one[2])[:_MOST_IN_ALL]


def _from_one_place(called: pa.Table, stretch: _Stretch) -> _Stretch:
    """The longest part of a stretch whose repetitions have the same path of calls, if that is most of it.

    What a function does once may look like what the loop beside it does again and again.
    """
    import pyarrow.compute as pc

    first, period, length = stretch
    same = pc.fill_null(_same(called["node"].slice(first, length), period), False)
    agree = pc.cumulative_sum(pc.cast(same, "int64"))
    ends = agree[period - 1 :: period].to_pylist()
    begin, most, since = 0, 0, 0
    for turn, (before, until) in enumerate(pairwise([0, *ends])):
        if until - before < _SAME * period:
            since = turn + 1
        elif turn + 1 - since > most:
            begin, most = since, turn + 1 - since
    turns = most + 1
    if turns < _LEAST_TIMES or turns < _MOSTLY * (length // period):
        return stretch
    return first + begin * period, period, turns * period


def _inside(called: pa.Table, found: list[_Stretch]) -> list[_Stretch]:
    """The stretches that repeat inside each repetition of others, such as the heads of each layer."""
    inner: list[_Stretch] = []
    for first, period, rows in found:
        for begin, turn, length in _found(called.slice(first, period)):
            if length >= _MOSTLY * period:
                inner += [(first + at + begin, turn, length) for at in range(0, rows - period + 1, period)]
    return inner


def _without_branches(called: pa.Table) -> pa.Table | None:
    """The longest part in which an operator comes regularly, without those that come in some of its turns.

    None if no such part is long enough, or if nothing is left out of it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = called["name_id"]
    regular: list[tuple[int, int, int]] = []
    counts = pc.value_counts(ids).to_pylist()
    for one in sorted(counts, key=lambda one: -one["counts"])[:_MOST_TRIED]:
        if not _LEAST_TURNS <= one["counts"] <= len(called) // _LEAST_TURN:
            continue
        at = pc.cast(pc.indices_nonzero(pc.equal(ids, one["values"])), "int64")
        apart = pc.pairwise_diff(at).slice(1)
        if pc.max(apart).as_py() <= _UNEVEN * pc.approximate_median(apart).as_py():
            regular.append((at[0].as_py(), at[-1].as_py(), len(at)))
    regular.sort(key=lambda one: (one[0] - one[1], one[2]))
    for first, end, turns in regular:
        part = called.slice(first, end - first)
        often = pc.value_counts(part["name_id"]).to_pylist()
        steady = pa.array([one["values"] for one in often if one["counts"] % (turns - 1) == 0], ids.type)
        kept = part.filter(pc.is_in(part["name_id"], value_set=steady))
        if max(_LONG * len(called), _LEAST_STEADY * len(part)) <= len(kept) < len(part):
            # The last turn, and what comes right after it.
            rest = called.slice(end, 2 * len(part) // (turns - 1))
            goes_on = pc.or_(pc.is_in(rest["name_id"], value_set=steady), pc.equal(rest["name"], _STACK))
            return pa.concat_tables([kept, rest.filter(goes_on)]).combine_chunks()
    return None


def _rows(
    trace: Trace, called: pa.Table, found: list[_Stretch], turns: _Turns, in_all: int
) -> Iterator[Loop]:
    """What is known about each stretch; the step calls so many operators in all."""
    import pyarrow.compute as pc

    starts, durs = called["start_ns"], called["dur_ns"]
    ends = [(starts[first + rows - 1].as_py() + durs[first + rows - 1].as_py()) for first, _, rows in found]
    ranges = {
        "numbers": list(range(len(found))),
        "starts": [starts[first].as_py() for first, _, _ in found],
        "ends": ends,
        "firsts": [starts[first + period].as_py() for first, period, _ in found],
    }
    step, thread, since, until = (called[name][0].as_py() for name in ("step", "thread", "since", "until"))
    limits = {"tiny": SHORT_NS, "short": _SELDOM_FILLS_NS, "inputs": _INPUTS, "least": _LEAST_INPUT}
    asked = trace.rows(_LAUNCHED, thread=thread, since=since, until=until, **limits, **ranges)
    launched = {row.pop("number"): row for row in asked}
    inside = trace.arrow(_INSIDE, thread=thread, **ranges)
    counts = pc.or_(
        pc.greater(inside["depth"], 0), pc.is_in(inside["event"], called["event"].combine_chunks())
    )
    inside = inside.filter(counts)
    names = _names_of(trace, called, found)
    for number, (first, period, length) in enumerate(found):
        stretch, repetition = called.slice(first, length), called.slice(first, period)
        host_ns = ranges["ends"][number] - ranges["starts"][number]
        of_first = stretch["name"].slice(0, min(period, _NAMED)).to_pylist()
        yield Loop(
            step=step,
            user_frame=names.get(stretch["user_frame"][0].as_py()),
            module=names.get(_first_module(repetition)),
            repeats=length // period,
            ops=period,
            first_ops=", ".join(name or "" for name in of_first),
            layers=_layers(repetition),
            lookup=_lookup(repetition["name"].to_pylist()),
            stacked=called["name"].slice(first + length, 1).to_pylist() == [_STACK],
            same_place=_agrees(stretch["node"], period) if trace.has("python_frames") else None,
            host_ns=host_ns,
            host_share=min(1.0, host_ns / max(1, until - since)),
            op_share=length / in_all,
            has_backward=turns.goes_back(ranges["starts"][number]),
            **launched.get(number, _NO_LAUNCHES),
            **_told(inside, number, period),
        )


def _names_of(trace: Trace, called: pa.Table, found: list[_Stretch]) -> dict[int | None, str]:
    """The functions that call the first operators, and the first modules that call some."""
    nodes = {called["user_frame"][first].as_py() for first, _, _ in found}
    nodes |= {_first_module(called.slice(first, period)) for first, period, _ in found}
    return names_of_nodes(trace, nodes)


def _first_module(repetition: pa.Table) -> int | None:
    """The module that calls the first operator of a repetition that a module calls."""
    known = repetition["module"].drop_null()
    return known[0].as_py() if len(known) else None


def _layers(repetition: pa.Table) -> int:
    """How many layers a repetition has, if it is mostly layers: then it is a whole network, called again."""
    alike = _native.find_loops(view(repetition["name_id"]), _MOST_PERIOD, _LEAST_TIMES, 1)
    for first, period, rows in alike:
        names = repetition["name"].slice(first, period).to_pylist()
        layers = all(any(kind.match(name or "") for name in names) for kind in (_OF_LAYERS, _LAYER))
        if rows >= _MOSTLY * len(repetition) and layers:
            return rows // period
    return 0


def _lookup(names: list[str | None]) -> str | None:
    """Whether the rows that a repetition looks up were chosen right before, or in the one before it."""
    found: str | None = None
    for at, name in enumerate(names):
        if name != _LOOK_UP:
            continue
        before = (names[at - back] or "" for back in range(1, len(names) + 1))
        told = next((one for one in before if _CHOICE.match(one) or _PRODUCT.match(one)), "")
        if _CHOICE.match(told):
            return "chosen"
        found = "given"
    return found


def _agrees(values: Any, period: int) -> bool:
    """Whether what is one period apart is the same, but for little."""
    import pyarrow.compute as pc

    return bool((pc.mean(pc.cast(_same(values, period), "float64")).as_py() or 0.0) >= _SAME)


def _same(values: Any, period: int) -> Any:
    """For each value whether the one that is a period later is the same; NULL where one of them is."""
    import pyarrow.compute as pc

    return pc.equal(values.slice(0, len(values) - period), values.slice(period))


def _told(inside: pa.Table, number: int, period: int) -> dict[str, Any]:
    """What a repetition consists of, and whether its shapes are always the same."""
    import pyarrow.compute as pc

    of_loop = inside.filter(pc.equal(inside["number"], number))
    first = of_loop.filter(of_loop["is_first"])
    outer = of_loop.filter(pc.equal(of_loop["depth"], 0))
    known = outer["dims"].null_count < len(outer)
    return {
        "contains": ", ".join(sorted({name for name in first["name"].to_pylist() if name})),
        "same_shapes": _agrees(outer["dims"], period) if known else None,
        "narrows": _narrows(outer.slice(0, period).to_pylist()) if known else None,
    }


def _narrows(ops: list[dict[str, Any]]) -> bool | None:
    """Whether the last of some operators gives fewer numbers than the first takes; None where not known."""
    first, last = ops[0]["name"] or "", ops[-1]["name"] or ""
    takes, given = _shapes(ops[0]["dims"]), _shapes(ops[-1]["dims"])
    if not takes or not takes[0] or not given:
        return None
    taken = prod(takes[0])
    if first == _PART:
        taken //= max(1, *takes[0])  # of the largest dimension at most one is selected
    elif not _LAYER.match(first):
        return None
    if last == "aten::linear" and len(given) > 1 and given[0] and given[1]:
        gives = prod(given[0][:-1]) * given[1][0]
    elif last == "aten::matmul" and len(given) > 1 and given[0] and given[1]:
        gives = prod(given[0][:-1]) * given[1][-1]
    elif _KEEPS.match(last) and (first != _PART or not given[0]):
        gives = prod(given[0])
    elif _BINARY.match(last) and not any(given[:2]):
        gives = 1
    else:
        return None
    return gives < taken


def _shapes(dims: str | None) -> list[list[int]]:
    """The shapes of the first inputs, as long as these are tensors; numbers have no dimensions either."""
    shapes: list[list[int]] = []
    for one in dims_of(dims):
        if not isinstance(one, list) or not all(isinstance(size, int) for size in one):
            break
        shapes.append(one)
    return shapes
