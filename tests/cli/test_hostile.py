"""What a profile says cannot steer a terminal, a log or a page: every command, every format, every refusal.

Commands and formats are those of the registry. A new command has no line in `LINES_OF` and fails here.
Everything is looked at where it arrives, at the file handles: who prints around the fence is seen.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow.parquet as pq
import pytest
from tests.commands import STEPSCOPE, environment
from tests.hostile import CATEGORY, MARK, NAME, TEXT, check_text, hostile_trace
from tests.trying import some

import stepscope
from stepscope import registry
from stepscope.cli.main import main
from stepscope.cli.signature import arguments
from stepscope.present.formats import needs_of
from stepscope.store.trace import Trace

pytestmark = pytest.mark.usefixtures("answers_kept")

COLUMN = TEXT.replace('"', '""')
SQL = f"""SELECT name AS "{COLUMN}", 5 AS n FROM events WHERE name LIKE '=cmd%' ORDER BY ALL"""
BUDGETS = ["--budget", "step_time < +3 %", "--budget", "finding any = none", "--budget", "mfu > 0.9"]
LINES_OF: dict[str, list[list[str]]] = {
    "cache": [[]],
    "check": [["TRACE", "--baseline", "OTHER", *BUDGETS], ["TRACE", *BUDGETS[2:], "--strict"]],
    "cut": [["TRACE", "--time", ":", "-o", "FILE", "--force"]],
    "diff": [["OTHER", "TRACE"], ["OTHER", "TRACE", "OTHER"]],
    "explain": [[], ["launch-bound"], ["kernels"]],
    "export": [["TRACE", "-o", "FILE", "--force"]],
    "info": [["TRACE"]],
    "ingest": [["TRACE"]],
    "open": [["TRACE", "--save", "FILE"], ["TRACE", "--page", "kernels", "--save", "FILE"]],
    "query": [["TRACE", SQL], ["TRACE", "SELECT * FROM meta"], ["TRACE", "--schema"]],
    "report": [["TRACE"]],
    "show": [["kernels", "TRACE"], []],
    "summarize": [["TRACE", "-o", "FILE"]],
    "whatif": [["TRACE", "--no-sync"]],
}
BINARY = ("parquet", "pftrace")
KEY = json.dumps("".join(sign for sign in NAME if sign <= "\uffff"))
"""A hostile name in TOML, whose codes are those of JSON but for the rarest signs."""


def formats_of(command: str) -> list[tuple[str, str]]:
    """The folder and name of each format that a command takes; one without a name for its default."""
    for one in arguments(registry.load("cli.commands", command)):
        if one.name == "--format":
            names = (
                [name for name, _ in registry.names(one.folder)]
                if one.folder
                else one.value.strip("{}").split(",")
            )
            return [(one.folder, name) for name in names]
    return [("", "")]


@dataclass(frozen=True)
class Case:
    """One line to type, and the format to add to it."""

    command: str
    line: list[str]
    folder: str
    form: str
    colour: bool = False


def cases() -> Iterator[Any]:
    """Each command in each format. Of several lines, the later ones show the same kind of thing."""
    for command, lines in LINES_OF.items():
        for folder, form in formats_of(command):
            for number, line in enumerate(lines):
                marks = [pytest.mark.exhaustive] if number and folder else []
                colours = (False, True) if form in ("", "table", "text", "terminal") else (False,)
                for colour in colours:
                    name = f"{command}-{number}-{form}{'-colour' * colour}"
                    yield pytest.param(Case(command, line, folder, form, colour), id=name, marks=marks)


class Place:
    """A folder with a hostile name, and in it two profiles with hostile names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / NAME
        self.folder.mkdir()
        self.words = {
            "TRACE": str(hostile_trace(self.folder / f"a{NAME}.json")),
            "OTHER": str(hostile_trace(self.folder / f"b{NAME}.json", times=3)),
            "FILE": str(self.folder / f"out{NAME}.json"),
        }

    def argv(self, command: str, line: list[str]) -> list[str]:
        return [command, *(self.words.get(word, word) for word in line)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("hostile")
    before = os.environ["STEPSCOPE_CACHE"]
    os.environ["STEPSCOPE_CACHE"] = str(folder / "cache")
    try:
        yield Place(folder)
    finally:
        os.environ["STEPSCOPE_CACHE"] = before


@pytest.fixture(scope="module")
def opened(place: Place) -> Trace:
    return stepscope.open(place.words["TRACE"])


Said = Callable[..., tuple[int, bytes, bytes]]


@pytest.fixture
def said(capfdbinary: pytest.CaptureFixture[bytes]) -> Said:
    """Runs a command and gives what arrived at the file handles."""

    def run(*argv: str) -> tuple[int, bytes, bytes]:
        try:
            code = main(list(argv))
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capfdbinary.readouterr()
        return code, printed.out, printed.err

    return run


RUN_PROGRAMS = {"doctor", "run", "try"}
"""These read no profile: what they print of programs is made printable by `notice`, which tests see to."""


def test_every_command_has_a_line() -> None:
    assert set(LINES_OF) | RUN_PROGRAMS == {name for name, _ in registry.names("cli.commands")}


def arrived(case: Case, place: Place, said: Said, *more: str) -> tuple[str, bytes]:
    """What a command prints, checked as far as it is the same for all."""
    form = ["--format", case.form] if case.form else []
    code, out, err = said(*place.argv(case.command, case.line), *form, *more)
    assert code in (0, 3), err
    check_text(err.decode(), colour=case.colour)
    return "" if case.form in BINARY else out.decode(), out


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases()))
def test_what_is_printed(case: Case, place: Place, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.colour:
        monkeypatch.setenv("FORCE_COLOR", "1")
    text, _ = arrived(case, place, said)
    check_text(text, colour=case.colour, commands=case.form == "github")
    asks = case.line and "--schema" not in case.line
    if case.form == "json" and asks and case.command != "cut":
        json.loads(text)
    if case.form == "junit":
        ET.fromstring(text)
    printed = case.folder.startswith("present") or case.command in ("info", "query")
    if printed and asks and case.form not in BINARY:
        assert MARK in text, "nothing hostile was shown, so nothing was tested"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in registry.names("analyses")])
