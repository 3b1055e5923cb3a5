"""What happened in a stretch of time: devices by kind and name, threads by self time, clipped to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.analyses._event_rows import names_of
from stepscope.analyses._every_gap import idle_by_cause
from stepscope.analyses._idle import CAUSES, side_of
from stepscope.schema import COMMUNICATION_KERNEL, COPIES, KERNELS
from stepscope.store.arrow_sql import ask
from stepscope.store.columns import record_batch, view
from stepscope.store.links import Run, sweep_thread
from stepscope.store.places import HOST_EVENTS, HOST_TABLES, places_of

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["calls_in", "clipped_work", "device_totals", "steps_in", "thread_totals", "times_of_work"]

_MOST_NAMES = 20
_MOST_THREADS = 50
_KINDS = ("python_frame", "op", "launch", "annotation", "other")


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# No work is longer than the longest: what began earlier than that before the stretch is over.
_WORK = f"""
    SELECT coalesce(t.device::VARCHAR, h.pid) AS device, t.event, t.thread AS track, t.name AS number,
           t.bytes, t.start_ns, t.dur_ns,
           greatest(t.start_ns, $since) AS low, least(t.start_ns + t.dur_ns, $until) AS high,
           CASE WHEN s.category IN ({_quoted(COPIES)}) THEN 'copy'
                WHEN s.category NOT IN ({_quoted(KERNELS)}) THEN 'fill'
                WHEN n.communicates THEN 'communication'
                ELSE 'kernel' END AS kind
    FROM stored.device_work t JOIN stored.skeletons s ON s.id = t.skeleton
    LEFT JOIN (SELECT id, regexp_matches(text, '{COMMUNICATION_KERNEL}', 'i') AS communicates
               FROM stored.names) n ON n.id = t.name
    LEFT JOIN stored.threads h ON h.id = t.thread
    WHERE t.start_ns < $until AND t.start_ns >= $since - $longest AND t.start_ns + t.dur_ns > $since
      AND t.dur_ns > 0 AND ($tracks IS NULL OR list_contains($tracks, t.thread))
