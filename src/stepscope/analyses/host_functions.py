"""Which Python functions devices waited for, outside of operators that launch work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from statistics import median_low
from typing import TYPE_CHECKING, Annotated, Any

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found, windows_of_steps
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.simulation.recording_cost import DOUBT, FRAMES_SHARE, RECORDING_READS, Moment
from stepscope.simulation.simulator import recording_moment_of
from stepscope.store.columns import arrays, view
from stepscope.store.phases import GENERATED
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ARROW", "HostFunction", "host_functions"]

ARROW = " → "
"""Between two functions of a path."""
_LEAST_SHARE = 0.001
"""Paths that hold less of the steps are left out: thousands of them make no difference."""
_LARGE_SHARE = 0.01
_OWN_SHARE = 0.8
"""A function does work of the host if it spends this part of its time outside of operators that launch."""
_PER_LAUNCH_NS = 200_000
"""And if it takes this long for each launch in it: eager code takes a tenth of that."""
_HOLDS = 2 / 3
"""What holds this part of a function's time is what its time goes to."""
_PART = 0.2
_FRAME_NS = 500
"""What recording a call adds on a host of speed 1, in code that only calls Python functions: half of
what a frame around operators costs."""
_LINE = late_pattern(r"\(\d+\)")
_ROWS = 8
_LAUNCH_SHARE = 0.25
"""What launches more than this part of all work is the step, or the forward pass."""
# Functions that only call others, by how they are named: they say little about what is done.
_WRAPPER = late_pattern(
    r"^<|: (__\w+__|<\w+>|_?wrap\w*|inner\w*|_fn|new_func|fetch|_next_data|decorat\w+|_?call\w*_impl)$"
    r"|^torch/|^threading\.py|^contextlib\.py|^functools\.py|(^|/)stepscope/capture/hooks\.py"
)
# What has findings of its own, or is not the program's: the recording, importing, compiling, collectives, and
# what the compiler wrote, whose own time is that of launching kernels.
_ELSEWHERE = (
    rf"^torch/profiler/|^<frozen importlib|^torch/_dynamo/convert_frame|^torch/_inductor/|{GENERATED}"
    r"|^triton/compiler|^(c10d::|gloo:|nccl:|mpi:)|(^|/)stepscope/capture/control\.py"
)


@dataclass(frozen=True, slots=True)
class HostFunction:
    """One Python function that devices waited for, with all it called; from all places that call it."""

    function: Annotated[str, "The innermost function that still holds most of the time."]
    idle_ns: Annotated[int, "Time in it, in the steps, while a device was idle and waited for this thread."]
    outer: Annotated[str, "The outermost function around it that does the same work."]
    outer_idle_ns: Annotated[int, "Such time in that one."]
    outer_host_ns: Annotated[int, "Time in that one, in the steps, whether or not a device was idle."]
    share: Annotated[float, "`outer_idle_ns` as a part of the steps."]
    path: Annotated[str, "The functions from the outer to the inner one."]
    part: Annotated[str | None, "The largest function inside the inner one; NULL if none is large."]
    part_idle_ns: Annotated[int | None, "Such time in that one."]
    user_frame: Annotated[str | None, "The user's function that led there."]
    phase: Annotated[str, "Phase of training."]
    calls: Annotated[int, "How often the inner function was called."]
    outer_calls: Annotated[int, "How often the outer one was called."]
    recording_low_ns: Annotated[int, "At least so much of `outer_idle_ns` was the recording of calls inside."]
    recording_high_ns: Annotated[int, "The same, at most."]
    longest_step: Annotated[
        int | None, "The step in which the outer one took the longest; NULL for one step, and below 1 %."
    ]
    longest_step_ns: Annotated[int | None, "For how long."]
    long_steps: Annotated[int | None, "In how many steps it took at least a tenth of that."]
    usual_step_ns: Annotated[
        int | None, "For how long in the median step, of two the shorter; 0 if in a few only."
    ]


# Own time of what is the host's own work: frames, and operators in them that launch nothing.
_TREE = f"""
    SELECT t.parent, t.stored_in = 'python_frames' AS is_frame, t.name, t.phase, u.name AS user_frame,
           t.calls, t.step_self_ns, t.starved_ns,
           CASE WHEN t.stored_in = 'launches' AND t.device_ns > 0 THEN t.calls ELSE 0 END AS launches,
           CASE WHEN t.stored_in = 'python_frames' THEN t.calls ELSE 0 END AS frames,
           CASE WHEN regexp_matches(t.name, '{_ELSEWHERE}') THEN 1 END::BIGINT AS elsewhere,
           CASE WHEN t.stored_in = 'python_frames' THEN 0
                WHEN t.stored_in = 'launches' OR t.stored_in = 'ops' AND t.launched_ns > 0 THEN 1
                END::BIGINT AS launching
    FROM call_tree t LEFT JOIN call_tree u ON u.node = t.user_frame ORDER BY t.node
"""
_RAN = """
    SELECT f.name, s.step, sum(f.dur_ns)::BIGINT AS ns FROM python_frames f
    JOIN steps s ON f.start_ns >= s.host_start_ns AND f.start_ns < s.host_end_ns
    WHERE list_contains($names, f.name) GROUP BY ALL
"""


