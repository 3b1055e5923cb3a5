"""Damaged files: every whole event is kept, none is invented, and what was lost is counted."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
from tests.drawing import LAYOUTS, Drawing, Layout
from tests.native.rebuilt import Event, Reading, loads, read
from tests.trying import some, tries

BASE = 1767225600000000000
OBJECTS = [replace(layout, base="after") for layout in LAYOUTS if layout.metadata == layout.base == "before"]
LISTS = [Layout("compact", root="list"), Layout("kineto", root="list")]


def drawn(rounds: int) -> Drawing:
    """Five events a round, of several tables, with all kinds of values."""
    drawing = Drawing(base_ns=BASE)
    drawing.named_thread('main "thread"')
    for k in range(rounds):
        at = 100 * k
        drawing.op(
            "aten::mm", at, 90.125, args={"External id": k, "Input Dims": [[k, 2], []], "type": ["a", "b"]}
        )
        drawing.launch("cudaLaunchKernel", at + 1, 2, corr=k)
        drawing.flow("s", k, at + 1)
        drawing.kernel(f"void gemm<{k}>(float*, \\)", at + 9, 5.25, corr=k, args={"grid": [1, k, 1]})
        drawing.frame(f"a.py({k}): né", at, 95, args={"Python id": k, "Python parent id": k - 1})
    return drawing


def spans(text: str) -> list[tuple[int, int]]:
    """Where each event stands in the bytes of a text."""
    decoder = json.JSONDecoder()
    found = re.search(r'"traceEvents":\s*\[', text)
    at = found.end() if found else text.index("[") + 1
    out: list[tuple[int, int]] = []
    while True:
        at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
        if text[at] == "]":
            return out
        _, end = decoder.raw_decode(text, at)
        out.append((len(text[:at].encode()), len(text[:end].encode())))
        at = end


def parts_of(raw: bytes) -> list[Event]:
    trace = loads(raw)
    events: list[Event] = trace if isinstance(trace, list) else trace["traceEvents"]
    return events


def said_something(reading: Reading) -> bool:
    return bool(reading.damage or reading.refusal)


# ------------------------------------------------ cut


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", some([OBJECTS[0], *LISTS, *OBJECTS[1:]], 2), ids=lambda layout: f"{layout.root}-{layout.style}"
)
def test_a_file_may_be_cut_anywhere(layout: Layout) -> None:
    text = drawn(tries(3, 6)).json(layout)
    raw = text.encode()
    places = spans(text)
    all_of_it = read(raw)
    assert all_of_it.events() == parts_of(raw)
    for cut in range(len(raw)):
        reading = read(raw[:cut], templates=cut % 2 == 0, batch_rows=64)
        whole = sum(end <= cut for _, end in places)
        assert reading.rows == all_of_it.rows[:whole], cut
        assert reading.names == all_of_it.names[: len(reading.names)]
        assert reading.skeletons == all_of_it.skeletons[: len(reading.skeletons)]
        assert said_something(reading), cut
        assert reading.template_mismatches == 0


def test_a_broken_source_is_said_even_if_the_text_ends_well() -> None:
    raw = drawn(1).json().encode()
    assert not read(raw).damage
    assert "the file is cut short" in read(raw, cut=True).damage


# ------------------------------------------------ flipped


IMPOSSIBLE = "an event with an impossible time, set aside"
FLIPS = (0x00, 0x20, 0x22, 0x2C, 0x30, 0x3A, 0x5B, 0x5C, 0x5D, 0x65, 0x7B, 0x7D, 0xFF)


def touched(place: int, places: list[tuple[int, int]]) -> set[int]:
    """The event a byte is in; between events, both neighbours."""
    for number, (start, end) in enumerate(places):
        if place < start:
            return {number - 1, number} if place >= places[0][0] else {number}
        if place < end:
            return {number}
    return {len(places) - 1}


def check_kept(reading: Reading, events: list[Event], hurt: set[int], python: list[Event] | None) -> None:
    """All events but the hurt ones are there, in order; between them at most as many as were hurt."""
    got = reading.events()
    first, last = (min(hurt), max(hurt)) if hurt else (0, -1)
    assert got[:first] == events[:first]
    behind = events[last + 1 :]
    assert got[len(got) - len(behind) :] == behind
    between = got[first : len(got) - len(behind)]
    assert len(between) <= last - first + 1
    if IMPOSSIBLE in reading.damage:  # a digit more can make a time of years
        assert not between
    elif python is not None:
        assert between == python[first : len(python) - len(behind)]
    elif between != events[first : last + 1]:
        assert said_something(reading)


def check_header(reading: Reading, events: list[Event], python: list[Event] | None, metadata: Event) -> None:
    """Without its name or bracket a list may be none, and a list's first event may pass for the header."""
    got = reading.events()
    if not got:
        assert said_something(reading) or python is None
    else:
        assert got == events or (got == events[1:] and said_something(reading))
        assert said_something(reading) or python == got or reading.metadata == metadata


def as_python(raw: bytes) -> list[Event] | None:
    """The events if Python's json reads the bytes and finds a list of events."""
    try:
        trace = loads(raw)
    except (ValueError, RecursionError):
        return None
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return None
    return None if any("\\ud" in json.dumps(event) for event in events) else events


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", some([OBJECTS[0], *LISTS, *OBJECTS[1:]], 2), ids=lambda layout: f"{layout.root}-{layout.style}"
)
def test_a_wrong_byte_costs_one_event(layout: Layout) -> None:
    text = drawn(1).json(layout).lstrip()
    raw = text.encode()
    places = spans(text)
    events, metadata = read(raw).events(), read(raw).metadata
    first = places[0][0]
    marks = b'{}[]",:\\'
    for place, value in itertools.product(range(len(raw)), FLIPS):
        if raw[place] == value or (raw[place] not in marks and (place + value) % 5):
            continue
        flipped = raw[:place] + bytes([value]) + raw[place + 1 :]
        reading = read(flipped, templates=value % 2 == 0, batch_rows=64)
        python = as_python(flipped)
        if place < first:
            check_header(reading, events, python, metadata)
        elif place < places[-1][1]:
            check_kept(reading, events, touched(place, places), python)
            assert layout.root == "list" or reading.metadata["baseTimeNanoseconds"] == BASE, (place, value)
        else:
            check_kept(reading, events, set(), None)
            assert said_something(reading) or python is not None or reading.metadata == metadata, (
                place,
                value,
            )


@pytest.mark.parametrize("layout", OBJECTS, ids=lambda layout: f"{layout.root}-{layout.style}")
@pytest.mark.parametrize("end", ["", " ", ",", "x", "{", "}", '"', ":", "[", "\\"])
def test_the_base_time_outlives_the_end_of_the_list(layout: Layout, end: str) -> None:
    drawing = drawn(1)
    text = drawing.json(layout)
    place = text.rindex("]", 0, text.index('"traceName"'))
    reading = read((text[:place] + end + text[place + 1 :]).encode())
    assert reading.events() == read(text.encode()).events()
    assert reading.metadata["baseTimeNanoseconds"] == BASE
    assert said_something(reading)
