from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope import units


@pytest.mark.parametrize(
    "ns,text",
    [
        (None, "–"),
        (0, "0"),
        (0.4, "<1 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (12.5, "12.5 ns"),
        (1_000, "1.00 µs"),
        (6426.88, "6.43 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (1_234_567, "1.23 ms"),
        (12_345_678, "12.3 ms"),
        (99_960_000, "100 ms"),
        (59_940_000_000, "59.9 s"),
        (59_990_000_000, "1 min 00 s"),
        (83_000_000_000, "1 min 23 s"),
        (3_599_600_000_000, "1 h 00 min"),
        (3_720_000_000_000, "1 h 02 min"),
        (-1_234_567, "-1.23 ms"),
        (-83_000_000_000, "-1 min 23 s"),
    ],
)
def test_duration(ns: float | None, text: str) -> None:
    assert units.duration(ns) == text


@pytest.mark.parametrize(
    "ns,text",
    [(None, "–"), (0, "00:00:00.000000000"), (1_700_000_000_123_456_789, "22:13:20.123456789")],
)
def test_clock(ns: int | None, text: str) -> None:
    assert units.clock(ns) == text


@pytest.mark.parametrize(
    "n_bytes,text",
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (1023 * 1024, "1,023 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (141 * 1024**3, "141 GiB"),
        (5000 * 1024**5, "5,000 PiB"),
    ],
)
def test_size(n_bytes: float | None, text: str) -> None:
    assert units.size(n_bytes) == text


@pytest.mark.parametrize(
    "n_bytes,ns,text",
    [
        (None, 1, "–"),
        (1, None, "–"),
        (1, 0, "–"),
        (0, 1, "0 B/s"),
        (4_800, 1, "4.80 TB/s"),
        (25, 1, "25.0 GB/s"),
    ],
)
def test_rate(n_bytes: float | None, ns: float | None, text: str) -> None:
    assert units.rate(n_bytes, ns) == text


@pytest.mark.parametrize(
    "part,text",
    [
        (None, "–"),
        (0.0, "0.0 %"),
        (0.0004, "<0.1 %"),
        (-0.0004, ">-0.1 %"),
        (0.2834, "28.3 %"),
        (1.0, "100.0 %"),
        (-0.05, "-5.0 %"),
    ],
)
def test_share(part: float | None, text: str) -> None:
    assert units.share(part) == text


@pytest.mark.parametrize(
    "low,high,text",
    [
        (0.432, 0.561, "43.2–56.1 %"),
        (0.1, 0.1, "10.0 %"),
        (0.1001, 0.1002, "10.0 %"),
        (0.0001, 0.2, "<0.1 %–20.0 %"),
        (0.0, 0.0, "0.0 %"),
    ],
)
def test_shares(low: float, high: float, text: str) -> None:
    assert units.shares(low, high) == text


@pytest.mark.parametrize(
    "low,high,text",
    [(0.112, 0.114, "11 %"), (0.11, 0.14, "11–14 %"), (0.001, 0.2, "<1 %–20 %"), (0.001, 0.002, "<1 %")],
)
def test_percents(low: float, high: float, text: str) -> None:
    assert units.percents(low, high) == text


@pytest.mark.parametrize(
    "n,text",
    [(0, "0 copies"), (1, "1 copy"), (1.0, "1 copy"), (2.5, "2.5 copies"), (1576, "1,576 copies")],
)
def test_counted(n: float, text: str) -> None:
    assert units.counted(n, "copy") == text
    assert units.counted(1, "tensor") == "1 tensor"
    assert units.counted(0.002, "tensor") == "<0.1 tensors"


@pytest.mark.parametrize(
    "noun,several",
    [("tensor", "tensors"), ("copy", "copies"), ("array", "arrays"), ("backward pass", "backward passes")],
)
def test_plural(noun: str, several: str) -> None:
    assert units.plural(noun) == several


@pytest.mark.parametrize("n,text", [(None, "–"), (0, "0"), (60_841_999, "60,841,999"), (-1000, "-1,000")])
def test_count(n: int | None, text: str) -> None:
    assert units.count(n) == text


@pytest.mark.parametrize(
    "x,text",
    [(None, "–"), (0.0, "0.00"), (0.01234, "0.0123"), (1.5, "1.50"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_number(x: float | None, text: str) -> None:
    assert units.number(x) == text


@given(st.integers(min_value=1, max_value=59_000_000_000))
def test_a_duration_is_true_to_three_digits(ns: int) -> None:
    figure, unit = units.duration(ns).split()
    shown = float(figure) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert shown == pytest.approx(ns, rel=0.0051)
    assert len(figure.replace(".", "")) <= 3


@pytest.mark.parametrize(
    "x,text",
    [
        (3.0, "3"),
        (2.5, "2.5"),
        (0.333, "0.3"),
        (0.0084, "<0.1"),
        (0.97, "1"),
        (9.96, "10"),
        (12.34, "12.3"),
        (128.0, "128"),
        (1576.4, "1,576"),
        (0.0, "0"),
    ],
)
def test_tally(x: float, text: str) -> None:
    assert units.tally(x) == text


@pytest.mark.parametrize(
    "low,high,text,signed",
    [
        (28e6, 36e6, "28–36 ms", "−28 … −36 ms"),
        (0, 3e6, "0–3.0 ms", "0 … −3.0 ms"),
        (1.2e9, 1.9e9, "1.20–1.90 s", "−1.20 … −1.90 s"),
        (12e6, 12.3e6, "12 ms", "−12 ms"),
        (500, 900, "500–900 ns", "−500 … −900 ns"),
        (0, 0, "0", "0"),
        (1.51e6, 1.514e6, "1.51 ms", "−1.51 ms"),
    ],
)
def test_between(low: float, high: float, text: str, signed: str) -> None:
    assert units.between(low, high) == text
    assert units.between(low, high, sign="−") == signed
