"""ETDumps: the events of a flatbuffer, and none of what leads out of it."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trying import tries

import stepscope
from stepscope.errors import StepscopeError
from stepscope.sources.etdump import _Dump


class Flat:
    """Builds a flatbuffer from its end: what is referred to is written first."""

    def __init__(self) -> None:
        self._out = b""

    def _put(self, raw: bytes, align: int = 8) -> int:
        """Puts bytes in front; their place counted from the end."""
        pad = -(len(self._out) + len(raw)) % align
        self._out = raw + b"\0" * pad + self._out
        return len(self._out)

    def text(self, text: str) -> int:
        raw = text.encode()
        return self._put(struct.pack("<I", len(raw)) + raw + b"\0")

    def refer(self, target: int, here: int) -> bytes:
        return struct.pack("<I", here - target)

    def table(self, fields: dict[int, tuple[str, int]]) -> int:
        """A table whose fields are numbers (a format and a value) or references ("ref")."""
        count = max(fields, default=-1) + 1
        size = 8 + 8 * len(fields)  # its offset to the fields, some room, then eight bytes each
        length = size + 4 + 2 * count  # with the list of places behind it
        end = len(self._out) + (-(len(self._out) + length) % 8) + length
        body = struct.pack("<i", -size) + b"\0" * 4
        places = [0] * count
        for number, (kind, value) in fields.items():
            places[number] = len(body)
            here = end - len(body)
            raw = self.refer(value, here) if kind == "ref" else struct.pack(kind, value)
            body += raw + b"\0" * (8 - len(raw))
        places_raw = struct.pack(f"<HH{count}H", 4 + 2 * count, size, *places)
        return self._put(body + places_raw)

    def tables(self, targets: list[int]) -> int:
        size = 4 + 4 * len(targets)
        end = len(self._out) + (-(len(self._out) + size) % 8) + size
        raw = struct.pack("<I", len(targets))
        for place, target in enumerate(targets):
            raw += self.refer(target, end - 4 - 4 * place)
        return self._put(raw)

    def finished(self, root: int, *, sized: bool) -> bytes:
        front = 8 + (4 if sized else 0)
        pad = b"\0" * (-(len(self._out) + front) % 8)
        start = struct.pack("<I", 8 + len(pad) + len(self._out) - root) + b"ED00"
        whole = start + pad + self._out
        return struct.pack("<I", len(whole)) + whole if sized else whole


def dump(events: list[tuple[str, int, int]], *, sized: bool = True) -> bytes:
    flat = Flat()
    written = []
    for place, (name, start, end) in enumerate(events):
        fields = {0: ("ref", flat.text(name)), 2: ("<i", place), 6: ("<Q", start), 7: ("<Q", end)}
        written.append(flat.table({0: ("ref", flat.table(fields))}))
    run = flat.table({0: ("ref", flat.text("Execute")), 3: ("ref", flat.tables(written))})
    return flat.finished(flat.table({0: ("<I", 0), 1: ("ref", flat.tables([run]))}), sized=sized)


EVENTS = [("native_call_addmm.out", 110, 150), ("OPERATOR_CALL", 100, 160), ("Method::execute", 90, 200)]


@pytest.mark.parametrize("sized", [True, False])
def test_operators_and_ranges(sized: bool, tmp_path: Path) -> None:
    file = tmp_path / "x.etdp"
    file.write_bytes(dump(EVENTS, sized=sized))
    trace = stepscope.open(file)
    assert trace.arrow("SELECT name, start_ns, dur_ns, self_ns FROM ops ORDER BY start_ns").to_pylist() == [
        {"name": "OPERATOR_CALL", "start_ns": 100, "dur_ns": 60, "self_ns": 20},
        {"name": "native_call_addmm.out", "start_ns": 110, "dur_ns": 40, "self_ns": 40},
    ]
    assert trace.arrow("SELECT name, dur_ns FROM annotations ORDER BY name").to_pylist() == [
        {"name": "Method::execute", "dur_ns": 110},
        {"name": "ProfilerStep#0", "dur_ns": 110},
    ]
    assert trace.meta.damage == ()


def test_each_execution_is_a_step(tmp_path: Path) -> None:
    later = [(name, start + 1000, end + 1000) for name, start, end in EVENTS]
    inside = ("Method::execute", 1100, 1150)
    file = tmp_path / "x.etdp"
    file.write_bytes(dump([("Program::load_method", 0, 80), *later, inside, *EVENTS]))
    found = stepscope.open(file).table("steps")
    assert [(row.step, row.dur_ns) for row in found] == [(0, 110), (1, 110)]


def test_the_report_speaks_of_executorch(tmp_path: Path) -> None:
    """Nothing in it is about GPUs that wait, training, or what PyTorch's profiler could record."""
    operators = [("native_call_addmm.out", 110 + 20 * i, 129 + 20 * i) for i in range(50)]
    file = tmp_path / "x.etdp"
    file.write_bytes(dump([("Method::execute", 100, 1200), *operators]))
    told = stepscope.report(stepscope.open(file))
    assert told.verdict.word == "unknown"
    assert told.verdict.sentence.startswith("Operators and delegates take 86 % of an execution of 1.10 µs.")
    assert told.overview.unprofiled_step_ns == (1100, 1100)
    assert [one.name for one in told.checklist] == ["step variation"]
    said = json.dumps([asdict(told.verdict), [asdict(one) for one in told.next_steps]])
    assert not re.search("host-bound|GPU waiting|torch\\.profiler", said)
    assert "inspector_cli" in said


def test_times_that_cannot_be_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "x.etdp"
    file.write_bytes(dump([*EVENTS, ("native_call_relu.out", 50, 20)]))
    trace = stepscope.open(file)
    assert trace.meta.events == 4  # with the mark of a step
    assert [(one.reason, one.count) for one in trace.meta.damage] == [
        ("an event of the ETDump that is damaged, not kept", 1)
    ]


def test_one_without_events_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.etdp"
    file.write_bytes(dump([]))
    with pytest.raises(StepscopeError, match="without a profiling event"):
        stepscope.open(file)


@settings(max_examples=tries(300))
@given(at=st.integers(0, 400), value=st.integers(0, 255), end=st.integers(12, 400))
def test_nothing_leads_out_of_the_file(at: int, value: int, end: int) -> None:
    raw = bytearray(dump(EVENTS))
    raw[at % len(raw)] = value
    reader = _Dump(bytes(raw[:end]))
    for event in reader.events():
        assert event.dur_ns >= 0


def test_a_real_one(sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = stepscope.open(sample("serving/executorch/etdump.etdp"), store=tmp_path)
    found = trace.arrow("SELECT count(*) AS n, sum(dur_ns)::BIGINT AS ns FROM ops WHERE name LIKE 'native%'")
    assert found.to_pylist() == [{"n": 14, "ns": 1_889_086}]
    sql = "SELECT name FROM annotations WHERE name LIKE '%::%' ORDER BY start_ns"
    assert trace.arrow(sql)["name"].to_pylist() == [
        "Program::load_method", "Method::init", "Method::execute",
    ]  # fmt: skip
