"""`stepscope report`, and `stepscope TRACE`."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli import _quick_arrow
from stepscope.cli.main import main
from stepscope.cli.traces import DEMO

pytestmark = pytest.mark.usefixtures("answers_kept")


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The demo profile in a folder of its own, which is also where the command is typed."""
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return str(shutil.copy(DEMO, tmp_path / "trace.json.gz"))


def test_a_trace_alone_is_reported_on(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([trace]) == 0
    alone = capsys.readouterr().out
    assert main(["report", trace]) == 0
    assert capsys.readouterr().out == alone
    assert "HOST-BOUND" in alone
    assert "capture.py:85" in alone, "the function that reads scalars back"


def test_a_trace_in_the_same_folder_needs_no_path(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace.json.gz", "--format", "json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["schema"] == "stepscope.report/1"
    assert "scalar-reads" in [finding["id"] for finding in written["findings"]]


def test_a_trace_that_is_not_there(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.json.gz"]) == 1
    assert "nowhere.json.gz" in capsys.readouterr().err


def test_a_mistyped_command_is_no_trace(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reprot"]) == 2
    assert "did you mean report?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options,begins",
    [
        (["--format", "markdown"], "# Host-bound"),
        (["--format", "summary"], "# PyTorch profile summary"),
        (["--format", "html"], "<!DOCTYPE html>"),
        (["--format", "json"], "{\n"),
    ],
)
def test_formats_to_a_file(
    trace: str, options: list[str], begins: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    assert main(["report", trace, *options, "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith(begins)
    assert str(target) in capsys.readouterr().out


def test_a_file_that_cannot_be_written(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", trace, "-o", "nowhere/out.txt"]) == 1
    assert "cannot write nowhere/out.txt" in capsys.readouterr().err


def test_an_unknown_format_is_refused_before_the_trace_is_read(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", trace, "--format", "htlm"]) == 2
    assert "did you mean html?" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_the_ending_of_the_file_chooses_the_format(trace: str, tmp_path: Path) -> None:
    assert main(["report", trace, "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_on_github_the_summary_of_the_job_grows(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["report", trace, "--format", "github"]) == 0
    assert summary.read_text(encoding="utf-8").startswith("before\n# Host-bound")
    printed = capsys.readouterr().out
    assert printed.startswith("::notice title=host-bound::")
    assert "file=capture.py,line=85," in printed


def test_thresholds_of_the_project(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.stepscope.scalar-reeds]\n", encoding="utf-8")
    assert main([trace]) == 1
    assert "did you mean scalar-reads?" in capsys.readouterr().err


def test_from_python(trace: str) -> None:
    import stepscope

    report = stepscope.report(trace)
    assert report.verdict.word == "host-bound"
    assert report.findings


@pytest.mark.slow
def test_it_starts_no_threads_for_linear_algebra() -> None:
    pytest.importorskip("numpy")
    counted = "import os, sys; assert 'numpy' in sys.modules; print(len(os.listdir('/proc/self/task')))"
    left = "assert 'OPENBLAS_NUM_THREADS' not in os.environ"
    without = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    quick = f"from stepscope.cli._quick_arrow import quick_arrow; quick_arrow(); {counted}; {left}"
    threads = []
    for code in (quick, f"import pyarrow; {counted}"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=without
        )
        threads.append(int(done.stdout))
    assert threads[0] < threads[1] or os.cpu_count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpy", "pandas"])
def test_what_takes_long_to_import_is_not_imported_for_it(name: str) -> None:
    pytest.importorskip(name)
    told = f"atexit.register(lambda: print({name!r} in sys.modules, flush=True))"
    code = f"import atexit, sys; {told}; from stepscope.cli.main import main; main()"
    command = [sys.executable, "-c", code, "report", "--demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_who_calls_a_command_may_use_numpy_with_arrow() -> None:
    pytest.importorskip("numpy")
    code = (
        "from stepscope.cli.main import main; main(['report', '--demo']); "
        "import numpy, pyarrow; print(pyarrow.array(numpy.arange(3)).to_numpy().sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "3"


def test_functions_of_arrow_are_made_when_they_are_asked_for() -> None:
    quick = "from stepscope.cli._quick_arrow import own_process, quick_arrow; own_process(); quick_arrow()"
    counted = "made = lambda: sum(callable(one) for one in vars(pc).values())"
    asked = "print(pc.add(pa.array([1]), 2), pc.and_(True, False), pc.fill_null(pa.array([None, 1]), 7))"
    others = "print(hasattr(pc, 'no_such_function'), len(pc.list_functions()) > 200)"
    code = (
        f"{quick}; import pyarrow as pa, pyarrow.compute as pc; {counted}; before = made(); {asked}; {others}"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(made() - before)"], capture_output=True, text=True, check=True
    )
    plain = "import pyarrow as pa, pyarrow.compute as pc"
    usual = subprocess.run(
        [sys.executable, "-c", f"{plain}; {asked}"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{usual.stdout}False True\n2\n"


def test_other_threads_find_their_modules_meanwhile() -> None:
    before = list(sys.meta_path)
    in_another_thread = iter(sys.meta_path)
    found = [next(in_another_thread)]
    with _quick_arrow._without({"no_such_module"}):
        found += in_another_thread
        within = iter(sys.meta_path)
        found_within = [next(within)]
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module")
    assert [*found_within, *within][1:] == found == before == sys.meta_path
