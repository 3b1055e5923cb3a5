"""From a folder, pattern or address with a profile per rank to a run, and to tables of all ranks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.cluster.ranks import GLOO, drawn

import stepscope
from stepscope import registry
from stepscope.cli.main import main
from stepscope.cluster import local
from stepscope.cluster.opening import all_ranks, open_run
from stepscope.errors import StepscopeError
from stepscope.runs.finding import find_run
from stepscope.runs.many import ManyRanks
from stepscope.runs.summarizing import summarize
from stepscope.runs.summary import SUMMARY_TABLES, RankSummary, written_summary
from stepscope.store import cache
from stepscope.store.layout import is_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two real ranks of one program."""
    made = tmp_path / "run"
    made.mkdir()
    for rank, path in enumerate(GLOO):
        shutil.copy(path, made / f"rank{rank}.json.gz")
    return made


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on nobody may read a profile."""

    def forbid() -> None:
        def refuse(*_: Any) -> Iterator[Any]:
            raise AssertionError("a profile is read")

        monkeypatch.setattr(local.HereEngine, "map", refuse)
        monkeypatch.setattr(local.LocalEngine, "map", refuse)

    return forbid


def tables_of(summary: RankSummary) -> dict[str, Any]:
    return {name: summary.tables[name].records() for name in SUMMARY_TABLES}


def same(one: ManyRanks, other: ManyRanks) -> bool:
    """Whether two runs are alike but for where their profiles lay."""
    return (one.ranks, one.world_size, one.failed) == (other.ranks, other.world_size, other.failed) and all(
        tables_of(a) == tables_of(b) for a, b in zip(one.summaries, other.summaries, strict=True)
    )


@pytest.mark.slow
def test_a_run_has_the_summaries_of_its_ranks(folder: Path, tmp_path: Path) -> None:
    found = open_run(str(folder), store=tmp_path / "store")
    assert found.name == str(folder)
    assert found.ranks == (0, 1)
    assert (found.world_size, found.missing, found.failed) == (2, (), ())
    for rank, one in enumerate(found.summaries):
        trace = stepscope.open(folder / f"rank{rank}.json.gz", store=tmp_path / "other")
        assert tables_of(one) == tables_of(summarize(trace))
        assert one.facts.rank == rank
    assert same(found, open_run(find_run([str(folder)]), store=tmp_path / "store"))


@pytest.mark.slow
def test_what_is_known_is_not_read_again(folder: Path, tmp_path: Path, idle: Callable[[], None]) -> None:
    before = open_run(str(folder), store=tmp_path / "store")
    clocks = before.table("clocks")
    idle()
    after = open_run(str(folder), store=tmp_path / "store")
    assert same(before, after)
    assert [one.facts for one in after.summaries] == [one.facts for one in before.summaries]
    assert after.table("clocks").records() == clocks.records()
    assert after.table("clocks").notes == clocks.notes
    os.utime(folder / "rank1.json.gz")  # it may be another one
    with pytest.raises(AssertionError, match="a profile is read"):
        open_run(str(folder), store=tmp_path / "store")


@pytest.mark.slow
def test_tables_of_a_run_are_kept_with_their_notes_and_options(folder: Path, tmp_path: Path) -> None:
    before = open_run(str(folder), store=tmp_path / "store")
    asked = [("clocks", {}), ("collectives", {}), ("collectives", {"by": "kind"}), ("rank_steps", {})]
    tables = [before.table(name, **options) for name, options in asked]
    after = open_run(str(folder), store=tmp_path / "store")
    object.__setattr__(after, "summaries", ())  # so that nothing can be made of them
    for (name, options), table in zip(asked, tables, strict=True):
        kept = after.table(name, **options)
        assert kept.records() == table.records()
        assert kept.notes == table.notes
        assert kept.row is table.row


@pytest.mark.slow
def test_a_damaged_store_of_a_run_is_made_again(folder: Path, tmp_path: Path) -> None:
    before = open_run(str(folder), store=tmp_path / "store")
    clocks = before.table("clocks").records()
    (kept,) = (tmp_path / "store").glob("run-*")
    for file in kept.iterdir():
        file.chmod(0o600)
        file.write_bytes(file.read_bytes()[:-9])
    after = open_run(str(folder), store=tmp_path / "store")
    assert same(before, after)
    assert after.table("clocks").records() == clocks


def test_the_store_of_a_run_is_one_of_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    open_run(str(folder))
    stores = list((tmp_path / "cache").iterdir())
    assert len(stores) == 3
    assert all(map(is_store, stores))
    assert str(folder) in [one.source for one in cache.entries(tmp_path / "cache")]
    with pytest.raises(StepscopeError, match="has format run 1"):
        stepscope.open(next((tmp_path / "cache").glob("run-*")))
    cache.clear(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.slow
def test_a_rank_that_cannot_be_read_is_told_and_the_rest_stands(folder: Path, tmp_path: Path) -> None:
    whole = open_run(str(folder), store=tmp_path / "store")
    (folder / "rank2.json").write_text('{"traceEvents": [' + '{"ph": "X"}, ' * 3 + "no")
    (folder / "rank3.json").write_text('{"schemaVersion": 1, "traceEvents": {')
    for workers in (1, 2):
        found = open_run(str(folder), store=tmp_path / "store", workers=workers)
        assert {0, 1} <= set(found.ranks)
        assert same(whole, ManyRanks(whole.name, found.summaries[:2], world_size=whole.world_size))
        assert {one.rank for one in found.failed} == {2, 3} - set(found.ranks)
    (folder / "rank0.json.gz").unlink()
    left = open_run(str(folder), store=tmp_path / "store")
    assert 0 not in left.ranks
    assert 0 in left.missing


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match="no profile"):
        open_run(str(tmp_path))


@pytest.mark.slow
def test_addresses(folder: Path, tmp_path: Path) -> None:
    plain = open_run(str(folder), store=tmp_path / "store")
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe(f"/{tmp_path.name}/run/{path.name}", path.read_bytes())
    inside = open_run(f"memory://{tmp_path.name}/run/", store=tmp_path / "memory")
    assert same(plain, inside)
    assert [one.facts.source for one in inside.summaries] == [
        f"memory:///{tmp_path.name}/run/rank{rank}.json.gz" for rank in (0, 1)
    ]
    outside = open_run(f"file://{folder}", store=tmp_path / "file", workers=2)
    assert same(plain, outside)
    table = all_ranks(f"memory://{tmp_path.name}/run/*.json.gz", "ops")
    assert table.records() == all_ranks(str(folder / "*.json.gz"), "ops").records()


def test_summaries_alone_are_a_run(folder: Path, tmp_path: Path, idle: Callable[[], None]) -> None:
    whole = open_run(str(folder), store=tmp_path / "store")
    small = tmp_path / "small"
    small.mkdir()
    for one in whole.summaries:
        (small / f"rank{one.facts.rank}.summary").write_bytes(written_summary(one))
    assert same(whole, open_run(str(small), store=tmp_path / "store"))
    with pytest.raises(StepscopeError, match="has a summary and no profile"):
        all_ranks(str(small), "ops")


@pytest.mark.parametrize(
    "name,options",
    [
        ("ops", {}),
        ("ops", {"by": "shape"}),
        ("ops", {"by": "user_frame"}),
        ("steps", {}),
        ("collective_kinds", {}),
        ("devices", {}),
    ],
)
def test_a_table_of_all_ranks_is_those_of_each(folder: Path, name: str, options: dict[str, str]) -> None:
    table = all_ranks(str(folder), name, options)
    expected = []
    notes: list[Sequence[str]] = []
    for rank in range(2):
        one = stepscope.open(folder / f"rank{rank}.json.gz").table(name, **options)
        expected += [{"rank": rank} | row | {"rank": rank} for row in one.records()]
        notes.append(one.notes)
    assert table.records() == expected
    names = [column.name for column in table.columns]
    assert names[0] == "rank"
    assert names.count("rank") == 1
    assert names[1:] == [name for name in expected[0] if name != "rank"]
    common = [note for note in notes[0] if note in notes[1]]
    assert [note for note in table.notes if not note.startswith("Rank ")] == common


def test_notes_say_which_ranks_they_are_about(tmp_path: Path) -> None:
    for rank in range(3):
        drawn(tmp_path, rank)
    table = all_ranks(str(tmp_path), "kernels", {"by": "shape"})
    assert [(row["rank"], row["calls"]) for row in table.records()] == [(0, 1), (1, 2), (2, 3)]


def test_show_a_table_of_all_ranks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "ops", str(folder), "--rank", "all", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["analysis"] == "ops"
    assert found["columns"][0] == {"name": "rank", "type": "int", "description": "The rank."}
    assert {row["rank"] for row in found["rows"]} == {0, 1}
    assert found["rows"] == all_ranks(str(folder), "ops").records()
    for rank in (0, 1):
        assert main(["show", "ops", str(folder), "--rank", str(rank), "--format", "json"]) == 0
        alone = json.loads(capsys.readouterr().out)["rows"]
        assert [{"rank": rank, **row} for row in alone] == [
            row for row in found["rows"] if row["rank"] == rank
        ]


@pytest.mark.parametrize("name", [name for name, _ in registry.names("runs.analyses")])
def test_show_an_analysis_of_runs(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name, str(folder), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["analysis"] == name
    assert found["rows"] == open_run(str(folder)).table(name).records()


@pytest.mark.parametrize(
    "argv,message,hint",
    [
        (
            ["clocks"],
            "show clocks needs a run: a folder with a profile per rank",
            "stepscope show clocks RUN",
        ),
        (["clocks", "RUN", "--rank", "2"], "is about all ranks of a run, so --rank", "show clocks RUN"),
        (["ops", "RUN", "--rank", "all", "--pass", "full"], "so --pass has nothing", "show ops RUN"),
        (["ops", "RUN", "--rank", "7"], "has no rank 7", "it has: 0, 1"),
        (["ops", "RUN", "--rank", "all", "--workers", "0"], "--workers 0 is no number of workers", ""),
        (
            ["ops", "RUN", "--rank", "all", "--address", "x:1"],
            "--address is that of a cluster",
            "--engine ray",
        ),
        (["clockz", "RUN"], "unknown analysis 'clockz'", "did you mean clocks?"),
    ],
)
def test_what_show_refuses(
    argv: list[str], message: str, hint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *(str(folder) if word == "RUN" else word for word in argv)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert hint in said


def test_show_lists_analyses_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 0
    said = capsys.readouterr().out
    one, many = said.split("\nof a run of several ranks:\n")
    assert "\nops " in one
    assert "\nclocks " in "\n" + many
