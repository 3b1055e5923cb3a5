"""Traces that are not alike: other chips, batches, options, ranks and steps are said, and compared anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import DEVICE, Drawing

import stepscope
from stepscope.compare import Comparison, walked
from stepscope.compare.build import compare, names_of
from stepscope.compare.ranks import paired_ranks
from stepscope.errors import StepscopeError
from stepscope.opening import recordings_of

pytestmark = pytest.mark.usefixtures("answers_kept")


def program(
    *,
    steps: int = 4,
    gemm: str = "ampere_sgemm_128x64_tn",
    took: int = 60,
    batch: int = 0,
    marks: bool = True,
) -> Drawing:
    """Steps of 100 µs and a bit, each with one product on the device."""
    drawing = Drawing()
    for step in range(steps):
        at = step * 200
        if marks:
            drawing.mark(step, at, 20 + took)
        dims = {"Input Dims": [[batch, 64], [64, 64]], "Input type": ["float", "float"]}
        shapes: dict[str, Any] = {"args": dims} if batch else {}
        drawing.op("aten::linear", at + 2, 10, **shapes).op("aten::mm", at + 3, 8, **shapes)
        drawing.launch("cudaLaunchKernel", at + 5, 3, corr=step + 1)
        drawing.kernel(gemm, at + 15 + step % 2, took, corr=step + 1)
    return drawing


def compared(tmp_path: Path, *drawings: Drawing) -> Comparison:
    names = ("before", "after", "third", "fourth")
    return compare(
        [
            (name, [stepscope.open(drawing.write(tmp_path / f"{name}.json"), store=tmp_path / "stores")])
            for name, drawing in zip(names, drawings, strict=False)
        ]
    )


def test_kernels_of_another_chip(tmp_path: Path) -> None:
    other = program(gemm="nvjet_tst_64x8_TNT", took=30)
    other.metadata["deviceProperties"] = [{**DEVICE, "name": "Other device"}]
    change = compared(tmp_path, program(), other).whole
    assert change.word == "faster"
    assert any("The devices differ (Drawn device → Other device)" in said for said in change.caveats)
    (matched,) = [part for part in walked(change.parts) if part.state == "replaced"]
    assert matched.names == (("ampere_sgemm_128x64_tn",), ("nvjet_tst_64x8_TNT",))
    assert matched.change_ns == -30_000
    assert sum(part.change_ns for part in change.parts) == change.change_ns


def test_another_number_of_steps_changes_nothing(tmp_path: Path) -> None:
    change = compared(tmp_path, program(steps=4), program(steps=10)).whole
    assert change.word == "noise"
    assert change.change_ns == 0
    assert change.caveats == ()


@pytest.mark.slow
def test_few_steps_are_said(tmp_path: Path) -> None:
    change = compared(tmp_path, program(steps=1), program(steps=2)).whole
    assert any("before has only 1 step" in said for said in change.caveats)
    assert any("after has only 2 steps" in said for said in change.caveats)


@pytest.mark.slow
def test_other_batches(tmp_path: Path) -> None:
    change = compared(tmp_path, program(batch=8), program(batch=16, took=90)).whole
    assert change.before.per_step["samples"] == 8
    assert change.after.per_step["samples"] == 16
    assert any("compare samples per second" in said for said in change.caveats)
    assert change.after.rates["samples"] > change.before.rates["samples"]


@pytest.mark.slow
def test_other_options_of_the_profiler(tmp_path: Path) -> None:
    change = compared(tmp_path, program(), program(batch=8)).whole
    assert any("without extras → with shapes" in said for said in change.caveats)


@pytest.mark.slow
def test_steps_that_were_found_otherwise(tmp_path: Path) -> None:
    change = compared(tmp_path, program(), program(marks=False)).whole
    assert "No steps were found in after: the whole trace counts as one." in change.caveats


def test_without_a_device(tmp_path: Path) -> None:
    def on_cpu(took: int) -> Drawing:
        drawing = Drawing()
        for step in range(3):
            drawing.mark(step, step * 200, took + 20)
            drawing.op("aten::linear", step * 200 + 5, took).op("aten::addmm", step * 200 + 8, took - 10)
        return drawing

    change = compared(tmp_path, on_cpu(100), on_cpu(50)).whole
    assert change.word == "faster"
    found = {part.name: part.change_ns for part in walked(change.parts)}
    assert found == {"aten::addmm": -50_000, "aten::linear": 0, "other": 0}
    assert {part.name: part.change_ns for part in change.ops if part.change_ns} == {"aten::addmm": -50_000}


@pytest.mark.slow
def test_one_side_without_a_device(tmp_path: Path) -> None:
    cpu = Drawing()
    for step in range(3):
        cpu.mark(step, step * 200, 100).op("aten::mm", step * 200 + 5, 80)
    change = compared(tmp_path, cpu, program()).whole
    assert any("Only one side has device work" in said for said in change.caveats)
    assert sum(part.change_ns for part in change.parts) == change.change_ns


def test_a_side_without_steps(tmp_path: Path) -> None:
    change = compared(tmp_path, Drawing(), program()).whole
    assert change.word == "unknown"
    assert change.interval is None
    assert change.parts == ()
    assert "before has no steps, so nothing can be compared." in change.caveats


@pytest.mark.slow
def test_a_history(tmp_path: Path) -> None:
    found = compared(tmp_path, program(), program(took=50), program(took=51), program(took=20))
    assert [change.word for change in found.changes] == ["faster", "noise", "faster"]
    assert found.overall is not None
    assert found.whole.change_ns == sum(change.change_ns for change in found.changes)


@pytest.mark.slow
def test_repetitions_of_a_side(tmp_path: Path) -> None:
    runs = [program(took=took).write(tmp_path / f"run{took}.json") for took in (60, 61, 62)]
    after = program(took=40).write(tmp_path / "after.json")
    change = stepscope.diff(runs, [after]).whole
    assert change.interval is not None
    assert change.interval.assumed_share is None
    assert len(change.before.runs) == 3
    assert (change.before.steps, change.word) == (12, "faster")
    assert sum(part.before_ns for part in change.parts) == change.before.step_ns


@pytest.mark.slow
def test_ranks_are_no_repetitions(tmp_path: Path) -> None:
    traces = []
    for rank in (0, 1):
        drawing = program()
        drawing.metadata["distributedInfo"] = {"rank": rank, "world_size": 2, "backend": "nccl"}
        traces.append(drawing.write(tmp_path / f"rank{rank}.json"))
    with pytest.raises(StepscopeError, match="ranks 0, 1 of a run, not repetitions"):
        stepscope.diff(traces, traces)
    assert "These are ranks 0 and 1, not the same process." in stepscope.diff(*traces).whole.caveats


@pytest.mark.slow
def test_runs_of_ranks_are_compared_rank_by_rank(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        for rank in (0, 1):
            drawing = program()
            drawing.metadata["distributedInfo"] = {"rank": rank, "world_size": 2, "backend": "nccl"}
            drawing.write(tmp_path / name / f"rank{rank}.json")
    found = stepscope.diff(tmp_path / "before", str(tmp_path / "after"))
    pairs = paired_ranks(found.whole)
    assert pairs is not None
    assert [pair.rank for pair in pairs.pairs] == [0, 1]
    assert [side.name for side in found.sides] == ["before", "after"]
    alone = stepscope.diff(tmp_path / "before" / "rank0.json", tmp_path / "after")
    assert paired_ranks(alone.whole) is None


def test_what_a_word_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("before/a.json", "before/b.json.gz", "x,y.json", "run-1.json", "run-2.json"):
        Path(name).parent.mkdir(exist_ok=True)
        program().write(tmp_path / name)
    assert recordings_of("before") == ["before/a.json", "before/b.json.gz"]
    assert recordings_of("run-*.json") == ["run-1.json", "run-2.json"]
    assert recordings_of("run-1.json,before") == ["run-1.json", "before/a.json", "before/b.json.gz"]
    assert recordings_of("x,y.json") == ["x,y.json"], "a file that is there is itself"
    assert recordings_of("-") == ["-"]
    assert recordings_of("s3://bucket/a,b.json") == ["s3://bucket/a,b.json"]
    with pytest.raises(StepscopeError, match="no file fits the pattern"):
        recordings_of("nothing-*.json")


@pytest.mark.parametrize(
    "words,names",
    [
        (["a.pt.trace.json.gz", "b.json"], ["a", "b"]),
        (["x/trace.json", "y/trace.json"], ["x/trace", "y/trace"]),
        (["before/", "after/"], ["before", "after"]),
        (["a.json", "a.json"], ["a (1)", "a (2)"]),
        (["x/a1.json,x/a2.json", "b-*.json.gz"], ["a1, a2", "b-*"]),
        (["a1.json,a2.json,a3.json", "b.json"], ["a1 … a3", "b"]),
    ],
)
def test_names_tell_sides_apart(words: list[str], names: list[str]) -> None:
    assert names_of(words) == names
