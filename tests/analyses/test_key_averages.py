"""`ops`, `kernels` and `runtime_calls` against torch's own table (`prof.key_averages()`), to the nanosecond.

Both look at the same calls, and for most operators all figures are the same. Where they are not, torch means
something else, always in one of these ways. Each is worked out here from single events, and has to account
for the whole difference:

- an operator whose only child has its own name is counted as one call with that child, and as a range if it
  is the only child of a range of its name;
- an operator inside another of its name adds its time, and the device work it launched, to the totals again;
- ranges, the profiler's own overhead and (from torch 2.12 on) Python frames in an operator are no part of its
  self time, but a range of NCCL, which may end on another thread, is in nothing;
- a runtime call outside any operator, and the profiler's overhead, count on the thread that ended the
  profile, so that another thread's calls shorten the self time of what ran there meanwhile;
- overhead in an operator counts the device work of that operator once more.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.analyses.torch_programs import OPTIONS, PROGRAMS, record
from tests.samples import open_shared
from tests.spans import size, union

import stepscope
from stepscope.analyses.kernels import kernels
from stepscope.analyses.ops import Op, OpOfShape, ops
from stepscope.analyses.runtime_calls import runtime_calls
from stepscope.store.trace import Trace

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
RECORDED = sorted(path.name.partition(".")[0] for path in RECORDINGS.glob("*.json.gz"))
COLUMNS = {
    "calls": "calls",
    "self_cpu_ns": "host_self_no_runtime_ns",
    "cpu_ns": "host_total_ns",
    "self_device_ns": "device_self_ns",
    "device_ns": "device_total_ns",
}
"""What torch counts, and what `ops` calls it."""

Key = tuple[Any, ...]
"""What a row is about: a name, or a name with sizes and types of inputs."""
Figures = dict[str, int]


@dataclass(frozen=True)
class TorchTable:
    """The rows of torch's table."""

    host: dict[Key, Figures]
    device: dict[Key, Figures]

    @classmethod
    def read(cls, name: str, rows: str = "by_name") -> TorchTable:
        """A table that was written beside a recording."""
        written = json.loads((RECORDINGS / f"{name}.key_averages.json").read_text(encoding="utf-8"))
        return cls.of(dict(zip(written["columns"], row, strict=True)) for row in written[rows])

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]]) -> TorchTable:
        table = cls({}, {})
        for row in rows:
            if not row["annotation"]:
                side = table.host if row["side"] == "host" else table.device
                key = (row["name"],) if row["shapes"] is None else (row["name"], json.dumps(row["shapes"]))
                assert key not in side
                side[key] = row
        return table


# ---------------------------------------------------------------- torch's way of counting


@dataclass
class Node:
    """An event in torch's tree."""

    kind: str
    key: Key
    thread: int
    start: int
    dur: int
    place: int
    device_ns: int
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    merged: bool = False
    once_ns: int = 0
    """Device work of this and of all in it, unless another of its key is around it."""

    @property
    def end(self) -> int:
        return self.start + self.dur

    @property
    def around(self) -> Iterator[Node]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def counts_as(self) -> Node:
        node = self
        while node.merged and node.parent is not None:
            node = node.parent
        return node

    @property
    def self_ns(self) -> int:
        return self.dur - sum(child.dur for child in self.children)

    @property
    def covered_ns(self) -> int:
        """For what is no part of the tree of operators: its time, less the operators and calls in it."""
        if self.kind in ("op", "call"):
            return 0
        return self.dur - sum(child.dur - child.covered_ns for child in self.children)

    @property
    def device_total_ns(self) -> int:
        return self.device_ns + sum(child.device_total_ns for child in self.children)


EVENTS = {
    "op": "SELECT name, thread, start_ns, dur_ns, external_id, device_self_ns AS device_ns, args FROM ops",
    "call": "SELECT name, thread, start_ns, dur_ns, external_id, 0 AS device_ns FROM launches",
    "range": """
        SELECT name, thread, start_ns, dur_ns, external_id, 0 AS device_ns FROM annotations
        WHERE category = 'user_annotation' AND name NOT LIKE 'nccl:%'
    """,
    "overhead": """
        SELECT name, thread, start_ns, dur_ns, NULL AS external_id, 0 AS device_ns FROM other_events
        WHERE category = 'overhead'
    """,
    "frame": "SELECT name, thread, start_ns, dur_ns, NULL AS external_id, 0 AS device_ns FROM python_frames",
}


