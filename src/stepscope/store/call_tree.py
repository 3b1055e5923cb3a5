"""The tree of calls, made when a question first needs it: every distinct path of host calls, and who took it.

One merge of each host thread's events follows the calls. What is asked of a path (its phase, its module, the
user's frame) is then worked out once per path, whatever the number of calls. Backward operators take module
and frame from their forward operator; what a worker of autograd does between two nodes, from the thread that
called `backward`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import STEP_MARK, derived_table
from stepscope.store import phases
from stepscope.store.call_sites import HostSteps, numbers, raw_writer, write_call_sites
from stepscope.store.columns import ROW_GROUP, arrays, arrow_schema, parquet_writer, record_batch, view
from stepscope.store.links import Run, sweep_thread
from stepscope.store.stretches import Stretch, read_stretch, stretches_by_thread
from stepscope.store.tree import OPEN_RUNS, host_skeletons
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = ["handing_threads", "write_call_tree"]

_DOING = "following calls"
_CALLS = ("python_frames", "ops", "launches", "annotations", "other_events")
_TABLES = (*_CALLS, "memory_events")
_CALL_TREE = derived_table("call_tree")
_KINDS = 16  # a label is a name, its kind and a flag: (name + 1) * 16 + kind * 2 + flag
_MANY_NAMES = 64
_TWICE = r"BackwardBackward\d*$"
"""Nodes of a gradient of gradients."""
_AGAIN = r"^torch/utils/checkpoint\.py\(|^CheckpointFunction"
_ROWS, _ASKED = 0, 1  # tables of the sweep
# What the sweep says of a row, and what it is called until the tree is whole.
_SWEPT = {
    "event": "event",
    "start_ns": "start",
    "node": "node",
    "backward": "marked",
    "step_self_ns": "in_steps",
    "starved_ns": "late",
}

Windows = dict[int, tuple[list[memoryview], list[memoryview]]]


def write_call_tree(
    trace: Trace, tree_target: Path, call_sites_target: Path, *, progress: Progress | None = None
) -> None:
    """Follows the calls of every host thread and writes the tree and the call sites."""
    aside = {
        name: call_sites_target.with_suffix(f".{name}") for name in ("raw_call_sites", "asked", "answers")
    }
    labels = _Labels(trace)
    try:
        nodes, workers = _follow_all(trace, labels, (aside["raw_call_sites"], aside["asked"]), progress)
        _write_tree(nodes, labels, workers, tree_target)
        write_call_sites(trace, {"call_tree": tree_target, **aside}, call_sites_target)
    finally:
        for path in aside.values():
            path.unlink(missing_ok=True)


class _Labels:
    """Names of calls as the tree tells them apart: without addresses, merely numbered ranges as one."""

    def __init__(self, trace: Trace) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = trace.arrow(
            f"""
            WITH plain AS (SELECT id, regexp_replace(coalesce(text, ''), '0x[0-9a-fA-F]+', '0x…', 'g') AS text
                           FROM stored.names),
                 ranges AS (SELECT DISTINCT name AS id FROM stored.annotations),
                 numbered AS (SELECT id, regexp_replace(text, '[0-9]+', '#', 'g') AS text
                              FROM plain JOIN ranges USING (id)),
                 many AS (SELECT text FROM numbered GROUP BY text HAVING count(*) > {_MANY_NAMES})
            SELECT p.id, coalesce(n.text, p.text) AS text,
                   regexp_full_match(p.text, '{STEP_MARK}') AS marks
            FROM plain p LEFT JOIN (SELECT id, text FROM numbered JOIN many USING (text)) n USING (id)
            ORDER BY p.id
            """
        )
        encoded = names["text"].combine_chunks().dictionary_encode()
        self.texts = encoded.dictionary
        # The last one is for events without a name.
        codes = pa.concat_arrays([encoded.indices.cast(pa.int64()), pa.array([-1], pa.int64())])
        self._labels = {
            table: pc.add(pc.multiply(pc.add(codes, 1), _KINDS), 2 * kind)
            for kind, table in enumerate(_CALLS)
        }
        self._nameless = len(names)
        # With create_graph=True what nodes compute has numbers, too, and is no forward that runs again.
        self._numbers_tell = not trace.has_name(_TWICE) or trace.has_name(_AGAIN)
        self._marks = names.filter(pc.fill_null(names["marks"], fill_value=False))["id"].combine_chunks()

    def of(self, table: str, piece: Any) -> pa.Array:
        """The labels of some events; the flag says that autograd gave an operator a number of its own."""
        import pyarrow.compute as pc

        name = piece["name"]
        if name.null_count:
            name = pc.fill_null(name, fill_value=self._nameless)
        label = pc.take(self._labels[table], name)
        if table != "ops" or not self._numbers_tell:
            return label
        own = pc.and_(pc.is_valid(piece["sequence"]), pc.invert(_is_backward(piece)))
        return pc.add(label, own.cast(label.type))

    def calls(self, table: str, piece: Any, skeletons: Any) -> Any:
        """The rows that are calls: complete events of host threads, no marks of steps."""
        import pyarrow.compute as pc

        if table not in ("annotations", "other_events"):
            return piece
        marks = pc.is_in(piece["name"], self._marks)
        return piece.filter(pc.and_(pc.is_in(piece["skeleton"], skeletons), pc.invert(marks)))


def _is_backward(piece: Any) -> pa.Array:
    import pyarrow.compute as pc

    return pc.fill_null(pc.greater(piece["forward_thread"], 0), fill_value=False)


# ---------------------------------------------------------------- following


def _follow_all(
    trace: Trace, labels: _Labels, targets: tuple[Path, Path], progress: Progress | None
) -> tuple[dict[str, pa.Array], set[int]]:
    """Sweeps all threads, those that autograd hands work to first, and says which those are."""
    import pyarrow.parquet as pq

    files = {name: pq.ParquetFile(trace.folder / f"{name}.parquet") for name in _TABLES}
    try:
        with (
            raw_writer(targets[0]) as rows,
            raw_writer(targets[1]) as asked,
            BackgroundWorker() as writing,
            BackgroundWorker(ahead=OPEN_RUNS) as reading,
        ):
            follower = _Follower(trace, labels, files, (writing, reading))
            follower.run(rows, asked, progress)
            return follower.nodes(), follower.workers
    finally:
        for file in files.values():
            file.close()


class _Follower:
    """The sweep of all threads, and what it hands from one thread to another."""

    def __init__(
        self,
        trace: Trace,
        labels: _Labels,
        files: dict[str, Any],
        asides: tuple[BackgroundWorker, BackgroundWorker],
    ) -> None:
        self._labels, self._files = labels, files
        self._writing, self._reading = asides
        self._skeletons = host_skeletons(trace.folder)
        self._stretches = stretches_by_thread(trace.folder, files)
        self._handed_by = handing_threads(trace)
        self.workers = set(self._handed_by)
        self._late = _late_stretches(trace)
        self._questions: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        self._tree = _native.CallTree()
        steps = trace.arrow("SELECT start_ns, end_ns FROM stored.steps ORDER BY start_ns")
        self._tree.set_steps(*map(view, steps.columns))
        self._begun_in = HostSteps(trace)
        self._sweep = _native.ThreadSweep([0, 0], self._tree)

    def run(self, rows: Any, asked: Any, progress: Progress | None) -> None:
        """Follows every thread; workers come before those that hand them their work."""
        total = sum(one.rows for of_thread in self._stretches.values() for one in of_thread) or 1
        done = 0
        for thread in sorted(self._stretches, key=lambda thread: (thread not in self.workers, thread)):
            self._follow(thread, rows, asked)
            done += sum(one.rows for one in self._stretches[thread])
            if progress:
                progress(_DOING, min(done / total, 0.999), 0, done)

    def nodes(self) -> dict[str, pa.Array]:
        """The columns of the tree."""
        taken = self._tree.take()
        return dict(zip(taken, arrays(list(taken.values())), strict=True))

    def _follow(self, thread: int, rows: Any, asked: Any) -> None:
        def flush(least: int = ROW_GROUP) -> None:
            for table, file in ((_ROWS, rows), (_ASKED, asked)):
                if self._sweep.rows(table) >= least:
                    batch = self._batch(self._sweep.take(table, 0))
                    if table == _ROWS and thread in self.workers:
                        self._ask(thread, batch)
                    self._writing.run(partial(file.write_batch, batch))

        late = self._late.pop(thread, ([], []))
        self._tree.begin_thread(thread, *(_joined(pieces) for pieces in late))
        sweep_thread(self._sweep, list(self._thread_runs(thread)), flush)
        self._tree.finish_thread()
        flush(least=1)
        if thread in self.workers:
            # What a worker did with nothing open, the thread that waits for it did.
            kept = self._late.setdefault(self._handed_by[thread], ([], []))
            for pieces, more in zip(kept, self._tree.hand_over(), strict=True):
                pieces.append(more)

    def _batch(self, found: dict[str, Any]) -> pa.RecordBatch:
        """Rows of one thread, which are in order of time."""
        swept = record_batch(numbers(_SWEPT), [found[name] for name in _SWEPT.values()])
        return swept.add_column(0, "step", self._begun_in.of(view(swept["start_ns"])))

    def _ask(self, thread: int, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        unknown = batch.filter(pc.is_null(batch["backward"])).select(["event", "start_ns"])
        if unknown.num_rows:
            self._questions[self._handed_by[thread]].append(unknown)

    def _thread_runs(self, thread: int) -> Iterator[Run]:
        for one in self._stretches[thread]:
            source = partial(self._pieces, one)
            if one.table == "memory_events":
                yield Run(one.start, source(), _ROWS, opens=False)
            elif one.table == "ops":
                yield Run(one.start, source(backward=False), _ROWS, opens=True, label=0)
                yield Run(one.start, source(backward=True), _ROWS, opens=True, marks=True, label=0)
            elif one.table == "launches":
                yield Run(one.start, source(), _ROWS, opens=True, label=0, weight=1)
            else:
                # Frames are too many to place one by one; but a worker's belong to the forward of its node.
                table = _ROWS if thread in self.workers else -1
                yield Run(one.start, source(), table, opens=True, label=0)
        for batch in self._questions.pop(thread, []):
            first = batch["start_ns"][0].as_py()
            start = _native.NULL if first is None else first
            yield Run(start, iter([_given(batch, [])]), _ASKED, opens=False)

    def _pieces(self, of: Stretch, *, backward: bool | None = None) -> Iterator[Any]:
        return self._reading.ahead(self._read(of, backward=backward))

    def _read(self, of: Stretch, *, backward: bool | None) -> Iterator[Any]:
        import pyarrow.compute as pc

        name = of.table
        columns = ["event", "start_ns", "dur_ns"]
        columns += [] if name == "memory_events" else ["name"]
        columns += ["skeleton"] if name in ("annotations", "other_events") else []
        columns += {"ops": ["sequence", "forward_thread"], "launches": ["work_ns"]}.get(name, [])
        for whole in read_stretch(self._files[name], of, columns):
            piece = self._labels.calls(name, whole, self._skeletons)
            if backward is not None:
                mask = _is_backward(piece)
                piece = piece.filter(mask if backward else pc.invert(mask))
            payload = [] if name == "memory_events" else [view(self._labels.of(name, piece))]
            if name == "launches":
                payload.append(view(piece["work_ns"]))
            yield _given(piece, payload)


def _given(piece: Any, payload: list[memoryview]) -> Any:
    """A piece as the sweep takes it; what has no duration is an instant."""
    import pyarrow as pa

    dur = piece["dur_ns"] if "dur_ns" in piece.schema.names else pa.nulls(piece.num_rows, pa.int64())
    return view(piece["event"]), view(piece["start_ns"]), view(dur), payload


def _joined(pieces: list[memoryview]) -> memoryview:
    return memoryview(b"".join(pieces)).cast("q")


# Gaps lie between the first and the last work of a device. Before the first it waits as well, and after the
# last one as long as the host has not ended the last step.
_LATE = """
    WITH first AS (
        SELECT arg_min_null(w.launch, (w.start_ns, w.event)) AS launch, min(w.start_ns) AS end_ns
        FROM stored.device_work w LEFT JOIN stored.threads h ON h.id = w.thread
        WHERE w.start_ns IS NOT NULL GROUP BY coalesce(w.device::VARCHAR, h.pid)),
    begun AS (SELECT min(start_ns) AS start_ns FROM stored.steps),
    last AS (
        SELECT max(w.start_ns + coalesce(w.dur_ns, 0)) AS start_ns
        FROM stored.device_work w LEFT JOIN stored.threads h ON h.id = w.thread
        WHERE w.start_ns IS NOT NULL GROUP BY coalesce(w.device::VARCHAR, h.pid)),
    ended AS (
        SELECT max(end_ns) AS end_ns,
               arg_max_null(CASE WHEN host_end_ns = end_ns THEN thread END, end_ns) AS thread
        FROM stored.steps),
    waited AS (
        SELECT thread, start_ns, start_ns + launch_delay_ns AS end_ns FROM stored.gaps
        WHERE launch_delay_ns > 0 AND thread IS NOT NULL
        UNION ALL
        SELECT l.thread, b.start_ns, least(l.start_ns, f.end_ns)
        FROM first f JOIN stored.launches l ON l.event = f.launch CROSS JOIN begun b
        UNION ALL
        SELECT e.thread, l.start_ns, e.end_ns FROM last l JOIN ended e ON l.start_ns < e.end_ns
        WHERE e.thread IN (SELECT thread FROM stored.launches WHERE work_events > 0))
    SELECT * FROM waited ORDER BY thread, start_ns
