"""`stepscope.profile()` and `stepscope.step()` in a program: what is recorded, that nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.capture.profiles import calls_in_steps, passes_of, rank_of

import stepscope
from stepscope.errors import StepscopeError

PROGRAMS = Path(__file__).parent / "programs"
Train = Callable[..., None]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs that have no name go to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def train(torch: Any) -> Train:
    """Trains a small model for so many steps, each with some backward passes."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(steps: int, *, passes: int = 1, after: Callable[[], None] = lambda: None) -> None:
        for _ in range(steps):
            for _ in range(passes):
                model(torch.ones(4, 8)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return train


@pytest.fixture(autouse=True)
def nothing_stays(torch: Any, train: Train) -> Iterator[None]:
    """Whatever a test records, torch and Python are afterwards as they were."""

    def state() -> list[object]:
        from torch.optim import optimizer

        return [
            torch.autograd.backward,
            torch.nn.Module.eval,
            torch.optim.SGD.step,
            torch.optim.Optimizer.profile_hook_step,
            list(optimizer._global_optimizer_post_hooks),
            torch.autograd._profiler_enabled(),
            os._exit,
            [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
            [thread.name for thread in threading.enumerate() if "stepscope" in thread.name],
        ]

    before = state()
    yield
    assert state() == before


def run(program: str, *words: object, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs lines of Python, or a command whose last word stands for them, in a process of its own."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program), encoding="utf-8")
    return subprocess.run(
        [sys.executable, *map(str, words), str(script)],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_a_block_has_three_passes(train: Train, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stepscope.profile(steps=3, skip=2) as p:
        train(40)
    assert p.folder.parent == place / "stepscope-runs"
    rank = rank_of(p.folder)
    assert rank["unprofiled_step_ns"]["steps"] == 3
    assert rank["step"]["sentence"] == "A step is one call of SGD.step."
    assert rank["state"] == "finished"
    assert calls_in_steps(p.folder, "light", "Optimizer.step#SGD", "aten::linear") == [(1, 1)] * 3
    assert set(calls_in_steps(p.folder, "full", "Optimizer.step#SGD", "aten::linear")) == {(1, 1)}
    out, told = capfd.readouterr()
    assert out == ""
    said = f"to see what is slow: stepscope report stepscope-runs/{p.folder.name}\n"
    assert f"stepscope: the profile is recorded; {said}" in told


@pytest.mark.parametrize("name,other", [("light", "full"), ("full", "light")])
def test_one_pass_alone(train: Train, name: str, other: str) -> None:
    with stepscope.profile(2, skip=1, **{name: True}) as p:  # type: ignore[arg-type]
        train(20)
    assert set(passes_of(p.folder)) == {name}


def test_a_step_by_hand_wins_over_optimizers(train: Train) -> None:
    with stepscope.profile(steps=2, skip=1, light=True) as p:
        for _ in range(12):
            train(2)
            stepscope.step()
    assert rank_of(p.folder)["step"]["sentence"] == "A step ends with stepscope.step()."
    assert calls_in_steps(p.folder, "light", "Optimizer.step#SGD") == [(2,)] * 2


def test_accumulated_gradients_are_one_step(train: Train) -> None:
    with stepscope.profile(steps=2, skip=1, light=True) as p:
        train(20, passes=3)
    assert rank_of(p.folder)["step"]["backward_passes"] == 3
    assert calls_in_steps(p.folder, "light", "Optimizer.step#SGD", "aten::linear") == [(1, 3)] * 2


def test_a_model_without_an_optimizer(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).eval()
    with torch.no_grad(), stepscope.profile(steps=2, skip=1, light=True) as p:
        for _ in range(30):
            model(torch.ones(4, 8))
    assert rank_of(p.folder)["step"]["found_by"] == "forward"
    assert calls_in_steps(p.folder, "light", "aten::linear") == [(2,)] * 2


def test_each_block_has_a_folder(train: Train, place: Path) -> None:
    found = []
    for _ in range(3):
        with stepscope.profile(steps=1, skip=0, light=True, out=place / "runs" / "mine") as p:
            train(14)
        found.append(p.folder.name)
        assert set(passes_of(p.folder)) == {"light"}
    assert found == ["mine", "mine-2", "mine-3"]


def test_a_function_is_recorded_when_it_is_first_called(train: Train, place: Path) -> None:
    @stepscope.profile(steps=1, skip=0, light=True, out=place / "run")
    def work(steps: int, *, more: int = 0) -> int:
        """Works."""
        train(steps)
        return steps + more

    assert (work.__name__, work.__doc__) == ("work", "Works.")
    assert work(14, more=1) == 15
    written = sorted(place.rglob("*"))
    assert work(14) == 14
    assert sorted(place.rglob("*")) == written
    assert set(passes_of(place / "run")) == {"light"}


def test_a_coroutine_is_recorded_until_it_ends(train: Train, place: Path) -> None:
    @stepscope.profile(steps=1, skip=0, light=True, out=place / "run")
    async def work() -> str:
        for _ in range(14):
            train(1)
            await asyncio.sleep(0)
        return "done"

    assert asyncio.run(work()) == "done"
    assert set(passes_of(place / "run")) == {"light"}
    assert asyncio.run(work()) == "done"


def test_what_there_is_is_kept_when_the_block_fails(train: Train) -> None:
    p = stepscope.profile(steps=20, skip=1)

    def fail_in_the_light_pass() -> None:
        stepscope.step()
        if len(ends) == 30:
            raise KeyError("a fault of the program")
        ends.append(1)

    ends: list[int] = []
    with pytest.raises(KeyError, match="a fault of the program"), p:
        train(60, after=fail_in_the_light_pass)
    rank = rank_of(p.folder)
    assert rank["state"] == "failed"
    assert rank["unprofiled_step_ns"]["steps"] == 20
    first, last = passes_of(p.folder)["light"]["steps"]
    assert 1 <= last - first + 1 < 20
    assert set(passes_of(p.folder)) == {"light"}


def test_the_report_of_a_block(train: Train) -> None:
    p = stepscope.profile(steps=2, skip=1)
    with pytest.raises(StepscopeError, match="nothing is recorded yet"):
        p.report()
    with p:
        with pytest.raises(StepscopeError, match="when the block has ended"):
            p.report()
        train(30)
    report = p.report()
    assert report.overview.steps == 2
    assert report.verdict.word == "host-bound"


def test_a_short_block_says_what_it_lacks(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    with stepscope.profile() as p:
        train(3)
    assert "no profile was recorded in 3 steps; give the loop" in capfd.readouterr().err
    with pytest.raises(StepscopeError, match="there is no profile"):
        p.report()


def test_a_block_without_steps_leaves_nothing(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stepscope.profile(out=place / "run"):
        pass
    assert "no steps were seen; call stepscope.step()" in capfd.readouterr().err
    assert not (place / "run").exists()


def test_blocks_cannot_be_nested(train: Train) -> None:
    with stepscope.profile(steps=1, skip=0, light=True) as outer:
        with pytest.raises(StepscopeError, match="one at a time"), stepscope.profile():
            pass
        train(14)
    assert set(passes_of(outer.folder)) == {"light"}
    with pytest.raises(StepscopeError, match="recorded already"), outer:
        pass


@pytest.mark.parametrize(
    "options,said",
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": print}, "steps is <built-in"),
        ({"skip": -1}, "skip is -1"),
        ({"light": True, "full": True}, "light or full"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(StepscopeError, match=said):
        stepscope.profile(**options)


def test_a_folder_that_cannot_be_made_is_no_end(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    with stepscope.profile(out="/dev/null/run"):
        train(2)
    assert "stepscope: nothing is recorded: NotADirectoryError" in capfd.readouterr().err


def test_without_a_capture_a_step_costs_less_than_a_microsecond() -> None:
    def cost_ns() -> float:
        begun = time.perf_counter_ns()
        for _ in range(10_000):
            stepscope.step()
        return (time.perf_counter_ns() - begun) / 10_000

    assert min(cost_ns() for _ in range(20)) < 1000


LOOP = """
    import sys
    import stepscope
    import torch

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(steps):
        for _ in range(steps):
            model(torch.ones(4, 8)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_block_that_the_program_never_leaves_is_kept(place: Path) -> None:
    done = run(
        f"{LOOP}\n    stepscope.profile(1, skip=0, out='run').begin()\n    train(40)\n    sys.exit(3)\n",
        folder=place,
    )
    assert done.returncode == 3, done.stderr
    assert set(passes_of(place / "run")) == {"light", "full"}


def test_under_run_the_command_records(place: Path) -> None:
    program = f"""{LOOP}
    train(3)
    with stepscope.profile(steps=1, skip=0) as p:
        for _ in range(60):
            train(2)
            stepscope.step()
    print(p.folder)
    """
    words = ("-m", "stepscope", "run", "--no-report", "--steps", "2", "--out", "run")
    done = run(program, *words, folder=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{place / 'run'}\n"
    assert sorted(name.name for name in place.iterdir()) == ["program.py", "run"]
    assert rank_of(place / "run")["step"]["found_by"] == "step()"
    assert calls_in_steps(place / "run", "light", "Optimizer.step#SGD") == [(2,)] * 2


def test_ranks_share_a_folder_and_steps(place: Path) -> None:
    program = f"""{LOOP}
    torch.distributed.init_process_group("gloo")
    for _ in range(2):
        with stepscope.profile(steps=2, skip=2, light=True) as p:
            for _ in range(60):
                train(1)
                torch.distributed.all_reduce(torch.ones(1))
                stepscope.step()
        torch.distributed.barrier()
        sys.stdout.write(str(p.folder) + chr(10))
        sys.stdout.flush()
    torch.distributed.destroy_process_group()
    """
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(program, *words, folder=place, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    folders = sorted((place / "stepscope-runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        ranks = json.loads((folder / "run.json").read_text())["ranks"]
        assert [one["rank"] for one in ranks] == [0, 1]
        assert ranks[0]["files"][0]["steps"] == ranks[1]["files"][0]["steps"]
        assert len(list(folder.glob("*.gz"))) == 2
        assert done.stdout.count(f"{folder}\n") == 2
    assert done.stderr.count("the profile is recorded") == 2
