"""Numbers come out of the text exactly, or not at all."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.native.rebuilt import Reading, loads, nanoseconds, read
from tests.trying import tries

IMPOSSIBLE = "an event with an impossible time, set aside"
FARTHEST_NS, LONGEST_NS = 2**62 - 2**53, 10 * 86400 * 10**9
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
TAKEN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""What columns take: also the spellings that other writers use for a number."""

digits = st.text("0123456789", min_size=1, max_size=22)
signed = st.builds(
    "{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 30)
)
exponents = st.one_of(st.just(""), signed)
drawn_numbers = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    digits,
    st.one_of(st.just(""), digits.map(".{}".format)),
    exponents,
)
words = st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "inf", "nan", "N/A", "null", "true", "1e", "1e+-5", "-", "+5", ".5",
     "5.", "1.2.3", "0x10", "--1", "1-1", "007", "-0", "-0.0", "1e400", "1E-400"]
)  # fmt: skip
texts = st.one_of(drawn_numbers, words)
spelled = st.one_of(texts, texts.map('"{}"'.format))


def one_event(**values: str) -> bytes:
    """A trace of one kernel, twice the same, so that the second goes through a template."""
    top = {"ph": '"X"', "cat": '"kernel"', "name": '"k"', "pid": "0", "tid": "7", "ts": "1", "dur": "1"}
    args = {key: value for key, value in values.items() if key not in top}
    members = top | {key: value for key, value in values.items() if key in top}
    text = ", ".join(f'"{key}": {value}' for key, value in members.items())
    inside = ", ".join(f'"{key.replace("_", " ")}": {value}' for key, value in args.items())
    event = "{" + text + ', "args": {' + inside + "}}"
    return f'{{"traceEvents": [{event}, {event}]}}'.encode()


def both(raw: bytes, *, set_aside: bool = False) -> Reading:
    """What both paths agree on; both events are alike, and both are there or none is."""
    fast, slow = read(raw), read(raw, templates=False)
    assert fast.without_templates() == slow.without_templates()
    assert fast.events_read == len(fast.rows) == (0 if set_aside else 2)
    assert fast.damage.get(IMPOSSIBLE, (0,))[0] == (2 if set_aside else 0)
    if set_aside:
        return fast
    first, second = ({**row, "event": 0} for row in fast.rows)
    assert first == second
    return fast


def exact(text: str) -> Decimal | None:
    """The number that a text is, or None."""
    inside = text.strip('"') if text.startswith('"') else text
    return Decimal(inside) if TAKEN.fullmatch(inside) else None


def whole(number: Decimal | None) -> int | None:
    """The integer that a number is, if it is one that fits."""
    if number is None or not number:
        return None if number is None else 0
    if not 0 <= number.adjusted() <= 19 or number != number.to_integral_value():
        return None
    return int(number) if abs(int(number)) < 2**63 else None


def is_json(text: str) -> bool:
    return text.startswith('"') or bool(NUMBER.fullmatch(text)) or text in ("null", "true", "false")


def check_text(reading: Reading, key: str, text: str) -> None:
    """JSON comes back as it was; of anything else the spelling is kept, and it is said."""
    events = reading.events()
    value = events[0]["args"][key] if key in events[0].get("args", {}) else events[0][key]
    if is_json(text):
        assert value == loads(text)
    else:
        assert any("bare word" in reason for reason in reading.damage), reading.damage


@settings(max_examples=tries(400))
@given(spelled)
@example("1.7e15")
@example("1.5E+3")
@example("1767225600000000.1235")
@example("0.0005")
@example("0.0015")
@example("0.00250000000000000000000000000000000001")
@example("-0.0005")
@example("-0.0015")
@example("9223372036854775.807")
@example("9223372036854775.8074")
@example("9223372036854775.8075")
@example("9223372036854775807")
@example("4602678819172646.912")
@example("4602678819172646.913")
@example("-4602678819172646.912")
@example("-4602678819172646.913")
@example("0012.5")
@example("12345678")
@example("1234567812345678.123")
def test_a_start_is_the_decimal_rounded_half_to_even(text: str) -> None:
    number = exact(text)
    expected = None if number is None else nanoseconds(number)
    far = number is not None and (expected is None or abs(expected) > FARTHEST_NS)
    reading = both(one_event(ts=text), set_aside=far)
    if far:
        return
    assert reading.rows[0]["start_ns"] == expected
    assert (expected is None) == any("no number" in reason for reason in reading.damage)
    check_text(reading, "ts", text)