"""


def _late_stretches(trace: Trace) -> Windows:
    """For each thread, the times in which a device had run dry and waited for a launch of it."""
    import pyarrow.compute as pc

    found: Windows = {}
    late = trace.arrow(_LATE)
    for thread in late["thread"].unique().to_pylist():
        of_thread = late.filter(pc.equal(late["thread"], thread))
        found[thread] = ([view(of_thread["start_ns"])], [view(of_thread["end_ns"])])
    return found


def handing_threads(trace: Trace) -> dict[int, int]:
    """For each thread that autograd runs backward on, the thread of its process that called it."""
    rows = trace.once("handing threads", lambda: trace.reading(None).rows(_HANDING))
    return {row["worker"]: row["main"] for row in rows}


_HANDING = """
        WITH counted AS (
                 SELECT thread, count(*) AS ops, count(*) FILTER (forward_thread > 0) AS backward,
                        count(*) FILTER (sequence IS NOT NULL AND coalesce(forward_thread, 0) = 0) AS forward
                 FROM stored.ops GROUP BY thread),
             marked AS (SELECT DISTINCT thread, true AS marked FROM stored.steps WHERE thread IS NOT NULL),
             known AS (SELECT c.*, t.pid, coalesce(m.marked, false) AS marked
                       FROM counted c JOIN stored.threads t ON t.id = c.thread
                       LEFT JOIN marked m ON m.thread = c.thread),
             main AS (SELECT pid, arg_max(thread, (marked, forward, ops, -thread)) AS thread
                      FROM known GROUP BY pid)
        SELECT k.thread AS worker, m.thread AS main FROM known k JOIN main m USING (pid)
        WHERE k.backward > 0 AND k.thread != m.thread