def torch_tree(trace: Trace, *, frames: bool, shapes: bool) -> list[Node]:
    """Our events as torch nests them, in the order in which it looks at them."""
    kinds = [kind for kind in EVENTS if frames or kind != "frame"]
    rows = [(kind, row) for kind in kinds for row in trace.arrow(EVENTS[kind]).to_pylist()]
    threads = {row["external_id"]: row["thread"] for kind, row in rows if kind in ("op", "range")}
    marks = trace.arrow("SELECT thread FROM step_marks LIMIT 1")["thread"].to_pylist()
    last_thread = marks[0] if marks else rows[0][1]["thread"]
    nodes = []
    for place, (kind, row) in enumerate(rows):
        thread = row["thread"]
        if kind in ("call", "overhead"):
            thread = threads.get(row["external_id"], last_thread)
        moved = kind == "call" and thread != row["thread"]
        key = (row["name"], *(inputs(row.get("args")) if shapes else ()))
        what = (key, thread, row["start_ns"], row["dur_ns"], place, row["device_ns"])
        nodes.append(Node("moved call" if moved else kind, *what))
    nodes.sort(key=lambda node: (node.start, -node.end, node.place))
    nest(nodes)
    for node in nodes:
        if node.kind == "op" and all(node.key != outer.key for outer in node.around):
            node.once_ns = node.device_total_ns
    for node in nodes:
        if node.kind == "overhead":
            node.device_ns = next((outer.device_ns for outer in node.around if outer.kind == "op"), 0)
    merge(nodes)
    return nodes


def inputs(args: str | None) -> tuple[str | None, str | None]:
    """Sizes and types of the inputs of an operator, as `ops` has them."""
    written = json.loads(args or "{}")
    texts = [written.get(key) for key in ("Input Dims", "Input type")]
    sizes, types = (None if text is None else json.dumps(text, separators=(",", ":")) for text in texts)
    return sizes, types


def nest(nodes: list[Node]) -> None:
    """Inside another is what ends no later; what outlives it closes it."""
    opened: defaultdict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        around = opened[node.thread]
        while around and (node.start >= around[-1].end or node.end > around[-1].end):
            around.pop()
        if around:
            node.parent = around[-1]
            node.parent.children.append(node)
        around.append(node)


def merge(nodes: list[Node]) -> None:
    """An only child of the same name is one with its parent."""
    again = True
    while again:
        again = False
        for node in nodes:
            parent = node.parent
            if not node.merged and parent and parent.key[0] == node.key[0] and len(parent.children) == 1:
                parent.children, parent.device_ns = node.children, node.device_ns
                for child in node.children:
                    child.parent = parent
                node.merged = again = True


def torch_differences(nodes: list[Node]) -> dict[Key, Counter[str]]:
    """For each operator, by how much torch's figures should differ from ours."""
    found: defaultdict[Key, Counter[str]] = defaultdict(Counter)
    instants: defaultdict[tuple[Key, int], list[tuple[int, int]]] = defaultdict(list)
    for node in nodes:
        if node.kind != "op":
            continue
        of = found[node.key]
        of["calls"] -= node.merged
        of["self_cpu_ns"] -= sum(child.covered_ns for child in node.children)
        of["device_ns"] -= node.once_ns
        instants[node.key, node.thread].append((node.start, node.end))
        if not node.merged:
            of["cpu_ns"] += node.dur
            of["device_ns"] += node.device_total_ns
        elif node.counts_as.kind != "op" or node.counts_as.key != node.key:
            moved = {"self_cpu_ns": node.self_ns, "self_device_ns": node.device_ns}
            of.subtract(moved)
            if node.counts_as.kind == "op":
                found[node.counts_as.key].update(moved)
    for (key, _), spans in instants.items():
        found[key]["cpu_ns"] -= size(union(spans))
    return found


# ---------------------------------------------------------------- comparing


def assert_agrees(rows: dict[Key, Op], host: dict[Key, Figures], rules: dict[Key, Counter[str]]) -> int:
    """Our figures are torch's, straight away or by the rules above; for how many straight away."""
    wrong, straight = [], 0
    for key, row in rows.items():
        counted = host.get(key, dict.fromkeys(COLUMNS, 0))
        ours = {torchs: getattr(row, column) for torchs, column in COLUMNS.items()}
        straight += all(counted[column] == ours[column] for column in COLUMNS)
        wrong += [
            f"{key} {column}: {counted[column]} in torch, {ours[column]} and {rules[key][column]}"
            for column in COLUMNS
            if counted[column] != ours[column] + rules[key][column]
        ]
    assert not wrong
    return straight


