"""What is written as a Perfetto trace is read back the same, and nests as a viewer wants it."""

from __future__ import annotations

import gzip
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import Drawing
from tests.protobuf import fields_of
from tests.samples import DATA, open_shared
from tests.trying import tries

import stepscope
from stepscope.cli.main import main
from stepscope.errors import StepscopeError
from stepscope.exports import format_for
from stepscope.exports.pftrace import pftrace
from stepscope.store.trace import Trace

TABLES = ("device_work", "launches", "ops", "annotations", "python_frames", "memory_events")


def rows(trace: Trace, table: str) -> list[tuple[Any, ...]]:
    more = {"device_work": ", device, stream, correlation, bytes, launch IS NULL, op IS NULL"}
    sql = f"SELECT name, category, start_ns, dur_ns{more.get(table, '')} FROM {table} ORDER BY ALL"
    return list(zip(*(column.to_pylist() for column in trace.arrow(sql).columns), strict=True))


class Written:
    """A written file as a plain parser sees it: tracks, and their slices by a stack."""

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
        self.tracks: dict[int, dict[int, Any]] = {}
        self.names: dict[int, str] = {}
        self.slices: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        self.flows: dict[bytes, list[str]] = defaultdict(list)
        self.counters = 0
        self._open: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for field, packet in fields_of(raw):
            assert field == 1
            self._packet(dict(fields_of(packet)))
        assert not any(self._open.values())

    def _packet(self, packet: dict[int, Any]) -> None:
        if 60 in packet:
            track = dict(fields_of(packet[60]))
            self.tracks[track[1]] = track
        for field, text in fields_of(packet.get(12, b"")):
            if field == 2:
                entry = dict(fields_of(text))
                self.names[entry[1]] = entry[2].decode()
        self.counters += 52 in packet
        if 11 not in packet:
            return
        event, time = dict(fields_of(packet[11])), packet[8]
        uuid = event[11]
        assert uuid in self.tracks
        if event[9] == 1:
            name = self.names[event[10]]
            self._open[uuid].append((name, time))
            if 47 in event:
                self.flows[event[47]].append(name)
        elif event[9] == 2:
            name, start = self._open[uuid].pop()
            assert time >= start
            self.slices[uuid].append((name, start, time - start))

    def on(self, name: str) -> list[tuple[str, int, int]]:
        """The slices of all tracks of that name."""
        found = [uuid for uuid, track in self.tracks.items() if track.get(2, b"").decode() == name]
        return sorted(one for uuid in found for one in self.slices[uuid])


DRAWN = (
    Drawing()
    .mark(1, 0, 100)
    .op("aten::mm", 10, 30)
    .launch("cudaLaunchKernel", 12, 1, corr=7)
    .launch("cudaLaunchKernel", 14, 1, corr=8)
    .launch("cudaDeviceSynchronize", 40, 50, corr=9)
    .kernel("gemm", 20, 30, corr=7)
    .kernel("overlaps", 30, 40, corr=8)
)


def opened(tmp_path: Path, drawing: Drawing, name: str = "a.json") -> Trace:
    return stepscope.open(drawing.write(tmp_path / name), store=tmp_path / "store")


def again(tmp_path: Path, trace: Trace, name: str = "a.pftrace") -> Trace:
    pftrace(trace, str(tmp_path / name))
    return stepscope.open(tmp_path / name, store=tmp_path / "again")


class TestRoundTrip:
    def test_a_drawing(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, DRAWN)
        read = again(tmp_path, trace)
        assert read.meta.damage == ()
        for table in TABLES:
            assert rows(read, table) == rows(trace, table), table

    @pytest.mark.parametrize(
        "name", ["h200_tutorial_baseline", "h200_cuda_graph", "h200_mem_timeline", "h200_compile_default"]
    )
    def test_recordings(self, tmp_path: Path, name: str) -> None:
        trace = open_shared(DATA / f"{name}.pt.trace.json.gz")
        read = again(tmp_path, trace, "a.pftrace.gz")
        for table in TABLES:
            assert rows(read, table) == rows(trace, table), table
        models = [one["name"] for one in read.meta.metadata["deviceProperties"]]
        assert models == [one["name"] for one in trace.meta.metadata["deviceProperties"]]

    @settings(max_examples=tries(3, 50), deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(7, 9)), max_size=12),
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=12),
    )
    @pytest.mark.slow
    def test_any_overlap(self, work: list[tuple[int, int, int]], ops: list[tuple[int, int]]) -> None:
        drawing = Drawing().op("first", 0, 1)
        for place, (start, dur, stream) in enumerate(work):
            drawing.kernel(f"k{place}", start, dur, corr=place + 1, stream=stream)
        for place, (start, dur) in enumerate(ops):
            drawing.op(f"op{place}", start, dur)
        with tempfile.TemporaryDirectory() as folder:
            trace = opened(Path(folder), drawing)
            read = again(Path(folder), trace)
            for table in ("device_work", "ops"):
                assert rows(read, table) == rows(trace, table)


