"""Odd files, which no profiler should write: what is meant is read, and the rest is counted."""

from __future__ import annotations

import itertools
import json
import pickle
import re
from typing import Any

import pytest
from tests.native.rebuilt import Event, Reading, loads, read

# ------------------------------------------------ odd texts


def kernel(name: str, more: str = "") -> str:
    """An event with the inside of its name as given."""
    return f'{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": 5, "dur": 1{more}}}'


def trace(*events: str | bytes) -> bytes:
    parts = [event if isinstance(event, bytes) else event.encode() for event in events]
    return b'{"traceEvents": [' + b", ".join(parts) + b'], "baseTimeNanoseconds": 7}'


def read_both(raw: bytes, **options: int) -> Reading:
    reading = read(raw, **options)
    assert reading.without_templates() == read(raw, templates=False, **options).without_templates()
    assert reading.without_templates() == read(raw, 5, **options).without_templates()
    return reading


def names_in(reading: Reading) -> list[Any]:
    return [event.get("name") for event in reading.events()]


@pytest.mark.parametrize(
    "written, meant, why",
    [
        (b'a "quoted" b', 'a "quoted" b', "a quote without its backslash"),
        (b'a"b', 'a"b', "a quote without its backslash"),
        (b"C:\\path\\qux", "C:\\path\\qux", "a backslash that escapes nothing"),
        (b"a\\u12", "a\\u12", "a backslash that escapes nothing"),
        (b"tab\there", "tab\there", "control characters in a text"),
        (b"line\nbreak\x00\x1f", "line\nbreak\x00\x1f", "control characters in a text"),
        (b"caf\xe9", "caf\ufffd", "text that is not UTF-8"),
        (b"\xff\xfe\xc0\x80", "\ufffd\ufffd\ufffd\ufffd", "text that is not UTF-8"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd", "text that is not UTF-8"),
        (b"cut \xe2\x82", "cut \ufffd\ufffd", "text that is not UTF-8"),
        (b"\\ud800 alone", "\ufffd alone", "text that is not UTF-8"),
        (b"\\udc00\\ud800", "\ufffd\ufffd", "text that is not UTF-8"),
    ],
)
def test_a_broken_name_is_mended_and_counted(written: bytes, meant: str, why: str) -> None:
    event = kernel("@").encode().replace(b"@", written)
    in_args = kernel("x", ', "args": {"text": "@"}').encode().replace(b"@", written)
    reading = read_both(trace(kernel("one"), event, event, in_args, kernel("two")))
    assert names_in(reading) == ["one", meant, meant, "x", "two"]
    assert reading.events()[3]["args"]["text"] == meant
    assert reading.damage["repaired: " + why][0] == 3
    assert reading.metadata == {"baseTimeNanoseconds": 7}


@pytest.mark.parametrize(
    "written, meant",
    [
        ("\\u00e9", "é"),
        ("\\ud83d\\ude00", "😀"),
        ('\\\\ \\/ \\b\\f\\n\\r\\t \\"', '\\ / \b\f\n\r\t "'),
        ("ends with \\\\", "ends with \\"),
        ("né 😀 ﷽", "né 😀 ﷽"),
        ("", ""),
        ("null", "null"),
        ('{\\"ph\\": \\"X\\", \\"name\\": \\"no event\\"}', '{"ph": "X", "name": "no event"}'),
        ("x" * 100_000, "x" * 100_000),
    ],
)
def test_an_escaped_name_is_read_as_meant(written: str, meant: str) -> None:
    reading = read_both(trace(kernel("one"), kernel(written), kernel(written), kernel("two")))
    assert names_in(reading) == ["one", meant, meant, "two"]
    assert not reading.damage


@pytest.mark.parametrize(
    "word", ["NaN", "Infinity", "-Infinity", "inf", "-inf", "nan", "-nan", "N/A", "None", "1.2.3"]
)
def test_a_bare_word_costs_its_value_alone(word: str) -> None:
    more = f', "args": {{"stream": {word}, "x": {word}, "memory bandwidth (GB/s)": {word}}}'
    reading = read_both(trace(kernel("one"), kernel("two", more), kernel("two", more), kernel("three")))
    assert names_in(reading) == ["one", "two", "two", "three"]
    assert reading.damage["repaired: a bare word such as NaN"][0] == 2
    row = reading.rows[1]
    assert row["stream"] is None
    assert row["bandwidth_gb_s"] is None
    known = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    assert reading.events()[1]["args"]["x"] == known.get(word, word)


def test_a_bare_word_as_a_time_is_no_time() -> None:
    reading = read_both(
        trace(kernel("one").replace('"ts": 5', '"ts": inf'), kernel("two").replace('"dur": 1', '"dur": N/A'))
    )
    assert [(row["start_ns"], row["dur_ns"]) for row in reading.rows] == [(None, 1000), (5000, None)]
    assert reading.damage["a time that is no number"][0] == 2


def test_odd_header_values_are_said() -> None:
    raw = b'{"baseTimeNanoseconds": 17x5, "a": "\xff", "traceEvents": [' + kernel("one").encode() + b"]}"
    reading = read_both(raw)
    assert reading.metadata == {"baseTimeNanoseconds": "17x5", "a": "\ufffd"}
    assert {"repaired: a bare word such as NaN", "repaired: text that is not UTF-8"} == reading.damage.keys()


@pytest.mark.parametrize("pid", ['"a"b"', '"\xff"', '"tab\t"', '"a\\qb"', '"\\ud800"'])
def test_an_odd_process_stays_readable(pid: str) -> None:
    event = kernel("one").replace('"pid": 0', f'"pid": {pid}').encode("latin-1")
    reading = read_both(trace(event, event))
    assert reading.events_read == 2
    assert isinstance(json.loads(reading.threads[0][0]), str)
    assert any(reason.startswith("repaired") for reason in reading.damage)


# ------------------------------------------------ odd structure


def test_of_twin_keys_the_last_counts() -> None:
    events = [
        kernel("one", ', "name": "two"'),
        kernel("one", ', "ts": "later"'),
        kernel("one", ', "args": {"stream": 1, "stream": 2}'),
        kernel("one", ', "args": {"stream": 1, "stream": null}'),
        kernel("one", ', "args": {"stream": 1}, "args": {"device": 3}'),
        kernel("one", ', "args": {"stream": 1}, "args": null'),
        kernel("one", ', "args": 5, "args": {"stream": 4}'),
        kernel("one", ', "cat": "cpu_op", "args": {"External id": 6}'),
    ]
    raw = trace(*events, *events)
    reading = read_both(raw)
    assert reading.events() == loads(raw)["traceEvents"]
    half = reading.rows[:8]
    assert [row["start_ns"] for row in half] == [5000, None, *[5000] * 6]
    assert [row.get("stream") for row in half] == [None, None, 2, None, None, None, 4, None]
    assert half[4]["device"] == 3
    assert half[7]["external_id"] == 6


def test_elements_that_are_no_events_are_counted() -> None:
    bare = '{"name": "without phase", "ts": 1}'
    reading = read_both(
        trace("null", bare, "3", "true", bare, '"x, {}"', kernel("one"), "[1, 2]", kernel("two"))
    )
    assert names_in(reading) == ["without phase", "without phase", "one", "two"]
    assert reading.damage["something that is no event"][0] == 5
    assert reading.metadata == {"baseTimeNanoseconds": 7}


def test_members_may_be_missing() -> None:
    whole = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 5,
        "dur": 1,
        "args": {"stream": 3},
    }
    events: list[Event] = [{key: whole[key] for key in whole if key != gone} for gone in [*whole, ""]] * 2
    events += [
        {},
        {"args": {}},
        {"ph": None, "cat": None, "name": None, "pid": None, "tid": None, "ts": None},
    ]
    events += [{"ph": 1, "cat": [], "name": 5, "args": [1]}, {"unheard of": {"deep": [None, True]}}]
    raw = json.dumps({"traceEvents": events}).encode()
    reading = read_both(raw)
    assert reading.events() == events
    assert reading.phases.count(None) == 5