"""
_UNION = """
    WITH swept AS (
        SELECT {group}, low, high, max(high) OVER (PARTITION BY {group} ORDER BY low, high
                                                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM work)
    SELECT {group}, sum(greatest(0, high - greatest(low, coalesce(before, low))))::BIGINT AS busy_ns
    FROM swept
    GROUP BY {group} ORDER BY {group}
"""
_BY_KIND = """
    SELECT device, kind, sum(high - low)::BIGINT AS time_ns, count(*) AS calls
    FROM work GROUP BY ALL ORDER BY device, time_ns DESC, kind
"""
_BY_NAME = """
    WITH numbered AS (
        SELECT device, number, kind, sum(high - low)::BIGINT AS time_ns, count(*) AS calls,
               arg_max({'event': event, 'track': track, 'start_ns': start_ns, 'dur_ns': dur_ns},
                       (high - low, -event)) AS found
        FROM work GROUP BY ALL)
    SELECT device, text AS name, kind, time_ns, calls,
           {'event': found.event, 'track': found.track, 'name': text, 'kind': kind,
            'start_ns': found.start_ns, 'dur_ns': found.dur_ns} AS longest,
           count(*) OVER (PARTITION BY device) AS names_count
    FROM numbered LEFT JOIN names USING (number)
    QUALIFY row_number() OVER (PARTITION BY device ORDER BY time_ns DESC, name, kind) <= $most
    ORDER BY device, time_ns DESC, name, kind
"""
_COPIES = """
    SELECT device,
           coalesce(nullif(regexp_extract(coalesce(text, ''), '(HtoD|DtoH|DtoD|HtoH|PtoP)'), ''), 'other')
               AS direction,
           coalesce(sum(bytes) FILTER (start_ns >= $since), 0)::BIGINT AS bytes, count(*) AS calls,
           sum(high - low)::BIGINT AS time_ns
    FROM work LEFT JOIN names USING (number)
    WHERE kind = 'copy' GROUP BY ALL ORDER BY device, bytes DESC, direction
"""


def clipped_work(trace: Trace, since: int, until: int, tracks: Collection[int] | None = None) -> pa.Table:
    """All work of devices in a stretch, clipped to it: from `low` to `high`; names are numbers."""
    return _work(trace, _WORK, since, until, tracks)


def times_of_work(trace: Trace, since: int, until: int) -> pa.Table:
    """The same without what takes most of the room: names and kinds."""
    return _work(trace, f"SELECT device, event, start_ns, low, high FROM ({_WORK})", since, until, None)


def _work(trace: Trace, sql: str, since: int, until: int, tracks: Collection[int] | None) -> pa.Table:
    longest = trace.once("longest work", lambda: _longest(trace))
    given = {"since": since, "until": until, "longest": longest}
    return trace.reading(None).arrow(sql, **given, tracks=None if tracks is None else sorted(tracks))


def _longest(trace: Trace) -> int:
    (row,) = trace.reading(None).rows("SELECT coalesce(max(dur_ns), 0) AS ns FROM stored.device_work")
    return int(row["ns"])


def _streams(trace: Trace) -> list[tuple[str, set[int]]]:
    """The devices in order, each with its tracks."""
    rows = trace.reading(None).rows(
        """SELECT coalesce(t.device::VARCHAR, h.pid) AS device, list(DISTINCT t.thread) AS tracks
           FROM stored.device_work t LEFT JOIN stored.threads h ON h.id = t.thread GROUP BY 1 ORDER BY 1"""
    )
    return [(row["device"], set(row["tracks"])) for row in rows]


def device_totals(
    trace: Trace, since: int, until: int, tracks: Collection[int] | None, *, causes: bool
) -> list[dict[str, Any]]:
    """Each device in a stretch: busy and idle, by kind, by name, copies, and why it was idle."""
    work = clipped_work(trace, since, until, tracks)
    devices = [
        device
        for device, streams in trace.once("streams of devices", lambda: _streams(trace))
        if tracks is None or not streams.isdisjoint(tracks)
    ]
    busy = {row["device"]: row["busy_ns"] for row in _asked(_UNION.format(group="device"), work)}
    unions = {
        (row["device"], row["kind"]): row["busy_ns"]
        for row in _asked(_UNION.format(group="device, kind"), work)
    }
    kinds, texts = _asked(_BY_KIND, work), _texts(trace, work)
    names = ask(_BY_NAME, {"most": _MOST_NAMES}, work=work, names=texts).to_pylist()
    copies = ask(_COPIES, {"since": since}, work=work, names=texts).to_pylist()
    why = idle_by_cause(trace, since, until) if causes and tracks is None else None
    found = []
    for device in devices:
        idle_ns = until - since - busy.get(device, 0)
        of_kind = [_without(one, "device") for one in kinds if one["device"] == device]
        of_name = [one for one in names if one["device"] == device]
        found.append(
            {
                "device": device,
                "busy_ns": busy.get(device, 0),
                "idle_ns": idle_ns,
                "time_ns": sum(one["time_ns"] for one in of_kind),
                "calls": sum(one["calls"] for one in of_kind),
                "kinds": [{**one, "busy_ns": unions[device, one["kind"]]} for one in of_kind],
                "names": [_without(one, "device", "names_count") for one in of_name],
                "names_count": of_name[0]["names_count"] if of_name else 0,
                "copies": [_without(one, "device") for one in copies if one["device"] == device],
                "idle": None if why is None else _idle(why.get(device, {}), idle_ns),
            }
        )
    return found


def _idle(causes: dict[int, int], idle_ns: int) -> list[dict[str, Any]]:
    """The idle time of a device by cause; what lies outside its work has none."""
    rows = [
        {"side": side_of(cause).value, "cause": CAUSES[cause].value, "idle_ns": ns}
        for cause, ns in causes.items()
        if ns
    ]
    outside = idle_ns - sum(causes.values())
    if outside > 0:
        rows.append(
            {"side": "unknown", "cause": "before the first or after the last work", "idle_ns": outside}
        )
    return sorted(rows, key=lambda row: (-row["idle_ns"], row["cause"]))


def _asked(sql: str, work: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ask(sql, work=work).to_pylist()
    return rows


def _texts(trace: Trace, work: pa.Table) -> pa.Table:
    """The names of some work. They are joined to sums: a million kernels have a few hundred of them."""
    import pyarrow.compute as pc

    numbers = pc.unique(work["number"]).drop_null().to_pylist()
    sql = "SELECT id AS number, text FROM stored.names WHERE list_contains($numbers, id)"
    return trace.reading(None).arrow(sql, numbers=numbers)


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in names}


# ---------------------------------------------------------------- threads

_HOST = f"""
    WITH {HOST_EVENTS}
    SELECT event, thread, start_ns AS low, least(start_ns + dur_ns, $until) - start_ns AS dur,
           (coalesce(name, -1)::BIGINT + 1) * {len(HOST_TABLES)} + stored_in AS label
    FROM host_events WHERE start_ns >= $since AND start_ns < $until AND dur_ns > 0
      AND list_contains($threads, thread)
    ORDER BY thread, start_ns, dur DESC, event
"""


def calls_in(trace: Trace, since: int, until: int) -> int:
    """About how many calls of the host lie in a stretch."""
    places = places_of(trace)
    threads = places.threads_between(since, until)[:_MOST_THREADS]
    return sum(places.rows_between(thread, since, until) for thread in threads)


def thread_totals(
    trace: Trace, since: int, until: int, tracks: Collection[int] | None
) -> list[dict[str, Any]]:
    """Each host thread in a stretch: what was the innermost call, and for how long."""
    places = places_of(trace)
    threads = [one for one in places.threads_between(since, until) if tracks is None or one in tracks]
    threads = threads[:_MOST_THREADS]
    if not threads:
        return []
    rows = trace.reading(None).arrow(_HOST, since=since, until=until, threads=threads).combine_chunks()
    ids = trace.reading(None).rows(
        "SELECT id, pid, tid FROM stored.threads WHERE list_contains($ids, id)", ids=threads
    )
    named = {row["id"]: row for row in ids}
    found = []
    for thread in threads:
        sums = _of_thread(trace, rows, thread, (since, until))
        covered = sum(row["self_ns"] for row in sums)
        if not sums:
            continue
        found.append(
            {
                "track": thread,
                "pid": named[thread]["pid"],
                "tid": named[thread]["tid"],
                "covered_ns": covered,
                "empty_ns": until - since - covered,
                "names_count": len(sums),
                "names": _named(trace, sums[:_MOST_NAMES]),
            }
        )
    return found


def _of_thread(trace: Trace, rows: pa.Table, thread: int, span: tuple[int, int]) -> list[dict[str, Any]]:
    """Self and total time by label; what is open when the stretch begins comes first, the outermost ahead."""
    import pyarrow as pa
    import pyarrow.compute as pc

    since, until = span
    numbers = {table: number for number, table in enumerate(HOST_TABLES)}
    opened = [row for row in places_of(trace).around(thread, since, since + 1) if row["start_ns"] < since]
    opened.sort(key=lambda row: (-min(row["start_ns"] + row["dur_ns"], until), row["start_ns"], row["event"]))
    before = pa.table(
        {
            "event": pa.array([row["event"] for row in opened], pa.int64()),
            "low": pa.array([since for _ in opened], pa.int64()),
            "dur": pa.array(
                [min(row["start_ns"] + row["dur_ns"], until) - since for row in opened], pa.int64()
            ),
            "label": pa.array(
                [(-1 if row["name"] is None else row["name"]) + 1 for row in opened], pa.int64()
            ),
        }
    )
    kinds = pa.array([numbers[row["table"]] for row in opened], pa.int64())
    before = before.set_column(3, "label", pc.add(pc.multiply(before["label"], len(HOST_TABLES)), kinds))
    begun = rows.filter(pc.equal(rows["thread"], thread)).select(["event", "low", "dur", "label"])
    whole = pa.concat_tables([before, begun.cast(before.schema)]).combine_chunks()
    sweep = _native.ThreadSweep([1])
    event, low, dur, label = (view(whole[name]) for name in ("event", "low", "dur", "label"))
    pieces = iter([(event, low, dur, [label])])
    sweep_thread(sweep, [Run(since, pieces, 0, opens=True, group=0)], lambda: None)
    taken = sweep.take(0, 0)
    schema = pa.schema([(name, pa.int64()) for name in ("label", "self_ns", "total_ns")])
    batch = record_batch(schema, [taken["payload"][0], taken["self"], taken["fresh"]])  # type: ignore[list-item]
    summed = pa.Table.from_batches([batch]).group_by("label")
    found = summed.aggregate([("self_ns", "sum"), ("total_ns", "sum"), ("label", "count")])
    sums = [
        {"label": label, "self_ns": own, "total_ns": total, "calls": calls}
        for own, total, calls, label in zip(
            *(found[name].to_pylist() for name in ("self_ns_sum", "total_ns_sum", "label_count", "label")),
            strict=True,
        )
    ]
    return sorted(sums, key=lambda row: (-row["self_ns"], -row["total_ns"], row["label"]))


def _named(trace: Trace, sums: list[dict[str, Any]]) -> list[dict[str, Any]]:
    width = len(HOST_TABLES)
    texts = names_of(trace, (row["label"] // width - 1 for row in sums))
    return [
        {
            "name": texts.get(row["label"] // width - 1),
            "kind": _KINDS[row["label"] % width],
            **{key: row[key] for key in ("self_ns", "total_ns", "calls")},
        }
        for row in sums
    ]


def steps_in(trace: Trace, since: int, until: int) -> list[dict[str, Any]]:
    """The steps that a stretch touches."""
    return trace.reading(None).rows(
        """SELECT step, start_ns, end_ns, least(end_ns, $until) - greatest(start_ns, $since) AS inside_ns
           FROM stored.steps WHERE start_ns < $until AND end_ns > $since ORDER BY start_ns, end_ns""",
        since=since,
        until=until,
    )
