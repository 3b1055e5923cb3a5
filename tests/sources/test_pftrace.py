"""Perfetto traces: as PyTorch writes them, as others do, cut, damaged and hostile."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.protobuf import BASE, Fixed, Packets, message, of_text
from tests.samples import open_shared
from tests.sources.pftrace_files import drawn, with_counters

import stepscope
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    found = trace.arrow(sql)
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def opened(tmp_path: Path, raw: bytes, name: str = "drawn.pftrace") -> Trace:
    (tmp_path / name).write_bytes(raw)
    return stepscope.open(tmp_path / name, store=tmp_path / "store")


class TestAsPyTorchWritesIt:
    def test_events_land_in_their_tables(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, drawn().trace())
        assert trace.meta.kind == "pftrace"
        assert trace.meta.base_ns == BASE
        assert trace.meta.damage == ()
        work = "SELECT kind, name, start_ns, dur_ns, device, stream, correlation, bytes FROM device_work"
        assert rows(trace, f"{work} ORDER BY start_ns") == [
            ("kernel", "gemm", BASE + 20_000, 30_000, 0, 7, 7, None),
            ("memcpy", "Memcpy", BASE + 50_000, 5_000, 0, 7, 8, 4096),
            ("memset", "Memset", BASE + 55_000, 1_000, 0, 20, None, None),
        ]
        assert rows(trace, "SELECT name, dur_ns, external_id, args->>'Input Dims' FROM ops") == [
            ("aten::mm", 30_000, 5, "[[16,128],[]]")
        ]
        assert rows(
            trace, "SELECT name, start_ns - $b, dur_ns FROM python_frames".replace("$b", str(BASE))
        ) == [("train.py(3): step", 1_000, 89_000)]
        assert rows(trace, "SELECT name, category, dur_ns FROM annotations ORDER BY dur_ns") == [
            ("ProfilerStep#3", "gpu_user_annotation", 35_000),
            ("ProfilerStep#3", "user_annotation", 100_000),
        ]

    def test_work_is_tied_to_its_launch(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, drawn().trace())
        tied = "SELECT w.name, l.name, o.name FROM device_work w LEFT JOIN launches l ON l.event = w.launch"
        tied += " LEFT JOIN ops o ON o.event = w.op ORDER BY w.start_ns"
        assert rows(trace, tied) == [
            ("gemm", "cudaLaunchKernel", "aten::mm"),
            ("Memcpy", "cudaMemcpyAsync", "aten::mm"),
            ("Memset", None, None),
        ]

    def test_back_to_back_slices_keep_their_ends(self, tmp_path: Path) -> None:
        """The ends come after all begins: by time alone, the second would end where it begins."""
        trace = Packets().thread(1, 5, 5)
        trace.group(
            {"name": "a", "at": 0, "until": 10, "category": "cpu_op"},
            {"name": "b", "at": 10, "until": 30, "category": "cpu_op"},
            {"name": "c", "at": 30, "until": 31, "category": "cpu_op"},
            {"name": "nothing", "at": 40, "until": 40, "category": "cpu_op"},
        )
        found = rows(opened(tmp_path, trace.trace()), "SELECT name, dur_ns FROM ops ORDER BY start_ns")
        assert found == [("a", 10), ("b", 20), ("c", 1), ("nothing", 0)]

    def test_launches_without_numbers_are_tied_by_events(self, tmp_path: Path) -> None:
        trace = Packets().thread(1, 5, 5)
        launch = {"name": "cudaLaunchKernel", "category": "cuda_runtime"}
        trace.group(
            {**launch, "at": 0, "until": 2, "ids": [11]},
            {**launch, "name": "cudaGraphLaunch", "at": 5, "until": 8, "ids": [12, 13]},
        )
        trace.stage(13, 40, 5, kernel="c").stage(11, 20, 5, kernel="a").stage(12, 30, 5, kernel="b")
        trace.stage(14, 50, 5, kernel="alone")
        tied = "SELECT w.name, l.name FROM device_work w LEFT JOIN launches l ON l.event = w.launch"
        tied += " ORDER BY w.name"
        assert rows(opened(tmp_path, trace.trace()), tied) == [
            ("a", "cudaLaunchKernel"),
            ("alone", None),
            ("b", "cudaGraphLaunch"),
            ("c", "cudaGraphLaunch"),
        ]

    def test_grids_collectives_and_dependencies_are_arguments(self, tmp_path: Path) -> None:
        trace = Packets()
        told = {
            "Collective name": "allreduce",
            "Process Group Name": "0",
            "In msg nelems": "1024",
            "Seq": "3",
        }
        trace.stage(1, 0, 5, kernel="ncclDevKernel_AllReduce", grid=(24, 1, 1), block=(512, 1, 1), extra=told)
        trace.stage(2, 10, 5, kernel="b", waits=[1])
        sql = "SELECT s.text FROM stored.skeletons s WHERE stored_in = 'device_work' ORDER BY s.id"
        store = opened(tmp_path, trace.trace())
        first, second = (json.loads(text)["args"] for (text,) in rows(store, sql))
        assert first["grid"] == [24, 1, 1]
        assert first["block"] == [512, 1, 1]
        assert first["registers per thread"] == 40
        assert {key: first[key] for key in told} == {**told, "In msg nelems": 1024, "Seq": 3}
        assert second["waits for"] == [1]

    def test_counters(self, tmp_path: Path) -> None:
        store = opened(tmp_path, with_counters().trace())
        sql = "SELECT device, name, unit, start_ns, value FROM device_counters ORDER BY start_ns"
        assert rows(store, sql) == [
            (2, "Power (W)", "W", BASE + 5, 99.5),
            (2, "SM Active", "%", BASE + 6, 80.0),
        ]
        assert [(one.reason, one.count) for one in store.meta.damage] == [
            ("a reading of a counter that nothing describes, not kept", 1)
        ]

    def test_synchronisation_on_a_device_is_no_work(self, tmp_path: Path) -> None:
        trace = drawn().thread(9, 0, 7, "GPU 0", "stream 7")
        trace.group({"name": "Stream Sync", "at": 60_000, "until": 61_000, "track": 9})
        store = opened(tmp_path, trace.trace())
        assert rows(store, "SELECT count(*) FROM device_work") == [(3,)]
        assert rows(store, "SELECT category, stream, dur_ns FROM other_events") == [("cuda_sync", 7, 1_000)]

    def test_notes_say_what_it_cannot_know(self, tmp_path: Path) -> None:
        notes = " ".join(opened(tmp_path, drawn().trace()).meta.sources[0].notes)
        assert "names no GPU model, rank" in notes
        assert "where the next work on its stream starts" in notes


class TestThePrototype:
    def test_slices_on_tracks_of_a_gpu_are_its_work(self, tmp_path: Path) -> None:
        trace = Packets(clock=False).thread(1, 5, 5).thread(9, 0, 7, "GPU 0", "stream 7")
        told = {"device": 0, "context": 1, "stream": 7}
        trace.begin("gemm", 10, 9, args={**told, "correlation": 3, "grid": [4, 1, 1]}).end(30, 9)
        trace.begin("Memcpy HtoD (Pageable -> Device)", 40, 9, args={**told, "correlation": 4}).end(45, 9)
        trace.begin("cudaLaunchKernel", 0, args={"cbid": 211, "correlation": 3}).end(5)
        trace.begin("cuLaunchKernel", 6, args={"cbid": 211, "correlation": 4}).end(7)
        trace.begin("aten::mm", 0, args={"External id": 1, "Ev Idx": 0}).end(20)
        trace.begin("f.py(1): f", 50, args={"Python id": 1}).end(60)
        store = opened(tmp_path, trace.trace())
        assert rows(
            store, "SELECT kind, name, dur_ns, launch IS NULL FROM device_work ORDER BY start_ns"
        ) == [
            ("kernel", "gemm", 20, False),
            ("memcpy", "Memcpy HtoD (Pageable -> Device)", 5, False),
        ]
        assert rows(store, "SELECT name, category FROM launches ORDER BY start_ns") == [
            ("cudaLaunchKernel", "cuda_runtime"),
            ("cuLaunchKernel", "cuda_driver"),
        ]
        assert rows(store, "SELECT name FROM ops") == [("aten::mm",)]
        assert rows(store, "SELECT name FROM python_frames") == [("f.py(1): f",)]
        assert "no categories" in " ".join(store.meta.sources[0].notes)

    def test_arrows_tie_work_to_launches(self, tmp_path: Path) -> None:
        trace = Packets(clock=False).thread(1, 5, 5).thread(9, 0, 7, "GPU 0", "stream 7")
        trace.event(1, 10, 9, (23, "gemm"), (47, Fixed(77))).end(30, 9)
        trace.event(1, 0, 1, (23, "cudaLaunchKernel"), (22, "cuda_runtime"), (47, Fixed(77))).end(5)
        store = opened(tmp_path, trace.trace())
        assert rows(store, "SELECT name, launch IS NOT NULL, device, stream FROM device_work") == [
            ("gemm", True, 0, 7)
        ]


class TestWhatOthersWrite:
    def test_slices_as_they_happen(self, tmp_path: Path) -> None:
        """Nested ones end in the opposite order, and what begins where another ended is no part of it."""
        trace = Packets().thread(1, 5, 5)
        trace.begin("outer", 0, category="cpu_op").begin("inner", 10, category="cpu_op").end(20)
        trace.begin("next", 20, category="cpu_op").end(30).end(50)
        trace.begin("same", 60, category="cpu_op").begin("in it", 60, category="cpu_op").end(70).end(70)
        store = opened(tmp_path, trace.trace())
        sql = "SELECT o.name, o.dur_ns, o.depth, p.name FROM ops o LEFT JOIN ops p ON p.event = o.parent"
        sql += " ORDER BY o.name"
        assert rows(store, sql) == [
            ("in it", 10, 1, "same"),
            ("inner", 10, 1, "outer"),
            ("next", 10, 1, "outer"),
            ("outer", 50, 0, None),
            ("same", 10, 0, None),
        ]

    def test_clocks_defaults_and_inline_texts(self, tmp_path: Path) -> None:
        """A sequence with a clock that counts on in µs, a default track and texts in place."""
        clocks = message(
            (1, message((1, 6), (2, 1_000_000))),
            (1, message((1, 1), (2, BASE))),
            (1, message((1, 64), (2, 500), (3, 1), (4, 1000))),
        )
        defaults = message((58, 64), (11, message((11, 3))))
        trace = Packets(clock=False).add((10, 7), (6, clocks)).add((10, 7), (59, defaults), (13, 1))
        trace.track(3, (4, message((1, 5), (2, 6))))
        texts = ((23, "aten::mm"), (22, "cpu_op"))
        trace.add((8, 10), (10, 7), (11, message((9, 1), *texts))).add((8, 5), (10, 7), (11, message((9, 2))))
        store = opened(tmp_path, trace.trace())
        assert rows(store, "SELECT name, start_ns, dur_ns, pid, tid FROM ops") == [
            ("aten::mm", BASE + 10_000, 5_000, "5", "6")
        ]

    def test_numbers_mean_what_their_sequence_says(self, tmp_path: Path) -> None:
        trace = Packets().thread(1, 5, 5)
        for sequence, at, name in ((2, 0, "a"), (3, 10, "b"), (2, 20, "c")):
            texts = message((2, message((1, 1), (2, name))), (1, message((1, 1), (2, "cpu_op"))))
            trace.add((10, sequence), (12, texts), (13, 1))
            begin = message((9, 1), (11, 1), (10, 1), (3, 1))
            trace.add((8, BASE + at), (10, sequence), (11, begin), (13, 2))
            trace.add((8, BASE + at + 5), (10, sequence), (11, message((9, 2), (11, 1))))
        assert rows(opened(tmp_path, trace.trace()), "SELECT name FROM ops ORDER BY start_ns") == [
            ("a",),
            ("b",),
            ("c",),
        ]

    def test_unfinished_slices_last_to_the_end(self, tmp_path: Path) -> None:
        trace = Packets().thread(1, 5, 5).begin("open", 0, category="cpu_op")
        trace.begin("closed", 10, category="cpu_op").end(90)
        store = opened(tmp_path, trace.trace())
        assert rows(store, "SELECT name, dur_ns FROM ops ORDER BY name") == [("closed", 80), ("open", 90)]
        assert "until the end of the trace" in store.meta.damage[0].reason

    def test_old_descriptors_and_complete_events(self, tmp_path: Path) -> None:
        trace = Packets(clock=False)
        trace.add((10, 4), (44, message((1, 5), (2, 6), (6, 1_000))), (13, 1))
        legacy = message((2, ord("X")), (3, 20))
        trace.add((10, 4), (11, message((1, 10), (23, "old"), (22, "cpu_op"), (6, legacy))))
        store = opened(tmp_path, trace.trace())
        assert rows(store, "SELECT name, dur_ns, pid, tid FROM ops") == [("old", 20_000, "5", "6")]


class TestWhatLooksAlike:
    """From the second slice of a kind on, only numbers are read: nothing else may be lost or mixed up."""

    def read(self, tmp_path: Path, *told: dict[str, Any]) -> list[tuple[Any, ...]]:
        trace = Packets().thread(1, 5, 5)
        for i, args in enumerate(told):
            trace.begin("op", i * 10, 1, "cpu_op", args=args).end(i * 10 + 5)
        sql = "SELECT external_id, record_id, args FROM ops ORDER BY start_ns"
        return rows(opened(tmp_path, trace.trace()), sql)

    def test_numbers_in_columns(self, tmp_path: Path) -> None:
        found = self.read(tmp_path, *({"External id": i, "Record function id": -i} for i in range(20)))
        assert [one[:2] for one in found] == [(i, -i) for i in range(20)]

    def test_texts_and_large_numbers_in_columns(self, tmp_path: Path) -> None:
        ids = [5, "7", 6, "7", 1 << 62, 8, "7", 1 << 62, None, 9, None, 10]
        found = self.read(tmp_path, *({"External id": one} for one in ids))
        assert [one[0] for one in found] == [5, 7, 6, 7, 1 << 62, 8, 7, 1 << 62, None, 9, None, 10]

    def test_other_arguments_stay_with_their_event(self, tmp_path: Path) -> None:
        dims = [[[1, 2], []], [[3]], [[1, 2], []], [[3]]]
        found = self.read(
            tmp_path, *({"External id": i, "Input Dims": one, "x": i % 2} for i, one in enumerate(dims))
        )
        told = [json.loads(args) for _, _, args in found]
        assert [one["Input Dims"] for one in told] == dims
        assert [one["x"] for one in told] == [0, 1, 0, 1]
        assert [one[0] for one in found] == [0, 1, 2, 3]

    def test_keys_that_come_twice(self, tmp_path: Path) -> None:
        trace = Packets().thread(1, 5, 5)
        twice = [message((10, "External id"), (4, number)) for number in (3, 4)]
        for at in (0, 10, 20):
            trace.event(1, at, 1, (23, "op"), (22, "cpu_op"), *((4, one) for one in twice)).end(at + 5)
        assert rows(opened(tmp_path, trace.trace()), "SELECT count(*), max(dur_ns) FROM ops") == [(3, 5)]


class TestDamage:
    def test_a_damaged_packet_is_skipped(self, tmp_path: Path) -> None:
        raw = drawn().raw()
        raw.insert(5, b"\x5a\x7f\x01")  # a field that is longer than its packet
        store = opened(tmp_path, b"".join(message((1, packet)) for packet in raw))
        assert [(one.reason, one.count) for one in store.meta.damage] == [("a damaged packet, skipped", 1)]
        assert rows(store, "SELECT count(*) FROM device_work") == [(3,)]

    def test_bytes_that_are_no_packet(self, tmp_path: Path) -> None:
        raw = [message((1, packet)) for packet in drawn().raw()]
        raw.insert(-2, bytes(range(128, 256)) * 3)
        store = opened(tmp_path, b"".join(raw))
        assert [(one.reason, one.count, one.bytes) for one in store.meta.damage] == [
            ("bytes that are no packet, skipped", 1, 384)
        ]
        assert rows(store, "SELECT count(*) FROM device_work") == [(3,)]

    def test_a_length_that_is_too_long(self, tmp_path: Path) -> None:
        raw = [message((1, packet)) for packet in drawn().raw()]
        raw[-2] = b"\x0a\xff\xff\x7f" + raw[-2][3:]
        store = opened(tmp_path, b"".join(raw))
        assert rows(store, "SELECT count(*) FROM device_work") == [(2,)]
        assert rows(store, "SELECT count(*) FROM annotations") == [(2,)]
        assert store.meta.damage

    def test_cut_short(self, tmp_path: Path) -> None:
        whole = drawn().trace()
        store = opened(tmp_path, whole[:-5])
        assert [one.reason for one in store.meta.damage] == ["the file is cut short"]
        assert rows(store, "SELECT count(*) FROM device_work") == [(3,)]

    def test_cut_among_the_ends(self, tmp_path: Path) -> None:
        """Slices that lost their end are left out rather than drawn over everything."""
        trace = Packets().thread(1, 5, 5)
        slices = [
            {"name": f"op{i}", "at": i * 10, "until": i * 10 + 5, "category": "cpu_op"} for i in range(1000)
        ]
        trace.group(*slices)
        trace.packets = trace.packets[:-300]
        store = opened(tmp_path, trace.trace())
        assert rows(store, "SELECT count(*), max(dur_ns) FROM ops") == [(700, 5)]
        assert [(one.reason, one.count) for one in store.meta.damage] == [
            ("a slice whose end is missing, left out", 300)
        ]

    def test_a_broken_gzip(self, tmp_path: Path) -> None:
        packed = gzip.compress(drawn().trace(), mtime=0)
        store = opened(tmp_path, packed[:-20], "drawn.pftrace.gz")
        assert store.meta.damage

    @pytest.mark.parametrize("raw", [b"\x0a\x02\x08\x01", b"\x0a\x05abc", b"\x0a\x04\x08\x01\x10\x02" * 50])
    def test_what_is_no_trace_is_refused(self, tmp_path: Path, raw: bytes) -> None:
        with pytest.raises(StepscopeError):
            opened(tmp_path, raw)

    def test_json_is_not_taken(self, tmp_path: Path) -> None:
        text = b"\n" + Drawing().op("aten::mm", 0, 10).json().encode()
        assert opened(tmp_path, text, "a.json").meta.kind == "kineto"


PACKET = {
    "trusted_uid": 3,
    "trusted_packet_sequence_id": 10,
    "timestamp": 8,
    "sequence_flags": 13,
    "track_event": (
        11,
        {
            "type": (9, {"": 0, "TYPE_SLICE_BEGIN": 1, "TYPE_SLICE_END": 2}),
            "category_iids": 3,
            "name_iid": 10,
            "gpu_api": 3001,
        },
    ),
    "interned_data": (
        12,
        {
            "event_categories": (1, {"iid": 1, "name": 2}),
            "event_names": (2, {"iid": 1, "name": 2}),
            "graphics_contexts": (23, {"iid": 1, "pid": 2, "api": 3}),
            "gpu_specifications": (
                24,
                {
                    "iid": 1,
                    "name": 2,
                    "description": 3,
                    "category": (4, {"": 0, "GRAPHICS": 1, "COMPUTE": 2}),
                },
            ),
            "compute_kernels": (1000, {"iid": 1, "name": 2, "demangled_name": 3, "arch": 4}),
        },
    ),
    "gpu_render_stage_event": (
        53,
        {
            "event_id": 1,
            "duration": 2,
            "hw_queue_iid": 13,
            "stage_iid": 14,
            "context": 5,
            "kernel_iid": 19,
        },
    ),
    "gpu_info": (
        128,
        {
            "gpus": (
                1,
                {
                    "name": 1,
                    "vendor": 2,
                    "model": 3,
                    "architecture": 4,
                    "uuid": 5,
                    "pci_bdf": 7,
                    "extra_info": (6, {"key": 1, "value": 2}),
                },
            )
        },
    ),
}


class TestPerfettosOwnTests:
    """Traces that Perfetto checks its importer with."""

    @pytest.fixture
    def binary(self, sample: Any) -> Any:
        def read(name: str) -> bytes:
            text = sample(f"pftrace/perfetto_tests/{name}.textproto").read_text()
            return of_text(text, {"packet": (1, PACKET)})

        return read

    def test_kernels_by_number(self, tmp_path: Path, binary: Any) -> None:
        store = opened(tmp_path, binary("gpu_compute_kernel"))
        sql = "SELECT kind, name, start_ns, dur_ns FROM device_work ORDER BY start_ns"
        assert rows(store, sql) == [
            ("kernel", "vectorAdd(float*, float*, float*, int)", 100, 50),
            ("kernel", "matMul(float*, float*, float*, int, int)", 200, 100),
            ("kernel", "vectorAdd(float*, float*, float*, int)", 400, 50),
        ]

    def test_stages_by_number(self, tmp_path: Path, binary: Any) -> None:
        store = opened(tmp_path, binary("gpu_render_stages_interned_spec"))
        assert rows(store, "SELECT name, start_ns, dur_ns FROM device_work ORDER BY start_ns, event") == [
            ("binning", 100, 10),
            ("render", 200, 10),
            ("render", 300, 10),
            ("render", 300, 10),
        ]

    def test_calls_of_an_api(self, tmp_path: Path, binary: Any) -> None:
        store = opened(tmp_path, binary("gpu_api_slice"))
        assert rows(store, "SELECT name, start_ns, dur_ns FROM launches ORDER BY start_ns") == [
            ("cuLaunchKernel", 100, 100),
            ("vkCmdDispatch", 300, 100),
        ]

    def test_gpus_have_names(self, tmp_path: Path, binary: Any) -> None:
        store = opened(tmp_path, binary("gpu_info") + drawn().trace())
        gpus = store.meta.metadata["deviceProperties"]
        assert [one["name"] for one in gpus] == ["NVIDIA A100-SXM4-80GB"] * 2


class TestTheMadeSample:
    NAME = "pftrace/made_tutorial_baseline.pftrace.gz"

    def test_figures(self, sample: Any) -> None:
        truth = json.loads(sample(self.NAME.replace(".pftrace.gz", ".truth.json")).read_text())
        store = open_shared(sample(self.NAME))
        kernels = rows(store, "SELECT count(*), sum(dur_ns)::BIGINT FROM device_work WHERE kind = 'kernel'")
        assert kernels == [(truth["kernels"]["count"], truth["kernels"]["ns"])]
        calls = rows(store, "SELECT count(*), sum(dur_ns)::BIGINT FROM launches")
        assert calls == [(truth["runtime"]["count"], truth["runtime"]["ns"])]

    @pytest.mark.parametrize("table", ["device_work", "launches", "ops", "annotations", "python_frames"])
    def test_same_as_the_json_of_the_run(self, sample: Any, table: str) -> None:
        made, json_ = (
            open_shared(sample(name)) for name in (self.NAME, "h200_tutorial_baseline.pt.trace.json.gz")
        )
        links = {
            "device_work": ", correlation, launch IS NULL, op IS NULL",
            "ops": ", self_ns, device_self_ns",
        }
        sql = f"SELECT name, category, start_ns, dur_ns{links.get(table, '')} FROM {table} ORDER BY ALL"
        assert rows(made, sql) == rows(json_, sql)
        assert rows(made, f"SELECT count(*) > 0 FROM {table}") == [(True,)]
