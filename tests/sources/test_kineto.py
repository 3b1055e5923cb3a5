"""The reader of Kineto traces: what it takes, what it says of a trace, and what damage costs."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.commands import SLOW_ITEM
from tests.drawing import Drawing

import stepscope
from stepscope.sources import Input
from stepscope.sources.kineto import kineto
from stepscope.store.trace import Trace

DRAWN = Drawing().op("aten::mm", 0, 10)
EVENT = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":2,"ts":1,"dur":2}'


def opened(folder: Path, raw: str | bytes, name: str = "a.json") -> Trace:
    (folder / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return stepscope.open(folder / name, store=folder / "stores")


def sniffed(folder: Path, raw: bytes) -> bool:
    (folder / "a").write_bytes(raw)
    with closing(Input(str(folder / "a"))) as given:
        return bool(kineto.sniff(given))  # type: ignore[attr-defined]


@pytest.mark.parametrize("head", [b"{", b"[", b" \n\t{", b"\xef\xbb\xbf{", b"\n  [\n"])
def test_what_looks_like_a_trace(head: bytes, tmp_path: Path) -> None:
    assert sniffed(tmp_path, head)


@pytest.mark.parametrize("head", [b"", b"<", b"\x80", b"SQLite format 3\0", b'"a"', b"1", b"\0{"])
def test_what_does_not(head: bytes, tmp_path: Path) -> None:
    assert not sniffed(tmp_path, head)


def test_a_folder_does_not(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    assert not kineto.sniff(Input(str(tmp_path)))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name,entries,rank,source",
    [
        ("a.json", {"distributedInfo": {"rank": 5}}, 5, "distributedInfo"),
        ("rank7.json", {"distributedInfo": {"rank": 5}}, 5, "distributedInfo"),
        ("a.json", {"distributedInfo": {"rank": "6"}}, 6, "distributedInfo"),
        ("rank7.json", {"distributedInfo": {"rank": True}}, 7, "file name"),
        ("rank7.json", {"distributedInfo": {"rank": 10**30}}, 7, "file name"),
        ("rank7.json", {"distributedInfo": []}, 7, "file name"),
        ("trace_rank-12.json", {}, 12, "file name"),
        ("Rank_3.pt.trace.json", {}, 3, "file name"),
        ("a.json", {}, 0, "nothing says it; taken as 0"),
    ],
)
def test_the_rank(name: str, entries: dict[str, Any], rank: int, source: str, tmp_path: Path) -> None:
    trace = opened(tmp_path, Drawing().op("a", 0, 1).meta(**entries).json(), name)
    assert (trace.meta.rank, trace.meta.rank_source) == (rank, source)


def test_a_rank_in_the_name_of_a_folder_is_not_meant(tmp_path: Path) -> None:
    (tmp_path / "rank9").mkdir()
    assert opened(tmp_path / "rank9", DRAWN.json()).rank == 0


@pytest.mark.parametrize(
    "written,base",
    [("1000", 1000), ('"1000"', 1000), ("-5", -5), ("null", 0), ("true", 0), ("[]", 0), ("9" * 30, 0)],
)
def test_the_base_time(written: str, base: int, tmp_path: Path) -> None:
    trace = opened(tmp_path, f'{{"baseTimeNanoseconds":{written},"traceEvents":[{EVENT}]}}')
    assert trace.meta.base_ns == base
    assert trace.arrow("SELECT start_ns FROM ops")["start_ns"].to_pylist() == [base + 1000]


def test_what_the_trace_says(tmp_path: Path) -> None:
    text = DRAWN.meta(host_name="node1", with_stack=1).json()
    trace = opened(tmp_path, gzip.compress(text.encode(), mtime=0))
    meta = trace.meta
    assert (meta.kind, meta.events, meta.bytes) == ("kineto", 1, len(text))
    assert meta.compressed_bytes == (tmp_path / "a.json").stat().st_size
    assert meta.metadata["host_name"] == "node1"
    assert meta.source == str(tmp_path / "a.json")


@pytest.mark.parametrize(
    "text",
    [b'"\\ud800"', b'"a\nb\x01"', b'"a\xff"', b"NaN", b"-Infinity", b'1, "m": 2', b"1" * 30],
)
def test_odd_metadata_and_odd_threads_stop_nothing(text: bytes, tmp_path: Path) -> None:
    plain = EVENT.encode()
    trace = opened(tmp_path, b'{"m": ' + text + b', "traceEvents": [' + plain + b"]}")
    assert trace.arrow("SELECT name FROM ops")["name"].to_pylist() == ["a"]
    assert trace.arrow("FROM meta").num_rows
    if b"," not in text:
        trace = opened(tmp_path, b"[" + plain.replace(b'"tid":2', b'"tid":' + text) + b"]", "b.json")
        assert trace.arrow("SELECT tid FROM ops").num_rows == 1


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95, 0.9999])
def test_a_cut_file_is_read_up_to_the_cut(share: float, tmp_path: Path) -> None:
    raw = SLOW_ITEM.read_bytes()
    whole = json.loads(gzip.decompress(raw))["traceEvents"]
    trace = opened(tmp_path, raw[: int(len(raw) * share)], "a.json.gz")
    assert share * 0.8 * len(whole) < trace.meta.events <= len(whole)
    reasons = [one.reason for one in trace.meta.damage]
    assert any("ends too early" in reason for reason in reasons)
    names = trace.arrow("SELECT name FROM events ORDER BY event")["name"].to_pylist()
    assert names == [event["name"] for event in whole[: len(names)]]


def test_a_flipped_byte_in_the_middle(tmp_path: Path) -> None:
    raw = bytearray(SLOW_ITEM.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    trace = opened(tmp_path, bytes(raw), "a.json.gz")
    assert trace.meta.events > 1000
    assert any("the compressed" in one.reason for one in trace.meta.damage)


def test_events_that_are_rubbish_are_counted(tmp_path: Path) -> None:
    trace = opened(tmp_path, f"[{EVENT}, {{ 'no': json }}, {EVENT}]")
    assert trace.meta.events == 2
    assert trace.meta.damage


def test_progress_is_told_now_and_then(tmp_path: Path) -> None:
    seen: list[tuple[str, float | None, int, int]] = []
    events = ",\n".join(EVENT.replace('"a"', f'"a{"x" * 300}{number % 9}"') for number in range(60_000))
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(f"[{events}]".encode(), 1, mtime=0))
    stepscope.open(path, store=tmp_path, progress=lambda *told: seen.append(told))
    *told, last = seen
    assert told == sorted(told)
    assert all(doing == "reading" and done and done < 1 for doing, done, _, _ in told)
    assert last == ("reading", 1.0, 0, 0)


def test_two_documents_in_one_file_say_that_one_base_time_counts(tmp_path: Path) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":2,"ts":1,"dur":1}'
    file = tmp_path / "two.json"
    file.write_text("".join(f'{{"baseTimeNanoseconds":{base},"traceEvents":[{event}]}}' for base in (5, 7)))
    trace = stepscope.open(file, store=tmp_path / "stores")
    assert trace.meta.events == 2
    assert any("2 base times" in one.reason for one in trace.meta.damage)


NOON_NS = 1_700_049_600_000_000_000
"""A noon; multiples of 256 ns are all that scripts could tell apart of such times."""


def since_1970(*ns: int, more: str = "") -> str:
    """A trace as older profilers wrote it: without a base time, in µs since 1970."""
    events = [
        f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":2,"ts":{at // 1000}.{at % 1000:03},"dur":0.001}}'
        for at in ns
    ]
    name = '{"ph":"M","name":"thread_name","pid":1,"tid":2,"ts":0,"args":{"name":"main"}}'
    return f'{{{more}"traceEvents":[{",".join([*events, name])}]}}'


def test_times_since_1970_count_from_the_day_before_and_stay_what_they_are(tmp_path: Path) -> None:
    times = [NOON_NS + 1, NOON_NS + 258, NOON_NS - 86_400_000_000_000 - 3]
    trace = opened(tmp_path, since_1970(*times))
    assert trace.meta.base_ns == NOON_NS - 36 * 3600 * 10**9
    assert trace.arrow("SELECT start_ns FROM ops ORDER BY event")["start_ns"].to_pylist() == times
    stored = trace.reading(None).rows("SELECT start_ns FROM stored.ops ORDER BY event")
    assert [row["start_ns"] + trace.meta.base_ns for row in stored] == times
    assert all(0 < row["start_ns"] < 1 << 53 for row in stored)


def test_a_base_time_and_times_since_1970_are_added_as_they_were(tmp_path: Path) -> None:
    trace = opened(tmp_path, since_1970(NOON_NS + 7, more='"baseTimeNanoseconds":1000,'))
    assert trace.arrow("SELECT start_ns FROM ops")["start_ns"].to_pylist() == [NOON_NS + 1007]
