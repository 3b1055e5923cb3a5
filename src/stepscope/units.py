"""Nanoseconds, bytes and ratios as text: the only rounding in the code base."""

from __future__ import annotations

__all__ = [
    "ABSENT",
    "between",
    "clock",
    "count",
    "counted",
    "duration",
    "number",
    "percent",
    "percents",
    "plural",
    "rate",
    "share",
    "shares",
    "size",
    "tally",
]

ABSENT = "–"

_MINUTE_NS = 60_000_000_000
_HOUR_NS = 60 * _MINUTE_NS


def duration(ns: float | None) -> str:
    """A length of time with three digits: `1.23 ms`; none at all is `0`."""
    if ns is None:
        return ABSENT
    if abs(ns) < 1:
        return "0" if ns == 0 else "<1 ns"
    if abs(ns) < _MINUTE_NS - 50_000_000:
        return _scaled(ns, 1000, ("ns", "µs", "ms", "s"))
    sign = "-" if ns < 0 else ""
    seconds = round(abs(ns) / 1_000_000_000)
    if seconds < 3600:
        return f"{sign}{seconds // 60} min {seconds % 60:02} s"
    minutes = round(abs(ns) / _MINUTE_NS)
    return f"{sign}{minutes // 60:,} h {minutes % 60:02} min"


def between(low: float, high: float, sign: str = "") -> str:
    """A range of times in one unit, with two digits of the larger: `19–26 ms`, with a sign `−28 … −36 ms`."""
    divisor, unit = next(
        (size, unit)
        for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
        if high >= size or size == 1
    )
    digits = 0 if high >= 10 * divisor or unit == "ns" else 1 if high >= 2 * divisor else 2
    ends = [f"{value / divisor:,.{digits}f}" for value in (low, high)]
    ends = [f"{sign}{end}" if float(end.replace(",", "")) else "0" for end in ends]
    said = _range(ends, " … " if sign else "–")
    return said if said == "0" else f"{said} {unit}"


def clock(ns: int | None) -> str:
    """A point in time as its time of day, exact: `14:03:21.000001250`."""
    if ns is None:
        return ABSENT
    seconds, rest = divmod(ns, 1_000_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours % 24:02}:{minute:02}:{second:02}.{rest:09}"


def size(n_bytes: float | None) -> str:
    """An amount of memory with three digits, in powers of 1024: `1.50 GiB`."""
    return ABSENT if n_bytes is None else _scaled(n_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def rate(n_bytes: float | None, ns: float | None) -> str:
    """Bytes in a length of time, in powers of 1000 as vendors give them: `3.35 TB/s`."""
    if n_bytes is None or not ns:
        return ABSENT
    return _scaled(n_bytes / ns * 1e9, 1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"))


def share(part: float | None) -> str:
    """A ratio as per cent with one decimal: `28.3 %`; only zero itself reads as zero."""
    if part is None:
        return ABSENT
    if 0 < abs(part) < 0.0005:
        return "<0.1 %" if part > 0 else ">-0.1 %"
    return f"{part * 100:.1f} %"


def shares(low: float, high: float) -> str:
    """A range of ratios with one decimal: `43.2–56.1 %`."""
    return _percent_range(share(low), share(high))


def percent(part: float) -> str:
    """A ratio as whole per cents, for sentences: `28 %`; only zero itself reads as zero."""
    return "<1 %" if 0 < part < 0.005 else f"{part * 100:.0f} %"


def percents(low: float, high: float) -> str:
    """A range of ratios as whole per cents: `11–14 %`."""
    return _percent_range(percent(low), percent(high))


def count(n: int | None) -> str:
    """A whole number with its thousands set apart: `60,841,999`."""
    return ABSENT if n is None else f"{n:,}"


def counted(n: float, noun: str) -> str:
    """How many of something: `1 tensor`, `2.5 tensors`, `3 copies`."""
    said = tally(n)
    return f"{said} {noun if said == '1' else plural(noun)}"


def plural(noun: str) -> str:
    """Several of something: `copies`, `backward passes`, `launches`, `arrays`."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def number(x: float | None) -> str:
    """A number without a unit, with three digits: `0.0123`."""
    if x is None:
        return ABSENT
    if abs(x) >= 999.5:
        return f"{x:,.0f}"
    if x == 0 or abs(x) >= 1:
        return _three_digits(x)
    return f"{x:.3g}"


def tally(x: float) -> str:
    """How many on average, with no more decimals than needed: `3`, `2.5`, `1,576`; few are `<0.1`."""
    if x == int(x) or abs(x) >= 99.95:
        return f"{round(x):,}"
    if 0 < abs(x) < 0.1:
        return "<0.1"
    return f"{x:.1f}".removesuffix(".0")


def _range(ends: list[str], joint: str = "–") -> str:
    """Both ends, or one where they read alike."""
    return ends[0] if ends[0] == ends[1] else joint.join(ends)


def _percent_range(low: str, high: str) -> str:
    plain = low.removesuffix(" %")
    return _range([plain if plain[0].isdigit() else low, high]) if low != high else low


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    """The value in the largest unit that leaves at least one whole digit."""
    if value == int(value) and abs(value) < step:
        return f"{int(value)} {units[0]}"
    last = units[-1]
    for unit in units:
        # Half a digit below the step rounds up to it: that is 1.00 of the next unit.
        if unit == last or abs(value) < step - 0.5:
            return f"{_three_digits(value)} {unit}"
        value /= step
    raise AssertionError("the last unit always fits")


def _three_digits(value: float) -> str:
    if abs(value) < 9.995:
        return f"{value:.2f}"
    if abs(value) < 99.95:
        return f"{value:.1f}"
    return f"{value:,.0f}"
