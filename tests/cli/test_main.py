from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version

import pytest

from stepscope import registry
from stepscope.cli.main import main
from stepscope.errors import StepscopeError

HELP_BUDGET = 15
"""How many times as long as Python alone the help may take: 0.15 s of a processor where that takes 0.01."""
HEAVY = {"duckdb", "fsspec", "importlib.metadata", "isal", "numpy", "pyarrow", "ray", "rich", "torch"}


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)


def replace_show(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def show() -> None:
        """Fails."""
        raise error

    monkeypatch.setattr(registry, "load", lambda folder, name: show)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, first_line in registry.names("cli.commands"):
        assert name in text
        assert first_line in text


def test_nothing_to_do_shows_the_help_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: stepscope" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stepscope {version('stepscope')}\n"


@pytest.mark.parametrize(
    "argument,message,hint",
    [("shwo", "unknown command", "did you mean show?"), ("--colour", "unknown option", "--help")],
)
def test_what_is_unknown_ends_with_2(
    argument: str, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert hint in printed.err


def test_a_user_error_is_words_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_show(monkeypatch, StepscopeError("no trace", hint="stepscope info --demo", exit_code=3))
    assert main(["show"]) == 3
    assert capsys.readouterr().err == "stepscope: no trace\n  hint: stepscope info --demo\n"


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_show(monkeypatch, KeyboardInterrupt())
    assert main(["show"]) == 130


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_show(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["show"])


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "stepscope.cli.main", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_without_the_characters_is_no_error() -> None:
    code = "import sys; from stepscope.cli.main import main; main(['--help']); print('–')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.stdout.endswith("\\u2013\n")


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy_and_no_plug_in(arguments: list[str]) -> None:
    code = (
        "import json, sys\nfrom stepscope.cli.main import main\n"
        f"try:\n main({arguments})\nexcept SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    # Without site: what an editable install imports at every start is not ours.
    paths = [str(registry.PACKAGE.parent)]
    done = run("-S", "-c", f"import sys; sys.path[:0] = {paths}\n{code}")
    assert done.returncode == 0, done.stderr
    modules = set(json.loads(done.stderr))
    assert not modules & HEAVY
    plugins = {
        f"stepscope.{folder}.{name}" for folder in registry.FOLDERS for name, _ in registry.names(folder)
    }
    assert modules & plugins == ({"stepscope.cli.commands.show"} if arguments[0] == "show" else set())


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"]], ids=" ".join)
def test_help_comes_at_once(arguments: list[str]) -> None:
    # Both as a user has them, without what an editable install imports at every start.
    code = f"import sys; sys.path.insert(0, {str(registry.PACKAGE.parent)!r})"
    asked = f"{code}; sys.argv[1:] = {arguments}; from stepscope.cli.main import main; sys.exit(main())"
    assert quickest("-S", "-c", asked) < HELP_BUDGET * quickest("-S", "-c", code)


def quickest(*args: str) -> float:
    """Processor time of a run of Python, the best of five."""
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run(*args).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(took)


class TestShow:
    @pytest.mark.parametrize(
        "line,message",
        [
            ("show ops", "show ops needs a trace\n  hint: stepscope show ops TRACE"),
            ("show 0000 t", "unknown analysis '0000'"),
            ("show ops t --limit -1", "--limit -1 is negative"),
        ],
    )
    def test_wrong_usage_ends_with_2(
        self, line: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(line.split()) == 2
        assert message in capsys.readouterr().err

    def test_alone_it_lists_the_analyses(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show"]) == 0
        listed = capsys.readouterr().out.splitlines()
        middle = listed.index("of a run of several ranks:")
        for part, folder in ((listed[: middle - 1], "analyses"), (listed[middle + 1 :], "runs.analyses")):
            assert [line.split()[0] for line in part] == [name for name, _ in registry.names(folder)]
