"""The callbacks, with the frameworks themselves: a step is an update of the weights, whatever it sums up."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.capture.profiles import calls_in_steps, passes_of, rank_of

PROGRAMS = Path(__file__).parent / "programs"
LIGHTNING, TRAINER, ACCELERATE = (
    f"training_with_{name}.py" for name in ("lightning", "trainer", "accelerate")
)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def frameworks(torch: Any) -> None:
    """The frameworks are there where torch is."""
    for name in ("accelerate", "lightning", "pytorch_lightning", "transformers"):
        assert importlib.util.find_spec(name), f"{name} is missing: pip install --group frameworks"


ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def run(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program, or a command with one, to its end."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


FORKING = """
import importlib, json, os, runpy, sys
for name, others in (
    ("accelerate", ("lightning", "pytorch_lightning", "transformers")),
    ("transformers", ("lightning", "pytorch_lightning")),
    ("lightning", ("pytorch_lightning",)),
):
    importlib.import_module(name)
    importlib.import_module(f"stepscope.capture.frameworks.{name}")
    print(name, [one for one in (*others, "duckdb", "stepscope.opening") if one in sys.modules], flush=True)
import lightning.pytorch, torch
for line in sys.stdin:
    folder, out, err, *words = json.loads(line)
    if not (child := os.fork()):
        os.chdir(folder)
        for number, name in ((1, out), (2, err)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), number)
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Trained = Callable[..., subprocess.CompletedProcess[str]]


@dataclass
class Parent:
    """A process that has imported the frameworks: that takes most of the time of a program with one."""

    process: subprocess.Popen[str]
    imported: list[str]


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    yield Parent(process, [process.stdout.readline() for _ in range(3)])
    process.communicate()


@pytest.fixture(scope="module")
def trained(parent: Parent, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Runs programs in forks of that process."""
    place = tmp_path_factory.mktemp("said")
    assert parent.process.stdin is not None
    assert parent.process.stdout is not None
    stdin, stdout = parent.process.stdin, parent.process.stdout

    def run_forked(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
        files = [place / f"{folder.name}.{name}" for name in ("out", "err")]
        stdin.write(json.dumps([*map(str, (folder, *files, *words))]) + "\n")
        stdin.flush()
        code = int(stdout.readline())
        out, err = (file.read_text(encoding="utf-8") for file in files)
        return subprocess.CompletedProcess([*map(str, words)], code, out, err)

    return run_forked


def test_a_module_imports_its_framework_alone(parent: Parent) -> None:
    assert parent.imported == ["accelerate []\n", "transformers []\n", "lightning []\n"]


@pytest.mark.parametrize(
    "words,sentence",
    [
        (
            (LIGHTNING, "lightning.pytorch", "run"),
            "A step ends with an update by Lightning's Trainer of 2 batches.",
        ),
        pytest.param(
            (LIGHTNING, "pytorch_lightning", "run"),
            "A step ends with an update by Lightning's Trainer of 2 batches.",
            marks=pytest.mark.exhaustive,  # the same code by another name
        ),
        ((TRAINER, "run"), "A step ends with an update by the Trainer of 2 batches."),
        ((ACCELERATE, "run"), "A step is one call of AdamW.step."),
        ((ACCELERATE, "run", "step"), "A step ends with an update with Accelerate of 2 batches."),
    ],
    ids=["lightning", "pytorch_lightning", "transformers", "accelerate", "accelerate, steps told"],
)
def test_a_step_has_one_update_and_two_batches(
    words: tuple[str, ...], sentence: str, trained: Trained, tmp_path: Path
) -> None:
    started = run if "pytorch_lightning" in words else trained  # whose callbacks are those of one package
    done = started(PROGRAMS / words[0], *words[1:], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(f" {tmp_path / 'run'}")
    assert "stepscope: the profile is recorded; to see what is slow: stepscope report run\n" in done.stderr
    folder = tmp_path / "run"
    rank = rank_of(folder)
    assert rank["state"] == "finished"
    assert (rank["step"]["sentence"], rank["step"]["backward_passes"]) == (sentence, 2)
    assert rank["unprofiled_step_ns"]["steps"] == 3
    for name, steps in (("light", 3), ("full", 2)):
        updates, backwards = zip(
            *calls_in_steps(
                folder, name, "Optimizer.step#AdamW", "autograd::engine::evaluate_function: AddmmB"
            ),
            strict=True,
        )
        assert updates == (1,) * steps
        assert len(set(backwards)) == 1
        assert backwards[0] in (2, 8)  # GPT-2 has four such layers
    assert sorted(name.name for name in tmp_path.iterdir()) == ["run"], "a second training is not recorded"


@pytest.mark.parametrize(
    "words,code",
    [((LIGHTNING, "lightning.pytorch", "run", "fail"), 1), ((TRAINER, "run", "fail"), 0)],
    ids=["lightning", "transformers"],
)
def test_a_training_that_fails_keeps_what_there_is(
    words: tuple[str, ...], code: int, trained: Trained, tmp_path: Path
) -> None:
    done = trained(PROGRAMS / words[0], *words[1:], folder=tmp_path)
    assert done.returncode == code, done.stderr
    assert "a fault of the program" in done.stdout + done.stderr
    rank = rank_of(tmp_path / "run")
    assert rank["state"] == "failed"
    assert set(passes_of(tmp_path / "run")) == {"light"}
    assert calls_in_steps(tmp_path / "run", "light", "Optimizer.step#AdamW") == [(1,)] * 2


@pytest.mark.exhaustive  # as for a block of a program's own, of which every run has a test
def test_under_run_a_callback_tells_the_steps(tmp_path: Path) -> None:
    done = run(
        *("-m", "stepscope", "run", "--no-report", "--steps", "2", "--skip", "2", "--out", "whole"),
        *(PROGRAMS / TRAINER, "unused"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(name.name for name in tmp_path.iterdir()) == ["whole"]
    assert (
        rank_of(tmp_path / "whole")["step"]["sentence"]
        == "A step ends with an update by the Trainer of 2 batches."
    )
    assert calls_in_steps(tmp_path / "whole", "light", "Optimizer.step#AdamW") == [(1,)] * 2
