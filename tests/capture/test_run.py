"""`stepscope run` on real programs: what is recorded, and that the programs run as they would without it."""

from __future__ import annotations

import gzip
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.trying import some

import stepscope

PROGRAMS = Path(__file__).parent / "programs"
STEPSCOPE = [sys.executable, "-m", "stepscope", "run", "--no-report"]
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Ran:
    """What became of a program."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return found

    @property
    def rank(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run["ranks"][0]
        return found

    @property
    def passes(self) -> dict[str, dict[str, Any]]:
        return {one["pass"]: one for one in self.rank["files"]}

    def steps_in(self, name: str) -> list[str]:
        """The marks of steps in a profile."""
        with gzip.open(self.folder / self.passes[name]["path"]) as file:
            events = json.load(file)["traceEvents"]
        found = {one["name"] for one in events if str(one.get("name", "")).startswith("ProfilerStep#")}
        return sorted(found, key=lambda mark: int(mark.partition("#")[2]))


def ran(folder: Path, *words: str, stdin: str = "", cwd: Path | None = None) -> Ran:
    """Runs a program of ours, or a whole command, to its end."""
    run = folder / "run"
    done = subprocess.run(
        [*STEPSCOPE, "--out", str(run), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd or folder,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, run)


def program(name: str) -> str:
    return str(PROGRAMS / f"{name}.py")


def test_a_plain_loop_is_measured_and_recorded_twice(tmp_path: Path) -> None:
    own = ("--steps", "200", "--out", "there", "--light")  # which are not those of the command
    found = ran(tmp_path, program("plain"), *own, stdin="typed")
    assert found.code == 0, found.err
    assert found.out == "steps 200, out 'there', light True, read 'typed'\n"
    assert found.rank["step"]["sentence"] == "A step is one call of AdamW.step."
    assert (found.rank["step"]["found_by"], found.rank["step"]["backward_passes"]) == ("optimizer", 1)
    # At most 25, unless the machine is so busy that this passes for a long program.
    assert 10 <= found.rank["unprofiled_step_ns"]["steps"] <= 100
    assert len(found.rank["unprofiled_steps_ns"]) == found.rank["unprofiled_step_ns"]["steps"]
    first, last = found.passes["light"]["steps"]
    assert found.steps_in("light") == [f"ProfilerStep#{at}" for at in range(first, last + 1)]
    assert found.passes["full"]["steps"][0] > last
    assert found.run["exit_code"] == 0
    assert found.run["ended"] >= found.run["started"]
    assert found.rank["state"] == "finished"
    assert found.run["command"][1:] == [program("plain"), *own]
    assert not [path.name for path in found.folder.iterdir() if "part" in path.name]


@pytest.mark.parametrize(
    "end, code, said",
    [
        pytest.param("3", 3, "", marks=pytest.mark.exhaustive),  # ends as after an error
        ("raise", 1, "ValueError: as told"),
        ("os._exit", 4, ""),
    ],
)
def test_exit_codes_and_tracebacks_are_the_programs(tmp_path: Path, end: str, code: int, said: str) -> None:
    # It ends in the middle of the full pass, of which a step is whole.
    found = ran(tmp_path, "--skip", "5", "--steps", "5", program("plain"), "--steps", "19", "--end", end)
    assert found.code == code
    assert said in found.err
    assert "stepscope/capture" not in found.err
    assert set(found.passes) == {"light", "full"}
    assert found.run["exit_code"] == code
    assert "The program ended during the full pass." in found.rank["notes"]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_accumulation_with_workers(tmp_path: Path, context: str) -> None:
    found = ran(tmp_path, program("accumulating"), context)
    assert found.code == 0, found.err
    assert found.rank["step"]["backward_passes"] == 4
    assert set(found.passes) == {"light", "full"}
    assert len(found.run["ranks"]) == 1


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("inferring", "A step is one call of Classifier."),
        ("compiled aot_eager", "A step is one call of SGD.step."),
        # The same with a C++ compiler in it, which takes ten times as long.
        pytest.param("compiled inductor", "A step is one call of SGD.step.", marks=pytest.mark.exhaustive),
    ],
)
def test_what_a_step_is(tmp_path: Path, name: str, sentence: str) -> None:
    file, *words = name.split()
    found = ran(tmp_path, program(file), *words)
    assert found.code == 0, found.err
    assert_two_passes(found, sentence)


def assert_two_passes(found: Ran, sentence: str) -> None:
    assert found.rank["step"]["sentence"] == sentence
    assert set(found.passes) == {"light", "full"}
    assert not [note for note in found.rank["notes"] if "failed" in note or "given up" in note]


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("adversarial", "A step is a round of 4 updates by 2 optimizers."),
        ("acting", "A step is a round of 16 calls of Adam.step."),
        ("updating_by_hand", "A step is one call of Linear."),
    ],
)
def test_what_a_step_is_in_other_programs(torch: Any, tmp_path: Path, name: str, sentence: str) -> None:
    """Steps are told by what the command and a block share, and a block needs no import of torch."""
    with stepscope.profile(steps=5, out=tmp_path / "run"):
        runpy.run_path(program(name), run_name="__main__")
    assert_two_passes(Ran(0, "", "", tmp_path / "run"), sentence)


def test_a_named_module(tmp_path: Path) -> None:
    found = ran(tmp_path, "--module", "Linear", "--light", program("inferring"))
    assert found.rank["step"]["name"] == "Linear"


def test_flags_behind_a_module_of_a_package_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    text = (PROGRAMS / "plain.py").read_text()
    (tmp_path / "pkg" / "train.py").write_text(text)
    found = ran(tmp_path, "--light", "-m", "pkg.train", "--steps", "155", "--out", "there", "--light")
    assert found.out == "steps 155, out 'there', light True, read ''\n"
    assert list(found.passes) == ["light"]


def test_without_steps_it_says_what_to_do(tmp_path: Path) -> None:
    found = ran(tmp_path, program("without_steps"))
    assert found.code == 0
    assert "nothing was recorded" in found.err
    assert "stepscope.step()" in found.err


def test_a_program_that_is_too_short(tmp_path: Path) -> None:
    found = ran(tmp_path, program("plain"), "--steps", "4")
    assert "ended after 4 steps" in found.err
    assert "--skip 1 --steps 2" in found.err
    again = ran(
        tmp_path / "again", "--skip", "1", "--steps", "2", program("plain"), "--steps", "14", cwd=tmp_path
    )
    assert set(again.passes) == {"light", "full"}


def test_the_program_ends_when_everything_is_recorded(tmp_path: Path) -> None:
    found = ran(tmp_path, "--stop-after", program("endless"))
    assert found.code == 0
    assert set(found.passes) == {"light", "full"}
    assert found.run["exit_code"] == 0


@pytest.mark.parametrize("first", some([20, 3], 1))  # among the steps that are measured, or before
def test_a_program_that_profiles_itself(tmp_path: Path, first: int) -> None:
    found = ran(tmp_path, program("profiling_itself"), str(first))
    assert found.code == 0, found.err
    assert found.out == "own events 10\n"


def test_large_steps_are_not_recorded(tmp_path: Path) -> None:
    found = ran(tmp_path, "--max-size", "0", program("plain"), "--steps", "200")
    assert found.code == 0
    assert {one["steps"][0] - one["steps"][1] for one in found.passes.values()} == {0}
    assert (
        "The light pass was stopped because its file would be larger than 0 GB. It has 1 of 5 steps."
        in (found.rank["notes"])
    )


@contextmanager
def _started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A program that goes on meanwhile; nothing of it is left behind."""
    started = subprocess.Popen(
        [*STEPSCOPE, "--out", str(folder / "run"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _wait_for(folder: Path, name: str) -> None:
    for _ in range(600):
        if (folder / "run" / name).exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"no {name}")


@pytest.mark.parametrize(
    "number, words, code",
    [
        # In every run a signal during a pass is as deadly.
        pytest.param(signal.SIGTERM, (), -signal.SIGTERM, marks=pytest.mark.exhaustive),
        (signal.SIGTERM, ("own-handler",), 7),
        (signal.SIGINT, (), -signal.SIGINT),
    ],
)
def test_signals_reach_the_program_and_the_profile_is_kept(
    tmp_path: Path, number: signal.Signals, words: tuple[str, ...], code: int
) -> None:
    with _started(tmp_path, program("endless"), *words) as started:
        _wait_for(tmp_path, "rank0.full.pt.trace.json.gz")
        started.send_signal(number)
        _, err = started.communicate(timeout=60)
    assert started.returncode == code, err
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in err
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["exit_code"] == code
    assert {one["pass"] for one in run["ranks"][0]["files"]} == {"light", "full"}


def test_a_signal_during_a_pass(tmp_path: Path) -> None:
    with _started(tmp_path, "--skip", "5", "--steps", "100000", program("endless")) as started:
        _wait_for(tmp_path, "rank0.json")
        time.sleep(0.5)
        started.send_signal(signal.SIGTERM)
        _, err = started.communicate(timeout=60)
    assert started.returncode == -signal.SIGTERM, err
    rank = json.loads((tmp_path / "run" / "rank0.json").read_text())
    assert rank["unprofiled_step_ns"]["steps"] > 10
    assert rank["ended"] is not None


@pytest.mark.parametrize("form", some(["run torchrun", "torchrun run"], 1))
def test_two_ranks_record_the_same_steps(tmp_path: Path, form: str) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if form == "run torchrun":
        found = ran(tmp_path, "--", *launcher, program("distributed"))
    else:
        words = [
            "-m",
            "stepscope",
            "run",
            "--no-report",
            "--out",
            str(tmp_path / "run"),
            program("distributed"),
        ]
        done = subprocess.run([*launcher, *words], capture_output=True, text=True, timeout=240, check=False)
        found = Ran(done.returncode, done.stdout, done.stderr, tmp_path / "run")
    assert found.code == 0, found.err
    assert [rank["rank"] for rank in found.run["ranks"]] == [0, 1]
    assert found.run["world_size"] == 2
    steps = [[(one["pass"], one["steps"]) for one in rank["files"]] for rank in found.run["ranks"]]
    assert steps[0] == steps[1]
    assert {name for name, _ in steps[0]} == {"light", "full"}


def test_a_rank_that_dies_leaves_the_others_profile(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = ran(tmp_path, "--", *launcher, program("distributed"), "die")
    assert found.code != 0
    assert {one["pass"] for one in found.run["ranks"][0]["files"]} == {"light", "full"}


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.from_site = 'here'\n")
    (tmp_path / "asks.py").write_text("import sys\nprint(from_site, 'sitecustomize' in sys.modules)\n")
    done = subprocess.run(
        [*STEPSCOPE, "--out", str(tmp_path / "run"), str(tmp_path / "asks.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.stdout == "here True\n", done.stderr


def test_ranks_of_other_hosts_send_their_profiles(tmp_path: Path) -> None:
    """Two processes as a launcher on two hosts starts them, each with a folder of its own."""
    port = _free_port()
    started = []
    for rank in (0, 1):
        place = tmp_path / f"host{rank}"
        place.mkdir()
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        started.append(
            subprocess.Popen(
                [*STEPSCOPE, "--gather", "--out", str(place / "run"), program("distributed"), "wait"],
                env={**os.environ, **ranks, **address},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [one.communicate(timeout=200)[1] for one in started]
    assert [one.returncode for one in started] == [0, 0], said
    here, there = tmp_path / "host0" / "run", tmp_path / "host1" / "run"
    for name in ("rank1.light.pt.trace.json.gz", "rank1.full.pt.trace.json.gz"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    run = json.loads((here / "run.json").read_text())
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1]
    steps = [[(one["pass"], one["steps"]) for one in rank["files"]] for rank in run["ranks"]]
    assert steps[0] == steps[1]


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        found: int = bound.getsockname()[1]
        return found


def test_only_slow_steps_are_kept_with_what_came_before(tmp_path: Path) -> None:
    found = ran(tmp_path, "--when", "slow", program("sometimes_slow"))
    assert found.code == 0, found.err
    kept = found.rank["files"]
    assert {one["pass"] for one in kept} == {"slow"}
    assert 1 <= len(kept) <= 3
    slow = [one["steps"][1] for one in kept]  # the last step of each is the slow one
    assert any(step % 20 == 19 for step in slow)
    assert any(first < last for first, last in (one["steps"] for one in kept))
    assert any(f"Step {slow[0]} took" in note for note in found.rank["notes"])


def test_generated_tokens_are_steps(tmp_path: Path) -> None:
    found = ran(tmp_path, program("generating"))
    assert found.code == 0, found.err
    assert found.rank["step"]["sentence"] == "A step is one call of LlamaForCausalLM."
    assert set(found.passes) == {"light", "full"}
