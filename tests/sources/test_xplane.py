"""XPlane files of JAX: GPUs and TPUs, whole, cut short and hostile."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protobuf import Real, fields_of, message
from tests.samples import open_shared
from tests.trying import tries

import stepscope
from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.sources._reading import new_reader
from stepscope.store.trace import Trace

BASE = 1_771_595_650_000_000_000


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in trace.arrow(sql).columns), strict=True))


def opened(tmp_path: Path, raw: bytes) -> Trace:
    (tmp_path / "a.xplane.pb").write_bytes(raw)
    return stepscope.open(tmp_path / "a.xplane.pb", store=tmp_path / "store")


class Plane:
    """A plane under construction: texts get numbers as they come, and stand behind the lines."""

    def __init__(self, name: str) -> None:
        self.name, self.lines = name, list[bytes]()
        self.names: dict[str, int] = {}
        self.stats: dict[str, int] = {}
        self.own: list[bytes] = []

    def stat(self, key: str, value: Any) -> bytes:
        number = self.stats.setdefault(key, len(self.stats) + 1)
        if isinstance(value, str):  # by reference, as writers do
            return message((1, number), (7, self.stats.setdefault(value, len(self.stats) + 1)))
        return message((1, number), (2, Real(value)) if isinstance(value, float) else (3, value))

    def line(self, number: int, name: str, time_ns: int, *events: tuple[Any, ...]) -> Plane:
        """Events are: name, offset in ps, duration in ps, and what else they say."""
        packed = []
        for title, offset, dur, *said in events:
            iid = self.names.setdefault(title, len(self.names) + 1)
            told = said[0] if said else {}
            stats = [(4, self.stat(key, value)) for key, value in told.items()]
            packed.append((4, message((1, iid), (2, offset), (3, dur), *stats)))
        self.lines.append(message((1, number), (2, name), (3, time_ns), *packed))
        return self

    def told(self, **stats: Any) -> Plane:
        self.own += [self.stat(key, value) for key, value in stats.items()]
        return self

    def raw(self) -> bytes:
        maps = [
            (field, message((1, iid), (2, message((1, iid), (2, name)))))
            for field, texts in ((4, self.names), (5, self.stats))
            for name, iid in texts.items()
        ]
        lines = [(3, line) for line in self.lines]
        return message((2, self.name), *lines, *maps, *((6, one) for one in self.own))


def space(*planes: Plane) -> bytes:
    return b"".join(message((1, plane.raw())) for plane in planes) + message((4, "a-host"))


def drawn() -> bytes:
    gpu = Plane("/device:GPU:1").told(device_vendor="Nvidia", core_count=132, memory_size=1 << 36)
    kernel = {
        "kernel_details": "regs:32 static_shared:8 dynamic_shared:4 grid:8,2,1 block:256,1,1 occ_pct:50"
    }
    gpu.line(
        14,
        "Stream #14(Kernel,Memcpy)",
        1_000,
        ("gemm", 2_000_500, 1_999_600, {"correlation_id": 5, "hlo_op": "dot.3", **kernel}),
        (
            "MemcpyH2D",
            9_000_000,
            1_000_000,
            {"correlation_id": 6, "memcpy_details": "kind_src:pageable kind_dst:device size:4096 dest:0"},
        ),
    )
    gpu.line(3, "XLA Ops", 1_000, ("dot.3", 2_000_000, 2_000_000))
    gpu.line(4, "XLA Modules", 1_000, ("jit_f", 2_000_000, 9_000_000))
    gpu.line(5, "Steps", 1_000, ("7", 0, 12_000_000))
    host = Plane("/host:CPU")
    host.line(
        11,
        "python",
        0,
        ("$train.py:12 step", 0, 9_000_000),
        ("train", 0, 10_000_000, {"step_num": 7}),
        ("PjitFunction(f)", 500_000, 1_000_000),
        ("MemoryAllocation", 600_000, 0, {"allocator_name": "bfc", "addr": 17}),
    )
    host.line(12, "Host Threads/9", 0, ("cuLaunchKernel", 1_000_000, 400_000, {"correlation_id": 5}))
    return space(gpu, host, Plane("Task Environment").told(profile_start_time=BASE))


class TestAGpu:
    def test_streams_are_its_work(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, drawn())
        assert (trace.meta.kind, trace.meta.base_ns, trace.meta.damage) == ("xplane", BASE, ())
        sql = (
            "SELECT kind, name, start_ns - $b, dur_ns, device, stream, bytes, launch IS NULL FROM device_work"
        )
        assert rows(trace, sql.replace("$b", str(BASE)) + " ORDER BY start_ns") == [
            ("kernel", "gemm", 3_000, 2_000, 1, 14, None, False),
            ("memcpy", "Memcpy HtoD (Pageable -> Device)", 10_000, 1_000, 1, 14, 4096, True),
        ]
        sql = "SELECT registers, shared_bytes, grid, block, args->>'hlo_op' FROM device_work"
        assert rows(trace, sql + " WHERE kind = 'kernel'") == [(32, 12, "[8,2,1]", "[256,1,1]", "dot.3")]
        assert trace.meta.sources[0].counters["derived_events"] == 1

    def test_the_host(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, drawn())
        assert rows(trace, "SELECT name, category, dur_ns FROM annotations ORDER BY name, category") == [
            ("PjitFunction(f)", "user_annotation", 1_000),
            ("ProfilerStep#7", "gpu_user_annotation", 12_000),
            ("ProfilerStep#7", "user_annotation", 10_000),
            ("jit_f", "gpu_user_annotation", 9_000),
        ]
        assert rows(trace, "SELECT name, dur_ns, tid FROM python_frames") == [
            ("train.py(12): step", 9_000, "python")
        ]
        assert rows(trace, "SELECT name, correlation FROM launches") == [("cuLaunchKernel", 5)]
        assert rows(trace, "SELECT step FROM steps") == [(7,)]

    def test_what_it_says_of_itself(self, tmp_path: Path) -> None:
        meta = opened(tmp_path, drawn()).meta
        device = {"id": 1, "name": "Nvidia GPU", "totalGlobalMem": 1 << 36, "numSms": 132}
        assert meta.metadata == {"deviceProperties": [device], "host_name": "a-host"}
        assert "no operators of PyTorch" in meta.sources[0].notes[0]

    def test_what_follows_in_picoseconds_does_not_overlap(self, tmp_path: Path) -> None:
        gpu = Plane("/device:GPU:0")
        gpu.line(1, "Stream #1(Kernel)", 0, *((f"k{i}", i * 1_700, 1_700) for i in range(50)))
        trace = opened(tmp_path, space(gpu))
        found = rows(trace, "SELECT start_ns, dur_ns FROM device_work ORDER BY start_ns, dur_ns")
        assert all(one[0] + one[1] == two[0] for one, two in pairwise(found))
        assert sum(dur for _, dur in found) == 50 * 1_700 // 1_000

    def test_times_since_1970(self, tmp_path: Path) -> None:
        gpu = Plane("/device:GPU:0").line(1, "Stream #1(Kernel)", BASE, ("k", 5_000, 1_000))
        assert rows(opened(tmp_path, space(gpu)), "SELECT start_ns, dur_ns FROM device_work") == [
            (BASE + 5, 1)
        ]


class TestATpu:
    def test_its_operations_are_its_work(self, tmp_path: Path) -> None:
        tpu = Plane("/device:TPU:0").told(device_type_string="TPU v6 Lite")
        tpu.line(3, "XLA Ops", 0, ("fusion.1", 0, 5_000), ("fusion.2", 5_000, 5_000))
        tpu.line(4, "Async XLA Ops", 0, ("copy-start", 0, 9_000)).line(
            2, "XLA Modules", 0, ("jit", 0, 10_000)
        )
        trace = opened(tmp_path, space(tpu))
        assert rows(trace, "SELECT name, dur_ns FROM device_work ORDER BY name") == [
            ("fusion.1", 5),
            ("fusion.2", 5),
        ]
        assert rows(trace, "SELECT category, name FROM other_events") == [("async_xla_op", "copy-start")]


class TestSamples:
    @pytest.mark.parametrize(
        "name,kernels,total",
        [("gemm", 54, 3_475_484), ("elementwise", 75, 3_880_724), ("conv", 235, 28_137_077)],
    )
    def test_kernels_of_jax(self, sample: Any, name: str, kernels: int, total: int) -> None:
        trace = open_shared(sample(f"xla/jax08_{name}.xplane.pb"))
        sql = "SELECT count(*), sum(dur_ns)::BIGINT, count(launch) FROM device_work WHERE kind = 'kernel'"
        assert rows(trace, sql) == [(kernels, total, kernels)]

    def test_operations_of_a_tpu(self, sample: Any) -> None:
        trace = open_shared(sample("xla/tpu_inference.xplane.pb"))
        sql = "SELECT device, count(*) FROM device_work GROUP BY device ORDER BY device"
        assert rows(trace, sql) == [(0, 1_504), (1, 1_503), (2, 1_503), (3, 1_503)]

    def test_against_a_plain_parser(self, sample: Any) -> None:
        """Every event of every line is somewhere."""
        path = sample("xla/jax08_conv.xplane.pb")
        events = 0
        for field, plane in fields_of(path.read_bytes()):
            lines = [line for number, line in fields_of(plane) if number == 3] if field == 1 else []
            events += sum(number == 4 for line in lines for number, _ in fields_of(line))
        assert open_shared(path).meta.events == events


class TestDamage:
    def test_cut_short(self, tmp_path: Path) -> None:
        """A plane that is cut has no texts: they come last. Its work is still there."""
        raw = drawn()
        store = opened(tmp_path, raw[: raw.index(b"XLA Ops")])
        assert rows(store, "SELECT count(*), sum(dur_ns)::BIGINT FROM device_work") == [(2, 3_000)]
        assert store.meta.damage

    def test_no_events(self, tmp_path: Path) -> None:
        with pytest.raises(StepscopeError, match="has no events"):
            opened(tmp_path, space(Plane("/host:metadata")))

    @settings(max_examples=tries(60), deadline=None)
    @given(st.randoms(use_true_random=False))
    def test_damage_never_crashes(self, tmp_path_factory: pytest.TempPathFactory, dice: Any) -> None:
        raw = bytearray(drawn())
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(raw))
            raw[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(6))
        path = tmp_path_factory.mktemp("mutated") / "a.pb"
        path.write_bytes(raw)
        reader = new_reader()
        _native.XplaneReader(reader).read(str(path), lambda: None)
        assert not reader.refusal
