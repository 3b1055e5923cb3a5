"""Perfetto traces whose packets are compressed inside of others, and what was open when a recording ended."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.protobuf import BASE, Packets, message
from tests.sources.pftrace_files import with_counters

import stepscope
from stepscope.errors import StepscopeError
from stepscope.sources import pftrace as module
from stepscope.store.trace import Trace

TABLES = ("device_work", "launches", "ops", "python_frames", "annotations", "other_events")
PLACES = "SELECT name, start_ns, dur_ns, pid, tid FROM"


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def opened(tmp_path: Path, raw: bytes, name: str = "packed.pftrace") -> Trace:
    (tmp_path / name).write_bytes(raw)
    return stepscope.open(tmp_path / name, store=tmp_path / f"{name}.store")


def bundle(plain: bytes, pack: Callable[[bytes], bytes] = zlib.compress) -> bytes:
    """Packets inside of one, as Perfetto's service writes them with COMPRESSION_TYPE_DEFLATE."""
    return message((1, message((50, pack(plain)))))


def framed(packets: list[bytes]) -> bytes:
    return b"".join(message((1, one)) for one in packets)


def told(trace: Trace) -> dict[str, list[tuple[Any, ...]]]:
    found = {table: sorted(rows(trace, f"{PLACES} {table}"), key=str) for table in TABLES}
    found["counters"] = rows(trace, "SELECT name, start_ns, value FROM device_counters ORDER BY start_ns")
    return found


class TestCompressed:
    WHOLE = with_counters().raw()

    @pytest.fixture
    def plain(self, tmp_path: Path) -> dict[str, list[tuple[Any, ...]]]:
        found = told(opened(tmp_path, framed(self.WHOLE), "plain.pftrace"))
        assert len(found["device_work"]) == 3
        return found

    @pytest.mark.parametrize("size", [1, 3, 1000])
    @pytest.mark.parametrize("pack", [zlib.compress, gzip.compress])
    def test_all_packets_in_bundles(
        self, size: int, pack: Callable[[bytes], bytes], tmp_path: Path, plain: dict[str, Any]
    ) -> None:
        parts = [self.WHOLE[at : at + size] for at in range(0, len(self.WHOLE), size)]
        trace = opened(tmp_path, b"".join(bundle(framed(part), pack) for part in parts))
        assert told(trace) == plain
        assert [one.reason for one in trace.meta.damage] == [
            "a reading of a counter that nothing describes, not kept"
        ]

    @pytest.mark.parametrize("name", ["mixed.pftrace", "mixed.pftrace.gz"])
    def test_some_of_them_in_order(self, name: str, tmp_path: Path, plain: dict[str, Any]) -> None:
        """Names are given by number and stand in a packet before: what is inside counts where it stands."""
        parts = [self.WHOLE[at : at + 4] for at in range(0, len(self.WHOLE), 4)]
        raw = b"".join(
            bundle(framed(part)) if place % 2 else framed(part) for place, part in enumerate(parts)
        )
        assert told(opened(tmp_path, gzip.compress(raw) if name.endswith(".gz") else raw, name)) == plain

    def test_one_that_is_cut_gives_what_is_before(self, tmp_path: Path) -> None:
        packed = zlib.compress(framed(self.WHOLE), 0)
        raw = message((1, message((50, packed[: len(packed) - 150])))) + framed(self.WHOLE[-4:])
        trace = opened(tmp_path, raw)
        assert trace.has("device_work")
        reasons = [one.reason for one in trace.meta.damage]
        assert "compressed packets that end too early, read up to there" in reasons
        (lost,) = [row for row in trace.table("trust") if row.what == "lost bytes"]
        assert "read up to there" in lost.explanation

    @pytest.mark.parametrize(
        "inside, reason",
        [
            (b"\x28\xb5\x2f\xfd no zlib", "compressed packets that cannot be unpacked, read up to there"),
            (zlib.compress(b"no packet" * 9), "compressed packets that are damaged inside, read up to there"),
            (
                zlib.compress(message((1, b"\x08\x05"))[:-1]),
                "compressed packets that are damaged inside, read up to there",
            ),
            (zlib.compress(bundle(framed(WHOLE))), "packets that are compressed twice, not read"),
        ],
    )
    def test_what_cannot_be_read_is_counted(self, inside: bytes, reason: str, tmp_path: Path) -> None:
        raw = framed(self.WHOLE[:-2]) + message((1, message((50, inside)))) + framed(self.WHOLE[-2:])
        trace = opened(tmp_path, raw)
        assert rows(trace, "SELECT count(*) FROM device_work") == [(3,)]
        assert [one.count for one in trace.meta.damage if one.reason == reason] == [1]

    def test_a_bomb_ends_at_a_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MOST_PLAIN", 2 << 20)
        bomb = bundle(message((1, message((8, BASE)))) * (8 << 20 >> 4))
        assert len(bomb) < 1 << 16
        trace = opened(tmp_path, framed(self.WHOLE) + bomb)
        assert trace.meta.sources[0].counters["packets"] < 1 << 18
        assert "compressed packets of more than 2 MiB, read up to there" in [
            one.reason for one in trace.meta.damage
        ]

    def test_zeros_that_come_to_much_are_left_at_once(self, tmp_path: Path) -> None:
        trace = opened(tmp_path, framed(self.WHOLE) + bundle(bytes(64 << 20)))
        assert "compressed packets that are damaged inside, read up to there" in [
            one.reason for one in trace.meta.damage
        ]

    def test_nothing_inside_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StepscopeError, match="none of its packets is a slice"):
            opened(tmp_path, bundle(message((1, message((8, BASE), (10, 1))))))


class TestOpenAtTheEnd:
    @pytest.mark.parametrize("category", ["user_annotation", ""])
    def test_a_step_without_an_end_is_none(self, category: str, tmp_path: Path) -> None:
        """The recording stopped within the third step: it would be a short one."""
        trace = Packets().thread(1, 5, 5)
        for step in range(3):
            at = step * 100_000
            trace.begin(f"ProfilerStep#{step}", at, category=category)
            trace.begin("aten::mm", at + 1_000, args={"External id": step, "Ev Idx": step}).end(at + 9_000)
            if step < 2:
                trace.end(at + 90_000)
        store = opened(tmp_path, trace.trace())
        assert [(row.step, row.dur_ns) for row in store.table("steps")] == [(0, 90_000), (1, 90_000)]
        kept = "SELECT name, phase, dur_ns FROM other_events WHERE category = 'user_annotation'"
        assert rows(store, kept) == [("ProfilerStep#2", "B", None)]
        assert rows(store, "SELECT count(*) FROM ops") == [(3,)]
        (doubt,) = [row for row in store.table("trust") if row.what == "unfinished events"]
        assert doubt.explanation.startswith("Open when the recording ended: 1 range.")
        assert not [row for row in store.table("trust") if row.what == "odd file"]

    def test_operators_inside_of_it_last_until_the_end(self, tmp_path: Path) -> None:
        trace = Packets().thread(1, 5, 5).begin("step", 0, category="user_annotation")
        trace.begin("aten::mm", 10, category="cpu_op").begin("aten::t", 20, category="cpu_op").end(50)
        store = opened(tmp_path, trace.trace())
        assert rows(store, "SELECT name, dur_ns FROM ops ORDER BY name") == [
            ("aten::mm", 40),
            ("aten::t", 30),
        ]
        assert rows(store, "SELECT count(*) FROM annotations") == [(0,)]
        (doubt,) = [row for row in store.table("trust") if row.what == "unfinished events"]
        assert doubt.explanation.startswith("Open when the recording ended: 1 slice and 1 range.")
