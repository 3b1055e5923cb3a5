"""Plain rows: stored, linked and nested as those of the native reader are, or refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.commands import DATA, SLOW_ITEM

import stepscope
from stepscope.errors import StepscopeError
from stepscope.schema import STORED, StoredTable
from stepscope.store.meta import SourceMeta
from stepscope.store.rows import BATCH, of_distinct
from stepscope.store.trace import Trace
from stepscope.store.writer import StoreWriter

HOST = {"name": ["a"], "process": [1], "thread": [2], "start_ns": [0], "dur_ns": [5]}


def stored(folder: Path, fill: Callable[[StoreWriter], None], meta: SourceMeta | None = None) -> Trace:
    folder.mkdir()
    writer = StoreWriter(folder)
    fill(writer)
    writer.end_source(meta or SourceMeta(source="plain"))
    writer.finish()
    return Trace(folder)


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in trace.arrow(sql).to_pylist()]


def as_plain(trace: Trace, table: StoredTable) -> pa.Table:
    """The rows of a stored table as a source would give them."""
    own = "".join(f", t.{column.name}" for column in table.columns)
    found = trace.arrow(
        f"""SELECT n.text AS name, h.pid AS process, h.tid AS thread, s.category, s.phase, t.start_ns,
            t.dur_ns, (s.text->'$.args')::VARCHAR AS args{own}
            FROM stored.{table.name} t LEFT JOIN stored.names n ON n.id = t.name
            JOIN stored.skeletons s ON s.id = t.skeleton JOIN stored.threads h ON h.id = t.thread
            ORDER BY t.event"""
    )
    keys = {column.key for column in table.columns if not column.top}
    texts = found["args"].combine_chunks().dictionary_encode()
    others = [
        json.dumps({key: value for key, value in json.loads(text).items() if key not in keys})
        for text in texts.dictionary.to_pylist()
    ]
    args = pa.array(others, pa.string()).take(texts.indices)
    return found.set_column(found.column_names.index("args"), "args", args)


@pytest.mark.parametrize(
    "name",
    [SLOW_ITEM.name, "h200_cuda_graph.pt.trace.json.gz", "h200_mem_timeline.pt.trace.json.gz"],
)
def test_what_kineto_says_said_in_plain_rows_is_the_same_trace(name: str, tmp_path: Path) -> None:
    trace = stepscope.open(DATA / name, store=tmp_path / "stores")

    def fill(writer: StoreWriter) -> None:
        for table in STORED:
            found = as_plain(trace, table)
            for batch in found.to_batches(max_chunksize=1000):
                writer.add_rows(table.name, batch)

    plain = stored(tmp_path / "plain", fill, trace.meta.sources[0])
    assert plain.meta.rows == trace.meta.rows
    assert plain.meta.events == trace.meta.events
    assert rows(plain, "SELECT count(DISTINCT event), min(event) FROM events") == [(trace.meta.events, 0)]
    asked = [
        "SELECT * EXCLUDE (event, name_id, args_id, thread, parent, args) FROM ops ORDER BY ALL",
        "SELECT * EXCLUDE (event, name_id, args_id, thread, op, args) FROM launches ORDER BY ALL",
        "SELECT * EXCLUDE (event, name_id, args_id, thread, launch, op, args) FROM device_work ORDER BY ALL",
        "SELECT * EXCLUDE (event, name_id, args_id, thread, args) FROM memory_events ORDER BY ALL",
        "SELECT * EXCLUDE (event, name_id, args_id, thread, args) FROM flows ORDER BY ALL",
        "SELECT * EXCLUDE (event, name_id, args_id, thread, args) FROM python_frames ORDER BY ALL",
        "SELECT * EXCLUDE (event, name_id, args_id, thread, args) FROM other_events ORDER BY ALL",
        "SELECT category, phase, sum(events), sum(total_ns) FROM skeletons GROUP BY ALL ORDER BY ALL",
        """SELECT w.name, w.start_ns, l.start_ns AS launched, o.name AS op, o.start_ns AS began,
           p.name AS parent FROM device_work w LEFT JOIN launches l ON l.event = w.launch
           LEFT JOIN ops o ON o.event = w.op LEFT JOIN ops p ON p.event = o.parent ORDER BY ALL""",
        "SELECT l.start_ns, o.start_ns AS op FROM launches l LEFT JOIN ops o ON o.event = l.op ORDER BY ALL",
        "SELECT * EXCLUDE (thread) FROM steps ORDER BY ALL",
    ]
    for sql in asked:
        assert plain.arrow(sql).equals(trace.arrow(sql)), sql


def test_many_threads_in_many_batches(tmp_path: Path) -> None:
    count = 2 * BATCH + 10
    numbers = pa.array(range(count), pa.int64())
    threads = pc.bit_wise_and(numbers, 7)
    host = {"process": pa.repeat("host", count), "thread": threads}
    device = {"device": pa.repeat(0, count), "stream": threads, "correlation": numbers}
    times = {"start_ns": pc.multiply(pc.subtract(count, numbers), 10), "dur_ns": pa.repeat(4, count)}

    def fill(writer: StoreWriter) -> None:
        names = pa.array(["even", "odd"]).take(pc.bit_wise_and(numbers, 1)).dictionary_encode()
        writer.add_rows("device_work", pa.table({"name": names, **device, **times}))
        writer.add_rows("launches", pa.table({"name": names, "correlation": numbers, **host, **times}))
        for batch in pa.table({"name": names, **host, **times}).to_batches(max_chunksize=BATCH // 2 + 1):
            writer.add_rows("ops", batch)
            writer.add_rows("annotations", batch)

    trace = stored(tmp_path / "a", fill)
    assert trace.meta.rows["ops"] == trace.meta.rows["annotations"] == count
    sql = """SELECT count(*), count(DISTINCT w.event), count(w.launch), count(w.op),
             bool_and(l.start_ns = w.start_ns), bool_and(o.start_ns = w.start_ns), sum(o.device_self_ns)
             FROM device_work w JOIN launches l ON l.event = w.launch JOIN ops o ON o.event = w.op"""
    assert [*trace.arrow(sql).to_pylist()[0].values()] == [count, count, count, count, True, True, 4 * count]
    assert rows(trace, "SELECT name, count(*) FROM ops GROUP BY ALL ORDER BY 1") == [
        ("even", count // 2),
        ("odd", count // 2),
    ]
    # What belongs to a thread lies together, sorted by time.
    sql = (
        "SELECT stored_in, sum(rows)::BIGINT, count(DISTINCT thread) FROM stored.runs GROUP BY ALL ORDER BY 1"
    )
    assert rows(trace, sql) == [
        (name, count, 8) for name in ("annotations", "device_work", "launches", "ops")
    ]


def test_what_is_null_and_what_is_left_out(tmp_path: Path) -> None:
    given = pa.table(
        {
            "name": ["a", None, "c"],
            "process": ["x", "x", "y"],
            "thread": [1, 2, 1],
            "start_ns": [5, None, 3],
            "dur_ns": pa.array([None, 2, 1], pa.int8()),
            "external_id": pa.nulls(3),
            "args": ['{"Input Dims": [[1]]}', None, None],
        }
    )
    trace = stored(tmp_path / "a", lambda writer: writer.add_rows("ops", given))
    columns = "event, name, pid, tid, start_ns, dur_ns, external_id, args::VARCHAR AS args"
    sql = f"SELECT {columns} FROM ops ORDER BY event"
    assert rows(trace, sql) == [
        (0, "a", "x", "1", 5, None, None, '{"Input Dims":[[1]]}'),
        (1, None, "x", "2", None, 2, None, None),
        (2, "c", "y", "1", 3, 1, None, None),
    ]
    assert rows(trace, "SELECT events, total_ns FROM skeletons ORDER BY text") == [(1, 0), (1, 1), (1, 2)]


def test_no_rows_are_fine(tmp_path: Path) -> None:
    empty = pa.table({name: pa.array([], pa.int64() if name != "name" else pa.string()) for name in HOST})
    trace = stored(tmp_path / "a", lambda writer: writer.add_rows("ops", empty))
    assert (trace.meta.events, rows(trace, "SELECT count(*) FROM events")) == (0, [(0,)])


@pytest.mark.parametrize(
    "table,columns,message",
    [
        ("oops", HOST, "there is no stored table oops"),
        ("ops", {"name": None}, "rows for ops: the column name is missing"),
        ("ops", {"process": None}, "rows for ops: the column process is missing"),
        ("ops", {"thread": None}, "the column thread is missing"),
        ("ops", {"start_ns": None}, "the column start_ns is missing"),
        ("ops", {"dur_ns": None}, "the column dur_ns is missing"),
        ("ops", {"thread": pa.array([None], pa.int64())}, "the column thread is NULL in 1 rows"),
        ("ops", {"epoch_ns": [1]}, "epoch_ns says what start_ns says"),
        ("ops", {"start_ns": [1.5]}, "the column start_ns is of type double, not int64"),
        ("ops", {"start_ns": [2**63 - 1]}, "the column start_ns goes from 9,223,"),
        ("ops", {"dur_ns": [-1]}, "the column dur_ns goes from -1 to -1"),
        ("ops", {"name": [5]}, "the column name is of type int64, not string"),
        ("ops", {"external_id": pa.array([2**64 - 1], pa.uint64())}, "external_id does not fit into int64"),
        ("ops", {"correlation": [1]}, "rows for ops: the column correlation does not exist"),
        ("ops", {"self_ns": [1]}, "the column self_ns is worked out by stepscope"),
        ("ops", {"event": [1]}, "the column event is worked out by stepscope"),
        ("ops", {"category": ["kernel"]}, "the column category is 'kernel'"),
        ("ops", {"phase": ["i"]}, "the column phase is 'i'"),
        ("ops", {"args": ["[1]"]}, "the column args is no JSON object"),
        ("ops", {"args": ["{"]}, "the column args is no JSON object"),
        ("ops", {"args": ['{"External id": 1}']}, "the column args has 'External id'"),
        ("flows", {"dur_ns": None}, "the column phase is missing"),
        ("device_work", {"process": None, "thread": None, "device": [0]}, "the column thread is missing"),
    ],
)
def test_what_is_refused(table: str, columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {name: column for name, column in {**HOST, **columns}.items() if column is not None}
    writer = StoreWriter(tmp_path)
    with pytest.raises(StepscopeError) as found:
        writer.add_rows(table, pa.table(given))
    assert message in found.value.message
    assert found.value.hint


def test_what_is_added_beside_is_refused_as_well(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    with pytest.raises(StepscopeError, match="the column args is no JSON object"), writer.beside():
        writer.add_rows("ops", pa.table({**HOST, "args": ["[]"]}))


def test_a_cut_and_read_again_says_the_same(tmp_path: Path) -> None:
    from stepscope.store.export import export

    given = {**HOST, "correlation": [3], "args": ['{"note": "ü"}'], "process": ["007"]}
    plain = stored(tmp_path / "a", lambda writer: writer.add_rows("launches", pa.table(given)))
    export(plain, str(tmp_path / "a.json"))
    again = stepscope.open(tmp_path / "a.json", store=tmp_path / "stores")
    assert again.meta.damage == ()
    sql = "FROM launches"
    assert rows(again, sql) == rows(plain, sql)


def test_threads_of_a_profile_are_recognised(tmp_path: Path) -> None:
    """Those of both kinds, numbers and texts, as `stepscope.open(…, also=…)` needs it."""
    writer = StoreWriter(tmp_path)
    writer.add_threads([("100", "1"), ('"host"', '"main"')])
    for process, thread in (("host", "main"), ("100", "1"), ("100", "2")):
        writer.add_rows("ops", pa.table({**HOST, "process": [process], "thread": [thread]}))
    writer.end_source(SourceMeta())
    writer.finish()
    assert rows(Trace(tmp_path), "SELECT pid, tid, thread FROM ops ORDER BY event") == [
        ("host", "main", 1),
        ("100", "1", 0),
        ("100", "2", 2),
    ]


def test_distinct_rows_of_any_kind_of_column() -> None:
    """As a dictionary of Python finds them, with NULL, in slices, and with texts given by number."""
    chance = random.Random(3)
    count = 3_000

    def drawn(*values: Any) -> list[Any]:
        return [chance.choice(values) for _ in range(count + 5)]

    columns = [
        pa.array(drawn("a", "b", None), pa.string()).dictionary_encode(),
        pa.array(drawn(0, 1, -1, 1 << 62, None), pa.int64()),
        pa.array(drawn(False, True, None), pa.bool_()),
        pa.array(drawn(0, 7), pa.int32()),
        pa.array(drawn(9), pa.int16()),
        pa.array(drawn("x", None), pa.string()),
        pa.array(drawn(0.5, -0.5), pa.float64()),
    ]
    for first in (0, 5):
        for used in (columns, columns[1:], columns[1:2], columns[:1], columns[4:5]):
            cut = [column.slice(first, count) for column in used]
            rows_of = list(zip(*(column.to_pylist() for column in cut), strict=True))
            asked: list[tuple[Any, ...]] = []

            def tell(*row: Any, asked: list[tuple[Any, ...]] = asked) -> str | None:
                asked.append(row)
                return None if row[0] is None else str(row)

            told = of_distinct(cut, tell, pa.string())
            assert told.to_pylist() == [None if row[0] is None else str(row) for row in rows_of]
            if used is not columns[:1]:
                assert len(asked) == len(set(asked)) == len(set(rows_of))
            assert of_distinct(cut, lambda *row: hash(row) % 97, pa.int64()).to_pylist() == [
                hash(row) % 97 for row in rows_of
            ]


@pytest.mark.parametrize(
    "kind, answers",
    [
        (pa.bool_(), [True, True]),
        (pa.bool_(), [False, False]),
        (pa.bool_(), [True, False]),
        (pa.int64(), [7, 7]),
        (pa.int32(), [7, None]),
        (pa.int32(), [None, None]),
        (pa.float64(), [1.0, 1.0]),
    ],
)
def test_rows_of_which_the_same_is_told(kind: pa.DataType, answers: list[Any]) -> None:
    rows = pa.array([0, 1, 1, 0, 1])
    told = of_distinct([rows], lambda row: answers[row], kind)
    assert told.equals(pa.array([answers[row] for row in rows.to_pylist()], kind))
    nothing = of_distinct([rows.slice(0, 0)], lambda row: answers[row], kind)
    assert nothing.equals(pa.array([], kind))
