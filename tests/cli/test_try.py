"""`stepscope try` on real programs: what it measures, what it says of losses, what a failure looks like."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.commands import PATIENCE_S, STEPSCOPE, environment, said, stepscope

pytestmark = pytest.mark.slow

# Sleeping takes its time on a busy machine, too: what it makes of a step is known. It is long beside
# what a busy machine may add.
TRAIN = """
import argparse
import os
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--pause", type=float, default=float(os.environ.get("PAUSE", "0.3")))
parser.add_argument("--fail", action="store_true")
options = parser.parse_args()
RATE = 0.1
torch.manual_seed(3)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
for step in range(500):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    time.sleep(options.pause)
    optimizer.step()
    optimizer.zero_grad()
    if options.fail and step == 2:
        sys.exit("no such luck")
"""
QUICK = ("--pairs", 2, "--skip", 1, "--steps", 4)
BY_HAND = """    with torch.no_grad():
        for weights in model.parameters():
            weights -= RATE * weights.grad
            weights.grad = None
    stepscope.step()
"""


def told_by_hand(script: Path) -> str:
    """The program without an optimizer, which alone takes as long to import as torch; it tells its steps."""
    text = TRAIN.replace("import torch\n", "import stepscope\nimport torch\n")
    text = text.replace("optimizer = torch.optim.SGD(model.parameters(), lr=RATE)\n", "")
    text = text.replace("    optimizer.step()\n    optimizer.zero_grad()\n", BY_HAND)
    assert "optim" not in text
    script.write_text(text)
    git(script.parent, "commit", "--quiet", "-am", "two")
    return text


def git(folder: Path, *words: str) -> str:
    named = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(named, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def project(tmp_path: Path, torch: Any) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    return folder


def patch_of(folder: Path, old: str, new: str) -> Path:
    """A patch that changes a text of the program, which itself stays as it is."""
    script = folder / "train.py"
    plain = script.read_text()
    assert old in plain
    script.write_text(plain.replace(old, new))
    patch = folder.parent / "fix.diff"
    patch.write_text(git(folder, "diff"))
    script.write_text(plain)
    return patch


def tried(folder: Path, tmp_path: Path, *words: object) -> dict[str, Any]:
    done = stepscope("try", "--format", "json", *words, cache=tmp_path / "cache", cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "steps",
    ["told by hand", pytest.param("of an optimizer", marks=pytest.mark.exhaustive)],  # as `run` tells them
)
def test_a_patch_that_gains_what_was_promised(project: Path, tmp_path: Path, steps: str) -> None:
    plain = told_by_hand(project / "train.py") if steps == "told by hand" else TRAIN
    patch = patch_of(project, '"0.3"', '"0.12"')
    found = tried(project, tmp_path, "--patch", patch, "--promise", "30-70", *QUICK, "train.py")
    measured = found["measured"]
    assert 0.3 < measured["gain_share"] < 0.7
    assert measured["before_ns"] > 300_000_000
    assert measured["after_ns"] > 120_000_000
    assert len(measured["pairs"]) == 2
    assert measured["steps"] == 16
    assert found["promise_kept"] == "inside"
    assert found["losses"]["verdict"] == "equal"
    assert found["losses"]["compared"] >= 5
    commit = git(project, "rev-parse", "--short", "HEAD").strip()
    assert (found["tried"], found["commit"]) == ("patch fix.diff", commit)
    assert git(project, "status", "--porcelain") == "?? stepscope-runs/\n"
    assert (project / "train.py").read_text() == plain

    listed = stepscope("try", "--history", cache=tmp_path / "cache", cwd=project)
    head, line = listed.stdout.splitlines()
    assert head.split() == ["date", "commit", "tried", "promised", "measured", "verdict", "losses"]
    assert "30–70 %" in line
    assert line.endswith("equal")
    again = stepscope("try", "--history", "--format", "json", cache=tmp_path / "cache", cwd=project)
    assert json.loads(again.stdout) == [found]


def test_a_change_against_a_commit_that_computes_something_else(project: Path, tmp_path: Path) -> None:
    script = project / "train.py"
    script.write_text(told_by_hand(script).replace("RATE = 0.1", "RATE = 0.5"))
    words = (
        "try",
        "--against",
        "HEAD",
        *QUICK,
        "--losses",
        3,
        "--within",
        0.001,
        "--",
        sys.executable,
        script,
    )
    done = stepscope(*words, cache=tmp_path / "cache", cwd=project)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert told.startswith("against HEAD · train.py · commit ")
    assert "+ · 2 pairs of runs, 16 steps" in told
    assert "No promise is known" in told
    assert "Losses differ: in step 2, " in told
    assert "Runs before are all equal." in told
    assert "--pairs 4" in told
    assert "stepscope: pair 2: " in done.stderr
    assert "RATE = 0.5" in script.read_text()


def test_settings_and_what_changed_in_the_step(project: Path, tmp_path: Path) -> None:
    told_by_hand(project / "train.py")
    settings = ("--set", "--pause=0.12", "--set", "OMP_NUM_THREADS=1")
    found = tried(project, tmp_path, *settings, *QUICK, "--profile", "train.py", "--pause", "0.3")
    assert 0.3 < found["measured"]["gain_share"] < 0.7
    assert found["tried"] == "set --pause=0.12, set OMP_NUM_THREADS=1"
    diff = found["diff"]
    assert [side["name"] for side in diff["sides"]] == ["before", "after"]
    assert diff["changes"][0]["change_ns"] < -50_000_000
    (kept,) = (project / "stepscope-runs").glob("try-*")
    assert (kept / "after" / "rank0.light.pt.trace.json.gz").is_file()


def test_a_side_that_fails(project: Path, tmp_path: Path) -> None:
    told_by_hand(project / "train.py")
    patch = patch_of(project, "if options.fail and step", "if step")
    words = ("try", "--patch", patch, *QUICK, "train.py")
    done = stepscope(*words, cache=tmp_path / "cache", cwd=project)
    assert done.returncode == 1
    assert "  | no such luck\n" in done.stderr
    assert "stepscope: the program failed with exit code 1, after the change\n  hint: " in done.stderr
    assert not (project / "stepscope-runs").exists()
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_a_program_without_steps(project: Path, tmp_path: Path) -> None:
    (project / "idle.py").write_text("print('nothing')\n")
    done = stepscope("try", "--set", "A=1", "idle.py", cache=tmp_path / "cache", cwd=project)
    assert "no steps of the program were seen, before the change" in said(done)


@pytest.mark.parametrize(
    "words,message",
    [
        (("train.py",), "nothing to try"),
        (("--set", "A=1"), "no program given"),
        (("--patch", "p", "--against", "HEAD", "train.py"), "not both"),
        (("--set", "A=1", "--finding", "x", "train.py"), "go together"),
        (("--set", "A=1", "--pairs", "1", "train.py"), "two pairs"),
        (("--set", "A=1", "--promise", "lots", "train.py"), "no gain"),
        (("--set", "A", "train.py"), "has no value"),
    ],
)
def test_what_cannot_be_tried(project: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = stepscope("try", *words, cache=tmp_path / "cache", cwd=project)
    assert done.returncode == 2
    assert message in done.stderr
    assert "  hint: " in done.stderr


def test_patches_that_cannot_be_used(project: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.diff").write_text("\n")
    (tmp_path / "other.diff").write_text("--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x\n+y\n")
    for name, message in (
        ("absent", "cannot be read"),
        ("empty", "is empty"),
        ("other", "patch failed: train.py:1"),
    ):
        words = ("try", "--patch", tmp_path / f"{name}.diff", "train.py")
        assert message in said(stepscope(*words, cache=tmp_path / "cache", cwd=project))


def test_the_promise_of_a_report(project: Path, tmp_path: Path) -> None:
    from stepscope.cli.traces import DEMO

    words = ("try", "--run", DEMO, "--finding", "no-such", "--set", "A=1", "train.py")
    done = stepscope(*words, cache=tmp_path / "cache", cwd=project)
    assert "has no finding no-such" in said(done)
    assert "launch-bound" in done.stderr


def test_nothing_was_tried_yet(tmp_path: Path) -> None:
    done = stepscope("try", "--history", cache=tmp_path / "cache", cwd=tmp_path)
    assert done.stdout == "Nothing was tried yet: there is no stepscope-runs/tries.jsonl.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(project: Path, tmp_path: Path, number: signal.Signals) -> None:
    scratch, started = tmp_path / "scratch", project / "started"
    scratch.mkdir()
    command = [
        *STEPSCOPE,
        "try",
        "--against",
        "HEAD",
        "--",
        "sh",
        "-c",
        f"echo $$ > {started}; sleep 600; true",
    ]
    child = subprocess.Popen(
        command,
        cwd=project,
        env=environment(tmp_path / "cache", TMPDIR=str(scratch)),
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509  # jobs of a shell ignore it
    )
    patience = time.monotonic() + PATIENCE_S
    while not (started.exists() and started.read_text().strip()) and time.monotonic() < patience:
        time.sleep(0.02)
    program = int(started.read_text())
    child.send_signal(number)
    _, errors = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 128 + number, errors
    assert b"Traceback" not in errors
    assert list(scratch.iterdir()) == []
    assert len(git(project, "worktree", "list").splitlines()) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)
