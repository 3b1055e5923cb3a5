"""The callbacks, with the frameworks themselves: a step is an update of the weights, whatever it sums up."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
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


def run(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program, or a command with one, to its end."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


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
def test_a_step_has_one_update_and_two_batches(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = run(PROGRAMS / words[0], *words[1:], folder=tmp_path)
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
def test_a_training_that_fails_keeps_what_there_is(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    done = run(PROGRAMS / words[0], *words[1:], folder=tmp_path)
    assert done.returncode == code, done.stderr
    assert "a fault of the program" in done.stdout + done.stderr
    rank = rank_of(tmp_path / "run")
    assert rank["state"] == "failed"
    assert set(passes_of(tmp_path / "run")) == {"light"}
    assert calls_in_steps(tmp_path / "run", "light", "Optimizer.step#AdamW") == [(1,)] * 2


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


@pytest.mark.parametrize(
    "name,others",
    [
        ("lightning", ("pytorch_lightning",)),
        ("transformers", ("lightning", "pytorch_lightning")),
        ("accelerate", ("lightning", "pytorch_lightning", "transformers")),
    ],
)
def test_a_module_imports_its_framework_alone(name: str, others: tuple[str, ...], tmp_path: Path) -> None:
    program = (
        f"import sys; import {name}; import stepscope.capture.frameworks.{name}; "
        f"print([one for one in {(*others, 'duckdb', 'stepscope.opening')} if one in sys.modules])"
    )
    done = run("-c", program, folder=tmp_path)
    assert done.stdout == "[]\n", done.stderr
