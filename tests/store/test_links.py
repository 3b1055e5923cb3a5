"""Work to launch, launch to operator, and how the linked tables lie on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.commands import SLOW_ITEM
from tests.oracle import OP, RUNTIME, Oracle
from tests.samples import open_shared

import stepscope
from stepscope.schema import STORED
from stepscope.store import links
from stepscope.store.columns import ROW_GROUP, arrow_schema
from stepscope.store.meta import SourceMeta
from stepscope.store.trace import Trace
from stepscope.store.writer import StoreWriter

REAL = [
    "hta_nccl_data.json.gz",
    "hta_cupti.json.gz",
    "tl_vllm_decode_full_graph.json.gz",
    "hta_amd_mi250.json.gz",
]


def columns(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def check_links(path: Path) -> None:
    oracle, trace = Oracle.of(path), open_shared(path)
    found = columns(trace, "SELECT event, launch, op FROM device_work ORDER BY event")
    expected = []
    for work in oracle.work:
        opened = work.launch.open_ops if work.launch else []
        launch = work.launch.index if work.launch else None
        expected.append((work.index, launch, opened[-1].index if opened else None))
    assert found == expected
    loads: dict[int, list[int]] = {
        event.index: [] for event in oracle.events if event.phase == "X" and event.category in RUNTIME
    }
    for work in oracle.work:
        if work.launch:
            loads[work.launch.index].append(work.dur)
    calls = columns(trace, "SELECT event, work_events, work_ns FROM launches ORDER BY event")
    assert calls == [(event, len(durations), sum(durations)) for event, durations in sorted(loads.items())]
    device_self: dict[int, int] = dict.fromkeys(
        (event.index for event in oracle.events if event.phase == "X" and event.category in OP), 0
    )
    for work in oracle.work:
        if work.launch and work.launch.open_ops:
            device_self[work.launch.open_ops[-1].index] += work.dur
    assert dict(columns(trace, "SELECT event, device_self_ns FROM ops")) == device_self


def test_a_committed_sample(tmp_path: Path) -> None:
    check_links(SLOW_ITEM)


@pytest.mark.parametrize("name", REAL)
def test_a_real_profile(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    check_links(sample(name))


THREADS = 5
CALLS = 40_000


def crowd() -> bytes:
    """Five threads at once, each with a frame, an operator, a call and a kernel per µs, interleaved."""
    lines = []
    for call in range(CALLS):
        for thread in range(THREADS):
            number = call * THREADS + thread
            place = f'"pid":1,"tid":{thread},"ts":{call}'
            lines.append(f'{{"ph":"X","cat":"python_function","name":"f",{place},"dur":0.9}}')
            lines.append(
                f'{{"ph":"X","cat":"cpu_op","name":"op{call % 7}",{place}.1,"dur":0.7,'
                f'"args":{{"Ev Idx":{number}}}}}'
            )
            lines.append(
                f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel",{place}.2,"dur":0.3,'
                f'"args":{{"correlation":{number}}}}}'
            )
            lines.append(
                f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":{thread},"ts":{call + 5},"dur":0.5,'
                f'"args":{{"correlation":{number},"device":0,"stream":{thread}}}}}'
            )
    return ("[" + ",\n".join(lines) + "]").encode()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("large")
    (folder / "large.json").write_bytes(crowd())
    return stepscope.open(folder / "large.json", store=folder / "stores")


class TestRowGroups:
    TABLES = ("python_frames", "ops", "launches", "device_work")

    def test_all_is_there_and_linked(self, large: Trace) -> None:
        events = THREADS * CALLS
        assert large.meta.rows == {table.name: events if table.name in self.TABLES else 0 for table in STORED}
        found = columns(
            large,
            "SELECT count(*), count(w.launch), count(w.op), bool_and(l.event = w.event - 1),"
            " bool_and(w.op = w.event - 2), bool_and(l.op = w.op)"
            " FROM device_work w JOIN launches l ON l.event = w.launch",
        )
        assert found == [(events, events, events, True, True, True)]
        assert columns(
            large, "SELECT DISTINCT depth, self_ns, self_no_runtime_ns, device_self_ns FROM ops"
        ) == [(0, 700, 400, 500)]

    @pytest.mark.parametrize("table", TABLES)
    def test_rows_of_a_thread_lie_together_by_time(self, large: Trace, table: str) -> None:
        file = pq.ParquetFile(large.folder / f"{table}.parquet")
        assert file.num_row_groups > 1
        for group in range(file.num_row_groups):
            assert file.metadata.row_group(group).num_rows <= ROW_GROUP
            rows = file.read_row_group(group, columns=["thread", "start_ns"]).to_pydict()
            keys = list(zip(rows["thread"], rows["start_ns"], strict=True))
            threads = [thread for thread, _ in keys]
            if table != "device_work":
                assert sum(a != b for a, b in pairwise(threads)) == len(set(threads)) - 1
                assert all(a[0] != b[0] or a <= b for a, b in pairwise(keys))
            if table == "python_frames":  # the fewest rows first
                counts = [threads.count(thread) for thread in dict.fromkeys(threads)]
                assert counts == sorted(counts)

    @pytest.mark.parametrize("table", TABLES)
    def test_statistics_tell_where_a_time_lies(self, large: Trace, table: str) -> None:
        metadata = pq.ParquetFile(large.folder / f"{table}.parquet").metadata
        names = [metadata.schema.column(number).name for number in range(metadata.num_columns)]
        for group in range(metadata.num_row_groups):
            for name in ("thread", "start_ns"):
                statistics = metadata.row_group(group).column(names.index(name)).statistics
                assert statistics is not None
                assert statistics.has_min_max
        where = "start_ns BETWEEN 5000 AND 9000"
        (thread,) = columns(large, f"SELECT min(thread) FROM stored.{table}")[0]
        asked = columns(large, f"SELECT count(*) FROM stored.{table} WHERE thread = {thread} AND {where}")
        assert asked in ([(4,)], [(5,)])
        # By the statistics alone: the row groups in which that thread is at that time.
        near = [
            group
            for group in (metadata.row_group(number) for number in range(metadata.num_row_groups))
            if group.column(names.index("thread")).statistics.min <= thread
            and group.column(names.index("start_ns")).statistics.min <= 9000
            and group.column(names.index("start_ns")).statistics.max >= 5000
        ]
        assert len(near) == 1

    def test_runs_are_the_rows_of_the_files(self, large: Trace) -> None:
        with pa.memory_map(str(large.folder / "runs.arrow")) as file:
            runs = pa.ipc.open_file(file).read_all().to_pylist()
        assert runs
        seen: dict[tuple[str, int], int] = {}
        files = {}
        for run in runs:
            table, group = run["stored_in"], run["row_group"]
            if (table, group) not in files:
                file = pq.ParquetFile(large.folder / f"{table}.parquet")
                files[table, group] = file.read_row_group(group, columns=["thread", "start_ns"])
            rows = files[table, group].slice(run["first_row"], run["rows"])
            assert rows.num_rows == run["rows"]
            assert set(rows["thread"].to_pylist()) == {run["thread"]}
            starts = rows["start_ns"].to_pylist()
            assert starts == sorted(starts)
            assert starts[0] == run["min_start_ns"]
            assert seen.get((table, group), 0) == run["first_row"]
            seen[table, group] = run["first_row"] + run["rows"]
        for (table, group), rows_seen in seen.items():
            assert files[table, group].num_rows == rows_seen
        in_runs = {table: sum(n for (name, _), n in seen.items() if name == table) for table, _ in seen}
        assert in_runs["python_frames"] == THREADS * CALLS

    def test_the_tree_over_many_row_groups(self, large: Trace) -> None:
        found = columns(
            large,
            "SELECT stored_in, depth, self_ns, count(*), count(parent), count(frame) FROM host_tree"
            " GROUP BY ALL ORDER BY depth",
        )
        every = THREADS * CALLS
        assert found == [
            ("python_frames", 0, 200, every, 0, 0),
            ("ops", 1, 400, every, every, every),
            ("launches", 2, 300, every, every, every),
        ]

    def test_nothing_of_the_work_in_between_stays(self, large: Trace) -> None:
        names = {file.name for file in large.folder.iterdir()}
        assert not {name for name in names if "staged" in name or "partial" in name}
        assert (
            json.loads((large.folder / "meta.json").read_text())["sources"][0]["events"]
            == 4 * THREADS * CALLS
        )


class TestWaiting:
    """Rows wait for their links in memory, and beyond a bound on disk."""

    def test_a_table_that_waits_on_disk_is_linked_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_memory = stepscope.open(SLOW_ITEM, store=tmp_path / "memory").folder
        monkeypatch.setattr(links, "IN_MEMORY", 0)
        sizes: list[int] = []
        remove = links.Staged.remove

        def noted(staged: links.Staged) -> None:
            sizes.append(staged.path.stat().st_size)
            remove(staged)

        monkeypatch.setattr(links.Staged, "remove", noted)
        on_disk = stepscope.open(SLOW_ITEM, store=tmp_path / "disk").folder
        assert len(sizes) == 3
        assert all(sizes)
        assert not list(on_disk.glob("staged*"))
        for table in ("ops", "launches", "device_work"):
            found = pq.read_table(on_disk / f"{table}.parquet")
            assert found.num_rows > 0
            assert found.equals(pq.read_table(in_memory / f"{table}.parquet"))

    def test_pieces_come_back_in_order_from_both(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = next(table for table in STORED if table.name == "launches")
        schema = arrow_schema(table.read_columns)
        alike = {"external_id": [None, None, 3, 4], "thread": [7, 7, 8, 8], "correlation": [-5, -5, 6, 6]}
        batches = [
            pa.RecordBatch.from_arrays(
                [pa.array(alike.get(field.name, [*range(at, at + 4)]), field.type) for field in schema],
                schema=schema,
            )
            for at in range(0, 20, 4)
        ]
        in_bytes = links.Staged(tmp_path, table)
        in_bytes.add(batches[0], [(7, 0, 2, 0), (8, 2, 2, 0)])
        packed = in_bytes.packed_bytes
        monkeypatch.setattr(links, "IN_MEMORY", 2 * packed)
        staged = links.Staged(tmp_path, table)
        for batch in batches:
            staged.add(batch, [(7, 0, 2, 0), (8, 2, 2, 0)])
        staged.close()
        assert staged.packed_bytes == 5 * packed
        assert staged.path.stat().st_size == 3 * packed  # two batches of five are in memory
        assert staged.piece(6).equals(batches[3].slice(0, 2))
        assert [event for piece in staged.pieces() for event in piece["event"].to_pylist()] == [*range(20)]
        assert staged.first_rows == [*range(0, 20, 2)]
        assert staged.piece(7).equals(batches[3].slice(2, 2))
        assert staged.piece(7, "thread", "dur_ns").equals(batches[3].slice(2, 2).select(["thread", "dur_ns"]))
        assert staged.whole == {*schema.names} - {"external_id"}
        staged.remove()
        assert not staged.path.exists()


class TestColumnsWithoutNull:
    """What never is NULL in a file is declared so, and read as before."""

    def test_only_what_some_row_lacks_may_be_null(self, tmp_path: Path) -> None:
        folder = stepscope.open(SLOW_ITEM, store=tmp_path).folder
        for table in ("ops", "launches", "device_work"):
            found = pq.read_table(folder / f"{table}.parquet")
            declared = {field.name for field in found.schema if not field.nullable}
            assert declared >= {"event", "thread", "name", "start_ns", "dur_ns", "skeleton"}
            assert not any(found[name].null_count for name in declared)

    def test_one_row_without_a_name_is_enough(self, tmp_path: Path) -> None:
        kernel = {"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, "pid": 0, "tid": 7}
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": [kernel | {"name": "k"}, kernel]}))
        trace = stepscope.open(path, store=tmp_path / "store")
        schema = pq.read_schema(trace.folder / "device_work.parquet")
        assert [schema.field(name).nullable for name in ("name", "start_ns", "dur_ns")] == [
            True,
            False,
            False,
        ]
        assert columns(trace, "SELECT count(*), count(name) FROM device_work") == [(2, 1)]

    def test_the_smallest_number_of_a_call_is_kept_out_as_before(self, tmp_path: Path) -> None:
        """To the sweep it is NULL, so that its column may not be declared to have none."""
        call = {"process": "1", "thread": "2", "name": "cudaLaunchKernel", "start_ns": 1, "dur_ns": 2}
        writer = StoreWriter(tmp_path)
        writer.add_rows("launches", pa.Table.from_pylist([call | {"correlation": -(1 << 63)}]))
        writer.end_source(SourceMeta(source="x"))
        writer.finish()
        assert pq.read_table(tmp_path / "launches.parquet")["correlation"].to_pylist() == [None]
