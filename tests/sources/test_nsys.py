"""Exports of Nsight Systems: real ones against their known figures and plain SQL, drawn ones for the rest."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import lzma
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import KEPT, open_shared
from tests.sources.nsys_files import EPOCH, PID, drawn, export, tid
from tests.trying import tries

import stepscope
from stepscope.cli.main import main
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace

Find = Callable[[str], Path]


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def asked(path: Path, sql: str) -> list[tuple[Any, ...]]:
    opened = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        return opened.execute(sql).fetchall()
    finally:
        opened.close()


def has(path: Path, table: str) -> bool:
    return bool(asked(path, f"SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '{table}'"))


REAL = {
    # kernels, their ns, calls, ranges, copies
    "nsys/memfusion_3.1.2.sqlite": (36, 6_415_244, 5_668, 59, 4),
    "nsys/cs336_nvtx_3.16.1.sqlite": (7_328, 3_408_380_989, 9_493, 516, 294),
    "nsys/cs336_graphs_3.16.1.sqlite": (30, 78_270, 62, 0, 0),
    "nsys/no_kernels_3.17.2.sqlite": (0, None, 3, 0, 0),
    "nsys/mfu_2gpu_3.25.0.sqlite": (4_010, 535_200_650, 7_466, 19_118, 1_020),
    "nsys/minimal_6_tables.sqlite": (400, 400_000_000, 400, 0, 0),
    "nsys_h100_2gpu_1s.sqlite": (3_442, None, 5_796, 16_782, 904),
}


@pytest.mark.parametrize("name", REAL)
class TestRealOnes:
    def test_figures(self, sample: Find, name: str) -> None:
        kernels, total, calls, ranges, copies = REAL[name]
        trace = open_shared(sample(name))
        graph = "name LIKE 'CUDA graph%(as a whole%'"
        ((found, ns),) = rows(trace, f"SELECT count(*), sum(dur_ns)::BIGINT FROM kernels WHERE NOT ({graph})")
        assert (found, total if total is None else ns) == (kernels, total)
        assert rows(trace, "SELECT count(*) FROM launches") == [(calls,)]
        assert rows(trace, "SELECT (SELECT count(*) FROM annotations) + (SELECT count(*) FROM ops)") == [
            (ranges,)
        ]
        assert rows(trace, "SELECT count(*) FROM device_work WHERE kind = 'memcpy'") == [(copies,)]
        assert not trace.meta.damage

    def test_kernels_as_sql_has_them(self, sample: Find, name: str) -> None:
        path = sample(name)
        if not has(path, "CUPTI_ACTIVITY_KIND_KERNEL"):
            return
        trace = open_shared(path)
        expected = asked(
            path,
            "SELECT s.value, deviceId, streamId, count(*), sum(end - start) "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        )
        found = rows(
            trace,
            "SELECT name, device, stream, count(*), sum(dur_ns)::BIGINT FROM kernels "
            "WHERE name NOT LIKE 'CUDA graph%' GROUP BY ALL ORDER BY 1, 2, 3",
        )
        assert found == expected

    def test_links_as_sql_has_them(self, sample: Find, name: str) -> None:
        path = sample(name)
        if not has(path, "CUPTI_ACTIVITY_KIND_KERNEL"):
            return
        trace = open_shared(path)
        process = "globalPid" in str(
            asked(path, "SELECT sql FROM sqlite_schema WHERE name LIKE '%KIND_KERNEL'")
        )
        same = "AND k.globalPid >> 24 = r.globalTid >> 24" if process else ""
        expected = asked(
            path,
            "SELECT count(*), coalesce(sum(k.start - r.start), 0) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            f"JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId {same}",
        )
        found = rows(
            trace,
            "SELECT count(*), coalesce(sum(k.start_ns - l.start_ns), 0)::BIGINT FROM kernels k "
            "JOIN launches l ON l.event = k.launch WHERE k.name NOT LIKE 'CUDA graph%'",
        )
        assert found == expected

    def test_a_report_is_written(self, sample: Find, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", str(sample(name)), "--store", str(KEPT)]) == 0
        assert Path(name).name in capsys.readouterr().out


def test_copies_of_a_real_one(sample: Find) -> None:
    trace = open_shared(sample("nsys/cs336_nvtx_3.16.1.sqlite"))
    found = rows(
        trace,
        "SELECT name, count(*), sum(bytes)::BIGINT FROM device_work "
        "WHERE kind = 'memcpy' GROUP BY 1 ORDER BY 2",
    )
    assert found == [
        ("Memcpy HtoD (Pinned -> Device)", 2, 32_768),
        ("Memcpy HtoD (Pageable -> Device)", 292, 13_627_402_240),
    ]
    assert 13_627_402_240 + 32_768 == 13_627_435_008


def test_graphs_of_a_real_one(sample: Find) -> None:
    trace = open_shared(sample("nsys/cs336_graphs_3.16.1.sqlite"))
    sql = "SELECT count(*), sum(dur_ns)::BIGINT, count(launch) FROM kernels WHERE name LIKE 'CUDA graph%'"
    assert rows(trace, sql) == [(10, 7_811_141_695, 10)]
    assert any("--cuda-graph-trace=node" in note for note in trace.meta.sources[0].notes)


def test_nothing_was_recorded(sample: Find) -> None:
    with pytest.raises(StepscopeError, match="nothing was recorded") as error:
        stepscope.open(sample("nsys/qdrep_era_no_cuda.sqlite"))
    assert "nsys profile --trace=cuda,nvtx" in str(error.value.hint)


def test_the_projection_is_that_of_plain_sql(sample: Find) -> None:
    """From the first start to the last end of what was launched inside a range, on its thread."""
    path = sample("nsys/cs336_nvtx_3.16.1.sqlite")
    expected = asked(
        path,
        """
        WITH work AS (
            SELECT globalPid, correlationId, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL
            UNION ALL SELECT globalPid, correlationId, start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY),
        launched AS (
            SELECT r.globalTid, r.start AS asked, w.start, w.end FROM CUPTI_ACTIVITY_KIND_RUNTIME r
            JOIN work w ON w.correlationId = r.correlationId AND w.globalPid >> 24 = r.globalTid >> 24),
        projected AS (
            SELECT n.rowid, n.text, max(l.end) - min(l.start) AS ns FROM NVTX_EVENTS n
            JOIN launched l ON l.globalTid = n.globalTid AND l.asked >= n.start AND l.asked < n.end
            GROUP BY n.rowid)
        SELECT text, sum(ns) FROM projected GROUP BY text ORDER BY text
        """,
    )
    found = open_shared(path).arrow(
        "SELECT name, device_span_ns FROM analyses.annotations WHERE launches > 0 ORDER BY name"
    )
    assert [tuple(row.values()) for row in found.to_pylist()] == expected


@pytest.mark.parametrize("process", ["proc0", "proc1"])
def test_the_recipe_has_the_ranges_of_the_table_beside_it(sample: Find, process: str) -> None:
    """The push/pop trace of the same ranges, which nsys stats wrote; it has those without work, too."""
    folder = sample(f"nsys/recipe_pax_fsdp4/{process}")
    trace = open_shared(folder / "nvtx_gpu_proj_trace")
    with lzma.open(folder / "report_nvtx_pushpop_trace.csv.xz", "rt") as file:
        told = Counter(
            (row["Name"], int(row["Start (ns)"]), int(row["Duration (ns)"]), row["PID"], row["TID"])
            for row in csv.DictReader(file)
        )
    sql = "SELECT name, start_ns, dur_ns, pid, tid FROM annotations WHERE category = 'user_annotation'"
    found = Counter(rows(trace, sql))
    assert found
    assert not found - told
    ((ours, theirs),) = rows(
        trace,
        "SELECT count(*) FILTER (category = 'user_annotation'), "
        "count(*) FILTER (category <> 'user_annotation') AS n FROM annotations",
    )
    assert ours == theirs


class TestDrawnOnes:
    def opened(self, tmp_path: Path, **tables: Any) -> Trace:
        return stepscope.open(export(tmp_path / "x.sqlite", **(drawn() | tables)))

    def test_work_and_calls(self, tmp_path: Path) -> None:
        trace = self.opened(tmp_path)
        sql = """
            SELECT w.name, w.kind, w.device, w.stream, w.grid, w.block, w.registers, w.shared_bytes, w.bytes,
                   w.start_ns, w.dur_ns, l.name AS call, l.category, l.pid, l.tid
            FROM device_work w JOIN launches l ON l.event = w.launch
            WHERE w.start_ns < 50_000 + {EPOCH} ORDER BY w.start_ns
        """.replace("{EPOCH}", str(EPOCH))
        shape = ("[264,1,1]", "[128,1,1]", 40, 1_040, None)
        host = ("300", "7")
        assert rows(trace, sql) == [
            (
                "gemm(float*)",
                "kernel",
                0,
                7,
                *shape,
                EPOCH + 16_000,
                3_000,
                "cudaLaunchKernel",
                "cuda_runtime",
                *host,
            ),
            (
                "relu(float*)",
                "kernel",
                0,
                7,
                *shape,
                EPOCH + 26_000,
                3_000,
                "cuLaunchKernelEx",
                "cuda_driver",
                *host,
            ),
            (
                "Memcpy HtoD (Pageable -> Device)",
                "memcpy",
                0,
                7,
                None,
                None,
                None,
                None,
                6_000,
                EPOCH + 36_000,
                3_000,
                "cudaMemcpyAsync",
                "cuda_runtime",
                *host,
            ),
        ]

    def test_steps_and_device(self, tmp_path: Path) -> None:
        trace = self.opened(tmp_path)
        assert rows(trace, "SELECT name, source FROM steps") == [("step", "annotation")] * 4
        (gpu,) = trace.meta.metadata["deviceProperties"]
        assert (gpu["name"], gpu["numSms"], gpu["maxThreadsPerMultiprocessor"]) == ("NVIDIA H200", 132, 2_048)

    def test_packed_and_piped(self, tmp_path: Path) -> None:
        file = export(tmp_path / "x.sqlite", **drawn())
        packed = tmp_path / "x.sqlite.gz"
        packed.write_bytes(gzip.compress(file.read_bytes()))
        assert rows(stepscope.open(packed), "SELECT count(*) FROM kernels") == [(8,)]

    def test_correlations_of_two_processes(self, tmp_path: Path) -> None:
        other = PID + (1 << 24)
        first, second = drawn(), drawn(other, device=1)
        both = {
            name: first[name] + second[name] for name in first if name not in ("StringIds", "TARGET_INFO_GPU")
        }
        trace = self.opened(tmp_path, **both)
        sql = """
            SELECT w.device, l.pid, count(*) FROM device_work w JOIN launches l ON l.event = w.launch
            GROUP BY ALL ORDER BY 1
        """
        assert rows(trace, sql) == [(0, "300", 12), (1, "301", 12)]

    def test_processes_that_see_one_device_each(self, tmp_path: Path) -> None:
        """Both call it 0; the machine has two."""
        other = PID + (1 << 24)
        first, second = drawn(), drawn(other)
        both = {name: first[name] + second[name] for name in first if name.startswith(("CUPTI", "NVTX"))}
        seen = [{"pid": 300, "cudaId": 0, "gpuId": 2}, {"pid": 301, "cudaId": 0, "gpuId": 3}]
        sql = "SELECT device, tid, count(*) FROM kernels GROUP BY ALL ORDER BY ALL"
        trace = self.opened(tmp_path, **both, TARGET_INFO_CUDA_DEVICE=seen)
        assert rows(trace, sql) == [(2, "7", 8), (3, "7", 8)]
        # Without the table they share one, and their streams are told apart.
        (tmp_path / "x.sqlite").unlink()
        assert rows(self.opened(tmp_path, **both), sql) == [(0, "7", 8), (0, "7 of 301", 8)]

    def test_operators_of_emit_nvtx(self, tmp_path: Path) -> None:
        texts = [
            "aten::mm, seq = 5, op_id = 12, sizes = [[8, 4], [4, 2]]",
            "aten::empty, op_id = 13",
            "MmBackward0, seq = 5, op_id = 14",
            "autograd::engine::evaluate_function: MmBackward0, op_id = 15",
            "aten::relu",
            "Optimizer.step#SGD.step, op_id = 16",
            "FSDP::pre_forward (blocks.0), op_id = 17",
            "forward",
            "mine::thing",
        ]
        ranges = [
            {
                "start": place * 100,
                "end": place * 100 + 50,
                "eventType": 59,
                "text": text,
                "globalTid": tid(7),
            }
            for place, text in enumerate(texts)
        ]
        trace = self.opened(tmp_path, NVTX_EVENTS=ranges)
        assert rows(trace, "SELECT name, sequence, args::VARCHAR FROM ops ORDER BY start_ns") == [
            ("aten::mm", 5, '{"Sequence number":null,"Input Dims":[[8,4],[4,2]]}'),
            ("aten::empty", None, None),
            ("MmBackward0", 5, '{"Sequence number":null}'),
            ("autograd::engine::evaluate_function: MmBackward0", None, None),
            ("aten::relu", None, None),
        ]
        named = ["Optimizer.step#SGD.step", "FSDP::pre_forward (blocks.0)", "forward", "mine::thing"]
        assert [name for (name,) in rows(trace, "SELECT name FROM annotations ORDER BY start_ns")] == named

    def test_domains_marks_and_texts_by_number(self, tmp_path: Path) -> None:
        ranges = [
            {"start": 0, "eventType": 75, "text": "NCCL", "domainId": 3, "globalTid": tid(7)},
            {"start": 10, "end": 20, "eventType": 60, "textId": 9, "domainId": 3, "globalTid": tid(7)},
            {"start": 11, "eventType": 34, "text": "here", "domainId": 0, "globalTid": tid(7)},
            {"start": 12, "end": None, "eventType": 59, "text": "open", "domainId": 0, "globalTid": tid(7)},
        ]
        strings = [*drawn()["StringIds"], {"id": 9, "value": "ncclAllReduce"}]
        trace = self.opened(tmp_path, NVTX_EVENTS=ranges, StringIds=strings)
        assert rows(trace, "SELECT name, dur_ns, args::VARCHAR FROM annotations ORDER BY start_ns") == [
            ("ncclAllReduce", 10, '{"domain":"NCCL"}'),
            ("open", None, None),
        ]
        assert rows(trace, "SELECT name, phase FROM other_events WHERE category = 'nvtx_mark'") == [
            ("here", "i")
        ]

    def test_counters(self, tmp_path: Path) -> None:
        kinds = [{"typeId": 1 << 48 | 1, "metricId": 5, "metricName": "SMs Active [Throughput %]"}]
        read = [
            {"timestamp": 100 * number, "typeId": 1 << 48 | 1, "metricId": 5, "value": number}
            for number in range(3)
        ]
        opened = sqlite3.connect(export(tmp_path / "x.sqlite", **drawn()))
        opened.execute(
            "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT)"
        )
        opened.execute(
            "CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER)"
        )
        opened.executemany(
            "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (:typeId, :metricId, :metricName)", kinds
        )
        opened.executemany("INSERT INTO GPU_METRICS VALUES (:timestamp, :typeId, :metricId, :value)", read)
        opened.commit()
        opened.close()
        trace = stepscope.open(tmp_path / "x.sqlite")
        sql = "SELECT device, name, unit, start_ns, value FROM device_counters ORDER BY start_ns"
        expected = [
            (1, "SMs Active", "Throughput %", EPOCH + 100 * number, float(number)) for number in range(3)
        ]
        assert rows(trace, sql) == expected

    def test_metrics_that_are_not_read_are_named(self, tmp_path: Path) -> None:
        """Those of old exports, where GPU metrics are generic events, and of network cards."""
        trace = self.opened(
            tmp_path,
            GENERIC_EVENT_SOURCES=[{"sourceId": 9, "data": '{"Name": "GpuMetrics"}'}],
            GENERIC_EVENT_TYPES=[{"typeId": 8, "sourceId": 9, "data": '{"Name": "GA100"}'}],
            GENERIC_EVENTS=[{"rawTimestamp": 5, "timestamp": 5, "typeId": 8, "data": '{"SM Active": "35"}'}],
            NET_NIC_METRIC=[{"start": 1, "end": 2, "globalId": 3, "portId": 1, "nameId": 0, "value": 7}],
        )
        notes = " ".join(trace.meta.sources[0].notes)
        assert "only as generic events, which are not read" in notes
        assert "Metrics of network cards are in this export and are not read." in notes
        told = " ".join(row.explanation for row in trace.table("trust"))
        assert "Metrics of network cards" in told

    def test_metrics_that_are_not_there_are_not_named(self, tmp_path: Path) -> None:
        trace = self.opened(tmp_path, GENERIC_EVENTS=[{"timestamp": 5, "typeId": 8, "data": "{}"}])
        assert "not read" not in " ".join(trace.meta.sources[0].notes)

    def test_a_folder_of_parquet_says_the_same(self, tmp_path: Path) -> None:
        folder = tmp_path / "exported"
        folder.mkdir()
        for name, table in drawn().items():
            pq.write_table(pa.Table.from_pylist(table), folder / f"{name}.parquet")
        sql = "SELECT name, start_ns, dur_ns, device, grid FROM device_work ORDER BY start_ns"
        assert rows(stepscope.open(folder), sql) == rows(self.opened(tmp_path), sql)


@settings(max_examples=tries(10, 250), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_mutated_exports_are_read_or_refused(seed: int) -> None:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        file = export(Path(folder) / "x.sqlite", **drawn())
        raw = bytearray(file.read_bytes())
        for _ in range(dice.randrange(1, 80)):
            raw[dice.randrange(100, len(raw))] = dice.choice([0, 1, 9, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        file.write_bytes(raw)
        with contextlib.suppress(StepscopeError):
            trace = stepscope.open(file, store=folder)
            trace.arrow("SELECT * FROM device_work")


@settings(max_examples=tries(6, 150), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_value_in_any_column(seed: int) -> None:
    """Texts for numbers, numbers beyond all bounds, nothing at all."""
    dice = random.Random(seed)
    odd = [None, "word", -1, 1 << 62, -(1 << 63), (1 << 63) - 1, 2.5, b"\xff\0", "x" * 70_000, 0, 1 << 32]
    tables = drawn()
    for _ in range(dice.randrange(1, 30)):
        row = dice.choice(tables[dice.choice(list(tables))])
        row[dice.choice(list(row))] = dice.choice(odd)
    with tempfile.TemporaryDirectory() as folder:
        file = export(Path(folder) / "x.sqlite", **tables)
        with contextlib.suppress(StepscopeError):
            trace = stepscope.open(file, store=folder)
            for table in ("device_work", "launches", "annotations", "other_events"):
                trace.arrow(f"SELECT * FROM {table}")


class TestHostileOnes:
    def test_times_that_cannot_be(self, tmp_path: Path) -> None:
        tables = drawn()
        kernels = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
        kernels[0]["end"] = kernels[0]["start"] - 5
        kernels[1]["start"] = -(1 << 63)
        kernels[2]["end"] = "soon"
        kernels[3]["deviceId"] = None
        trace = stepscope.open(export(tmp_path / "x.sqlite", **tables))
        assert rows(trace, "SELECT count(*), count(device) FROM kernels") == [(5, 4)]
        assert {(one.reason.split(" of ")[0], one.count) for one in trace.meta.damage} >= {("a row", 3)}
        assert main(["report", str(tmp_path / "x.sqlite")]) == 0

    def test_a_view_instead_of_a_table(self, tmp_path: Path) -> None:
        tables = drawn()
        del tables["CUPTI_ACTIVITY_KIND_KERNEL"]
        opened = sqlite3.connect(export(tmp_path / "x.sqlite", **tables))
        opened.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS "
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            "SELECT x AS start, x + 1 AS end FROM n"
        )
        opened.commit()
        opened.close()
        assert rows(stepscope.open(tmp_path / "x.sqlite"), "SELECT count(*) FROM kernels") == [(0,)]

    def test_cut_in_the_middle(self, tmp_path: Path) -> None:
        file = export(tmp_path / "x.sqlite", **drawn(steps=3_000))
        raw = file.read_bytes()
        file.write_bytes(raw[: len(raw) * 3 // 4])
        trace = stepscope.open(file)
        assert any("beyond the end of the file" in one.reason for one in trace.meta.damage)
        assert 1_000 < rows(trace, "SELECT count(*) FROM kernels")[0][0] <= 6_000

    def test_a_report_needs_nsys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "x.nsys-rep"
        file.write_bytes(b"NSYS\0\1\2\3" * 100)
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(StepscopeError, match="not installed here") as error:
            stepscope.open(file)
        assert "nsys export --type sqlite" in str(error.value.hint)

    def test_nsys_exports_a_report(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a program of that name that writes what nsys would."""
        made = export(tmp_path / "made.sqlite", **drawn())
        program = tmp_path / "bin" / "nsys"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\ncp {made} "$2"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        file = tmp_path / "x.nsys-rep"
        file.write_bytes(b"NSYS\0\1\2\3" * 100)
        assert rows(stepscope.open(file), "SELECT count(*) FROM kernels") == [(8,)]
        program.write_text("#!/bin/sh\necho 'unsupported version' >&2\nexit 1\n")
        (tmp_path / "y.nsys-rep").write_bytes(file.read_bytes())
        with pytest.raises(StepscopeError, match="unsupported version"):
            stepscope.open(tmp_path / "y.nsys-rep")

    def test_it_begins_a_trace(self, tmp_path: Path) -> None:
        file = export(tmp_path / "x.sqlite", **drawn())
        other = export(tmp_path / "y.sqlite", **drawn())
        with pytest.raises(StepscopeError, match="begins a trace of its own"):
            stepscope.open(file, also=[other])

    def test_notes_say_what_is_missing(self, tmp_path: Path) -> None:
        trace = stepscope.open(export(tmp_path / "x.sqlite", **drawn()))
        assert any("no operators" in note for note in trace.meta.sources[0].notes)
        assert json.dumps(trace.meta.as_json())
