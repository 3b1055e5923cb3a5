"""The commands on the folder of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults import recording
from tests.runs.folders import STEP, rank_document, run_folder, run_of_fault, timed, written

from stepscope.cli.main import main

Told = Callable[..., tuple[str, str]]
pytestmark = pytest.mark.usefixtures("answers_kept")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A light and a full pass, and the measured step."""
    return run_of_fault(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def told(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Told:
    """What a command says on standard output and on standard error."""
    monkeypatch.setenv("STEPSCOPE_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def ask(*words: object, code: int = 0) -> tuple[str, str]:
        assert main([str(word) for word in words]) == code
        found = capsys.readouterr()
        return found.out, found.err

    return ask


@pytest.mark.slow
def test_a_run_is_reported_on(run: Path, told: Told) -> None:
    out, _ = told(run)
    assert told("report", run)[0] == told(run / "run.json")[0] == out
    head = " ".join(out.partition("\n\n")[0].split())
    assert "step measured without profiler: 6.84 ms ± 0.6 % (40 steps)" in head
    assert "times from the light pass (3 steps)" in head
    assert "lines, shapes and memory from the full pass (1 step)" in head
    assert STEP in head
    assert "host.py:44" in out
    assert "6.84 ms unprofiled" in out


@pytest.mark.slow
@pytest.mark.parametrize("shown", ["terminal", "html", "markdown", "json", "github", "summary"])
def test_every_format_says_what_comes_from_where(run: Path, told: Told, shown: str) -> None:
    out, _ = told("report", run, "--format", shown)
    if shown == "json":
        written = json.loads(out)
        assert written["overview"]["unprofiled_step_ns"] == [6_801_790, 6_883_905]
        passes = written["passes"]
        assert (passes["times"]["name"], passes["places"]["name"]) == ("light", "full")
        assert passes["unprofiled_step"] == "measured"
        assert passes["measured_step"] == {
            "mean_ns": 6_842_848,
            "median_ns": 6_842_848,
            "low_ns": 6_801_790,
            "high_ns": 6_883_905,
            "steps": 40,
        }
        return
    plain = " ".join(out.replace("**", "").replace("\\", "").replace("%25", "%").split())
    assert "tep measured without profiler: 6.84 ms ± 0.6 % (40 steps)" in plain
    assert "times from the light pass (3 steps)" in plain
    assert "from the full pass (1 step)" in plain


@pytest.mark.slow
def test_one_pass_can_be_reported_on(run: Path, told: Told) -> None:
    out, _ = told("report", run, "--pass", "light")
    assert "times from the light pass" in " ".join(out.split())
    assert "from the full pass" not in out
    assert f"stepscope report {run}\n" in out, "how to have the lines, too"
    assert "host.py" not in out


@pytest.mark.parametrize(
    "words, taken, why",
    [
        (("show", "kernels", "RUN"), "light", ""),
        (("show", "lines", "RUN"), "full", "only it has stacks"),
        (("show", "ops", "RUN", "--by", "user_frame"), "full", "only it has stacks"),
        (("show", "memory", "RUN"), "full", "only it has memory"),
        (("show", "lines", "RUN", "--pass", "light"), "light", ""),
        (("query", "RUN", "SELECT count(*) FROM ops"), "light", ""),
        (("query", "RUN", "SELECT count(*) FROM python_frames"), "full", "only it has stacks"),
        (("info", "RUN"), "light", ""),
        (("info", "RUN", "--pass", "full"), "full", ""),
        (("whatif", "RUN", "--no-sync"), "light", ""),
    ],
)
def test_commands_take_the_pass_they_need(
    run: Path, told: Told, words: tuple[str, ...], taken: str, why: str
) -> None:
    out, err = told(*(run if word == "RUN" else word for word in words))
    assert out
    (line,) = err.splitlines()
    assert line.startswith(f"{taken} pass of rank 0: ")
    assert why in line
    assert why or "only it" not in line


def test_what_if_is_asked_of_the_measured_step(run: Path, told: Told) -> None:
    out, _ = told("whatif", run, "--no-sync")
    assert "measured    6.84 ms ± 0.6 % (40 steps), without the profiler" in out


def test_info_knows_the_run(run: Path, told: Told) -> None:
    out, _ = told("info", run)
    assert f"also      {run / 'rank0.json'} (rank_file)" in out, "what a profile lacks is added to it"
    assert "run       python train.py --epochs 3\n" in out
    assert "rank 0 on node7, finished" in out
    assert f"step      6.84 ms ± 0.6 % (40 steps) without the profiler. {STEP}\n" in out


def timed_twice(folder: Path, first_ns: int, second_ns: int) -> tuple[Path, Path]:
    """Two runs whose profiles are the same, but whose steps were timed otherwise."""
    sides = []
    for name, step_ns in (("before", first_ns), ("after", second_ns)):
        light = {"light": recording("allocation_churn", "faulty")}
        sides.append(written(folder / name, [run_folder(folder / name, light, **timed(step_ns))]))
    return sides[0], sides[1]


@pytest.mark.slow
def test_measured_steps_are_what_is_compared(tmp_path: Path, told: Told) -> None:
    sides = timed_twice(tmp_path, 10_000_000, 8_000_000)
    out, err = told("diff", *sides)
    said = " ".join(out.split())
    assert "FASTER The step got faster, from 10.0 ms to 8.00 ms, measured without the profiler" in said
    assert "Under the profiler, in the light pass:" in said
    assert err.count("light pass of rank 0") == 2
    found = json.loads(told("diff", *sides, "--format", "json")[0])
    assert [side["measured_step_ns"] for side in found["sides"]] == [10_000_000, 8_000_000]
    (change,) = found["changes"]
    assert (change["measured"], change["change_ns"], change["recorded_change_ns"]) == (True, -2_000_000, 0)
    for shown in ("html", "markdown", "summary", "github"):
        assert "measured without the profiler" in told("diff", *sides, "--format", shown)[0]


@pytest.mark.slow
def test_a_side_without_times_is_compared_as_recorded(tmp_path: Path, told: Told) -> None:
    timed_side, _ = timed_twice(tmp_path, 10_000_000, 8_000_000)
    other = recording("allocation_churn", "faulty")
    out, _ = told("diff", timed_side, other)
    assert "measured without" not in out
    assert "NOISE" in out


@pytest.mark.slow
def test_budgets_are_of_the_measured_step(tmp_path: Path, told: Told) -> None:
    before, after = timed_twice(tmp_path, 8_000_000, 10_000_000)
    out, _ = told("check", after, "--budget", "step_time < 9 ms", code=3)
    assert "step_time is 10.0 ms" in out
    assert told("check", before, "--budget", "step_time < 9 ms")[0]
    out, _ = told("check", after, "--baseline", before, code=3)
    assert "+25.0 %" in out


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks, of which the first has no profile."""
    folder = tmp_path_factory.mktemp("ranks") / "run"
    light = {"light": recording("allocation_churn", "faulty")}
    profiled = [
        run_folder(folder, light, rank, world_size=4, **timed(9_000_000 + rank)) for rank in (1, 2, 3)
    ]
    return written(folder, [rank_document(0, world_size=4), *profiled], world_size=4)


@pytest.mark.slow
def test_of_several_ranks_the_lowest_is_taken_and_said(ranks: Path, told: Told) -> None:
    out, _ = told(ranks)
    assert "3 of 4 ranks" in out
    assert ", which is usual" in " ".join(out.split("\n\n")[0].split())
    out, _ = told(ranks, "--rank", "1")
    assert "rank 1 of 4; --rank N shows another" in " ".join(out.split("\n\n")[0].split())
    out, err = told("show", "kernels", ranks, "--rank", "2")
    assert "light pass of rank 2: " in err
    _, err = told("show", "kernels", ranks)
    assert err.rstrip().endswith("--rank N takes another of 3")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "rank0.json", "rank0.full.pt.trace.json.gz"])
def test_no_file_of_a_run_is_written_over(run: Path, told: Told, name: str) -> None:
    before = (run / name).read_bytes()
    _, err = told("report", run, "--pass", "light", "--format", "json", "-o", run / name, code=1)
    assert "is not written over" in err
    assert (run / name).read_bytes() == before


def test_a_rank_without_a_profile_is_said(ranks: Path, told: Told) -> None:
    _, err = told("report", ranks, "--rank", "0", code=1)
    assert "rank 0" in err
    assert "hint: another rank has one: --rank 1" in err
    _, err = told("report", ranks, "--rank", "9", code=2)
    assert "has no rank 9" in err
    assert "hint: it has: 0, 1, 2, 3" in err


def test_only_times_are_told(tmp_path: Path, told: Told) -> None:
    folder = written(
        tmp_path / "run", [rank_document(**timed(6_110_000), notes=["The program ended early."])]
    )
    for command in (("report",), ("show", "kernels"), ("info",)):
        _, err = told(*command, folder, code=1)
        assert "a step takes 6.11 ms ± 0.6 % (40 steps) without the profiler" in err
        assert "The program ended early" in err
        assert "hint: record again: stepscope run train.py --epochs 3" in err


@pytest.mark.parametrize("option", [("--rank", "1"), ("--pass", "full")])
@pytest.mark.parametrize("command", [("report",), ("show", "kernels"), ("info",), ("whatif", "--no-sync")])
def test_a_profile_has_no_ranks_to_choose_from(
    told: Told, command: tuple[str, ...], option: tuple[str, ...]
) -> None:
    _, err = told(*command, recording("allocation_churn", "faulty"), *option, code=2)
    assert f"{option[0]} has nothing to choose from" in err


@pytest.mark.parametrize(
    "text", ['{"schema": "stepscope.run/9"}', '{"schema": "stepscope.run/1", "ranks": 1}']
)
def test_a_broken_run_is_an_error_with_a_hint(tmp_path: Path, told: Told, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    _, err = told("report", tmp_path, code=1)
    assert err.startswith("stepscope: ")
    assert "\n  hint: " in err


@pytest.mark.slow
def test_a_program_that_was_recorded_here(tmp_path: Path, torch: Any, told: Told) -> None:
    """Training on the CPU, timed, and recorded lightly and fully by torch itself."""
    from tests.runs.recorded import recorded_run

    folder = recorded_run(torch, tmp_path / "run")
    out, _ = told(folder)
    head = " ".join(out.split("\n\n")[0].split())
    assert "step measured without profiler" in head
    assert "times from the light pass (4 steps)" in head
    assert "lines, shapes and memory from the full pass (2 steps)" in head
    written = json.loads(told("report", folder, "--format", "json")[0])
    low, high = written["overview"]["unprofiled_step_ns"]
    assert 0 < low < high
    assert written["trace"]["stacks"]
    _, err = told("show", "modules", folder)
    assert err.startswith("full pass of rank 0")
