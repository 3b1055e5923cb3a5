"""What profiles of ROCm tell besides times: names of ranges, sizes, streams and devices."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.errors import StepscopeError
from stepscope.runs.finding import is_one_profile
from stepscope.sources import Input, reader_of
from stepscope.store.trace import Trace


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def drawn(path: Path, sql: str) -> Trace:
    opened = sqlite3.connect(path)
    opened.executescript(sql)
    opened.close()
    return stepscope.open(path)


def reader(path: Path) -> str | None:
    """The name of the source that takes it."""
    given = Input(str(path))
    try:
        found = reader_of(given)
    finally:
        given.close()
    return found[0] if found else None


RANGES = "SELECT name, dur_ns FROM annotations ORDER BY start_ns"
WORK = "SELECT name, stream, bytes, grid, block FROM device_work ORDER BY start_ns"


class TestRocpd:
    TABLES = """
        CREATE TABLE rocpd_string_a (id INTEGER PRIMARY KEY, string TEXT);
        INSERT INTO rocpd_string_a VALUES (1, 'MARKER_CORE_API'), (2, 'roctxRangePushA'),
            (3, 'MEMORY_COPY_HOST_TO_DEVICE'), (4, 'HIP_RUNTIME_API'), (5, 'hipFree');
        CREATE TABLE rocpd_event_a (id INTEGER PRIMARY KEY, category_id INTEGER, stack_id INTEGER,
            extdata JSONB);
        INSERT INTO rocpd_event_a VALUES (1, 1, 1, '{"message": "step \\"0\\" \\u00e9"}'), (2, 1, 2, '{}'),
            (3, 1, 3, NULL), (4, 4, 4, '{}'), (5, 1, 5, '{}'), (7, 1, 6, '{"message":"step 2"}');
        CREATE TABLE rocpd_region_a (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER,
            end INTEGER, name_id INTEGER, event_id INTEGER, extdata JSONB);
        INSERT INTO rocpd_region_a VALUES (1, 1, 1, 0, 90, 2, 1, '{}'),
            (2, 1, 1, 100, 191, 2, 2, '{"message": "step 1"}'), (3, 1, 1, 200, 292, 2, 7, '{}'),
            (4, 1, 1, 300, 393, 2, 3, '{}'), (5, 1, 1, 400, 410, 5, 4, '{}');
        CREATE TABLE rocpd_info_kernel_symbol_a (id INTEGER PRIMARY KEY, display_name TEXT);
        INSERT INTO rocpd_info_kernel_symbol_a VALUES (1, 'gemm');
        CREATE TABLE rocpd_kernel_dispatch_a (id INTEGER PRIMARY KEY, agent_id INTEGER, kernel_id INTEGER,
            queue_id INTEGER, start INTEGER, end INTEGER, event_id INTEGER, stream_id INTEGER);
        INSERT INTO rocpd_kernel_dispatch_a VALUES (1, 1, 1, 16, 20, 30, 5, 3),
            (2, 1, 1, 16, 40, 50, 5, NULL);
        CREATE TABLE rocpd_memory_copy_a (id INTEGER PRIMARY KEY, name_id INTEGER, start INTEGER,
            end INTEGER, dst_agent_id INTEGER, size INTEGER, queue_id INTEGER, stream_id INTEGER);
        INSERT INTO rocpd_memory_copy_a VALUES (1, 3, 10, 15, 1, 64, 8, 3);
    """

    def test_names_of_ranges_of_the_region_or_its_event(self, tmp_path: Path) -> None:
        trace = drawn(tmp_path / "x.db", self.TABLES)
        assert rows(trace, RANGES) == [
            ('step "0" é', 90),
            ("step 1", 91),
            ("step 2", 92),
            ("roctxRangePushA", 93),
        ]
        assert rows(trace, "SELECT name FROM launches") == [("hipFree",)]

    # Of schema 4, as rocprofiler-sdk declares it: names of tables end in an id that no other process has.
    FOURTH = """
        CREATE TABLE rocpd_string_0f (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
        INSERT INTO rocpd_string_0f VALUES (1, 'g', 'hipLaunchKernel'), (2, 'g', 'roctxRangePushA'),
            (3, 'g', 'MEMORY_COPY_HOST_TO_DEVICE');
        CREATE TABLE rocpd_info_category_0f (id INTEGER PRIMARY KEY, guid TEXT, name TEXT);
        INSERT INTO rocpd_info_category_0f VALUES (1, 'g', 'HIP_RUNTIME_API'), (2, 'g', 'MARKER_CORE_API'),
            (3, 'g', 'KERNEL_DISPATCH');
        CREATE TABLE rocpd_info_process_0f (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER);
        INSERT INTO rocpd_info_process_0f VALUES (1, 'g', 4242);
        CREATE TABLE rocpd_info_thread_0f (id INTEGER PRIMARY KEY, guid TEXT, tid INTEGER);
        INSERT INTO rocpd_info_thread_0f VALUES (1, 'g', 4243);
        CREATE TABLE rocpd_info_agent_0f (id INTEGER PRIMARY KEY, guid TEXT, type TEXT, type_index INTEGER,
            name TEXT, product_name TEXT, extdata JSONB);
        INSERT INTO rocpd_info_agent_0f VALUES (7, 'g', 'GPU', 3, 'gfx942', 'AMD Instinct MI300X', '{}');
        CREATE TABLE rocpd_track_0f (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
            agent_id INTEGER, queue_id INTEGER, stream_id INTEGER);
        INSERT INTO rocpd_track_0f VALUES (1, 'g', 1, 1, 1, NULL, NULL, NULL),
            (2, 'g', 1, 1, 1, 7, 5, 9), (3, 'g', 1, 1, 1, 7, 5, NULL);
        CREATE TABLE rocpd_event_0f (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER,
            extdata JSONB);
        INSERT INTO rocpd_event_0f VALUES (1, 'g', 1, 11, '{}'), (2, 'g', 2, 12, '{"message": "step"}'),
            (3, 'g', 3, 11, '{}'), (4, 'g', 3, 13, '{}');
        CREATE TABLE rocpd_info_kernel_symbol_0f (id INTEGER PRIMARY KEY, guid TEXT, display_name TEXT);
        INSERT INTO rocpd_info_kernel_symbol_0f VALUES (1, 'g', 'gemm');
    """
    TIMED = """
        CREATE TABLE rocpd_region_0f (id INTEGER PRIMARY KEY, guid TEXT, track_id INTEGER, name_id INTEGER,
            {0} INTEGER, {1} INTEGER, event_id INTEGER, extdata JSONB);
        INSERT INTO rocpd_region_0f VALUES (1, 'g', 1, 1, {2}, 1, '{{}}'), (2, 'g', 1, 2, {3}, 2, '{{}}');
        CREATE TABLE rocpd_kernel_dispatch_0f (id INTEGER PRIMARY KEY, guid TEXT, track_id INTEGER,
            kernel_id INTEGER, {0} INTEGER, {1} INTEGER, event_id INTEGER);
        INSERT INTO rocpd_kernel_dispatch_0f VALUES (1, 'g', 2, 1, {4}, 3);
        CREATE TABLE rocpd_memory_copy_0f (id INTEGER PRIMARY KEY, guid TEXT, track_id INTEGER, {0} INTEGER,
            {1} INTEGER, name_id INTEGER, dst_agent_id INTEGER, size INTEGER, event_id INTEGER);
        INSERT INTO rocpd_memory_copy_0f VALUES (1, 'g', 3, {5}, 3, 7, 4096, 4);
    """
    TIMES = ((20, 25), (10, 99), (30, 45), (50, 58))

    @pytest.mark.parametrize("version", ["4.0", "4.1"])
    def test_schema_4(self, version: str, tmp_path: Path) -> None:
        """Places are those of a track; times stand in a table of their own in 4.0, and in the row in 4.1."""
        text = self.FOURTH
        if version == "4.1":
            told = [f"{start}, {end}" for start, end in self.TIMES]
            text += self.TIMED.format('"start"', '"end"', *told)
        else:
            told = [f"{2 * at + 101}, {2 * at + 102}" for at in range(4)]
            text += self.TIMED.format("start_id", "end_id", *told)
            text += "CREATE TABLE rocpd_timestamp_0f (id INTEGER PRIMARY KEY, guid TEXT, value BIGINT);"
            values = (one for pair in self.TIMES for one in pair)
            listed = ", ".join(f"({at}, 'g', {value})" for at, value in enumerate(values, 101))
            text += f"INSERT INTO rocpd_timestamp_0f VALUES {listed};"
        trace = drawn(tmp_path / "x.db", text)
        sql = """
            SELECT w.name, w.device, w.stream, w.start_ns, w.dur_ns, l.name AS call, l.pid, l.tid
            FROM device_work w LEFT JOIN launches l ON l.event = w.launch ORDER BY w.start_ns
        """
        assert rows(trace, sql) == [
            ("gemm", 3, 9, 30, 15, "hipLaunchKernel", "4242", "4243"),
            ("Memcpy HtoD (Host -> Device)", 3, 5, 50, 8, None, None, None),
        ]
        assert rows(trace, RANGES) == [("step", 89)]
        (gpu,) = trace.meta.metadata["deviceProperties"]
        assert (gpu["id"], gpu["name"]) == (3, "AMD Instinct MI300X")

    def test_streams_before_queues(self, tmp_path: Path) -> None:
        trace = drawn(tmp_path / "x.db", self.TABLES)
        assert [row[:2] for row in rows(trace, WORK)] == [
            ("Memcpy HtoD (Host -> Device)", 3),
            ("gemm", 3),
            ("gemm", 16),
        ]


class TestRpd:
    TABLES = """
        CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
        INSERT INTO rocpd_string VALUES (1, 'gemm'), (2, 'KernelExecution'), (3, 'CopyHostToDevice'), (4, ''),
            (5, 'hipLaunchKernel'), (6, 'hipMemcpyAsync'), (7, 'UserMarker'), (8, 'hipExtModuleLaunchKernel');
        CREATE TABLE rocpd_ustring (id INTEGER PRIMARY KEY, string TEXT);
        INSERT INTO rocpd_ustring VALUES (1, ''), (2, 'step 0'), (7, 'step 1');
        CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, start INTEGER,
            end INTEGER, description_id INTEGER, opType_id INTEGER);
        INSERT INTO rocpd_op VALUES (11, 0, 0, 200, 300, 1, 2), (12, 0, 0, 400, 450, 4, 3),
            (13, 0, 0, 500, 600, 1, 2), (14, 0, 0, 700, 800, 1, 2);
        CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER,
            end INTEGER, apiName_id INTEGER, args_id INTEGER);
        INSERT INTO rocpd_api VALUES (21, 5, 6, 100, 150, 5, 1), (22, 5, 6, 160, 170, 6, 1),
            (23, 5, 6, 90, 500, 7, 2), (24, 5, 6, 510, 900, 7, 7), (25, 5, 6, 175, 180, 8, 1);
        CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INTEGER, op_id INTEGER);
        INSERT INTO rocpd_api_ops VALUES (1, 22, 12), (2, 21, 11), (3, 25, 13);
        CREATE TABLE rocpd_copyapi (api_ptr_id INTEGER PRIMARY KEY, stream TEXT, size INTEGER);
        INSERT INTO rocpd_copyapi VALUES (22, '0x0', 4096);
        CREATE TABLE rocpd_kernelapi (api_ptr_id INTEGER PRIMARY KEY, gridX INTEGER, gridY INTEGER,
            gridZ INTEGER, workgroupX INTEGER, workgroupY INTEGER, workgroupZ INTEGER,
            groupSegmentSize INTEGER);
        INSERT INTO rocpd_kernelapi VALUES (21, 1024, 2, 1, 512, 1, 1, 0), (25, 1024, 2, 1, 512, 1, 1, 16);
    """

    def test_names_of_ranges_in_a_table_of_their_own(self, tmp_path: Path) -> None:
        trace = drawn(tmp_path / "x.rpd", self.TABLES)
        assert rows(trace, RANGES) == [("step 0", 410), ("step 1", 390)]
        assert rows(trace, "SELECT count(*) FROM launches") == [(3,)]

    def test_what_calls_asked_for(self, tmp_path: Path) -> None:
        trace = drawn(tmp_path / "x.rpd", self.TABLES)
        assert rows(trace, WORK) == [
            ("gemm", 0, None, "[1024,2,1]", "[512,1,1]"),
            ("Memcpy HtoD (Host -> Device)", 0, 4096, None, None),
            ("gemm", 0, None, "[2,2,1]", "[512,1,1]"),
            ("gemm", 0, None, None, None),
        ]

    def test_what_its_newer_reader_recorded(self, tmp_path: Path) -> None:
        more = """
            INSERT INTO rocpd_string VALUES (9, 'RocprofDataSource::buffer_callback');
            UPDATE rocpd_string SET string = 'MEMORY_COPY_HOST_TO_DEVICE' WHERE id = 3;
            ALTER TABLE rocpd_kernelapi RENAME COLUMN api_ptr_id TO api_id;
        """
        trace = drawn(tmp_path / "x.rpd", self.TABLES + more)
        assert [row[3] for row in rows(trace, WORK)] == ["[2,2,1]", None, "[2,2,1]", None]
        assert rows(trace, "SELECT bytes FROM device_work WHERE kind = 'memcpy'") == [(4096,)]


def test_json_of_rocprofv3(tmp_path: Path) -> None:
    kinds = [{"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]}]
    spans = [
        {"correlation_id": {"internal": number}, "start_timestamp": number * 100, "end_timestamp": end}
        for number, end in ((1, 190), (2, 291), (3, 392))
    ]
    agent = {"handle": 5}
    document = {
        "metadata": {"pid": 7},
        "agents": [{"id": agent, "type": 2}],
        "strings": {
            "buffer_records": [*kinds, {"kind": "COPY", "operations": ["HOST_TO_DEVICE"]}],
            "marker_api": [{"key": 1, "value": "step 0"}, {"key": 2, "value": "step 1"}, {"key": "3"}, 4],
        },
        "buffer_records": {
            "marker_api": [one | {"kind": 0, "operation": 1, "thread_id": 8} for one in spans],
            "kernel_dispatch": [
                spans[0] | {"stream_id": {"handle": 3}, "dispatch_info": {"queue_id": {"handle": 16}}},
                spans[1] | {"dispatch_info": {"queue_id": {"handle": 16}}},
            ],
            "memory_copy": [spans[2] | {"kind": 1, "operation": 0, "stream_id": {"handle": 3}}],
        },
    }
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"rocprofiler-sdk-tool": [document]}))
    trace = stepscope.open(file)
    assert rows(trace, RANGES) == [("step 0", 90), ("step 1", 91), ("roctxRangePushA", 92)]
    assert rows(trace, "SELECT stream FROM device_work ORDER BY start_ns") == [(3,), (16,), (3,)]


class TestFolders:
    def draw(self, folder: Path, agent: str = "Agent 4", stream: str = '"Stream_Id",') -> Path:
        folder.mkdir(parents=True)
        value = '"3",' if stream else ""
        (folder / "7_kernel_trace.csv").write_text(
            f'"Kind","Agent_Id","Queue_Id",{stream}"Kernel_Name","Correlation_Id","Start_Timestamp",'
            '"End_Timestamp"\n'
            f'"KERNEL_DISPATCH","{agent}","16",{value}"gemm","1","200","300"\n'
        )
        (folder / "7_memory_copy_trace.csv").write_text(
            f'"Kind","Direction",{stream}"Source_Agent_Id","Destination_Agent_Id","Correlation_Id",'
            '"Start_Timestamp","End_Timestamp"\n'
            f'"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",{value}"Agent 0","{agent}","2","310","330"\n'
        )
        (folder / "7_agent_info.csv").write_text(
            '"Node_Id","Logical_Node_Id","Agent_Type","Lds_Size_In_Kb","Wave_Front_Size","Cu_Count",'
            '"Max_Waves_Per_Cu","Local_Mem_Size","Name","Product_Name"\n'
            '0,0,"CPU",0,0,0,0,0,"AMD EPYC","AMD EPYC"\n'
            '2,1,"GPU",64,64,304,32,0,"gfx942","AMD Instinct MI300X"\n'
            '4,2,"GPU",64,64,304,32,0,"gfx942","AMD Instinct MI300X"\n'
            '8,3,"GPU",64,32,96,0,0,"gfx1100",""\n'
        )
        return folder

    @pytest.mark.parametrize("stream", ['"Stream_Id",', ""])
    def test_streams_before_queues(self, tmp_path: Path, stream: str) -> None:
        trace = stepscope.open(self.draw(tmp_path / "x", stream=stream))
        expected = [(3,), (3,)] if stream else [(16,), (None,)]
        assert rows(trace, "SELECT stream FROM device_work ORDER BY start_ns") == expected

    @pytest.mark.parametrize(
        "agent, numbers",
        [
            ("Agent 3", [1, 2, 3]),
            ("Agent 8", [2, 4, 8]),
            ("4", [2, 4, 8]),
            ("2", [2, 4, 8]),
            ("GPU 0", [0, 1, 2]),
            ("Agent 9", []),
        ],
    )
    def test_devices_as_kernels_number_them(self, tmp_path: Path, agent: str, numbers: list[int]) -> None:
        told = stepscope.open(self.draw(tmp_path / "x", agent)).meta.metadata.get("deviceProperties", [])
        assert [one["id"] for one in told] == numbers
        if numbers:
            assert told[1] == {
                "id": numbers[1],
                "name": "AMD Instinct MI300X",
                "numSms": 304,
                "warpSize": 64,
                "maxThreadsPerMultiprocessor": 2048,
                "sharedMemPerMultiprocessor": 65536,
                "sharedMemPerBlock": 65536,
            }
            assert told[2]["name"] == "gfx1100"

    def test_the_list_of_agents_alone_is_no_profile(self, tmp_path: Path) -> None:
        folder = self.draw(tmp_path / "x")
        assert reader(folder / "7_agent_info.csv") is None
        for name in ("kernel_trace", "memory_copy_trace"):
            (folder / f"7_{name}.csv").unlink()
        assert reader(folder) is None

    def test_the_folder_around_that_of_the_host(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.draw(tmp_path / "traces" / "host")
        assert main(["info", str(tmp_path / "traces")]) == 0
        assert "AMD Instinct MI300X" in capsys.readouterr().out

    def test_folders_of_several_hosts_are_a_run(self, tmp_path: Path) -> None:
        for host in ("a", "b"):
            self.draw(tmp_path / "traces" / host)
        assert not is_one_profile(str(tmp_path / "traces"))


NAMES = {1: "Markers and Ranges", 2: "CPU HIP API", 3: "CPU HSA API", 4: "COPY", 6: "GPU0", 7: "GPU1"}


class TestJsonOfFirstRocprof:
    def draw(self, path: Path, *spans: dict[str, Any], begin: str = '{ "traceEvents":[{}\n') -> Path:
        labels = [
            {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name"}
            for pid, name in NAMES.items()
        ]
        lines = [f",{json.dumps(one, separators=(',', ':'))}\n" for one in [*labels, *spans]]
        path.write_text(begin + "".join(lines) + "]}\n")
        return path

    def span(self, name: str, section: int, begin: int, end: int, /, **told: str) -> dict[str, Any]:
        times = {"BeginNs": str(begin), "EndNs": str(end), "DurationNs": str(end - begin)}
        shown = {"ts": str(begin // 1000 - 5), "dur": str((end - begin) // 1000)}
        named = {"ph": "X", "name": name, "pid": str(section), "tid": "9"}
        return named | shown | {"args": times | {key.replace("_", "-"): one for key, one in told.items()}}

    def test_all_kinds(self, tmp_path: Path) -> None:
        work = {"dev_id": "1", "queue_id": "0", "proc_id": "77"}
        file = self.draw(
            tmp_path / "results.json",
            self.span("step", 1, 10_001, 90_000, Index="0"),
            self.span("hipLaunchKernel", 2, 11_000, 12_001, Index="5"),
            self.span("hsa_queue_create", 3, 12_500, 12_600, Index="6"),
            self.span("gemm [clone .kd]", 7, 20_003, 30_001, Index="5", **work),
            self.span("CopyHostToDevice", 4, 31_000, 32_002, Index="6", **work),
            self.span("async-copy:5:77", 4, 33_000, 34_002, Index="5", proc_id="77"),
            {"ts": 12, "ph": "s", "cat": "DataFlow", "id": 0, "pid": 2, "tid": 9, "name": "dep"},
        )
        trace = stepscope.open(file)
        sql = """
            SELECT w.name, w.kind, w.device, w.stream, w.start_ns, w.dur_ns, l.name AS call
            FROM device_work w LEFT JOIN launches l ON l.event = w.launch ORDER BY w.start_ns
        """
        assert rows(trace, sql) == [
            ("gemm", "kernel", 1, 9, 20_003, 9_998, "hipLaunchKernel"),
            ("Memcpy HtoD (Host -> Device)", "memcpy", 1, 9, 31_000, 1_002, None),
            ("Memcpy (async-copy:5:77)", "memcpy", None, 9, 33_000, 1_002, None),
        ]
        assert rows(trace, RANGES) == [("step", 79_999)]
        assert rows(trace, "SELECT name, tid FROM launches ORDER BY start_ns") == [
            ("hipLaunchKernel", "9"),
            ("hsa_queue_create", "9"),
        ]
        assert not trace.meta.damage
        assert main(["report", str(file)]) == 0

    def test_several_processes_stay_apart(self, tmp_path: Path) -> None:
        """The last versions say the process of everything within `args`, also of calls."""
        spans = []
        for process, gpu, at in (("77", 6, 0), ("88", 7, 500)):
            told = {"Index": "5", "pid": process}
            spans += [
                self.span("hipLaunchKernel", 2, at + 11_000, at + 12_000, **told),
                self.span("gemm.kd", gpu, at + 20_000, at + 30_000, dev_id=str(gpu - 6), **told),
            ]
        trace = stepscope.open(self.draw(tmp_path / "results.json", *spans))
        sql = """
            SELECT w.device, w.start_ns, l.start_ns AS launched_ns, l.pid
            FROM device_work w LEFT JOIN launches l ON l.event = w.launch ORDER BY w.start_ns
        """
        assert rows(trace, sql) == [(0, 20_000, 11_000, "77"), (1, 20_500, 11_500, "88")]
        (doubt,) = [row for row in trace.table("trust") if row.what == "several processes"]
        assert doubt.count == 2

    def test_calls_that_do_not_say_their_process_are_not_tied(self, tmp_path: Path) -> None:
        spans = [self.span("hipLaunchKernel", 2, 11_000, 12_000, Index="5", pid="2")]
        for process, gpu in (("77", 6), ("88", 7)):
            told = {"Index": "5", "dev_id": str(gpu - 6), "proc_id": process, "pid": str(gpu)}
            spans.append(self.span("gemm.kd", gpu, 20_000, 30_000, **told))
        trace = stepscope.open(self.draw(tmp_path / "results.json", *spans))
        assert rows(trace, "SELECT launch FROM device_work") == [(None,), (None,)]
        assert rows(trace, "SELECT pid FROM launches") == [("rocprof",)]

    def test_times_beside_args_alone(self, tmp_path: Path) -> None:
        span = {"ph": "X", "name": "gemm", "pid": 6, "tid": 0, "ts": "1551401624300.5", "dur": 1000.123}
        trace = stepscope.open(self.draw(tmp_path / "results.json", span))
        sql = "SELECT device, start_ns, dur_ns FROM kernels"
        assert rows(trace, sql) == [(0, 1_551_401_624_300_500, 1_000_123)]

    def test_texts_and_values_that_are_odd(self, tmp_path: Path) -> None:
        odd: list[dict[str, Any]] = [
            {"ph": "X", "name": "gemm \ud800", "pid": 6, "tid": 0, "ts": "1", "dur": "1", "args": 5},
            {"ph": "X", "name": {}, "pid": [], "tid": None, "ts": "soon", "args": {"BeginNs": [1]}},
            {"ph": "X"},
        ]
        trace = stepscope.open(self.draw(tmp_path / "results.json", *odd))
        assert rows(trace, "SELECT name, start_ns FROM kernels") == [("gemm ?", 1_000)]
        assert [one.count for one in trace.meta.damage] == [2]
        with pytest.raises(StepscopeError, match="has no kernels"):
            stepscope.open(self.draw(tmp_path / "empty.json"))

    def test_cut_short(self, tmp_path: Path) -> None:
        file = self.draw(tmp_path / "results.json")
        file.write_text(file.read_text()[:-3] + ',{"ph":"X"')
        with pytest.raises(StepscopeError, match="cut short"):
            stepscope.open(file)

    @pytest.mark.parametrize(
        "begin", ['{"traceEvents":[{"ph":"M"}\n', "[ {}\n", '{"schemaVersion":1,"traceEvents":[{}\n']
    )
    def test_others_are_left_to_others(self, tmp_path: Path, begin: str) -> None:
        assert reader(self.draw(tmp_path / "x.json", begin=begin)) == "kineto"
