"""Curves beside a timeline, at the width of its pixels: lowest, mean and highest value of each.

Everything is a level that holds from one instant to the next. Levels are cut at the edges of pixels, so a
mean is exact, no peak is lost, and an answer is as long as the window is wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.analyses._range_totals import times_of_work
from stepscope.records import dataclass
from stepscope.store.arrow_sql import ask

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["Curve", "Frame", "curves"]

_FULL = 10**12
"""A filled device: weights are parts of it, for whole numbers add up without drift."""
_HELD_NS = 1_000_000_000
"""A sample tells of no more than a second."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A window of so many pixels, each `pixel_ns` wide."""

    since: int
    pixel_ns: int
    pixels: int

    @property
    def until(self) -> int:
        """Where the last pixel ends."""
        return self.since + self.pixel_ns * self.pixels

    def params(self) -> dict[str, int]:
        """For SQL."""
        return {"since": self.since, "until": self.until, "pixel": self.pixel_ns}


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve: the pixels in which it is known, and its values there."""

    id: str
    title: str
    unit: str
    device: str | None
    top: float | None
    start: list[int]
    min: list[float]
    mean: list[float]
    max: list[float]


# A level lasts until the next change. It is cut into the pixels that it touches: as many pieces as there are
# changes and pixels together, for levels of one curve do not overlap. Most touch one, and are not unnested.
_PIXELS = """
    WITH clipped AS (
        SELECT key, greatest(low, $since) AS low, least(high, $until) AS high, value FROM steps
        WHERE low < $until AND high > $since AND high > low),
    levels AS (
        SELECT *, (low - $since) // $pixel AS begins, (high - 1 - $since) // $pixel AS ends FROM clipped),
    cut AS (
        SELECT key, begins AS pixel, value, high - low AS ns FROM levels WHERE begins = ends
        UNION ALL
        SELECT key, pixel, value, least(high, $since + (pixel + 1) * $pixel)
               - greatest(low, $since + pixel * $pixel) AS ns
        FROM (SELECT *, unnest(range(begins, ends + 1)) AS pixel FROM levels WHERE begins < ends))
    SELECT key, pixel::BIGINT AS pixel, min(value)::DOUBLE AS least, max(value)::DOUBLE AS most,
           (sum(value::HUGEINT * ns)::DOUBLE / {over})::DOUBLE AS mean, sum(ns)::BIGINT AS ns
    FROM cut GROUP BY key, pixel ORDER BY key, pixel
"""


def curves(trace: Trace, frame: Frame) -> Iterator[Curve]:
    """All curves that a trace has something for."""
    if trace.has("device_work"):
        yield from _of_work(trace, frame)
        yield from _queues(trace, frame)
    yield from _memory(trace, frame)
    yield from _samples(trace, frame)
    yield from _readings(trace, frame)


# ---------------------------------------------------------------- devices


def _of_work(trace: Trace, frame: Frame) -> Iterator[Curve]:
    work = times_of_work(trace, frame.since, frame.until)
    busy = """SELECT device AS key, low AS moment, 1 AS delta FROM work
              UNION ALL SELECT device, high, -1 FROM work"""
    for key, drawn in _summed(busy, frame, work, cap=1).items():
        yield _curve(f"busy:{key}", f"GPU {key} busy", "share", key, drawn, top=1.0)
    filled = """SELECT device AS key, low AS moment, weight AS delta FROM work WHERE weight > 0
                UNION ALL SELECT device, high, -weight FROM work WHERE weight > 0"""
    weighed = trace.reading(None).arrow(
        f"""SELECT t.event, round(least(blocks, 1) * {_FULL})::BIGINT AS weight
            FROM stored.device_work t JOIN (
                SELECT id, TRY_CAST(json_extract_string(text, '$.args."blocks per SM"') AS DOUBLE) AS blocks
                FROM stored.skeletons WHERE stored_in = 'device_work') s ON s.id = t.skeleton
            WHERE t.start_ns < $until AND t.start_ns >= $since AND blocks > 0 AND isfinite(blocks)""",
        since=_first(work, frame.since),
        until=frame.until,
    )
    kernels = ask("SELECT w.*, b.weight FROM work w JOIN weighed b USING (event)", work=work, weighed=weighed)
    for key, drawn in _summed(filled, frame, kernels, cap=_FULL, scale=_FULL).items():
        yield _curve(f"sm:{key}", f"GPU {key} multiprocessors in use", "share", key, drawn, top=1.0)


def _first(work: pa.Table, since: int) -> int:
    """When the first of some work began."""
    import pyarrow.compute as pc

    first = pc.min(work["start_ns"]).as_py()
    return since if first is None else int(first)


def _queues(trace: Trace, frame: Frame) -> Iterator[Curve]:
    """Work that was launched and is not done; each piece counts from its launch to its end."""
    moves = """
        SELECT key, greatest(begun, $since) AS moment, 1 AS delta FROM work
        UNION ALL SELECT key, least(done, $until), -1 FROM work
    """
    work = trace.reading(None).arrow(
        """SELECT coalesce(t.device::VARCHAR, h.pid) AS key, l.start_ns AS begun,
                  t.start_ns + coalesce(t.dur_ns, 0) AS done
           FROM stored.device_work t JOIN stored.launches l ON l.event = t.launch
           LEFT JOIN stored.threads h ON h.id = t.thread
           WHERE l.start_ns < $until AND t.start_ns + coalesce(t.dur_ns, 0) > $since
             AND l.start_ns < t.start_ns + coalesce(t.dur_ns, 0)""",
        since=frame.since,
        until=frame.until,
    )
    for key, drawn in _summed(moves, frame, work, cap=1 << 62).items():
        yield _curve(f"queue:{key}", f"GPU {key} launched, not done", "count", key, drawn)


def _summed(
    moves: str, frame: Frame, work: pa.Table, *, cap: int, scale: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Levels that rise and fall, by key; what is not there is 0."""
    used = {name: value for name, value in frame.params().items() if f"${name}" in moves}
    steps = _levels(ask(moves, used, work=work), cap)
    return _drawn(steps, frame, over=f"{frame.pixel_ns} / {scale}", scale=scale)


def _levels(moves: pa.Table, cap: int) -> pa.Table:
    """From when to when each level lasts, by key; of changes at one moment only the last level does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = []
    for key in pc.unique(moves["key"]):
        own = moves.filter(pc.equal(moves["key"], key))
        order = pc.sort_indices(own["moment"])
        moment = own["moment"].take(order).combine_chunks()
        level = pc.cumulative_sum(own["delta"].take(order).cast(pa.int64())).combine_chunks()
        columns = {"low": moment[:-1], "high": moment[1:], "value": pc.min_element_wise(level, cap)[:-1]}
        found.append(pa.table({"key": pa.repeat(key, len(moment) - 1), **columns}))
    nothing = {"key": pa.string(), "low": pa.int64(), "high": pa.int64(), "value": pa.int64()}
    return pa.concat_tables(found) if found else pa.schema(nothing.items()).empty_table()


def _drawn(steps: pa.Table, frame: Frame, *, over: str, scale: int = 1) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in ask(_PIXELS.format(over=over), frame.params(), steps=steps).to_pylist():
        if scale > 1:
            row["least"], row["most"] = row["least"] / scale, row["most"] / scale
        if over != "sum(ns)" and row["ns"] < frame.pixel_ns:
            row["least"] = min(row["least"], 0.0)  # for the rest of the pixel nothing was there
        found.setdefault(row["key"], []).append(row)
    return found


def _curve(
    id_: str,
    title: str,
    unit: str,
    device: str | None,
    drawn: list[dict[str, Any]],
    *,
    top: float | None = None,
) -> Curve:
    columns = ([row[name] for row in drawn] for name in ("pixel", "least", "mean", "most"))
    return Curve(id_, title, unit, device, top, *columns)


# ---------------------------------------------------------------- what was recorded

# Every point holds until the next one of its curve; the last one until the window ends, or for $held ns.
_POINTS = """
    SELECT key, moment AS low, value,
           coalesce(lead(moment) OVER (PARTITION BY key ORDER BY moment, event), $until) AS next,
           CASE WHEN $held > 0 THEN least(next, moment + $held) ELSE next END AS high
    FROM points
"""


def _points(points: pa.Table, frame: Frame, *, held: int = 0) -> dict[str, list[dict[str, Any]]]:
    steps = ask(_POINTS, {"until": frame.until, "held": held}, points=points)
    return _drawn(steps, frame, over="sum(ns)")


def _memory(trace: Trace, frame: Frame) -> Iterator[Curve]:
    if not trace.has("memory_events"):
        return
    points = trace.reading(None).arrow(
        """SELECT kind || ':' || CASE WHEN device_type = 0 THEN 'cpu'
                                      ELSE coalesce(device::VARCHAR, 'unknown') END AS key,
                  t.start_ns AS moment, t.event,
                  CASE kind WHEN 'allocated' THEN allocated_bytes ELSE reserved_bytes END AS value
           FROM stored.memory_events t JOIN stored.names n ON n.id = t.name,
                (SELECT unnest(['allocated', 'reserved']) AS kind)
           WHERE n.text = '[memory]' AND t.start_ns < $until AND t.start_ns IS NOT NULL AND bytes IS NOT NULL
             AND value IS NOT NULL AND NOT (device_type = 0 AND kind = 'reserved')""",
        until=frame.until,
    )
    for key, drawn in _points(points, frame).items():
        kind, _, device = key.partition(":")
        where = "host" if device == "cpu" else f"GPU {device}"
        yield _curve(key, f"{where} memory {kind}", "bytes", device, drawn)


_SAMPLED = (
    ("power", "power_mw", 1000, "power", "W"),
    ("clock", "sm_clock_mhz", 1, "clock", "MHz"),
    ("memory_clock", "memory_clock_mhz", 1, "memory clock", "MHz"),
    ("temperature", "temperature_c", 1, "temperature", "C"),
)


def _samples(trace: Trace, frame: Frame) -> Iterator[Curve]:
    if not trace.has("gpu_samples"):
        return
    parts = " UNION ALL ".join(
        f"SELECT '{name}:' || device AS key, start_ns AS moment, event, {column}::DOUBLE / {scale} AS value "
        f"FROM stored.gpu_samples WHERE {column} IS NOT NULL AND start_ns IS NOT NULL"
        for name, column, scale, _, _ in (*_SAMPLED, ("utilization", "utilization_share", 1, "", ""))
    )
    told = {name: (title, unit) for name, _, _, title, unit in _SAMPLED}
    told["utilization"] = ("utilisation, as the driver says", "share")
    for key, drawn in _readable(trace.reading(None).arrow(parts), frame).items():
        name, _, device = key.partition(":")
        title, unit = told[name]
        yield _curve(key, f"GPU {device} {title}", unit, device, drawn, top=1.0 if unit == "share" else None)


def _readings(trace: Trace, frame: Frame) -> Iterator[Curve]:
    if not trace.has("device_counters"):
        return
    rows = trace.reading(None).arrow(
        """SELECT device || ':' || name AS key, start_ns AS moment, 0 AS event, value
           FROM stored.device_counters
           WHERE device IS NOT NULL AND start_ns < $until AND start_ns >= $since - $held""",
        until=frame.until,
        since=frame.since,
        held=_HELD_NS,
    )
    units = {
        f"{row['device']}:{row['name']}": row["unit"]
        for row in trace.reading(None).rows("SELECT DISTINCT device, name, unit FROM stored.device_counters")
    }
    for key, drawn in _readable(rows, frame).items():
        device, _, name = key.partition(":")
        yield _curve(f"counter:{key}", f"GPU {device} {name}", units.get(key) or "", device, drawn)


def _readable(points: pa.Table, frame: Frame) -> dict[str, list[dict[str, Any]]]:
    """Readings with a fraction: levels are whole numbers, so thousandths are counted."""
    whole = ask("SELECT key, moment, event, round(value * 1000)::BIGINT AS value FROM points", points=points)
    found = _points(whole, frame, held=_HELD_NS)
    for rows in found.values():
        for row in rows:
            row.update({name: row[name] / 1000 for name in ("least", "mean", "most")})
    return found
