"""An open trace: typed answers, and readings that see what they declare."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from tests.commands import DATA, SLOW_ITEM
from tests.drawing import Drawing
from tests.samples import KEPT

import stepscope
from stepscope import registry
from stepscope.analyses import analysis
from stepscope.analyses.kernels import Kernel, kernels
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace
from stepscope.store.views import VIEWS
from stepscope.tables import Table

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


class TestTable:
    def test_the_table_of_an_analysis(self, trace: Trace) -> None:
        table = trace.table("kernels")
        assert table.row is Kernel
        assert list(table) == list(kernels(trace))
        assert trace.table("kernels", by="shape").arrow.equals(kernels(trace, by="shape").arrow)
        assert trace.table("ops", by="user_frame").row.__name__ == "OpOfFrame"

    def test_what_there_is_not_is_said(self, trace: Trace) -> None:
        with pytest.raises(StepscopeError, match="kernelz") as unknown:
            trace.table("kernelz")
        assert unknown.value.hint == "did you mean kernels?"
        with pytest.raises(StepscopeError, match="no option 'bye'") as option:
            trace.table("ops", bye="shape")
        assert option.value.hint == "it has: by"
        with pytest.raises(StepscopeError, match="by='colour'") as value:
            trace.table("kernels", by="colour")
        assert value.value.hint == "choose from 'name', 'shape'"
        with pytest.raises(StepscopeError, match="no option") as none:
            trace.table("memory", by="name")
        assert none.value.hint == "it has none"


@pytest.fixture(params=["small", "large"])
def any_size(request: pytest.FixtureRequest, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """The same trace, answered as small ones are and as large ones are."""
    monkeypatch.setattr("stepscope.store.database.SMALL_EVENTS", 10**9 if request.param == "small" else 0)
    return Trace(trace.folder)


def test_optimizers_that_spare_rows_are_left_out_where_there_are_few(any_size: Trace) -> None:
    everything = any_size.reading(None)
    said = everything.rows("SELECT current_setting('disabled_optimizers') AS off")[0]["off"]
    left_out = {name for name in said.split(",") if name}
    known = {row["name"] for row in everything.rows("SELECT name FROM duckdb_optimizers()")}
    assert left_out <= known
    assert bool(left_out) == any_size.is_small
    # Without these, joins and correlated questions would take far longer where there are 100,000 events.
    assert not left_out & {"filter_pushdown", "join_order", "deliminator", "unnest_rewriter", "cte_inlining"}


class TestReading:
    def test_stored_tables_do_not_exist(self, any_size: Trace) -> None:
        limited = any_size.reading({"ops": ("name",), "steps": ("step",)})
        assert limited.rows("SELECT count(*) AS n FROM ops, steps")[0]["n"]
        for sql in (
            "SELECT dur_ns FROM stored.ops",
            'SELECT dur_ns FROM "stored".ops',
            "SELECT dur_ns FROM STORED . ops",
            "SELECT dur_ns FROM memory.stored.ops",
            "SELECT dur_ns FROM stored_whole.ops",
            "SELECT dur_ns FROM stored_views_0.ops",
        ):
            for ask in (limited.rows, limited.arrow, limited.batches):
                with pytest.raises(StepscopeError, match="`stored` does not exist"):
                    ask(sql)
        assert any_size.arrow("SELECT dur_ns FROM stored.ops LIMIT 1").num_rows == 1

    def test_names_only_where_they_are_declared(self, any_size: Trace) -> None:
        assert "cudaLaunchKernel" in any_size.reading({"launches": ("name",)}).names_in("launches")
        with pytest.raises(StepscopeError, match="not declared"):
            any_size.reading({"launches": ("event",)}).names_in("launches")

    def test_every_way_to_ask_gives_the_same(self, any_size: Trace) -> None:
        limited = any_size.reading({"ops": ("name", "dur_ns", "args"), "names": ("id", "text")})
        for sql in (
            "SELECT name, avg(dur_ns) AS mean FROM ops WHERE dur_ns >= $least GROUP BY name ORDER BY name",
            "SELECT name, dur_ns FROM ops WHERE dur_ns >= $least ORDER BY ALL",
            "SELECT name FROM ops WHERE dur_ns < -$least",
            "SELECT [1, 2] AS many, NULL AS nothing, $least AS least",
        ):
            whole = limited.arrow(sql, least=1)
            assert limited.rows(sql, least=1) == whole.to_pylist()
            assert [
                row for batch in limited.batches(sql, least=1) for row in batch.to_pylist()
            ] == whole.to_pylist()
            with pytest.raises(StepscopeError, match="parameters"):
                limited.rows(sql)
            assert limited.rows("SELECT 1 AS one") == [{"one": 1}]

    def test_only_what_is_declared_is_there(self, any_size: Trace) -> None:
        limited = any_size.reading({"ops": ("name", "dur_ns"), "kernels": ("name",)})
        assert limited.arrow("SELECT * FROM ops LIMIT 1").column_names == ["name", "dur_ns"]
        assert limited.arrow("SELECT * FROM kernels LIMIT 1").column_names == ["name"]
        for sql in ("SELECT self_ns FROM ops", "SELECT dur_ns FROM kernels", "FROM launches", "FROM events"):
            with pytest.raises(StepscopeError, match="the query failed"):
                limited.arrow(sql)
        assert any_size.arrow("SELECT self_ns FROM ops LIMIT 1").num_rows == 1

    def test_the_tree_only_where_it_is_declared(self, trace: Trace) -> None:
        assert trace.reading({"host_tree": ("event", "depth")}).arrow("FROM host_tree LIMIT 1").num_rows == 1
        with pytest.raises(StepscopeError, match="host_tree"):
            trace.reading({"ops": ("name",)}).arrow("SELECT depth FROM host_tree")

    def test_of_small_traces_ours_sees_whole_tables_and_others_never(
        self, any_size: Trace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def marked(module: str) -> Callable[[Trace], Table[Named]]:
            def asking(trace: Trace) -> Table[Named]:
                return trace.query(Named, "SELECT max(name) AS name, sum(dur_ns)::BIGINT AS calls FROM ops")

            asking.__module__ = module
            return analysis(reads={"ops": ("name",)})(asking)

        theirs, ours = marked("their_package.asking"), marked("stepscope.analyses.asking")
        with pytest.raises(StepscopeError, match="dur_ns"):
            theirs(any_size)
        with contextlib.nullcontext() if any_size.is_small else pytest.raises(StepscopeError, match="dur_ns"):
            ours(any_size)
        monkeypatch.setattr("stepscope.store.database.LIMIT_OURS", True)
        with pytest.raises(StepscopeError, match="dur_ns"):
            ours(Trace(any_size.folder))

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

    def test_what_is_declared_is_enough(
        self, name: str, trace: Trace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stepscope.store.database.LIMIT_OURS", True)
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