def test_odd_values_may_alternate_with_plain_ones_in_any_spacing() -> None:
    values = [
        "829",
        '"829"',
        " 829",
        "\n829",
        "C8",
        " null",
        "null",
        "8.5",
        " 8.5",
        "[1]",
        " [1]",
        '"a"',
        ' "a"',
    ]
    events = [
        f'{{"ph":"X","name":{name},"cat":"kernel","pid":0,"tid":{value},"ts":{value},"args":{{"stream":{value}}}}}'
        for value, name in itertools.product([*values, *reversed(values)], ['"k"', ' "k"', "null"])
    ]
    reading = read_both(trace(*events, *events))
    plain = [event.replace("C8", '"C8"') for event in (*events, *events)]
    assert reading.events() == loads(trace(*plain))["traceEvents"]
    assert reading.template_mismatches == 0
    assert all(text == text.strip() for pair in reading.threads for text in pair)


@pytest.mark.parametrize("depth", [100, 250, 400, 100_000])
def test_deep_lists_are_kept_or_counted(depth: int) -> None:
    more = ', "args": {"deep": ' + "[" * depth + "]" * depth + "}"
    reading = read(trace(kernel("one"), kernel("deep", more), kernel("two")))
    kept = ["one", "deep", "two"] if depth <= 250 else ["one", "two"]
    assert names_in(reading) == kept
    assert ("nested too deeply" in reading.damage) == (depth > 250)


def test_a_huge_event_is_read_from_small_pieces() -> None:
    more = ', "args": {"text": "' + "x" * (5 << 20) + '"}'
    raw = trace(kernel("one"), kernel("huge", more), kernel("two"))
    for piece in (1000, 4096, 1 << 20, None):
        reading = read(raw, piece)
        assert names_in(reading) == ["one", "huge", "two"]
        text = reading.events()[1]["args"]["text"]
        assert re.fullmatch(r'"x{1023}…[0-9a-f]{16}…', text)
        assert {reason: count for reason, (count, _, _) in reading.damage.items()} == {
            "an argument of over 64 KiB, cut": 1
        }