@settings(max_examples=tries(200))
@given(spelled)
@example("-1")
@example("-0.0004")
@example("-0")
@example("18446744073709.551")
@example("864000000000")
@example("864000000000.001")
@example("-9223372036854775.807")
def test_a_duration_is_never_negative(text: str) -> None:
    number = exact(text)
    expected = None if number is None else nanoseconds(number)
    far = number is not None and (expected is None or not -FARTHEST_NS <= expected <= LONGEST_NS)
    reading = both(one_event(dur=text), set_aside=far)
    if far:
        return
    assert reading.rows[0]["dur_ns"] == (None if expected is None else max(expected, 0))
    assert (expected is not None and expected < 0) == any("negative" in reason for reason in reading.damage)
    check_text(reading, "dur", text)


@settings(max_examples=tries(300))
@given(st.one_of(spelled, st.integers(-(2**70), 2**70).map(str)))
@example("9223372036854775807")
@example("-9223372036854775808")
@example("9223372036854775808")
@example("999999999999999999")
@example("1000000000000000000")
@example("18446744073709551616")
@example("5.0")
@example("5.5")
@example("1e3")
@example('"1024"')
@example("[1, 2]")
@example('{"a": 1}')
def test_an_integer_is_exact_or_absent(text: str) -> None:
    reading = both(one_event(correlation=text))
    assert reading.rows[0]["correlation"] == whole(exact(text))
    if text[0] in "[{":
        assert reading.events()[0]["args"]["correlation"] == json.loads(text)
    else:
        check_text(reading, "correlation", text)


@settings(max_examples=tries(300))
@given(st.one_of(spelled, st.floats(allow_nan=False, allow_infinity=False).map(repr), st.integers().map(str)))
@example("-0.0")
@example("9007199254740993")
@example("0.1234567890123456789")
def test_a_real_is_the_nearest_double(text: str) -> None:
    reading = both(one_event(**{"memory_bandwidth_(GB/s)": text}))
    number = exact(text)
    stored = reading.rows[0]["bandwidth_gb_s"]
    if stored is not None:
        assert number is not None
        assert stored == float(number)
    elif number is not None:
        value = float(number)
        assert value in (0, float("inf"), float("-inf")) or len(text) > 40
    if is_json(text):
        assert reading.events()[0]["args"]["memory bandwidth (GB/s)"] == loads(text)


@pytest.mark.parametrize(
    "pid", ["1", "1.0", "1.5", "null", '"Spans"', '"1"', "true", "[1]", "-1", "99999999999999999999"]
)
def test_a_process_is_kept_as_written(pid: str) -> None:
    reading = both(one_event(pid=pid, tid=pid))
    assert [event["pid"] for event in reading.events()] == [json.loads(pid)] * 2
    assert [event["tid"] for event in reading.events()] == [json.loads(pid)] * 2
    assert reading.threads == [(pid, pid)]


def test_durations_sum_to_at_most_four_years() -> None:
    """Each is possible; 166 events of ten days are not, and what comes after them is set aside."""
    event = one_event(dur="864000000000").split(b"[", 1)[1].split(b", {", 1)[0]
    raw = b'{"traceEvents": [' + b", ".join([event] * 200) + b"]}"
    fast, slow = read(raw), read(raw, templates=False)
    assert fast.without_templates() == slow.without_templates()
    assert fast.events_read == 2**57 // LONGEST_NS == 166
    assert fast.damage["an event after durations of over four years in total, set aside"][0] == 34
    assert sum(fast.shape_total) == 166 * LONGEST_NS


def test_every_number_of_digits_is_read() -> None:
    """Digits are read eight at a time, so each length and each place of a wrong one is tried."""
    for length in range(1, 20):
        for odd in range(length):
            text = "".join("x" if at == odd else str((at + 1) % 10) for at in range(length))
            for character in ("9", "/", ":", ".", "e"):
                number = text.replace("x", character)
                reading = read(one_event(correlation=number))
                got = reading.rows[0]["correlation"] if reading.rows else None
                assert got == whole(exact(number)), number
