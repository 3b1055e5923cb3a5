"""Sources of other packages: found by what they say of a file, and their traces answer like any other."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.drawing import Drawing
from tests.sources.examples import install

import stepscope
from stepscope.cli.main import main
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace

BASE = 1_700_000_000_000_000_000
DRAWN = (
    Drawing(base_ns=BASE)
    .mark(1, 0, 100)
    .op("aten::mm", 10, 20)
    .launch("cudaLaunchKernel", 12, 1, corr=7)
    .kernel("gemm", 20, 30, corr=7)
)
KERNELS = "name,start_us,dur_us\n" + "".join(
    f"gemm,{start},6\nrelu,{start + 7},2\n" for start in range(0, 100, 10)
)
MEMORY = (
    "time_us,thread,address,bytes,allocated\n"
    f"{BASE // 1000 + 11},1,4096,512,512\n"
    f"{BASE // 1000 + 40},1,4096,-512,0\n"
    f"{BASE // 1000 + 50},77,8192,64,64\n"
)


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(monkeypatch, tmp_path)
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def printed(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


class TestTheRecipe:
    def test_show_and_report(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = written(tmp_path / "kernels.csv", KERNELS)
        found = json.loads(printed(capsys, "show", "kernels", file, "--format", "json"))
        kernels = found["rows"] if isinstance(found, dict) else found
        assert {(row["name"], row["calls"], row["total_ns"]) for row in kernels} == {
            ("gemm", 10, 60_000),
            ("relu", 10, 20_000),
        }
        assert "kernels.csv" in printed(capsys, "report", file)
        assert "20  kernel" in printed(capsys, "info", file)

    def test_what_is_told_of_it(self, tmp_path: Path) -> None:
        file = tmp_path / "kernels.csv.gz"
        file.write_bytes(gzip.compress(KERNELS.encode(), mtime=0))
        meta = stepscope.open(file).meta
        (source,) = meta.sources
        assert (source.kind, source.source, source.events) == ("kernels_csv", str(file), 20)
        assert (source.bytes, source.compressed_bytes) == (len(KERNELS), file.stat().st_size)
        assert meta.rows["device_work"] == 20

    def test_what_is_cut_is_a_kineto_trace(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = written(tmp_path / "kernels.csv", KERNELS)
        printed(capsys, "cut", file, "--time", "0us:", "-o", tmp_path / "cut.json")
        again = stepscope.open(tmp_path / "cut.json")
        assert again.meta.kind == "kineto"
        sql = "SELECT * EXCLUDE (event) FROM kernels ORDER BY start_ns"
        assert rows(again, sql) == rows(stepscope.open(file), sql)

    def test_a_broken_stream_is_damage(self, tmp_path: Path) -> None:
        file = tmp_path / "kernels.csv.gz"
        file.write_bytes(gzip.compress(KERNELS.encode(), mtime=0)[:-4])
        assert ["ends too early" in one.reason for one in stepscope.open(file).meta.damage] == [True]


class TestAddingToATrace:
    def opened(self, tmp_path: Path) -> Trace:
        file, memory = DRAWN.write(tmp_path / "a.json"), written(tmp_path / "memory.csv", MEMORY)
        return stepscope.open(file, also=[memory])

    def test_its_rows_are_beside_those_of_the_profile(self, tmp_path: Path) -> None:
        trace = self.opened(tmp_path)
        alone = stepscope.open(tmp_path / "a.json")
        for table in ("ops", "launches", "device_work", "annotations", "kernels"):
            assert rows(trace, f"FROM {table} ORDER BY event") == rows(alone, f"FROM {table} ORDER BY event")
        columns = "event, name, pid, tid, start_ns, dur_ns, category, phase, bytes"
        sql = f"SELECT {columns} FROM memory_events ORDER BY event"
        same = ("cpu_instant_event", "i")
        assert rows(trace, sql) == [
            (4, "[memory]", "100", "1", BASE + 11_000, None, *same, 512),
            (5, "[memory]", "100", "1", BASE + 40_000, None, *same, -512),
            (6, "[memory]", "100", "77", BASE + 50_000, None, *same, 64),
        ]
        (thread,) = {row[0] for row in rows(trace, "SELECT thread FROM ops")}
        assert [
            row[0] == thread for row in rows(trace, "SELECT thread FROM memory_events ORDER BY event")
        ] == [
            True,
            True,
            False,
        ]

    def test_analyses_see_both(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        trace = self.opened(tmp_path)
        assert rows(trace, "SELECT max(allocated_bytes) FROM memory_events") == [(512,)]
        assert rows(trace, "SELECT count(*) FROM analyses.memory")[0][0] > 0
        assert "gemm" in printed(capsys, "show", "kernels", trace.folder)
        assert printed(capsys, "report", trace.folder)

    def test_meta_names_all_sources(self, tmp_path: Path) -> None:
        trace = self.opened(tmp_path)
        first, second = trace.meta.sources
        assert (first.kind, first.events) == ("kineto", 4)
        assert (second.kind, second.events, second.counters) == ("memory_csv", 3, {"blocks": 2})
        assert (trace.meta.events, trace.path) == (7, str(tmp_path / "a.json"))
        ((told,),) = rows(trace, "SELECT value FROM meta WHERE key = 'sources'")
        assert [one["source"] for one in json.loads(told)] == [first.source, second.source]

    def test_the_store_is_that_of_all_inputs(self, tmp_path: Path) -> None:
        both = self.opened(tmp_path).folder
        assert stepscope.open(tmp_path / "a.json").folder != both
        assert stepscope.open(tmp_path / "a.json", also=[tmp_path / "memory.csv"]).folder == both
        written(tmp_path / "memory.csv", MEMORY.replace("64", "65"))
        changed = stepscope.open(tmp_path / "a.json", also=[tmp_path / "memory.csv"])
        assert changed.folder != both
        assert rows(changed, "SELECT max(allocated_bytes) FROM memory_events WHERE tid = '77'") == [(65,)]

    def test_the_command_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        profile, memory = DRAWN.write(tmp_path / "a.json"), written(tmp_path / "memory.csv", MEMORY)
        (tmp_path / "logs").mkdir()
        written(tmp_path / "logs" / "compile-0.log", "graph_0 5 10\n")
        out = printed(capsys, "ingest", profile, "--also", memory, "--also", tmp_path / "logs")
        folder, summary, *added = out.splitlines()
        assert summary.startswith("8 events, ")
        assert added == [
            f"also {memory} (memory_csv), events: 3",
            f"also {tmp_path / 'logs'} (compile_logs), events: 1",
        ]
        told = printed(capsys, "info", folder)
        assert f"also      {memory} (memory_csv), events: 3" in told
        assert "rank      0 (nothing says it; taken as 0)" in told

    def test_a_table_is_not_filled_twice(self, tmp_path: Path) -> None:
        profile = Drawing().memory(1, 5).write(tmp_path / "a.json")
        said = r"memory\.csv cannot be read together with .*a\.json: both tell of memory_events"
        with pytest.raises(StepscopeError, match=said):
            stepscope.open(profile, also=[written(tmp_path / "memory.csv", MEMORY)])
        assert not [name for name in (tmp_path / "cache").iterdir() if name.suffix != ".lock"]

    def test_a_kineto_trace_comes_first(self, tmp_path: Path) -> None:
        profile, memory = DRAWN.write(tmp_path / "a.json"), written(tmp_path / "memory.csv", MEMORY)
        with pytest.raises(StepscopeError, match="a Kineto trace begins a trace") as found:
            stepscope.open(memory, also=[profile])
        assert "name it first" in found.value.hint

    def test_a_store_is_finished(self, tmp_path: Path) -> None:
        folder = stepscope.open(DRAWN.write(tmp_path / "a.json")).folder
        with pytest.raises(StepscopeError, match="nothing can be added") as found:
            stepscope.open(folder, also=["memory.csv"])
        assert "--also memory.csv" in found.value.hint
        with pytest.raises(StepscopeError, match="cannot be added to another"):
            stepscope.open(tmp_path / "a.json", also=[folder])

    def test_what_is_added_has_to_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(StepscopeError, match="there is no file"):
            stepscope.open(DRAWN.write(tmp_path / "a.json"), also=[tmp_path / "none.csv"])


class TestAFolder:
    def test_it_is_read_as_a_whole(self, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        logs.mkdir()
        written(logs / "compile-0.log", "graph_0 5 10\ngraph_1 20 30\nrubbish\n")
        written(logs / "compile-main.log", "graph_2 0 1\n")
        written(logs / "a.json", "{}")
        trace = stepscope.open(logs)
        assert rows(trace, "SELECT name, pid, tid, start_ns, dur_ns FROM annotations ORDER BY event") == [
            ("graph_0", "compiler", "0", 5, 10),
            ("graph_1", "compiler", "0", 20, 30),
            ("graph_2", "compiler", "main", 0, 1),
        ]
        assert [(one.reason, one.count) for one in trace.meta.damage] == [
            ("a line that is no compilation", 1)
        ]
        assert (trace.rank, trace.meta.kind) == (3, "compile_logs")
        assert trace.meta.bytes == sum(file.stat().st_size for file in logs.iterdir())

    def test_it_is_recognised_by_its_files(self, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        logs.mkdir()
        written(logs / "compile-0.log", "graph_0 5 10\n")
        first = stepscope.open(logs).folder
        assert stepscope.open(logs).folder == first
        written(logs / "compile-1.log", "graph_1 5 10\n")
        assert stepscope.open(logs).folder != first

    def test_others_stand_for_the_trace_in_them(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        file = DRAWN.write(tmp_path / "run" / "a.json")
        assert stepscope.open(tmp_path / "run").path == str(file)


class TestADatabase:
    @pytest.fixture
    def database(self, tmp_path: Path) -> Path:
        path = tmp_path / "spans.sqlite"
        with sqlite3.connect(path) as database:
            for table in ("launches", "device_work"):
                database.execute(f"CREATE TABLE {table} (name, a, b, start_ns, dur_ns, correlation)")
            database.execute(
                "INSERT INTO launches VALUES ('launch', 9, 9, 0, 10, 1), ('launch', 9, 9, 20, 10, 2)"
            )
            database.execute(
                "INSERT INTO device_work VALUES ('b', 0, 7, 50, 9, 2), ('a', 0, 7, 30, 5, 1)"
                ", ('x', 0, 8, 1, 1, 3)"
            )
        database.close()
        return path

    def check(self, trace: Trace) -> None:
        assert trace.meta.kind == "spans_db"
        sql = """SELECT w.name, w.pid, w.tid, w.start_ns, w.device, l.start_ns AS launched_ns, l.work_ns
                 FROM device_work w LEFT JOIN launches l ON l.event = w.launch ORDER BY w.name"""
        assert rows(trace, sql) == [
            ("a", "0", "7", 1030, 0, 1000, 5),
            ("b", "0", "7", 1050, 0, 1020, 9),
            ("x", "0", "8", 1001, 0, None, None),
        ]

    def test_it_is_opened_where_it_lies(self, database: Path) -> None:
        self.check(stepscope.open(database))

    def test_times_that_count_from_another_base_are_not_added(self, database: Path, tmp_path: Path) -> None:
        with pytest.raises(StepscopeError, match=f"base_ns 1,000, but its rows .* from {BASE:,}"):
            stepscope.open(Drawing(base_ns=BASE).op("a", 0, 1).write(tmp_path / "a.json"), also=[database])

    def test_it_may_be_compressed(
        self, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        (tmp_path / "a.gz").write_bytes(gzip.compress(database.read_bytes(), mtime=0))
        self.check(stepscope.open(tmp_path / "a.gz"))
        # The folder of this process is there until it ends, with nothing in it but its lock.
        assert {file.name for file in (tmp_path / "temporary").glob("*/*")} <= {".owner"}

    def test_it_may_be_far_away_or_come_through_a_pipe(
        self, database: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with fsspec.open("memory://sources/spans.sqlite", "wb") as file:
            file.write(database.read_bytes())
        self.check(stepscope.open("memory://sources/spans.sqlite"))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(database.read_bytes())))
        trace = stepscope.open("-")
        self.check(trace)
        assert (trace.path, trace.meta.bytes) == ("standard input", database.stat().st_size)

    def test_a_folder_for_temporary_files_that_cannot_be_written(
        self, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
        (tmp_path / "a.gz").write_bytes(gzip.compress(database.read_bytes(), mtime=0))
        with pytest.raises(StepscopeError, match="could not be written to") as found:
            stepscope.open(tmp_path / "a.gz")
        assert "TMPDIR" in found.value.hint