def test_a_huge_header_value_is_read_from_small_pieces() -> None:
    raw = b'{"big": "' + b"y" * (5 << 20) + b'", ' + trace(kernel("one"))[1:]
    for piece in (1000, 1 << 20, None):
        reading = read(raw, piece)
        assert names_in(reading) == ["one"]
        assert len(reading.metadata["big"]) == 5 << 20
        assert not reading.damage


@pytest.mark.slow
def test_an_endless_event_costs_itself_alone() -> None:
    """A text that never ends is given up after 16 MiB, and what follows is found again."""
    raw = trace(
        kernel("one"), kernel("lost", ', "args": {"text": [' + "1, " * (6 << 20) + "]}"), kernel("two")
    )
    reading = read(raw, 1 << 20)
    assert names_in(reading) == ["one", "two"]
    assert reading.damage["an event of over 16 MiB"][0] == 1


# ------------------------------------------------ not a trace


@pytest.mark.parametrize(
    "raw, refusal",
    [
        (b"", "it is empty"),
        (b" \n\t\r\n ", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "it is a web page, not JSON"),
        (b"[[1, 2], [3]]", "it is a list, but not one of events"),
        (b'["a", 1]', "it is a list, but not one of events"),
        (pickle.dumps({"traceEvents": [1, 2]}), "it is not JSON"),
        (b"\x1f\x8b\x08\x00", "it is not JSON"),
        (b"hello", "it is not JSON"),
        (b"]", "it is not JSON"),
    ],
)
def test_what_is_no_trace_is_refused(raw: bytes, refusal: str) -> None:
    for piece in (1, 3, None):
        reading = read(raw, piece)
        assert reading.refusal == refusal
        assert reading.events_read == 0


@pytest.mark.parametrize(
    "raw", [b"{}", b'{"a": 1, "b": [{"c": 2}]}', b'{"traceEvents": 5}', b'{"traceEvents": {}}', b"[]"]
)
def test_an_object_without_events_has_none(raw: bytes) -> None:
    reading = read_both(raw)
    assert reading.events_read == 0
    assert not reading.damage


def test_a_byte_order_mark_is_no_damage() -> None:
    reading = read_both(b"\xef\xbb\xbf \n" + trace(kernel("one")))
    assert names_in(reading) == ["one"]
    assert not reading.damage


def test_what_follows_the_trace_is_said() -> None:
    reading = read_both(trace(kernel("one")) + b"\n garbage \x00\xff")
    assert names_in(reading) == ["one"]
    assert reading.damage["text after the end of the trace"][:2] == (1, 10)


def test_a_second_document_is_read_and_said() -> None:
    for second in (trace(kernel("two")), b"[" + kernel("two").encode() + b"]"):
        reading = read_both(trace(kernel("one")) + b"\n" + second)
        assert names_in(reading) == ["one", "two"]
        assert "text after the end of the trace" in reading.damage


def test_a_second_list_of_events_is_read_and_said() -> None:
    raw = b'{"traceEvents": [' + kernel("one").encode() + b"], " + trace(kernel("two"))[1:]
    reading = read_both(raw)
    assert names_in(reading) == ["one", "two"]
    assert "a second list of events, read as well" in reading.damage


def test_a_list_may_begin_with_anything() -> None:
    raw = b"[null, " + kernel("one").encode() + b", 5, " + kernel("two").encode() + b"]"
    reading = read_both(raw)
    assert names_in(reading) == ["one", "two"]
    assert not reading.refusal
    assert reading.damage["something that is no event"][0] == 2


# ------------------------------------------------ draining


@pytest.mark.slow
def test_draining_the_dictionary_changes_nothing() -> None:
    """A hundred thousand texts, with memory for a few: texts get more than one number, and mean the same."""
    numbers = [*range(100_000), *range(9000)]
    raw = trace(*(kernel(f"k{k % 5000}", f', "args": {{"stream": {k}, "text": "{k}"}}') for k in numbers))
    whole, drained = read(raw, 1 << 16), read(raw, 1 << 16, dictionary_bytes=100_000, batch_rows=999)
    assert (len(whole.skeletons), len(drained.skeletons)) == (100_000, 109_000)
    assert (len(whole.names), len(drained.names) > 5000) == (5000, True)
    for row, other in zip(whole.rows, drained.rows, strict=True):
        assert whole.skeletons[row["skeleton"]] == drained.skeletons[other["skeleton"]]
        assert whole.names[row["name"]] == drained.names[other["name"]]
        assert {**row, "skeleton": 0, "name": 0} == {**other, "skeleton": 0, "name": 0}
    assert [row["stream"] for row in whole.rows] == numbers
    assert drained.threads == whole.threads
    assert drained.damage == whole.damage == {}
    assert sum(drained.shape_total) == sum(whole.shape_total) == len(numbers) * 1000
