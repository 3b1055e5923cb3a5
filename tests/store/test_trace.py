"""An open trace: typed answers, and readings that see what they declare."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from tests.commands import DATA, SLOW_ITEM
from tests.drawing import Drawing
from tests.samples import KEPT

import stepscope
from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace
from stepscope.store.views import VIEWS

NAMES = {view.name: {name for name, _, _ in view.columns} for view in VIEWS}


@dataclass(frozen=True, slots=True)
class Named:
    name: Annotated[str, "the name"]
    calls: Annotated[int, "how often"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return stepscope.open(SLOW_ITEM, store=tmp_path_factory.mktemp("trace"))


def test_typed_rows(trace: Trace) -> None:
    table = trace.query(Named, "SELECT name, count(*) AS calls FROM ops GROUP BY name ORDER BY 2 DESC, 1")
    rows = list(table)
    assert isinstance(rows[0], Named)
    assert sum(row.calls for row in rows) == trace.meta.rows["ops"]
    with pytest.raises(TypeError, match="Named has the columns"):
        trace.query(Named, "SELECT 1 AS a")


def test_batches_are_the_whole(trace: Trace) -> None:
    sql = "SELECT event FROM events"
    batches = list(trace.batches(sql, rows=2048))
    assert len(batches) > 1
    assert sum(batch.num_rows for batch in batches) == trace.meta.events


def test_two_answers_at_once(trace: Trace) -> None:
    first = iter(trace.batches("SELECT event FROM events ORDER BY event", rows=2048))
    head = next(first).num_rows
    # The tree makes a new connection; the answer that is being read goes on.
    assert trace.arrow("SELECT count(*) AS n FROM host_tree")["n"][0].as_py() > 0
    assert head + sum(batch.num_rows for batch in first) == trace.meta.events


def test_what_it_says_of_itself(trace: Trace, tmp_path: Path) -> None:
    assert trace.path == str(SLOW_ITEM)
    assert trace.rank == 0
    assert trace.has("ops")
    small = stepscope.open(Drawing().op("a", 0, 1).write(tmp_path / "rank3.json"), store=tmp_path)
    assert small.rank == 3
    assert not small.has("launches")
    assert not small.has("no such table")


class TestReading:
    def test_only_what_is_declared_is_there(self, trace: Trace) -> None:
        limited = trace.reading({"ops": ("name", "dur_ns"), "kernels": ("name",)})
        assert limited.arrow("SELECT * FROM ops LIMIT 1").column_names == ["name", "dur_ns"]
        assert limited.arrow("SELECT * FROM kernels LIMIT 1").column_names == ["name"]
        for sql in ("SELECT self_ns FROM ops", "SELECT dur_ns FROM kernels", "FROM launches", "FROM events"):
            with pytest.raises(StepscopeError, match="the query failed"):
                limited.arrow(sql)
        assert trace.arrow("SELECT self_ns FROM ops LIMIT 1").num_rows == 1

    def test_the_tree_only_where_it_is_declared(self, trace: Trace) -> None:
        assert trace.reading({"host_tree": ("event", "depth")}).arrow("FROM host_tree LIMIT 1").num_rows == 1
        with pytest.raises(StepscopeError, match="host_tree"):
            trace.reading({"ops": ("name",)}).arrow("SELECT depth FROM host_tree")

    def test_nothing_at_all(self, trace: Trace) -> None:
        assert trace.reading({}).arrow("SHOW TABLES").num_rows == len(
            [name for name in trace.reading({}).arrow("SHOW TABLES")["name"].to_pylist() if name not in NAMES]
        )


@pytest.mark.parametrize("name", [name for name, _ in registry.names("analyses")])
class TestAnalyses:
    def test_what_is_declared_exists(self, name: str) -> None:
        for view, columns in registry.load("analyses", name).reads.items():  # type: ignore[attr-defined]
            assert set(columns) <= NAMES[view]
            assert len(set(columns)) == len(columns)

    def test_what_is_declared_is_enough(self, name: str, trace: Trace, tmp_path: Path) -> None:
        analysis = registry.load("analyses", name)
        assert analysis(trace).columns
        other = stepscope.open(DATA / "h200_ddp_gloo_rank0.pt.trace.json.gz", store=KEPT)
        assert analysis(other).columns

    def test_no_declared_column_is_idle(self, name: str) -> None:
        """Each is named a second time: in a query of the analysis, or of what it shares with others."""
        analysis = registry.load("analyses", name)
        words = Counter(re.findall(r"\w+", "".join(sources(inspect.unwrap(analysis).__module__))))
        reads = analysis.reads  # type: ignore[attr-defined]
        named = {(view, column) for view, columns in reads.items() for column in columns}
        assert {(view, column) for view, column in named if min(words[view], words[column]) < 2} == set()


def sources(module: str, known: tuple[str, ...] = ()) -> list[str]:
    """The text of a module, and of those that it shares with other analyses."""
    text = inspect.getsource(importlib.import_module(module))
    shared = re.findall(r"stepscope\.(?:analyses\._\w+|costs\.\w+|simulation\.\w+)", text)
    imported = [found for found in shared if found not in known]
    return [text, *(part for one in set(imported) for part in sources(one, (*known, module, *imported)))]
