"""What was read can be written again: every event says what it said in the profile."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.analyses.drawn import drawings
from tests.drawing import LAYOUTS, LIST_LAYOUTS, Drawing, Layout
from tests.samples import FEW, SAMPLES, tiered
from tests.trying import tries

import stepscope
from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.schema import STORED
from stepscope.store.export import Selection, event_writer, export
from stepscope.streams import open_stream

DATA = Path(__file__).parent.parent / "data"
SMALL = sorted(DATA.glob("*.json.gz"))

ODD: list[str] = [
    '{"ph":"X","cat":"cpu_op","name":null,"pid":null,"tid":null,"ts":null,"dur":null,"args":null}',
    '{"ph":"X","cat":"cpu_op","name":"twin","pid":null,"pid":7,"tid":1,"ts":1,"dur":2}',
    '{"ph":"X","cat":"kernel","name":"twin","ts":1,"args":{"correlation":null,"correlation":5}}',
    '{"ph":"X","cat":"kernel","name":"two args","args":{"stream":5},"args":{"device":5}}',
    '{"ph":"X","cat":"kernel","name":"escaped","ts":1,"args":{"d\\u0065vice":3,"device":null}}',
    '{"ph":"X","cat":"kernel","name":"text","ts":"12.5","dur":"3","args":{"bytes":"1024","device":1.0}}',
    '{"ph":"X","cat":"Memcpy","name":"c","args":{"memory bandwidth (GB/s)":0.1,"bytes":1234567890123456}}',
    '{"ph":"X","cat":"gpu_memcpy","name":"c","args":{"memory bandwidth (GB/s)":1.7976931348623157e308}}',
    '{"ph":"X","cat":"gpu_memcpy","name":"c","args":{"memory bandwidth (GB/s)":null,"stream":-7}}',
    '{"ph":"X","cat":"cpu_op","name":"a \\"b\\" \\\\ \\n \\u0007 \\ud83d\\ude00 é","ts":0,"dur":0.001}',
    '{"ph":"X","cat":"cpu_op","name":"","pid":"","tid":"","ts":-1.5,"dur":-2,"args":{}}',
    '{"ph":"X","cat":"cpu_op","name":"late","pid":1.5,"tid":"a\\"b","ts":1700000000000000.123,"dur":1e3}',
    '{"ph":"X","cat":"cpu_op","name":["no name"],"pid":{"x":1},"tid":12345678901234567890,"ts":2}',
    '{"ph":"s","cat":"ac2g","name":"ac2g","id":12,"pid":0,"tid":7,"ts":5}',
    '{"ph":"s","cat":"ac2g","name":"ac2g","id":"0x12","pid":0,"tid":7,"ts":5}',
    '{"ph":"s","cat":"ac2g","name":"ac2g","id":null,"pid":0,"tid":7,"ts":5.5}',
    '{"ph":"X","cat":"python_function","name":"f","args":{"Python id":1,"Python parent id":null}}',
    '{"name":"process_name","ph":"M","pid":"Spans","args":{"name":"x","stream":null}}',
    '{"ph":"X","name":"no category","args":{"correlation":123456789012345678901234567890,"stream":1}}',
    '{"args":{"deep":{"pid":null,"args":{"stream":null}},"args":null},"ph":"X","cat":"kernel"}',
    '{"ph":"i","cat":"cpu_instant_event","name":"[memory]","args":{"Addr":1,"Bytes":-5,"Ev Idx":0}}',
    '{"ph":null,"cat":null}',
]


def read(path: Path) -> Any:
    return json.loads(b"".join(map(bytes, open_stream(str(path)))))


def events_of(trace: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = trace if isinstance(trace, list) else trace["traceEvents"]
    return events


def check(path: Path, folder: Path) -> None:
    trace = stepscope.open(path, store=folder / "store")
    out = folder / "out.json"
    written = export(trace, str(out))
    before, after = read(path), read(out)
    assert events_of(after) == events_of(before)
    assert written.events == len(events_of(before))
    assert written.bytes == out.stat().st_size
    if isinstance(before, dict):
        assert after == before


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_a_small_profile_comes_back(path: Path, tmp_path: Path) -> None:
    check(path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_a_real_profile_comes_back(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    check(sample(name), tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS + LIST_LAYOUTS, ids=str)
def test_every_layout_comes_back(layout: Layout, tmp_path: Path) -> None:
    drawing = Drawing(base_ns=12).op("aten::mm", 0, 10.25, seq=3).launch("cudaLaunchKernel", 2, 1, corr=7)
    drawing.kernel("gemm", 5, 3, corr=7).memory(6, -5).flow("s", 7, 2).mark(1, 0, 11).named_thread("main")
    path = tmp_path / "drawn.json"
    path.write_text(drawing.json(layout), encoding="utf-8")
    check(path, tmp_path)


@pytest.mark.slow
@settings(
    max_examples=tries(15, 400),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(drawing=drawings(marks=True))
def test_what_is_drawn_comes_back(drawing: Drawing, tmp_path: Path) -> None:
    path = tmp_path / "drawn.json"
    path.write_text(drawing.json(), encoding="utf-8")
    check(path, tmp_path)


@pytest.mark.parametrize("text", ODD)
def test_an_odd_event_comes_back(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    near = 1700000000000000 if "17000000" in text else 1  # an event that is years away would be set aside
    usual = f'{{"ph": "X", "cat": "cpu_op", "name": "usual", "pid": 1, "tid": 1, "ts": {near}, "dur": 1}}'
    path.write_text(f"[{usual}, {text}]", encoding="utf-8")
    check(path, tmp_path)


def test_odd_events_stay_apart(tmp_path: Path) -> None:
    """Events that differ only in what is null share a skeleton; each keeps its own."""
    usual = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 1, "tid": 1, "ts": 1, "args": {"device": %s}}'
    texts = [usual % value for value in ("1", "null", "2", '"3"', "1.5", "null")]
    path = tmp_path / "odd.json"
    path.write_text(f"[{','.join(texts)}]", encoding="utf-8")
    check(path, tmp_path)


def test_many_stretches_keep_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.store.export._STRETCH", 10)
    monkeypatch.setattr("stepscope.store.export._FILES", 50)
    check(DATA / "h200_slow_item.pt.trace.json.gz", tmp_path)


def test_damage_is_mended_in_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "damaged.json"
    path.write_bytes(
        b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "bad \xff and "raw" quote'
        b'", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {"k\x07ey": inf, "External id": 5, "v": N/A}}, {'
    )
    out = tmp_path / "out.json"
    export(stepscope.open(path, store=tmp_path), str(out))
    (event,) = events_of(read(out))
    assert event["name"] == 'bad � and "raw" quote'
    assert event["args"] == {"k\x07ey": float("inf"), "External id": 5, "v": "N/A"}
    assert (event["pid"], event["ts"]) == (1, 1)


@pytest.mark.parametrize(
    "name,magic", [("t.json.gz", b"\x1f\x8b"), ("t.json.zst", b"\x28\xb5\x2f\xfd"), ("t", b"{")]
)
def test_the_name_says_how_it_is_compressed(name: str, magic: bytes, tmp_path: Path) -> None:
    path = SMALL[0]
    out = tmp_path / name
    export(stepscope.open(path, store=tmp_path), str(out))
    assert out.read_bytes().startswith(magic)
    assert events_of(read(out)) == events_of(read(path))


def test_without_isal_gzip_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = stepscope.open(SMALL[0], store=tmp_path)
    monkeypatch.setitem(sys.modules, "isal.igzip", None)
    export(trace, str(tmp_path / "out.json.gz"))
    assert gzip.decompress((tmp_path / "out.json.gz").read_bytes()).startswith(b"{")


def test_standard_output(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    export(stepscope.open(SMALL[0], store=tmp_path), "-")
    assert events_of(json.loads(capfdbinary.readouterr().out)) == events_of(read(SMALL[0]))


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    trace = stepscope.open(SMALL[0], store=tmp_path / "store")
    out = tmp_path / "out.json"
    out.write_text("before", encoding="utf-8")
    nothing = Selection(dict.fromkeys(trace.meta.rows, "false"), always=0)
    with pytest.raises(StepscopeError, match="the trace has no event in the window"):
        export(trace, str(out), nothing)
    assert out.read_text(encoding="utf-8") == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"store", "out.json"}


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    export(stepscope.open(SMALL[0], store=tmp_path), str(null))
    assert Path("/dev/null").is_char_device()


class TestEventWriter:
    def column(self, *values: int) -> memoryview:
        import array

        return memoryview(array.array("q", values))

    def write(self, tmp_path: Path, table: int | None = None, **numbers: int) -> bytes:
        trace = stepscope.open(SMALL[0], store=tmp_path)
        stored_in = trace.arrow("SELECT stored_in FROM stored.skeletons WHERE id = 0")["stored_in"][0].as_py()
        table = [table.name for table in STORED].index(stored_in) if table is None else table
        writer = event_writer(trace)
        given = {"thread": 0, "name": 0, "start": 5, "dur": 6, "skeleton": 0} | numbers
        thread, name, start, dur, skeleton = (self.column(number) for number in given.values())
        text, _ = writer.write(table, thread, name, start, dur, skeleton, [self.column(_native.NULL)] * 30)
        return text.removeprefix(b",\n")

    def test_writes_valid_json(self, tmp_path: Path) -> None:
        event = json.loads(self.write(tmp_path))
        assert (event["ts"], event["dur"]) == (0.005, 0.006)

    @pytest.mark.parametrize("number", [10**9, 2**62])
    @pytest.mark.parametrize("column", ["thread", "name", "skeleton"])
    def test_a_number_without_a_text_is_an_error(self, column: str, number: int, tmp_path: Path) -> None:
        with pytest.raises(IndexError):
            self.write(tmp_path, **{column: number})

    @pytest.mark.parametrize("column", ["thread", "skeleton"])
    def test_a_negative_number_is_an_error(self, column: str, tmp_path: Path) -> None:
        with pytest.raises(IndexError):
            self.write(tmp_path, **{column: -1})

    def test_a_shape_of_another_table_is_an_error(self, tmp_path: Path) -> None:
        for table in (-1, 7, 99):
            with pytest.raises(IndexError):
                self.write(tmp_path, table)

    def test_too_few_columns_are_an_error(self, tmp_path: Path) -> None:
        writer = event_writer(stepscope.open(SMALL[0], store=tmp_path))
        one, ten = self.column(0), self.column(*range(10))
        with pytest.raises(IndexError):
            writer.write(1, self.column(*[0] * 10), ten, ten, ten, ten, [])
        with pytest.raises(ValueError, match="different length"):
            writer.write(1, one, one, one, one, self.column(0, 0), [])

    def test_a_shape_of_no_table_is_an_error(self) -> None:
        writer = _native.EventWriter([("ops", [])], [])
        offsets, text = memoryview(b"\0" * 8).cast("i"), memoryview(b"")
        with pytest.raises(IndexError):
            writer.add_skeletons(0, offsets, text, memoryview(b"\1\0\0\0").cast("i"))
        with pytest.raises(ValueError, match="without gaps"):
            writer.add_skeletons(5, offsets, text, memoryview(b"\0\0\0\0").cast("i"))
