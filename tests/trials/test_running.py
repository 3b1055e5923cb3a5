"""One run of one side: what it is given, how it ends, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from stepscope.capture.settings import VARIABLE, Settings
from stepscope.errors import StepscopeError
from stepscope.trials.running import RunError, Side, measured_in, run_side


def side(tmp_path: Path, code: str, **more: object) -> Side:
    return Side("before the change", (sys.executable, "-S", "-c", code), tmp_path, **more)  # type: ignore[arg-type]


def settings(tmp_path: Path) -> Settings:
    return Settings(folder=str(tmp_path / "run"), passes=("unprofiled",), stop_after=True)


def test_the_variables_of_a_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/given")
    code = (
        "import os, json\nseen = os.environ\n"
        f"json.dump([seen['PYTHONPATH'], seen['A'], '{VARIABLE}' in seen], open('seen', 'w'))"
    )
    run_side(side(tmp_path, code, variables={"A": "1"}, places=("/copy/lib",)), settings(tmp_path))
    path, variable, is_captured = json.loads((tmp_path / "seen").read_text())
    first, *others = path.split(os.pathsep)
    assert Path(first).name == "inject"
    assert others == ["/copy/lib", "/given"]
    assert (variable, is_captured) == ("1", True)


def test_a_path_that_is_set_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/given")
    code = "import os; open('seen', 'w').write(os.environ['PYTHONPATH'])"
    run_side(side(tmp_path, code, variables={"PYTHONPATH": "/other"}), settings(tmp_path))
    assert (tmp_path / "seen").read_text().split(os.pathsep)[1:] == ["/other"]


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    code = "import sys; print('lost'); [print('line', n, file=sys.stderr) for n in range(40)]; sys.exit(7)"
    with pytest.raises(RunError, match="failed with exit code 7, before the change") as failed:
        run_side(side(tmp_path, code), settings(tmp_path))
    assert failed.value.said == tuple(f"line {number}" for number in range(25, 40))


def test_without_errors_its_output_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(RunError) as failed:
        run_side(side(tmp_path, "print('lost'); raise SystemExit(1)"), settings(tmp_path))
    assert failed.value.said == ("lost",)


def test_a_program_that_a_signal_ends(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="was ended by SIGKILL"):
        run_side(side(tmp_path, "import os; os.kill(os.getpid(), 9)"), settings(tmp_path))


def test_a_program_that_is_stopped_after_the_measurement_may_end_as_it_likes(tmp_path: Path) -> None:
    code = "import sys; sys.exit('stepscope: everything is recorded; the program ends here')"
    run_side(side(tmp_path, code), settings(tmp_path))


def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    code = "import os, subprocess; open('child', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))"
    run_side(side(tmp_path, code), settings(tmp_path))
    child = int((tmp_path / "child").read_text())
    patience = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and time.monotonic() < patience:
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # ended, and nobody asked how
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_a_signal_that_comes_while_a_program_starts_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    started = []
    plain = subprocess.Popen

    def starting(*args: object, **kwargs: object) -> object:
        started.append(plain(*args, **kwargs))  # type: ignore[call-overload]
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", starting)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_side(side(tmp_path, "import time; time.sleep(600)"), settings(tmp_path))
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].returncode == -signal.SIGTERM


def test_there_is_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match="cannot be run before the change: No such file"):
        run_side(Side("before the change", (str(tmp_path / "absent"),), tmp_path), settings(tmp_path))


def rank(number: int, steps_ns: list[int] | None, **more: object) -> str:
    return json.dumps({"rank": number, "unprofiled_steps_ns": steps_ns, **more})


def test_the_slowest_rank_sets_the_pace(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(rank(0, [10, 12], losses=[0.5, float("nan")], notes=["A."]))
    (tmp_path / "rank1.json").write_text(rank(1, [20, 22], losses=[9.0], notes=["A.", "B."]))
    found = measured_in(tmp_path, "before the change")
    assert found.steps_ns == (20, 22)
    assert found.losses[0] == 0.5
    assert found.notes == ("A.", "B.")


@pytest.mark.parametrize(
    "files,message",
    [
        ({}, "no steps of the program were seen, before the change"),
        (
            {"rank0.json": rank(0, None, steps_seen=3)},
            "before its step could be measured, before the change: 3 steps",
        ),
    ],
)
def test_a_run_without_a_measurement(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(StepscopeError, match=message):
        measured_in(tmp_path, "before the change")
