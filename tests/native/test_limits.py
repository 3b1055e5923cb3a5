"""What a file may make the reader keep: times that are none, texts that are too long or too many."""

from __future__ import annotations

import random
import re

import pytest
from tests.native.rebuilt import Reading, read
from tests.native.test_odd_traces import kernel, names_in, read_both, trace

IMPOSSIBLE = "an event with an impossible time, set aside"
DAY_US = 86_400_000_000
YEAR_US = 365 * DAY_US
NOW_US = 1_767_225_600_000_000
CUT = r"…[0-9a-f]{16}…"


def at(name: str, ts: object, dur: object = 1, **more: str) -> str:
    event = kernel(name).replace('"ts": 5', f'"ts": {ts}').replace('"dur": 1', f'"dur": {dur}')
    for key, value in more.items():
        event = event.replace(f'"{key}": ', f'"{key}": {value}, "was_{key}": ', 1)
    return event


def counts(reading: Reading) -> dict[str, int]:
    return {reason: count for reason, (count, _, _) in reading.damage.items()}


# ------------------------------------------------ times


@pytest.mark.parametrize(
    "ts",
    [
        "9223372036854775",
        "9223372036854775.807",
        "-9223372036854775.808",
        "4611686018427387.904",
        "1e308",
        "-1e308",
        "123456789012345678901234567890",
        f"{NOW_US + 200 * YEAR_US}",
        f"{NOW_US - 200 * YEAR_US}",
        f"{NOW_US + 11 * DAY_US}",
        f"{NOW_US - 11 * DAY_US}",
        "0",
        "-1",
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_an_event_far_from_all_others_is_set_aside(ts: str, first: bool) -> None:
    sound = [at(f"k{n % 3}", NOW_US + n) for n in range(40)]
    far = at("far", ts)
    reading = read_both(trace(*([far, *sound] if first else [*sound, far])))
    assert counts(reading) == {IMPOSSIBLE: 1}
    assert names_in(reading) == [f"k{n % 3}" for n in range(40)]
    assert [row["event"] for row in reading.rows] == list(range(40))
    assert sum(reading.shape_events) == 40
    assert sum(reading.shape_total) == 40_000


@pytest.mark.parametrize("dur", ["9223372036854775", f"{11 * DAY_US}", "1e300", "-1e300"])
def test_an_event_that_lasts_too_long_is_set_aside(dur: str) -> None:
    reading = read_both(trace(at("one", 5), at("long", 6, dur), at("two", 7)))
    assert counts(reading) == {IMPOSSIBLE: 1}
    assert names_in(reading) == ["one", "two"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_no_time_and_the_event_stays(word: str) -> None:
    reading = read_both(trace(at("one", 5), at("none", word), at("two", 7, word)))
    assert names_in(reading) == ["one", "none", "two"]
    assert [row["start_ns"] for row in reading.rows] == [5000, None, 7000]
    assert [row["dur_ns"] for row in reading.rows] == [1000, 1000, None]
    assert counts(reading)["a time that is no number"] == 2


def test_a_trace_may_last_ten_days_either_way() -> None:
    days = [at(f"k{day}", NOW_US + day * DAY_US) for day in range(-10, 11)]
    assert not read_both(trace(*days)).damage


def test_metadata_may_have_any_time() -> None:
    """Some writers give 0 for the time of a thread's name: it means nothing."""
    name = '{"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "ts": 0, "args": {"name": "main"}}'
    reading = read_both(trace(name, *(at("k", NOW_US + n) for n in range(9))))
    assert reading.events_read == 10
    assert not reading.damage


def test_most_events_decide_however_many_come_first() -> None:
    """The first batch is judged as a whole, and all that follows by it."""
    sound = [at("k", NOW_US + n) for n in range(300)]
    far = [at("far", n) for n in range(50)]
    for order in (far + sound, sound + far, sound[:60] + far + sound[60:]):
        whole = read(trace(*order), batch_rows=128)
        assert counts(whole) == {IMPOSSIBLE: 50}
        assert set(names_in(whole)) == {"k"}
        assert whole.events_read == 300


def test_far_times_are_found_alike_in_pieces_of_any_size() -> None:
    dice = random.Random(4)
    events = [
        at(f"k{dice.randrange(5)}", NOW_US + n if dice.random() < 0.8 else dice.randrange(10**16))
        for n in range(500)
    ]
    raw = trace(*events)
    whole = read(raw, batch_rows=64)
    assert 50 < counts(whole)[IMPOSSIBLE] < 150
    for piece, templates in ((1, True), (100, True), (4096, False)):
        assert (
            read(raw, piece, batch_rows=64, templates=templates).without_templates()
            == whole.without_templates()
        )


# ------------------------------------------------ texts


def test_a_name_that_is_too_long_is_cut_and_stays_itself() -> None:
    """Two that differ in their last letter stay two, and the cut is counted for each event."""
    one, two = "k" * 200_000 + "1", "k" * 200_000 + "2"
    reading = read_both(trace(kernel(one), kernel(two), kernel(one), kernel("short")))
    names = names_in(reading)
    assert names[0] == names[2] != names[1]
    assert all(re.fullmatch("k{4096}" + CUT, name) for name in names[:3])
    assert counts(reading) == {"a name of over 128 KiB, cut": 3}


def test_a_cut_leaves_whole_characters() -> None:
    reading = read_both(trace(kernel("é" * 66_000), kernel("x" + "é" * 66_000), kernel("\\u00e9" * 66_000)))
    first, second, third = names_in(reading)
    assert re.fullmatch("é{2048}" + CUT, first)
    assert re.fullmatch("xé{2047}" + CUT, second)
    assert third == first
    assert counts(reading) == {"a name of over 128 KiB, cut": 3}


def test_names_beyond_the_limit_are_counted() -> None:
    raw = trace(*(kernel(f"k{n % 8}") for n in range(40)))
    for limit in ({"most_texts": 5}, {"most_name_bytes": 10}):
        reading = read_both(raw, **limit)
        kept = [f"k{n % 8}" if n % 8 < 5 else "…" for n in range(40)]
        assert names_in(reading) == kept
        assert counts(reading) == {"a name after the first 131,072, not kept": 15}


def test_arguments_beyond_the_limit_are_counted_and_columns_stay() -> None:
    def event(n: int) -> str:
        return kernel("k", f', "args": {{"stream": {n}, "note": "{n % 9}"}}')

    raw = trace(*(event(n) for n in range(90)))
    for limit in ({"most_texts": 6}, {"most_skeleton_bytes": 800}):
        reading = read_both(raw, **limit)
        assert [row["stream"] for row in reading.rows] == list(range(90))
        lost = counts(reading)["arguments that are too many to be kept"]
        assert 20 < lost < 80
        assert sum("note" not in event["args"] for event in reading.events()) == lost
        assert all(event["name"] == "k" and event["tid"] == 7 for event in reading.events())
        assert set(reading.categories) == {"kernel"}


def test_threads_beyond_the_limit_are_counted_as_the_last() -> None:
    raw = trace(*(kernel("k").replace('"tid": 7', f'"tid": {n % 6}') for n in range(60)))
    reading = read_both(raw, most_threads=4)
    assert reading.threads == [("0", str(n)) for n in range(4)]
    assert [row["thread"] for row in reading.rows] == [min(n % 6, 3) for n in range(60)]
    assert counts(reading) == {"a thread after the first 4,096, counted as the last one": 20}


def test_long_ids_of_threads_are_cut_and_stay_themselves() -> None:
    ids = ['"' + "t" * 5000 + f'{n}"' for n in (1, 2, 1)] + ["[" + "1," * 5000 + "1]"]
    reading = read_both(trace(*(kernel("k").replace('"tid": 7', f'"tid": {tid}') for tid in ids)))
    assert [row["thread"] for row in reading.rows] == [0, 1, 0, 2]
    assert all(len(tid) < 120 and tid.endswith('…"') for _, tid in reading.threads)
    assert counts(reading)["a process or thread with an id of over 256 bytes, cut"] == 4


def test_categories_beyond_the_limit_are_counted() -> None:
    events = [kernel("k").replace('"kernel"', f'"c{n}"') for n in range(5000)]
    reading = read_both(trace(*events, kernel("k"), kernel("k").replace('"kernel"', '"' + "c" * 999 + '"')))
    assert reading.events_read == 5002
    assert len(set(reading.categories)) <= 4100
    # Those that tables are made of are always known.
    assert "kernel" in reading.categories
    assert counts(reading) == {
        "a category that is too long, or after the first 4,096, not kept": 5000 - 4095 + 1
    }


def test_an_event_with_too_many_members_costs_itself_alone() -> None:
    many = ", ".join(f'"k{n}": {n}' for n in range(20_000))
    reading = read_both(trace(kernel("one"), kernel("many", ", " + many), kernel("two")))
    assert names_in(reading) == ["one", "two"]
    assert "an event with over 16,384 members" in reading.damage


# ------------------------------------------------ the header


def header(members: str) -> bytes:
    return ("{" + members + ', "traceEvents": [' + kernel("one") + '], "baseTimeNanoseconds": 7}').encode()


def test_too_many_values_in_the_header_are_counted_and_the_base_time_stays() -> None:
    reading = read(header(", ".join(f'"k{n}": {n}' for n in range(9000))))
    assert len(reading.metadata) == 4097
    assert reading.metadata["baseTimeNanoseconds"] == 7
    assert counts(reading) == {"more than 4,096 values in the header; the rest are not kept": 9000 - 4096}


@pytest.mark.parametrize("value", ['"' + "x" * (3 << 20) + '"', "[" + "[],{}," * (1 << 16) + "0]"])
def test_a_header_that_is_too_large_is_cut(value: str) -> None:
    reading = read(header(", ".join(f'"k{n}": {value}' for n in range(9))))
    assert names_in(reading) == ["one"]
    assert reading.metadata["baseTimeNanoseconds"] == 7
    cut = [text for text in reading.metadata.values() if isinstance(text, str) and re.search(CUT + "$", text)]
    assert counts(reading) == {"a value too large for the header, cut": len(cut)}
    assert 3 < len(cut) < 9


def test_a_long_key_of_the_header_is_cut() -> None:
    reading = read(header('"' + "k" * 100_000 + '": 1'))
    assert any(re.fullmatch("k{128}" + CUT, key) for key in reading.metadata)


# ------------------------------------------------ escaped keys


def escaped(text: str, keys: list[str]) -> str:
    for key in keys:
        text = text.replace(f'"{key}":', '"' + "".join(f"\\u{ord(c):04x}" for c in key) + '":')
    return text


def test_escaped_keys_are_read_as_they_are_meant() -> None:
    more = ', "args": {"stream": 4, "correlation": 9, "note": "x"}'
    events = [kernel(f"k{n % 2}", more).replace('"ts": 5', f'"ts": {n}') for n in range(20)]
    plain = read_both(trace(*events))
    keys = ["traceEvents", "ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "stream", "note"]
    for chosen in ([key] for key in keys):
        reading = read_both(escaped(trace(*events).decode(), chosen).encode())
        assert reading.rows == plain.rows, chosen
        assert reading.events() == plain.events()
        assert not reading.damage
    every = read_both(escaped(trace(*events).decode(), keys).encode())
    assert every.rows == plain.rows
    assert every.metadata == {"baseTimeNanoseconds": 7}


def test_an_escaped_key_is_the_twin_of_its_plain_one() -> None:
    event = kernel("one", ', "t\\u0073": 8')
    reading = read_both(trace(event, event))
    assert [row["start_ns"] for row in reading.rows] == [8000, 8000]
