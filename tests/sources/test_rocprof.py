"""Profiles of ROCm's tools: real ones against their known figures, drawn ones for what no sample has."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.samples import KEPT, open_shared

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


REAL = {
    # kernels, their ns, calls, linked kernels
    "rocm/rocpd_mi300x.db": (301, 3_825_007, 624, 301),
    "rocm/rocprof1_dispatches.db": (1_004, 2_610_787_312, 0, 0),
    "rocm/rocprof1_dispatches.csv.gz": (1_004, 2_610_787_312, 0, 0),
    "rocm/rocprofv3_decode": (144, 1_857_381, 920, 27),
    "rocm/rocprofv3_decode/kernel_trace.csv": (144, 1_857_381, 0, 0),
    "rocm/rocprofv3_mi350x_cut.json.gz": (300, 1_049_288, 0, 0),
}


@pytest.mark.parametrize("name", REAL)
class TestRealOnes:
    def test_figures(self, sample: Find, name: str) -> None:
        trace = open_shared(sample(name))
        ((kernels, total, linked),) = rows(
            trace, "SELECT count(*), sum(dur_ns)::BIGINT, count(launch) FROM kernels"
        )
        assert (kernels, total, rows(trace, "SELECT count(*) FROM launches")[0][0], linked) == REAL[name]
        assert not trace.meta.damage

    def test_a_report_is_written(self, sample: Find, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", str(sample(name)), "--store", str(KEPT)]) == 0
        assert Path(name).name in capsys.readouterr().out


def test_rocpd_as_its_own_views_have_it(sample: Find) -> None:
    path = sample("rocm/rocpd_mi300x.db")
    opened = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    expected = opened.execute(
        "SELECT name, count(*), sum(duration) FROM kernels GROUP BY 1 ORDER BY 1"
    ).fetchall()
    launched = opened.execute(
        "SELECT r.name, count(*) FROM kernels k JOIN regions r ON r.stack_id = k.stack_id "
        "GROUP BY 1 ORDER BY 1"
    ).fetchall()
    opened.close()
    trace = open_shared(path)
    assert (
        rows(trace, "SELECT name, count(*), sum(dur_ns)::BIGINT FROM kernels GROUP BY 1 ORDER BY 1")
        == expected
    )
    sql = "SELECT l.name, count(*) FROM kernels k JOIN launches l ON l.event = k.launch GROUP BY 1 ORDER BY 1"
    assert rows(trace, sql) == launched
    gpu = trace.meta.metadata["deviceProperties"][0]
    assert (gpu["name"], gpu["numSms"], gpu["warpSize"], gpu["totalGlobalMem"]) == (
        "AMD Instinct MI300X",
        304,
        64,
        206_141_652_992,
    )


def test_the_two_files_of_one_run(sample: Find) -> None:
    sql = "SELECT name, start_ns, dur_ns, device, grid, block FROM kernels ORDER BY start_ns, name"
    database, table = (open_shared(sample(f"rocm/rocprof1_dispatches.{one}")) for one in ("db", "csv.gz"))
    assert rows(database, sql) == rows(table, sql)
    assert not any('"' in name or ".kd" in name for name, *_ in rows(database, sql))


def test_csv_as_a_plain_reader_has_it(sample: Find) -> None:
    folder = sample("rocm/rocprofv3_decode")
    with (folder / "kernel_trace.csv").open() as file:
        told = list(csv.DictReader(file))
    expected = sorted(
        (
            int(row["Start_Timestamp"]),
            row["Kernel_Name"],
            int(row["Grid_Size_X"]) // int(row["Workgroup_Size_X"]),
            int(row["Workgroup_Size_X"]),
        )
        for row in told
    )
    sql = (
        "SELECT start_ns, name, (grid->>'$[0]')::INT AS g, (block->>'$[0]')::INT AS b FROM kernels ORDER BY 1"
    )
    assert rows(open_shared(folder), sql) == expected


class TestDrawnOnes:
    def test_rpd(self, tmp_path: Path) -> None:
        opened = sqlite3.connect(tmp_path / "x.rpd")
        opened.executescript("""
            CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
            INSERT INTO rocpd_string VALUES (1, 'gemm.kd'), (2, 'KernelExecution'), (3, 'CopyHostToDevice'),
                (4, ''), (5, 'hipLaunchKernel'), (6, 'hipMemcpyAsync'), (7, 'UserMarker'), (8, 'step');
            CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, start INTEGER,
                end INTEGER, description_id INTEGER, opType_id INTEGER);
            INSERT INTO rocpd_op VALUES (11, 2, 0, 200, 300, 1, 2), (12, 2, 0, 400, 450, 4, 3);
            CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER,
                end INTEGER, apiName_id INTEGER, args_id INTEGER);
            INSERT INTO rocpd_api VALUES (21, 5, 6, 100, 150, 5, 4), (22, 5, 6, 160, 170, 6, 4),
                (23, 5, 6, 90, 500, 7, 8);
            CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INTEGER, op_id INTEGER);
            INSERT INTO rocpd_api_ops VALUES (1, 22, 12), (2, 21, 11);
        """)
        opened.close()
        trace = stepscope.open(tmp_path / "x.rpd")
        sql = """
            SELECT w.name, w.kind, w.device, w.dur_ns, l.name AS call, l.pid, l.tid
            FROM device_work w JOIN launches l ON l.event = w.launch ORDER BY w.start_ns
        """
        assert rows(trace, sql) == [
            ("gemm", "kernel", 2, 100, "hipLaunchKernel", "5", "6"),
            ("Memcpy HtoD (Host -> Device)", "memcpy", 2, 50, "hipMemcpyAsync", "5", "6"),
        ]
        assert rows(trace, "SELECT name, dur_ns FROM annotations") == [("step", 410)]

    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "traces"
        folder.mkdir()
        (folder / "7_kernel_trace.csv").write_text(
            '"Kind","Agent_Id","Queue_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
            '"End_Timestamp","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
            '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
            '"KERNEL_DISPATCH","Agent 4","1","gemm<a, ""b"">(int)","1","200","300",'
            '"256","1","1","1024","2","1"\n'
        )
        (folder / "7_memory_copy_trace.csv").write_text(
            '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",'
            '"Start_Timestamp","End_Timestamp"\n'
            '"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST","Agent 4","Agent 0","2","310","330"\n'
        )
        (folder / "7_hip_api_trace.csv").write_text(
            '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
            '"HIP_RUNTIME_API","hipLaunchKernel","7","8","1","100","150"\n'
            '"HIP_RUNTIME_API","hipMemcpyAsync","7","8","2","160","170"\n'
        )
        (folder / "7_marker_api_trace.csv").write_text(
            '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
            '"MARKER_CORE_API","forward","7","8","3","90","180"\n'
        )
        (folder / "notes.csv").write_text("a,b\n1,2\n")
        return folder

    def test_a_folder_of_tables(self, tmp_path: Path) -> None:
        trace = stepscope.open(self.folder(tmp_path))
        sql = """
            SELECT w.name, w.device, w.grid, w.block, l.name AS call FROM device_work w
            JOIN launches l ON l.event = w.launch ORDER BY w.start_ns
        """
        assert rows(trace, sql) == [
            ('gemm<a, "b">(int)', 4, "[4,2,1]", "[256,1,1]", "hipLaunchKernel"),
            ("Memcpy DtoH (Device -> Host)", 4, None, None, "hipMemcpyAsync"),
        ]
        assert rows(trace, "SELECT name, pid, tid FROM annotations") == [("forward", "7", "8")]
        assert main(["report", str(tmp_path / "traces")]) == 0

    def test_lines_that_are_cut(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        file = folder / "7_hip_api_trace.csv"
        file.write_text(file.read_text() + '"HIP_RUNTIME_API","hipFree","7","8"\n')
        (damage,) = stepscope.open(folder).meta.damage
        assert (damage.reason, damage.count) == (
            "a line of 7_hip_api_trace.csv with too many or too few values",
            1,
        )

    def test_times_that_are_none(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        file = folder / "7_hip_api_trace.csv"
        file.write_text(file.read_text() + '"HIP_RUNTIME_API","hipFree","7","8","4","soon","later"\n')
        trace = stepscope.open(folder)
        assert rows(trace, "SELECT count(*) FROM launches") == [(2,)]
        assert [one.count for one in trace.meta.damage] == [1]

    def test_json(self, tmp_path: Path) -> None:
        kinds = [
            {"kind": "HIP", "operations": ["hipMalloc", "hipLaunchKernel"]},
            {"kind": "COPY", "operations": ["HOST_TO_DEVICE"]},
        ]
        agent, times = {"handle": 50}, {"correlation_id": {"internal": 9, "external": 0}}
        document = {
            "metadata": {"pid": 7, "node": {"hostname": "node"}},
            "agents": [{"id": agent, "type": 2, "product_name": "AMD Instinct MI300X", "cu_count": 304}],
            "strings": {"buffer_records": kinds},
            "kernel_symbols": [{"kernel_id": 3, "formatted_kernel_name": "gemm", "arch_vgpr_count": 16}],
            "buffer_records": {
                "kernel_dispatch": [
                    {
                        **times,
                        "start_timestamp": 200,
                        "end_timestamp": 300,
                        "dispatch_info": {"agent_id": agent, "queue_id": {"handle": 1}, "kernel_id": 3},
                    },
                    "no record",
                    {**times, "start_timestamp": "soon", "end_timestamp": 1 << 80, "dispatch_info": 5},
                ],
                "hip_api": [
                    {
                        **times,
                        "kind": 0,
                        "operation": 1,
                        "thread_id": 8,
                        "start_timestamp": 100,
                        "end_timestamp": 150,
                    }
                ],
                "memory_copy": [
                    {
                        "kind": 1,
                        "operation": 0,
                        "dst_agent_id": agent,
                        "start_timestamp": 310,
                        "end_timestamp": 330,
                        "bytes": 64,
                    }
                ],
            },
        }
        file = tmp_path / "x.json.gz"
        file.write_bytes(gzip.compress(json.dumps({"rocprofiler-sdk-tool": [document]}).encode()))
        trace = stepscope.open(file)
        sql = """
            SELECT w.name, w.device, w.registers, w.bytes, l.name AS call, l.pid
            FROM device_work w LEFT JOIN launches l ON l.event = w.launch ORDER BY w.start_ns
        """
        assert rows(trace, sql) == [
            ("gemm", 0, 16, None, "hipLaunchKernel", "7"),
            ("Memcpy HtoD (Host -> Device)", 0, None, 64, None, None),
        ]
        assert [one.reason for one in trace.meta.damage] == [
            "a record in the JSON that is none, not kept",
            "a row of kernel_dispatch whose times cannot be, not kept",
        ]

    @pytest.mark.parametrize(
        "text", ['{"rocprofiler-sdk-tool": [{"metadata": {"pid"', '{"rocprofiler-sdk-tool": 5}']
    )
    def test_json_that_is_none(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "x.json"
        file.write_text(text)
        with pytest.raises(StepscopeError, match=r"rocprofv3|ROCm") as error:
            stepscope.open(file)
        assert "rocprofv3" in str(error.value.hint)

    def test_an_empty_table(self, tmp_path: Path) -> None:
        file = tmp_path / "x.csv"
        file.write_text('"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n')
        with pytest.raises(StepscopeError, match="has no kernels"):
            stepscope.open(file)