"""


# ---------------------------------------------------------------- writing


def _write_tree(nodes: dict[str, pa.Array], labels: _Labels, workers: set[int], target: Path) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    label = nodes.pop("label")
    count = len(label)
    code = pc.subtract(pc.divide(label, _KINDS), 1)
    code = pc.if_else(pc.less(code, 0), pa.scalar(None, pa.int64()), code)
    kind = _kind_of(label)
    numbers = pa.array(range(count), pa.int64())
    name = pc.take(labels.texts, code)

    def nearest(of_name: pa.Array, *, is_kind: str) -> pa.Array:
        """The nearest path that ends at a call of this kind whose name is one of these."""
        here = pc.and_(pc.take(of_name, code), pc.equal(kind, _CALLS.index(is_kind)))
        own = pc.if_else(pc.fill_null(here, fill_value=False), numbers, pa.scalar(None, pa.int64()))
        return _inherited(nodes["parent"], own)

    users, libraries = (
        nearest(test(labels.texts), is_kind="python_frames")
        for test in (phases.is_user_frame, phases.is_library_frame)
    )
    begun = pc.take(phases.own_phases(labels.texts), code)
    columns = {
        **nodes,
        "recursive": _over_tree(_native.recurring, nodes["parent"], label),
        "inclusive_ns": _over_tree(_native.subtree_sums, nodes["parent"], nodes["self_ns"]),
        "launched_ns": _over_tree(_native.subtree_sums, nodes["parent"], nodes["device_ns"]),
        "node": numbers,
        "stored_in": pc.take(pa.array(_CALLS), kind),
        "name": name,
        "phase": pc.take(pa.array(phases.PHASES), _phase_of(nodes, label, begun, workers)),
        "module": nearest(phases.is_module(labels.texts), is_kind="python_frames"),
        "user_frame": pc.coalesce(users, libraries),
        # Inner calls have larger numbers; the user's own frames are none of torch's, too.
        "library_frame": pc.if_else(pc.greater(libraries, users), libraries, pa.scalar(None, pa.int64())),
    }
    schema = arrow_schema(_CALL_TREE.columns)
    with parquet_writer(target, _CALL_TREE.columns) as file:
        written = [columns[field.name].cast(field.type) for field in schema]
        file.write_table(pa.Table.from_arrays(written, schema=schema), row_group_size=ROW_GROUP)


def _kind_of(label: pa.Array) -> pa.Array:
    """Which kind of call a label is of, as a place in `_CALLS`."""
    import pyarrow.compute as pc

    return pc.divide(pc.bit_wise_and(label, _KINDS - 1), 2)


def _phase_of(nodes: dict[str, pa.Array], label: pa.Array, own: pa.Array, workers: set[int]) -> pa.Array:
    """The phase of each path, as a place in `PHASES`: that of the innermost call that begins one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def number(value: int) -> pa.Scalar:
        return pa.scalar(value, pa.int64())

    parent = nodes["parent"]
    works = pc.and_(pc.is_null(parent), pc.is_in(nodes["thread"], pa.array(sorted(workers), pa.int64())))
    own = pc.if_else(works, number(phases.BACKWARD), own)
    # An operator that autograd numbers anew while it runs backward is forward run again.
    again = pc.equal(pc.bit_wise_and(label, 1), 1)
    inside = pc.equal(_inherited(parent, own), phases.BACKWARD)
    again = pc.fill_null(pc.and_(pc.and_(again, inside), pc.is_null(own)), fill_value=False)
    own = pc.if_else(again, number(phases.RECOMPUTATION), own)
    is_op = pc.fill_null(pc.equal(_kind_of(label), _CALLS.index("ops")), fill_value=False)
    an_op = _inherited(parent, pc.if_else(is_op, number(phases.FORWARD), pa.scalar(None, pa.int64())))
    return pc.coalesce(_inherited(parent, own), an_op, number(phases.OTHER))


def _inherited(parent: pa.Array, own: pa.Array) -> pa.Array:
    return _over_tree(_native.inherited, parent, own)


def _over_tree(function: Any, parent: pa.Array, values: pa.Array) -> pa.Array:
    import pyarrow as pa

    return arrays([function(view(parent), view(values.cast(pa.int64())))])[0]