class TestWhatAViewerGets:
    def test_overlapping_kernels_have_lanes(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, DRAWN)
        pftrace(trace, str(tmp_path / "a.pftrace"))
        written = Written(tmp_path / "a.pftrace")
        base = trace.meta.base_ns
        assert written.on("overlapping 2") == [("overlaps", base + 30_000, 40_000)]

    def test_launches_are_tied_to_their_work(self, tmp_path: Path) -> None:
        pftrace(opened(tmp_path, DRAWN), str(tmp_path / "a.pftrace"))
        flows = sorted(sorted(names) for names in Written(tmp_path / "a.pftrace").flows.values())
        assert flows == [["cudaLaunchKernel", "gemm"], ["cudaLaunchKernel", "overlaps"]]

    def test_what_stepscope_found_has_tracks(self, tmp_path: Path) -> None:
        trace = open_shared(DATA / "h200_slow_item.pt.trace.json.gz")
        pftrace(trace, str(tmp_path / "a.pftrace"))
        written = Written(tmp_path / "a.pftrace")
        findings = [name for name, _, _ in written.on("findings")]
        from stepscope.findings.build import build_report

        assert sorted(findings) == sorted(one.advice.title for one in build_report(trace).findings)
        gaps = written.on("idle gaps of GPU 0")
        assert gaps
        assert all(name.startswith("idle: ") for name, _, _ in gaps)
        longest = trace.rows("SELECT max(dur_ns) AS ns FROM gaps")
        assert max(dur for _, _, dur in gaps) <= longest[0]["ns"]
        steps = trace.rows("SELECT sum(end_ns - start_ns)::BIGINT AS ns FROM steps")[0]["ns"]
        assert sum(dur for _, _, dur in written.on("critical path")) == steps
        read = stepscope.open(tmp_path / "a.pftrace", store=tmp_path / "again")
        assert read.rows("SELECT count(*) AS n FROM other_events WHERE category = 'stepscope'") == [{"n": 0}]

    def test_counters(self, tmp_path: Path) -> None:
        from tests.sources.pftrace_files import with_counters

        (tmp_path / "in.pftrace").write_bytes(with_counters().trace())
        trace = stepscope.open(tmp_path / "in.pftrace", store=tmp_path / "store")
        read = again(tmp_path, trace)
        sql = "SELECT device, name, unit, start_ns, value FROM device_counters ORDER BY ALL"
        assert read.rows(sql) == [
            {**row, "unit": row["unit"] if "(" in row["name"] else None} for row in trace.rows(sql)
        ]
        assert Written(tmp_path / "a.pftrace").counters == 2


class TestTheCommands:
    def test_export(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file, out = DRAWN.write(tmp_path / "a.json"), tmp_path / "b.pftrace.gz"
        assert main(["export", str(file), "-o", str(out), "--store", str(tmp_path / "s")]) == 0
        assert "wrote " in capsys.readouterr().err
        assert out.read_bytes()[:2] == b"\x1f\x8b"
        assert main(["export", str(file), "-o", str(out)]) != 0
        assert "--force" in capsys.readouterr().err

    def test_cut(self, tmp_path: Path) -> None:
        file, out = DRAWN.write(tmp_path / "a.json"), tmp_path / "b.pftrace"
        store = ["--store", str(tmp_path / "s")]
        assert main(["cut", str(file), "--time", "0us:25us", "-o", str(out), *store]) == 0
        read = stepscope.open(out, store=tmp_path / "again")
        assert [row[0] for row in rows(read, "device_work")] == ["gemm", "overlaps"]
        assert [row[0] for row in rows(read, "launches")] == ["cudaLaunchKernel"] * 2

    def test_a_name_that_says_nothing(self) -> None:
        with pytest.raises(StepscopeError, match="which format"):
            format_for("trace.bin")
        assert format_for("trace.bin", "pftrace") is pftrace
        assert format_for("x.pftrace.zst") is pftrace