@analysis(
    reads={
        "call_tree": (
            "node", "parent", "stored_in", "name", "phase", "user_frame", "calls", "step_self_ns",
            "starved_ns", "device_ns", "launched_ns",
        ),
        **RECORDING_READS,
        "python_frames": ("name", "dur_ns", *RECORDING_READS["python_frames"]),
        "steps": ("step", "source", "start_ns", "end_ns", "host_start_ns", "host_end_ns"),
    }
)  # fmt: skip
def host_functions(trace: Trace) -> Table[HostFunction]:
    """Names the Python functions that devices waited for: preparing data, logging, saving, metrics.

    Time in operators that launch device work, and in calls of the driver, does not count: it is the cost of
    launching, or waiting for a device. A function counts if it does little else than work of the host. Of
    the functions in it, the innermost one that still holds two thirds of its time names the work.
    """
    if not trace.has("python_frames"):
        return Table.of(HostFunction, [], ["No Python frames: record with with_stack=True."])
    windows = windows_of_steps(trace)
    whole = sum(row["end_ns"] - row["start_ns"] for row in windows)
    found = _found(trace.arrow(_TREE), whole) if whole else []
    # What takes little of the steps does not make one of them long.
    large = [one for one in found if _idle(one.outer) >= _LARGE_SHARE * whole]
    names = sorted({node.name for one in large for node in one.outer})
    ran = trace.rows(_RAN, names=names) if large and len(windows) > 1 else []
    rows = [_row(one, _Steps(len(windows), whole, ran), recording_moment_of(trace)) for one in found]
    nothing = [] if rows else ["No device waited for a Python function outside of operators."]
    return Table.of(HostFunction, rows, nothing + how_steps_were_found(trace))


# ---------------------------------------------------------------- the tree


@dataclass(slots=True)
class _Node:
    """One path of calls, with all that begin with it."""

    name: str
    is_frame: bool
    is_top: bool
    phase: str
    user_frame: str | None
    calls: int
    idle_ns: int
    host_ns: int
    frames: int
    inside: list[_Node] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What calls of one function share: a generator that goes on has another line than its beginning."""
        return _LINE.sub("", self.name)

    def callees(self) -> Iterator[_Node]:
        """The functions that it called, also through operators and ranges."""
        for one in self.inside:
            if one.is_frame:
                yield one
            else:
                yield from one.callees()


@dataclass(frozen=True, slots=True)
class _Found:
    """A function of the host, from all places that call it, and what its time goes to."""

    outer: list[_Node]
    inner: list[_Node]
    path: list[str]
    part: list[_Node]


def _found(tree: pa.Table, whole: int) -> list[_Found]:
    """The functions that devices waited for most."""
    tops: dict[tuple[str, str], list[_Node]] = {}
    for node in _nodes(tree, round(_LEAST_SHARE * whole)):
        if node.is_top:
            tops.setdefault((node.key, node.phase), []).append(node)
    largest = sorted(tops.values(), key=lambda nodes: -_idle(nodes))[:_ROWS]
    found = [_followed(nodes) for nodes in largest]
    return sorted(found, key=lambda one: (-_idle(one.outer), one.path))


def _nodes(tree: pa.Table, least_ns: int) -> list[_Node]:
    """The paths that hold enough of the steps, nested."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parent = view(tree["parent"])

    def inherited(values: pa.Array) -> pa.Array:
        return arrays([_native.inherited(parent, view(values))])[0]

    def summed(values: pa.Array) -> pa.Array:
        return arrays([_native.subtree_sums(parent, view(values))])[0]

    nothing = pa.scalar(0, pa.int64())
    is_frame = pc.fill_null(tree["is_frame"].combine_chunks(), fill_value=False)
    elsewhere = pc.is_valid(inherited(tree["elsewhere"]))
    launching = pc.equal(pc.fill_null(inherited(tree["launching"]), 0), 1)
    own = pc.invert(pc.or_(launching, elsewhere))
    idle, work = (
        summed(pc.if_else(own, tree[name].combine_chunks(), nothing))
        for name in ("starved_ns", "step_self_ns")
    )
    host, launches, frames = (summed(tree[name]) for name in ("step_self_ns", "launches", "frames"))
    pure = pc.and_(
        pc.greater_equal(work, pc.multiply(pc.cast(host, pa.float64()), _OWN_SHARE)),
        pc.greater_equal(work, pc.multiply(launches, _PER_LAUNCH_NS)),
    )
    most = _LAUNCH_SHARE * (pc.sum(tree["launches"]).as_py() or 0)
    pure = pc.and_(pure, pc.less_equal(launches, most))
    numbers = pa.array(range(tree.num_rows), pa.int64())
    mine = pc.if_else(pc.and_(is_frame, pure), numbers, pa.scalar(None, pa.int64()))
    around = pc.take(inherited(mine), tree["parent"].combine_chunks())
    columns = {name: tree[name] for name in ("parent", "name", "phase", "user_frame", "calls")}
    columns |= {"number": numbers, "is_frame": is_frame, "idle_ns": idle, "host_ns": host, "frames": frames}
    columns["is_top"] = pc.and_(pc.is_valid(mine), pc.is_null(around))
    kept = pa.table(columns).filter(pc.greater(idle, least_ns))
    return _nested(kept.to_pylist())


