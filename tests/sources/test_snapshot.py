"""Snapshots of the allocator: whole, of other versions, cut short, hostile, and beside a trace."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import DATA, open_shared
from tests.snapshots import BACKWARD, BASE_US, FORWARD, MIB, DrawnAllocator, frame
from tests.trying import tries

import stepscope
from stepscope.errors import StepscopeError
from stepscope.findings.build import build_report
from stepscope.store.trace import Trace

REAL = DATA / "h200_memory_snapshot.pickle.gz"
KNOWN = {
    "snapshots/complete_history.pickle": (3_781_165_056, 31_719_936, 10, 3_249_144_832),
    "snapshots/forward_fp32.pickle": (610_271_232, 525_286_400, 137, 558_317_568),
    "snapshots/inference_user_metadata.pickle": (1_763_704_832, 1_703_276_544, 223, 1_738_928_128),
    "snapshots/fragmented.pickle": (14_180_941_824, 1_377_753_600, 229, 13_927_832_064),
    "snapshots/state_only.pickle": (75_902_222_336, 55_083_942_400, 1_202, None),
    "h200_memory_snapshot.pickle": (5_926_551_552, 1_915_569_664, 440, 5_774_047_744),
}
"""Reserved, allocated and live blocks at the end, and the peak, as counted by another program."""


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


class Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def drawn() -> DrawnAllocator:
    made = DrawnAllocator()
    at = made.segment(4 * MIB)
    made.alloc(at, 1000, FORWARD)
    made.alloc(at + MIB, 100, BACKWARD)
    made.free(at + MIB, BACKWARD)
    return made


def as_tables(snapshot: dict[str, Any]) -> dict[str, list[tuple[Any, ...]]]:
    """What the tables should hold, from plain Python values."""

    def stack(frames: list[dict[str, Any]]) -> tuple[Any, ...]:
        return tuple((one["filename"], one["line"], one["name"]) for one in frames)

    blocks = [
        (s["address"], b["address"], b["size"], b["requested_size"], b["state"], stack(b["frames"]))
        for s in snapshot["segments"]
        for b in s["blocks"]
    ]
    events = [
        (d, n, e["action"], e.get("addr"), e["size"], e["time_us"] * 1000, stack(e["frames"]))
        for d, trace in enumerate(snapshot["device_traces"])
        for n, e in enumerate(trace)
    ]
    segments = [
        (
            s["device"],
            s["address"],
            s["total_size"],
            s["allocated_size"],
            s["segment_type"],
            stack(s["frames"]),
        )
        for s in snapshot["segments"]
    ]
    return {"blocks": blocks, "events": events, "segments": segments}


def stored_tables(trace: Trace) -> dict[str, list[tuple[Any, ...]]]:
    frames = {
        number: tuple(rest)
        for number, *rest in rows(trace, "SELECT frame, file, line, function FROM allocator_frames")
    }
    stacks: dict[int | None, tuple[Any, ...]] = {None: ()}
    for number, listed in rows(
        trace, "SELECT stack, list(frame ORDER BY depth) FROM allocator_stacks GROUP BY 1"
    ):
        stacks[number] = tuple(frames[one] for one in listed)
    return {
        name: [(*row[:-1], stacks[row[-1]]) for row in rows(trace, sql)]
        for name, sql in {
            "blocks": "SELECT s.address AS whole, b.address, b.bytes, b.requested_bytes, b.state, b.stack "
            "FROM allocator_blocks b JOIN allocator_segments s USING (segment) ORDER BY segment, b.address",
            "events": "SELECT device, nth, action, address, bytes, start_ns, stack FROM allocator_events "
            "ORDER BY device, nth",
            "segments": "SELECT device, address, bytes, allocated_bytes, kind, stack FROM allocator_segments "
            "ORDER BY segment",
        }.items()
    }


class TestAWholeOne:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_every_protocol(self, tmp_path: Path, protocol: int) -> None:
        made = drawn()
        trace = stepscope.open(made.write(tmp_path / "x.bin", protocol=protocol))
        assert stored_tables(trace) == as_tables(made.snapshot())
        assert trace.meta.kind == "snapshot"

    def test_several_devices_some_with_one_event_or_none(self, tmp_path: Path) -> None:
        one, none = DrawnAllocator(device=1), DrawnAllocator(device=2)
        one.segment(MIB)
        made = drawn()
        trace = stepscope.open(made.write(tmp_path / "x.pickle", one, none, drawn_on(3)))
        assert stored_tables(trace) == as_tables(made.snapshot(one, none, drawn_on(3)))

    def test_the_real_one(self) -> None:
        with gzip.open(REAL) as file:
            plain = Plain(file).load()
        assert stored_tables(open_shared(REAL)) == as_tables(plain)

    @pytest.mark.slow
    def test_many_events_come_in_batches(self, tmp_path: Path) -> None:
        made = DrawnAllocator()
        at = made.segment(64 * MIB)
        for number in range(50_000):
            made.alloc(at, 1000 + number, (frame("forward", number % 700),))
            made.free(at, FORWARD)
        trace = stepscope.open(made.write(tmp_path / "x.pickle"))
        assert stored_tables(trace) == as_tables(made.snapshot())

    def test_settings_and_ranges_are_kept(self, tmp_path: Path) -> None:
        made = drawn()
        made.mark("ProfilerStep#3", "START")
        trace = stepscope.open(made.write(tmp_path / "rank7.pickle"))
        told = trace.meta.metadata["allocator_snapshot"]
        assert told["allocator_settings"] == {"expandable_segments": False}
        assert (told["cut"], told["events"], trace.rank) == (False, 5, 7)
        sql = "SELECT name, stage, start_ns FROM allocator_annotations"
        assert rows(trace, sql) == [("ProfilerStep#3", "START", made.now_us * 1000)]

    def test_times_begin_with_the_first(self, tmp_path: Path) -> None:
        trace = stepscope.open(drawn().write(tmp_path / "x.pickle"))
        assert trace.meta.base_ns == (BASE_US + 10) * 1000

    def test_packed_and_under_another_name(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        path.write_bytes(gzip.compress(drawn().write(tmp_path / "x").read_bytes()))
        assert stepscope.open(path).meta.kind == "snapshot"


def drawn_on(device: int) -> DrawnAllocator:
    made = DrawnAllocator(device=device)
    at = made.segment(MIB)
    made.alloc(at, 5)
    return made


class TestOtherVersions:
    def test_a_list_of_segments_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps(drawn().snapshot()["segments"]))
        trace = stepscope.open(path)
        assert rows(trace, "SELECT sum(bytes)::BIGINT FROM allocator_segments") == [(4 * MIB,)]

    def test_blocks_with_a_history_and_no_address(self, tmp_path: Path) -> None:
        """As torch 2.0 wrote them."""
        history = [{"addr": 4096, "real_size": 700, "frames": [frame("old", 3)]}]
        blocks = [
            {"size": 1024, "state": "active_allocated", "history": history},
            {"size": 512, "state": "inactive"},
        ]
        segment = {
            "device": 0,
            "address": 4096,
            "total_size": 1536,
            "segment_type": "small",
            "blocks": blocks,
        }
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
        trace = stepscope.open(path)
        sql = "SELECT address, bytes, requested_bytes, function FROM allocator_blocks "
        sql += "LEFT JOIN allocator_stacks USING (stack) LEFT JOIN allocator_frames USING (frame) "
        sql += "ORDER BY address"
        assert rows(trace, sql) == [(4096, 1024, 700, "old"), (5120, 512, None, None)]

    def test_unknown_members_are_skipped(self, tmp_path: Path) -> None:
        told = drawn().snapshot()
        told["future"] = {"x": [1, 2.5, None, b"z" * 3]}
        told["device_traces"][0][0]["future"] = [[]]
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps(told))
        trace = stepscope.open(path)
        assert trace.meta.metadata["allocator_snapshot"]["future"] == {"x": [1, 2.5, None, "3 B"]}
        assert not trace.meta.damage


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("print('executed')",)  # not print itself, which Ray replaces by its own


class TestBadOnes:
    def test_hostile_ones_are_refused_by_name(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        told = drawn().snapshot()
        told["device_traces"][0].append(Attack())
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps(told))
        with pytest.raises(StepscopeError, match=r"wants to load builtins\.exec") as refused:
            stepscope.open(path)
        assert "Nothing in it was run" in str(refused.value)
        assert "_dump_snapshot" in (refused.value.hint or "")
        assert "executed" not in capfd.readouterr().out

    @pytest.mark.parametrize("value", [{"a": 1}, [1, 2], "segments", 5, {"segments": 3}])
    def test_pickles_of_something_else(self, tmp_path: Path, value: object) -> None:
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps(value))
        with pytest.raises(StepscopeError, match="no snapshot"):
            stepscope.open(path)

    def test_an_old_protocol(self, tmp_path: Path) -> None:
        for protocol in (0, 1):
            with pytest.raises(StepscopeError, match="protocol 0 or 1"):
                stepscope.open(drawn().write(tmp_path / f"x{protocol}.pickle", protocol=protocol))

    @pytest.mark.slow
    def test_cut_at_every_place(self, tmp_path: Path) -> None:
        made = drawn()
        whole = made.write(tmp_path / "x").read_bytes()
        expected = as_tables(made.snapshot())
        for size in range(2, len(whole), tries(111, 37)):
            path = tmp_path / f"{size}.pickle"
            path.write_bytes(whole[:size])
            try:
                trace = stepscope.open(path)
            except StepscopeError as error:
                assert "ends too early" in str(error)  # noqa: PT017
                continue
            assert trace.meta.damage
            assert trace.meta.metadata["allocator_snapshot"]["cut"]
            found = stored_tables(trace)
            assert found["events"] == expected["events"][: len(found["events"])]

    def test_a_cut_real_one_keeps_its_events(self, tmp_path: Path) -> None:
        whole = gzip.decompress(REAL.read_bytes())
        path = tmp_path / "x.pickle"
        path.write_bytes(whole[: len(whole) // 2])
        trace = stepscope.open(path)
        (count,) = rows(trace, "SELECT count(*) FROM allocator_events")[0]
        assert 1000 < count < 9808
        (damage,) = trace.meta.damage
        assert damage.reason == "the snapshot is cut short: it ends too early"
        report = build_report(trace)
        assert "It is cut short: at least 1.78 GiB is in use" in report.verdict.sentence
        assert "The snapshot is cut short: this is what is left of it." in report.pictures[-1].sentences

    def test_one_that_is_cut_near_its_beginning_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "x.pickle"
        path.write_bytes(gzip.decompress(REAL.read_bytes())[:100])
        said = build_report(stepscope.open(path)).verdict.sentence
        assert said == "The snapshot is cut short: nothing in it says what is in use."

    def test_odd_entries_are_counted(self, tmp_path: Path) -> None:
        told = drawn().snapshot()
        told["device_traces"][0] += [
            None,
            {"addr": 3},
            {"action": "alloc", "addr": "x", "size": None, "time_us": -1},
        ]
        told["segments"] += [7, {"blocks": None}]
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps(told))
        trace = stepscope.open(path)
        assert [(one.reason, one.count) for one in trace.meta.damage] == [
            ("an entry of the snapshot that is none, not kept", 4),
            ("a time of the snapshot that cannot be, not kept", 1),
        ]
        assert rows(trace, "SELECT count(*) FROM allocator_events") == [(6,)]


class TestBesideATrace:
    def test_times_are_those_of_the_trace(self, tmp_path: Path) -> None:
        base = BASE_US * 1000
        trace_file = tmp_path / "trace.json"
        Drawing(base_ns=base).mark(1, 0, 100).op("aten::mm", 10, 20).write(trace_file)
        path = drawn().write(tmp_path / "x.pickle")
        trace = stepscope.open(trace_file, also=[path])
        assert rows(trace, "SELECT min(start_ns) FROM allocator_events") == [(base + 10_000,)]
        assert trace.meta.base_ns == base
        assert trace.meta.kind == "kineto"


class TestSamples:
    @pytest.mark.parametrize("name", sorted(KNOWN))
    def test_known_figures(self, sample: Callable[[str], Path], name: str) -> None:
        from stepscope.analyses.allocators import allocators

        (row,) = allocators(open_shared(sample(name)))
        assert (row.reserved_bytes, row.allocated_bytes, row.live_blocks, row.peak_bytes) == KNOWN[name]

    @pytest.mark.parametrize("name", [*sorted(KNOWN), "mosaic_snapshot.pickle"])
    def test_rows_are_those_of_an_unpickler(self, sample: Callable[[str], Path], name: str) -> None:
        path = sample(name)
        with path.open("rb") as file:
            assert stored_tables(open_shared(path)) == as_tables(Plain(file).load())