def assert_ops_agree(trace: Trace, table: TorchTable, *, straight: float) -> None:
    names = trace.arrow("SELECT DISTINCT name FROM python_frames")["name"].to_pylist()
    nodes = torch_tree(trace, frames=any((name,) in table.host for name in names), shapes=False)
    rows: dict[Key, Op] = {(row.name,): row for row in ops(trace)}
    assert {key for key in table.host if key[0].startswith("aten::")} <= rows.keys()
    assert assert_agrees(rows, table.host, torch_differences(nodes)) >= straight * len(rows)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_from_a_gpu(name: str, tmp_path: Path) -> None:
    trace = open_shared(RECORDINGS / f"{name}.pt.trace.json.gz")
    table = TorchTable.read(name)
    assert_ops_agree(trace, table, straight=0.5 if name == "compiled" else 0.85)
    assert sum(row.device_self_ns for row in ops(trace)) > 0
    calls = {(row.name,): (row.calls, row.total_ns) for row in runtime_calls(trace)}
    assert calls == {key: (row["calls"], row["cpu_ns"]) for key, row in table.host.items() if key in calls}
    work = {(row.name,): (row.calls, row.total_ns) for row in kernels(trace)}
    assert work
    others = trace.arrow(
        """
        SELECT name, count(*) AS calls, sum(dur_ns)::BIGINT AS total_ns
        FROM device_work WHERE kind != 'kernel' GROUP BY name
        """
    )
    work |= {(row["name"],): (row["calls"], row["total_ns"]) for row in others.to_pylist()}
    assert work == {key: (row["calls"], row["device_ns"]) for key, row in table.device.items()}


def as_torch_writes(key: Key) -> Key:
    """Torch gives sizes without types, and none for lists of tensors."""
    name, sizes, _ = key
    plain = [[] if one and isinstance(one[0], list) else one for one in json.loads(sizes)]
    return name, json.dumps(plain)


@pytest.mark.parametrize("name", RECORDED)
def test_shapes_of_a_recording_from_a_gpu(name: str, tmp_path: Path) -> None:
    trace = open_shared(RECORDINGS / f"{name}.pt.trace.json.gz")
    table = TorchTable.read(name, "by_shape")
    rules = torch_differences(torch_tree(trace, frames=False, shapes=True))
    found = [
        ((row.name, row.input_dims, row.input_types), row)
        for row in ops(trace, by="shape")
        if isinstance(row, OpOfShape)
    ]
    keys = Counter(as_torch_writes(key) for key, _ in found if key[1])
    # Where torch puts calls with inputs of several types into one row, no row of ours is the same.
    alone = {key: as_torch_writes(key) for key, _ in found if key[1] and keys[as_torch_writes(key)] == 1}
    assert len(alone) > 0.25 * len(found)
    rows: dict[Key, Op] = {alone[key]: row for key, row in found if key in alone}
    straight = assert_agrees(rows, table.host, {alone[key]: rules[key] for key in alone})
    assert straight > 0.6 * len(rows)


def rows_of(averages: Any) -> Iterator[dict[str, Any]]:
    """The rows of torch's table; it sums whole nanoseconds as floating-point microseconds."""
    for row in averages:
        times = {
            "self_cpu_ns": row.self_cpu_time_total,
            "cpu_ns": row.cpu_time_total,
            "self_device_ns": row.self_device_time_total,
            "device_ns": row.device_time_total,
        }
        yield {
            "name": row.key,
            "side": "host" if str(row.device_type).endswith("CPU") else "device",
            "annotation": row.is_user_annotation,
            "shapes": None,
            "calls": row.count,
            **{column: round(1000 * us) for column, us in times.items()},
        }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_torch_records_here(program: str, options: str, torch: Any, tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    profiler = record(torch, program, OPTIONS[options], file)
    trace = stepscope.open(file, store=tmp_path / "stores")
    assert trace.meta.damage == ()
    assert_ops_agree(trace, TorchTable.of(rows_of(profiler.key_averages())), straight=0.5)
    frames = trace.arrow("SELECT count(*) AS n FROM host_tree WHERE name LIKE '%torch_programs.py%: step'")
    assert frames["n"][0].as_py() == (3 if options == "everything" else 0)
    if program == "mlp":
        assert next(row.calls for row in ops(trace) if row.name == "aten::linear") == 6