def _nested(rows: list[dict[str, Any]]) -> list[_Node]:
    nodes: dict[int, _Node] = {}
    for row in rows:
        number, parent = row.pop("number"), row.pop("parent")
        nodes[number] = _Node(**row | {"name": row["name"] or ""})
        if parent in nodes:  # a path that holds enough is in others that do
            nodes[parent].inside.append(nodes[number])
    return list(nodes.values())


# ---------------------------------------------------------------- what its time goes to


def _idle(nodes: Iterable[_Node]) -> int:
    return sum(node.idle_ns for node in nodes)


def _name(nodes: Iterable[_Node]) -> str:
    """The name of a function; of a generator, with its first line."""
    return min((node.name for node in nodes), key=lambda name: (len(name), name))


def _followed(tops: list[_Node]) -> _Found:
    """From the outermost function to the innermost one that holds most of its time."""
    chain = [tops]
    while (inside := _largest(chain[-1])) and _idle(inside) >= _HOLDS * _idle(tops):
        chain.append(inside)
    first = next((at for at, nodes in enumerate(chain) if not _WRAPPER.search(nodes[0].name)), 0)
    part = _largest(chain[-1])
    while (inside := _largest(part)) and _idle(inside) >= _HOLDS * _idle(part):
        if inside[0].name.startswith("<"):
            break
        part = inside
    large = part if _idle(part) >= _PART * _idle(chain[-1]) else []
    return _Found(chain[first], chain[-1], [_name(nodes) for nodes in chain[first:]], large)


def _largest(nodes: list[_Node]) -> list[_Node]:
    """Of the functions that these called, the one with the most idle time."""
    by_name: dict[str, list[_Node]] = {}
    for node in nodes:
        for callee in node.callees():
            by_name.setdefault(callee.key, []).append(callee)
    return max(by_name.values(), key=_idle, default=[])


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps, and how long functions took in each."""

    count: int
    whole_ns: int
    ran: list[dict[str, Any]]

    def times(self, nodes: Iterable[_Node]) -> dict[int, int]:
        """By step, for how long a function ran in it."""
        names, found = {node.name for node in nodes}, dict[int, int]()
        for row in self.ran:
            if row["name"] in names:
                found[row["step"]] = found.get(row["step"], 0) + row["ns"]
        return found


def _row(found: _Found, steps: _Steps, moment: Moment) -> HostFunction:
    times = steps.times(found.outer)
    idle, host = _idle(found.outer), sum(node.host_ns for node in found.outer)
    cost = sum(node.frames for node in found.outer) * _FRAME_NS * idle / max(host, 1)
    most = FRAMES_SHARE * idle
    low, high = (
        round(min(cost * part, most * doubt))
        for part, doubt in zip((moment.least, moment.most), DOUBT, strict=True)
    )
    longest = max(times, key=lambda step: (times[step], -step), default=None)
    return HostFunction(
        function=_name(found.inner),
        idle_ns=_idle(found.inner),
        outer=_name(found.outer),
        outer_idle_ns=idle,
        outer_host_ns=host,
        share=idle / steps.whole_ns,
        path=ARROW.join(found.path),
        part=_name(found.part) if found.part else None,
        part_idle_ns=_idle(found.part) if found.part else None,
        user_frame=found.inner[0].user_frame,
        phase=found.inner[0].phase,
        calls=sum(node.calls for node in found.inner),
        outer_calls=sum(node.calls for node in found.outer),
        recording_low_ns=low,
        recording_high_ns=high,
        longest_step=longest,
        longest_step_ns=None if longest is None else times[longest],
        long_steps=None if longest is None else sum(ns >= times[longest] / 10 for ns in times.values()),
        usual_step_ns=median_low([*times.values(), *[0] * (steps.count - len(times))]) if times else None,
    )