def test_every_analysis(
    name: str, place: Place, said: Said, opened: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One open trace works each of them out once.
    monkeypatch.setattr("stepscope.cli.commands.show.open_with_progress", lambda *_, **__: opened)
    for folder, form in formats_of("show"):
        text, _ = arrived(Case("show", [name, "TRACE"], folder, form), place, said)
        check_text(text)
        if form == "json":
            json.loads(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    some(
        (
            one.values[0]
            for one in cases()
            if one.values[0].folder[:7] == "present" and not one.values[0].colour
        ),
        8,
    ),
)
def test_what_is_written(
    case: Case, place: Place, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a file and to the summary of a job."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    file = tmp_path / f"out{NAME}"
    option = "--junit" if case.command == "check" else "-o"
    text, _ = arrived(case, place, said, option, str(file))
    as_commands = case.form == "github"
    check_text(text, commands=as_commands and case.command == "check")
    written = file.read_bytes().decode()
    check_text(written, commands=as_commands and case.command != "check")
    assert MARK in written
    page = tmp_path / "summary.md"
    assert page.exists() == bool(needs_of(registry.load(case.folder, case.form)).job_summary)
    if page.exists():
        check_text(page.read_text(encoding="utf-8"))
        assert MARK in page.read_text(encoding="utf-8")


class TestLossless:
    """What is for programs says exactly what the profile says."""

    def test_json(self, place: Place, said: Said) -> None:
        rows = json.loads(said("query", place.words["TRACE"], SQL, "--format", "json")[1])
        assert {row[TEXT] for row in rows} == {TEXT}
        told = json.loads(said("info", place.words["TRACE"], "--format", "json")[1])
        (source,) = told["sources"]
        assert source["source"] == place.words["TRACE"]
        assert source["metadata"][TEXT] == TEXT
        found = json.loads(said("show", "categories", place.words["TRACE"], "--format", "json")[1])
        assert CATEGORY in [row["category"] for row in found["rows"]]
        report = json.loads(said("report", place.words["TRACE"], "--format", "json")[1])
        assert report["trace"]["source"] == Path(place.words["TRACE"]).name

    def test_parquet(self, place: Place, said: Said) -> None:
        _, out, _ = said("query", place.words["TRACE"], SQL, "--format", "parquet")
        table = pq.read_table(io.BytesIO(out))
        assert set(table[TEXT].to_pylist()) == {TEXT}

    @pytest.mark.parametrize("argv", [["query", "TRACE", SQL], ["show", "categories", "TRACE"]], ids=" ".join)
    def test_rows_of_csv_stay_rows_and_nothing_is_computed(
        self, argv: list[str], place: Place, said: Said
    ) -> None:
        _, out, _ = said(*place.argv(argv[0], argv[1:]), "--format", "csv")
        rows = list(csv.reader(io.StringIO(out.decode())))
        assert len(rows) == len(out.decode().splitlines())
        cells = [cell for row in rows for cell in row if MARK in cell]
        assert cells
        assert all(cell.startswith("'=cmd") for cell in cells)


REFUSED: list[tuple[list[str], int]] = [
    ([NAME], 2),
    ([f"--{NAME}"], 2),
    (["report", f"nowhere{NAME}.json"], 1),
    (["report", f"{NAME}/nowhere.json"], 1),
    (["report", "--demo", f"--{NAME}".replace(" ", "_")], 2),
    (["report", "--demo", "--format", NAME], 2),
    (["report", "--demo", "-o", f"{NAME}/no/where"], 1),
    (["report", "TRACE", "-o", "TRACE"], 1),
    (["report", "TRACE", "--store", f"{NAME}"], 1),
    (["report", "EMPTY"], 1),
    (["report", "FOLDER"], 1),
    (["report", "KEYS"], 1),
    (["report", "WORDS"], 1),
    (["report", "GZIP"], 1),
    (["show", NAME, "TRACE"], 2),
    (["show", "kernels", "TRACE", "--limit", NAME], 2),
    (["query", "TRACE", f'SELECT "{COLUMN}"'], 1),
    (["query", "TRACE", f"SELECT '{NAME}'::INT"], 1),
    (["query", "TRACE", f'SELECT 1; "{NAME}"'], 1),
    (["query", "TRACE", f'FROM analyses."{COLUMN}"'], 1),
    (["cut", "TRACE", "--steps", NAME, "-o", "-"], 2),
    (["cut", "TRACE", "--time", NAME, "-o", "-"], 2),
    (["cut", "TRACE", "--time", f"{NAME}:", "-o", "-"], 2),
    (["check", "TRACE", "--budget", NAME], 1),
    (["check", "TRACE", "--budget", f"finding {NAME} = none"], 1),
    (["check", "TRACE", "--budget", f"{NAME}.toml"], 1),
    (["check", "TRACE", "--budget", "BUDGETS"], 1),
    (["diff", "TRACE", f"*{NAME}*x"], 1),
    (["explain", NAME], 2),
    (["summarize", f"nowhere{NAME}"], 1),
    (["summarize", "FOLDER"], 1),
    (["summarize", "WORDS"], 1),
    (["whatif", "TRACE", "--host", NAME], 2),
]


@pytest.mark.parametrize(
    "argv,code", REFUSED, ids=[f"{argv[0][:6]}-{n}" for n, (argv, _) in enumerate(REFUSED)]
)
def test_what_is_refused(
    argv: list[str], code: int, place: Place, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"empty{NAME}").mkdir()
    files = {
        "EMPTY": (f"a{NAME}", b""),
        "KEYS": (f"b{NAME}", json.dumps({TEXT: TEXT}).encode()),
        "WORDS": (f"c{NAME}", TEXT.encode()),
        "GZIP": (f"d{NAME}", b"\x1f\x8b\x08" + TEXT.encode()),
        "BUDGETS": (f"e{NAME}.toml", f"budgets = [{KEY}]".encode()),
    }
    for name, content in files.values():
        (tmp_path / name).write_bytes(content)
    words = {**place.words, "FOLDER": f"empty{NAME}", **{key: name for key, (name, _) in files.items()}}
    got, out, err = said(*(words.get(word, word) for word in argv))
    assert got == code, err
    assert out == b""
    check_text(err.decode())
    assert b"Traceback" not in err
    lines = err.decode().splitlines()
    assert lines[0].startswith(("stepscope: ", "usage: "))
    # A message and a hint: no name makes a line of its own.
    if lines[0].startswith("stepscope: "):
        assert [line.startswith("  hint: ") for line in lines[1:]] in ([True], [])
    assert MARK in err.decode()


def test_a_setting_that_is_hostile(place: Place, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE_LIMIT", NAME)
    code, _, err = said("cache")
    assert code == 1
    check_text(err.decode())


def test_a_project_file_that_is_hostile(
    place: Place, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (
        f"[tool.stepscope.{KEY}]",
        f"[tool.stepscope.scalar-reads]\n{KEY} = 1",
    ):
        (tmp_path / "pyproject.toml").write_text(content, encoding="utf-8")
        code, _, err = said("report", place.words["TRACE"])
        assert code == 1
        check_text(err.decode())
        assert MARK in err.decode()


def test_a_bug_that_is_hostile(place: Place) -> None:
    """A traceback shows values, too."""
    code = (
        "import sys; from stepscope import registry; from stepscope.cli import main\n"
        "def fails(*a, **k): raise ZeroDivisionError(sys.argv[1])\n"
        "registry.load = fails\nsys.exit(main.main())"
    )
    done = subprocess.run(
        [STEPSCOPE[0], "-c", code, f"x.{NAME}"],
        env=environment(Path("unused")),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    text = done.stderr.decode()
    assert "Traceback" in text
    assert MARK in text
    # The lines of a traceback are its own business; commands to a log are not.
    check_text(text.replace("\nFORGED", "\n"))
