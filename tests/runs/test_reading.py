"""Reading the folder of a run: what the capture wrote, and what somebody else may have written."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.folders import STEP, rank_document, run_of_fault, timed, written
from tests.trying import tries

from stepscope.errors import StepscopeError
from stepscope.runs.reading import read_run, run_folder


def test_a_run_is_what_was_written(tmp_path: Path) -> None:
    run = read_run(run_of_fault(tmp_path / "run"))
    assert (run.command, run.exit_code, run.world_size) == (("python", "train.py", "--epochs", "3"), 0, 1)
    (record,) = run.ranks
    assert (record.rank, record.host, record.state, record.step) == (0, "node7", "finished", STEP)
    assert [(one.name, one.path.name, one.steps) for one in record.passes] == [
        ("light", "rank0.light.pt.trace.json.gz", (31, 35)),
        ("full", "rank0.full.pt.trace.json.gz", (31, 35)),
    ]
    assert record.path == tmp_path / "run" / "rank0.json"
    assert record.measured is not None
    assert (record.measured.mean_ns, record.measured.steps) == (6_842_848, 40)
    assert record.measured.low_ns < record.measured.mean_ns < record.measured.high_ns
    assert len(record.measured.lengths_ns) == 40
    assert record.measured.said == "6.84 ms ± 0.6 % (40 steps)"


def test_a_run_is_named_by_its_folder_or_by_its_file(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", [rank_document()])
    assert run_folder(folder) == run_folder(folder / "run.json") == folder
    assert run_folder(str(folder)) == folder


def test_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": "something/1", "traceEvents": []}', encoding="utf-8")
    for word in (tmp_path, tmp_path / "run.json", tmp_path / "none", "-", "https://host/run", "a\0b"):
        assert run_folder(word) is None


def test_without_run_json_the_files_of_ranks_tell(tmp_path: Path) -> None:
    """As after a crash, before they were merged."""
    folder = written(tmp_path / "run", [rank_document(rank, **timed(1000 + rank)) for rank in (1, 0, 10)])
    (folder / "run.json").unlink()
    assert run_folder(folder) == folder
    run = read_run(folder)
    assert [one.rank for one in run.ranks] == [0, 1, 10]
    assert run.command == ("python", "train.py", "--epochs", "3")


def test_a_rank_file_of_others_is_not_taken(tmp_path: Path) -> None:
    folder = written(tmp_path, [rank_document()])
    (folder / "rank0.json").write_text('{"traceEvents": []}', encoding="utf-8")
    assert read_run(folder).ranks[0].path is None


def test_a_profile_that_is_not_there_is_said(tmp_path: Path) -> None:
    gone = {"path": "rank0.light.pt.trace.json.gz", "pass": "light", "steps": [1, 2]}
    (record,) = read_run(written(tmp_path, [rank_document(files=[gone])])).ranks
    assert record.passes == ()
    assert record.notes == ("rank0.light.pt.trace.json.gz is not there.",)


def test_a_snapshot_stands_beside_the_passes(tmp_path: Path) -> None:
    snapshot = {"path": "rank0.snapshot.pickle", "pass": "snapshot"}
    folder = written(tmp_path, [rank_document(files=[snapshot])])
    (record,) = read_run(folder).ranks
    assert (record.passes, record.beside) == ((), ())
    assert record.notes == ("rank0.snapshot.pickle is not there.",)
    (folder / "rank0.snapshot.pickle").write_bytes(b"")
    (record,) = read_run(folder).ranks
    assert (record.passes, record.beside) == ((), (str(folder / "rank0.snapshot.pickle"),))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.json", "a/../../secret.json", "", "a\0b", "..\\secret.json"]
)
def test_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.json").write_text("{}", encoding="utf-8")
    folder = written(tmp_path / "run", [rank_document(files=[{"path": path, "pass": "light"}])])
    with pytest.raises(StepscopeError, match="leads out of the folder"):
        read_run(folder)


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}", encoding="utf-8")
    folder = written(tmp_path / "run", [rank_document(files=[{"path": "inside.json", "pass": "light"}])])
    (folder / "inside.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(StepscopeError, match="leads out of the folder"):
        read_run(folder)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"rank": None}, "rank is missing"),
        ({"rank": -1}, "rank is no number"),
        ({"rank": "0"}, "rank is no number"),
        ({"rank": True}, "rank is no number"),
        ({"files": {}}, "files is no list"),
        ({"files": ["a"]}, "files is no list of objects"),
        ({"files": [{"path": 3, "pass": "light"}]}, "path is no text"),
        ({"host": ["node"]}, "host is no text"),
        ({"host": "x" * 20_000}, "host is no text, or too long"),
        ({"notes": "cut"}, "notes is no list"),
        ({"notes": [1]}, "notes is no list of texts"),
        ({"unprofiled_step_ns": [1]}, "unprofiled_step_ns is no object"),
        ({"unprofiled_step_ns": {}}, "mean is missing"),
        ({"unprofiled_step_ns": {"mean": 0}}, "mean is no number"),
        ({"unprofiled_step_ns": {"mean": 10**17}}, "mean is no number"),
        ({"unprofiled_step_ns": {"mean": 5, "low": 6, "high": 7}}, "not between low and high"),
        ({"unprofiled_steps_ns": [1, -1], "unprofiled_step_ns": {"mean": 5}}, "no list of times"),
        ({"recorded_step_ns": {"light": "long"}}, "light is no number"),
        ({"step": "a step"}, "step is no object"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    document = {**rank_document(), **changed}
    run = {"schema": "stepscope.run/1", "world_size": 1, "ranks": [document]}
    (tmp_path / "run.json").write_text(json.dumps(run), encoding="utf-8")
    with pytest.raises(StepscopeError, match=said) as raised:
        read_run(tmp_path)
    assert "run.json" in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    "text, said",
    [
        ('{"schema": "stepscope.run/2", "ranks": []}', "another version"),
        ('{"schema": "stepscope.run/1", "ranks": []}', "names no rank"),
        ('{"schema": "stepscope.run/1"}', "names no rank"),
        ('{"schema": "stepscope.run/1", "ranks": [', "no JSON"),
        ('["schema", "stepscope.run/1"]', "no JSON object"),
        ('{"schema": "stepscope.run/1", "ranks": [], "a": ' + "[" * 100_000, "no JSON"),
        ('{"schema": "stepscope.run/1", "exit_code": ' + "9" * 5000 + "}", "no JSON"),
        ('{"schema": "stepscope.run/1", "ranks": [{"rank": 1}, {"rank": 1}]}', "twice"),
        ('{"schema": "stepscope.run/1", "world_size": NaN, "ranks": [{"rank": 1}]}', "world_size"),
    ],
)
def test_documents_that_are_none_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(StepscopeError, match=said):
        read_run(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=tries(100))
@given(key=st.sampled_from(sorted(rank_document())), value=_JSON)
def test_any_value_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, key: str, value: Any) -> None:
    folder = tmp_path_factory.mktemp("run")
    run = {"schema": "stepscope.run/1", "world_size": 1, "ranks": [{**rank_document(), key: value}]}
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    with contextlib.suppress(StepscopeError):
        (record,) = read_run(folder).ranks
        assert all(one.path.resolve().is_relative_to(folder.resolve()) for one in record.passes)
