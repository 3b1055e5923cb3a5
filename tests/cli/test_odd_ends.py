"""Closed, full and broken streams, odd names, odd terminals, odd budget files: a line, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.test_progress import big, on_a_terminal, quiet_for
from tests.commands import STEPSCOPE, environment, obey_permissions, stepscope
from tests.drawing import Drawing
from tests.trying import some

from stepscope.cli import output
from stepscope.cli.main import main

pytestmark = pytest.mark.usefixtures("answers_kept")

FULL, CLOSED, ENDS = (
    "cannot write standard output: the disk is full",
    "standard output: it is closed",
    "head -c 9",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    Drawing().mark(1, 0, 100).op("aten::mm", 0, 10).kernel("gemm", 5, 3).write(place / "t.json")
    return place


def shell(line: str, folder: Path, **more: str) -> subprocess.CompletedProcess[bytes]:
    command = line.replace("stepscope", " ".join(STEPSCOPE), 1)
    env = environment(folder.parent / "cache", **more)
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=folder, env=env, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    "line",
    [
        "stepscope --help",
        "stepscope show --help",
        "stepscope info t.json",
        "stepscope explain launch-bound",
        "stepscope report t.json --format html",
        "stepscope query t.json 'SELECT 1 AS a'",
        "stepscope query t.json 'SELECT * FROM range(300000)' --format parquet",
        "stepscope cut t.json --time : -o -",
    ],
)
class TestStandardOutput:
    def test_full(self, line: str, folder: Path) -> None:
        done = shell(f"{line} > /dev/full", folder)
        assert (done.returncode, done.stderr.decode().count("\n")) == (1, 2)
        assert FULL in done.stderr.decode()

    def test_closed(self, line: str, folder: Path) -> None:
        done = shell(f"{line} >&-", folder)
        assert (done.returncode, done.stderr.decode().count("\n")) == (1, 2)
        assert CLOSED in done.stderr.decode()

    def test_left_by_its_reader(self, line: str, folder: Path) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        command = f"{line} >&{writing}".replace("stepscope", " ".join(STEPSCOPE), 1)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(folder.parent / "cache"),
            pass_fds=[writing],
            capture_output=True,
            check=False,
        )
        os.close(writing)
        assert done.returncode == 141
        assert b"Traceback" not in done.stderr
        assert b"Exception" not in done.stderr


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full", "<&-"])
def test_other_streams(stream: str, folder: Path) -> None:
    done = shell(f"stepscope info t.json {stream}", folder)
    assert done.returncode == 0
    assert done.stdout.startswith(b"profile   t.json\n")
    # What is no part of the answer does not get into it, even if there is no other place.
    cut = shell(f"stepscope cut t.json --time : -o - {stream}", folder)
    assert json.loads(cut.stdout)["schemaVersion"] == 1
    refused = shell(f"stepscope info none.json {stream}", folder)
    assert (refused.returncode, refused.stdout) == (1, b"")


def test_a_closed_input(folder: Path) -> None:
    done = shell("stepscope info - <&-", folder)
    assert (done.returncode, done.stderr.decode().splitlines()[0]) == (
        1,
        "stepscope: standard input is closed",
    )


@pytest.mark.parametrize(
    "line",
    [
        "stepscope diff - - < t.json",
        "stepscope check - --baseline - < t.json",
        "stepscope ingest - --also - < t.json",
        "cat t.json | stepscope diff /dev/stdin -",
        "mkfifo pipe; stepscope diff pipe ./pipe",
    ],
)
def test_one_pipe_twice(line: str, folder: Path) -> None:
    done = shell(line, folder)
    assert done.returncode == 2
    assert b"is named twice, and can be read only once" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    some(
        [
            {"LC_ALL": "C"},
            {"LC_ALL": "C.UTF-8"},
            {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            {"PYTHONIOENCODING": "ascii"},
        ],
        1,
    ),
    ids=str,
)
def test_names_that_are_no_text(settings: dict[str, str], folder: Path) -> None:
    name = b"a\xff\xc3\xa9\xf0\x9f\x98\x80.json"
    shutil.copy(b"t.json", name)
    given = {key: value for key, value in os.environ.items() if key not in ("LC_ALL", "LANG")}
    env = {**given, "STEPSCOPE_CACHE": str(folder.parent / "cache"), **settings}

    def run(*argv: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*map(str.encode, STEPSCOPE), *argv], env=env, cwd=folder, capture_output=True, check=False
        )

    for argv in (
        [b"report", name],
        [b"diff", name, b"t.json"],
        [b"report", name, b"-o", b"out" + name],
        [b"cache"],
    ):
        done = run(*argv)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"a\\udcff" in done.stdout
        done.stdout.decode("ascii" if "PYTHONIOENCODING" in settings else "utf-8")
    assert (folder / os.fsdecode(b"out" + name)).exists()
    for argv in ([b"info", name, b"--format", b"json"], [b"report", name, b"--format", b"json"]):
        found = json.loads(run(*argv).stdout)
        source = found["sources"][0]["source"] if "sources" in found else found["trace"]["source"]
        assert source.startswith(r"a\udcff")
    done = run(b"info", b"no" + name)
    assert done.returncode == 1
    assert b"there is no file noa\\udcff" in done.stderr
    done = run(b"info", b"t.json", b"--store", b"in\xff")
    assert b"its path is not UTF-8" in done.stderr


class TestColours:
    @pytest.mark.parametrize(
        "settings,terminal,expected",
        [
            ({}, True, True),
            ({}, False, False),
            ({"TERM": "dumb"}, True, False),
            ({"NO_COLOR": "1"}, True, False),
            ({"NO_COLOR": ""}, True, True),
            ({"FORCE_COLOR": "1"}, False, True),
            ({"FORCE_COLOR": "0"}, True, False),
            ({"FORCE_COLOR": ""}, False, False),
            ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
            ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ],
        ids=str,
    )
    def test_who_decides(
        self, settings: dict[str, str], terminal: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output, "is_terminal", lambda: terminal)
        monkeypatch.setenv("TERM", "xterm")
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        assert output.color() == expected

    def test_a_dumb_terminal_gets_no_codes(self, tmp_path: Path) -> None:
        file = big(tmp_path / "big.json")
        env = environment(tmp_path / "cache", TERM="dumb")
        assert on_a_terminal(quiet_for(0, "info", str(file)), env) == (0, b"")


@pytest.mark.parametrize("columns", ["0", "1", "-5", "x", "", "9999999"])
def test_odd_widths(
    columns: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for argv in (
        ["report", "t.json"],
        ["show", "kernels", "t.json"],
        ["explain", "launch-bound"],
        ["report", "--help"],
    ):
        try:
            assert main(argv) == 0
        except SystemExit as ended:
            assert ended.code == 0  # noqa: PT017
        assert capsys.readouterr().out.count("\n") > 2


class TestBudgetFiles:
    @pytest.mark.parametrize(
        "content,message",
        [
            ("budgets = " + "[" * 100_000, "nested too deep"),
            ("x = " + "{a=" * 50_000, "nested too deep"),
            ("a." * 300_000 + "a = 1", "nested too deep"),
            ("# " + "x" * 5_000_000, "larger than 1.00 MiB"),
            (bytes(range(256)), "cannot be read"),
            (b"\xff\xfe", "cannot be read"),
            ("x = " + "9" * 6000, "cannot be read"),
            ("budgets = [" + '"mfu>0",' * 100_000 + "]", "100,000 budgets are too many"),
            ("budgets = 5", "not a list of strings"),
            ("", "check needs a baseline or a budget"),
        ],
        ids=range(10),
    )
    def test_odd_content(
        self, content: str | bytes, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        raw = content if isinstance(content, bytes) else content.encode()
        for name in ("b.toml", "stepscope.toml"):
            (folder / name).write_bytes(raw)
        for argv in (["check", "t.json", "--budget", "b.toml"], ["check", "t.json"]):
            assert main(argv) in (1, 2)
            told = capsys.readouterr()
            assert message in told.err
            assert told.out == ""
            assert len(told.err) < 1000

    @pytest.mark.parametrize("kind", ["folder", "pipe", "endless", "missing"])
    def test_what_is_no_file(self, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = folder / "b.toml"
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "endless":
            path.symlink_to("/dev/zero")
        assert main(["check", "t.json", "--budget", "b.toml"]) == 1
        told = capsys.readouterr().err
        assert "b.toml cannot be read: " in told
        assert told.count("\n") == 2

    @pytest.mark.parametrize("content", ["tool = 5", "[tool]\nstepscope = 5", "tool = [1]"])
    def test_other_shapes_of_a_project_file(
        self, content: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "pyproject.toml").write_text(content, encoding="utf-8")
        assert main(["check", "t.json", "--budget", "kernels_per_step > 0"]) in (0, 1)
        assert main(["report", "t.json"]) in (0, 1)
        assert "Traceback" not in capsys.readouterr().err


class TestFoldersThatAreNotOurs:
    def run(self, folder: Path, *argv: str, cache: str = "cache", **more: object) -> str:
        where = folder.parent / cache
        done = stepscope(*argv, cache=where, prepare=obey_permissions, **more)
        assert done.returncode == 1, done.stderr
        assert (done.stdout, done.stderr.count("\n")) == ("", 2), done.stderr
        assert done.stderr.startswith("stepscope: ")
        return done.stderr

    @pytest.fixture
    def closed(self, folder: Path) -> Path:
        place = folder.parent / "closed"
        place.mkdir()
        shutil.copy("t.json", place)
        place.chmod(0)
        return place

    @pytest.mark.parametrize(
        "argv",
        ["report CLOSED", "report CLOSED/t.json", "diff CLOSED t.json", "diff CLOSED/*.json t.json",
         "ingest t.json --also CLOSED",
         "check t.json --budget CLOSED/b.toml", "report t.json --store CLOSED", "report t.json -o CLOSED/out",
         "cache --store CLOSED", "cache --clear --store CLOSED"],
    )  # fmt: skip
    def test_a_folder_without_rights(self, argv: str, folder: Path, closed: Path) -> None:
        self.run(folder, *argv.replace("CLOSED", str(closed)).split())

    def test_a_cache_without_rights(self, folder: Path, closed: Path) -> None:
        assert "no permission to write" in self.run(folder, "info", "t.json", cache="closed")
        assert "cannot be listed" in self.run(folder, "cache", cache="closed")

    def test_a_cache_that_is_a_file(self, folder: Path) -> None:
        (folder.parent / "file").write_text("x", encoding="utf-8")
        self.run(folder, "info", "t.json", cache="file")
        assert (folder.parent / "file").read_text(encoding="utf-8") == "x"

    def test_a_project_above_that_may_not_be_looked_into(self, folder: Path) -> None:
        (folder / "in").mkdir()
        (folder / "pyproject.toml").write_text("[tool.stepscope]\n", encoding="utf-8")
        shutil.copy("t.json", folder / "in")
        folder.chmod(0o000)
        try:
            # The folder itself was entered before its rights were taken away.
            done = stepscope("report", "t.json", cache=folder.parent / "cache", cwd=folder / "in")
        finally:
            folder.chmod(0o755)
        assert done.returncode == 0, done.stderr

    def test_no_home(self, folder: Path) -> None:
        """A user without a home, as in many containers: mapped in a namespace, or the test proves nothing."""
        unshare = shutil.which("unshare")
        command = [str(unshare), "--user", "--map-user=54321", *STEPSCOPE, "info", "t.json"]
        unset = ("HOME", "STEPSCOPE_CACHE", "XDG_CACHE_HOME")
        env = {key: value for key, value in os.environ.items() if key not in unset}
        if not unshare or subprocess.run([*command[:3], "true"], capture_output=True, check=False).returncode:
            pytest.skip("no namespaces on this machine")
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 1
        assert done.stderr.startswith("stepscope: there is no home folder")
        assert "STEPSCOPE_CACHE" in done.stderr

    def test_a_working_folder_that_is_gone(self, folder: Path) -> None:
        done = shell("mkdir gone; cd gone; rmdir ../gone; stepscope report " + str(folder / "t.json"), folder)
        assert (done.returncode, done.stderr) == (0, b"")
