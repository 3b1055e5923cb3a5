"""Nothing that a command reads is written over, and what it writes is whole or not there."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from tests.commands import STEPSCOPE, environment, obey_permissions, stepscope
from tests.drawing import Drawing
from tests.trying import some

import stepscope as api
from stepscope import registry
from stepscope.cli.main import main
from stepscope.cli.signature import _parameters, _Type, arguments
from stepscope.errors import StepscopeError
from stepscope.writing import one_command, protect, written

pytestmark = pytest.mark.usefixtures("answers_kept")

BUDGETS = 'budgets = ["kernels_per_step > 0"]\n'
LINES_OF = {
    "report": ["TRACE", "-o", "FILE"],
    "diff": ["TRACE", "OTHER", "-o", "FILE"],
    "check": ["TRACE", "--baseline", "OTHER", "--budget", "budgets.toml", "--junit", "FILE"],
    "cut": ["TRACE", "--time", ":", "--force", "-o", "FILE"],
    "export": ["TRACE", "--format", "collapsed", "--force", "-o", "FILE"],
    "open": ["TRACE", "--page", "kernels", "--save", "FILE"],
    "summarize": ["TRACE", "-o", "FILE"],
}
"""The commands that write a file."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command is typed: two profiles under several names, and budgets."""
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "here"
    (place / "runs").mkdir(parents=True)
    monkeypatch.chdir(place)
    for name in ("t.json", "other.json"):
        drawing = Drawing().named_thread("main")
        for step in range(3):
            at = step * 100
            drawing.mark(step, at, 100).op("aten::mm", at + 10, 50)
            drawing.launch("cudaLaunchKernel", at + 20, 5, corr=step).kernel("gemm", at + 30, 40, corr=step)
        drawing.write(place / name)
    shutil.copy("t.json", "runs/a.json")
    Path("link.json").symlink_to("t.json")
    Path("hard.json").hardlink_to("t.json")
    Path("budgets.toml").write_text(BUDGETS, encoding="utf-8")
    return place


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def typed(command: str, file: str, trace: str = "t.json") -> list[str]:
    words = {"TRACE": trace, "OTHER": "other.json", "FILE": file}
    return [command, *(words.get(word, word) for word in LINES_OF[command])]


def test_every_command_that_writes_a_file_has_a_line_and_says_so() -> None:
    """A path that is not marked as written would not be looked at."""
    writing = set()
    for name, _ in registry.names("cli.commands"):
        command = registry.load("cli.commands", name)
        for parameter, kind in ((one, _Type.of(value)) for one, value in _parameters(command).items()):
            if kind.written:
                writing.add(name)
            else:
                # A folder of its own, which is new or empty, or has a ledger to which lines are added.
                folder = parameter == "store" or (name in ("run", "try") and parameter == "out")
                assert kind.convert is not Path or folder, f"{name} --{parameter}"
                assert kind.short != "-o", f"{name} --{parameter}"
    assert writing == set(LINES_OF)
    assert any(one.short == "-o" for one in arguments(registry.load("cli.commands", "report")))


@pytest.mark.parametrize("command", LINES_OF)
@pytest.mark.parametrize(
    "name", ["t.json", "./t.json", "runs/../t.json", "link.json", "hard.json", "ABSOLUTE"]
)
def test_the_trace_is_not_written_over(
    command: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    file = str(folder / "t.json") if name == "ABSOLUTE" else name
    assert main(typed(command, file)) == 1
    assert "is an input of this command and is not written over" in capsys.readouterr().err
    assert contents(folder) == before
    assert Path("link.json").is_symlink()


@pytest.mark.parametrize(
    "argv",
    [
        "diff t.json other.json -o other.json",
        "diff t.json,other.json runs -o other.json",
        "diff t.json runs -o runs/a.json",
        "diff t.json runs/*.json -o runs/a.json",
        "report runs -o runs/a.json",
        "check t.json --baseline other.json --junit other.json",
        "check t.json --budget budgets.toml --junit budgets.toml",
        "check t.json --junit stepscope.toml",
        "check t.json --budget kernels_per_step>0 --junit pyproject.toml",
        "report t.json -o pyproject.toml",
        "report STORE -o t.json",
        "report t.json -o STORE/meta.json",
        "report t.json -o STORE/new.html",
        "report other.json -o STORE/new.html",
        "report other.json -o ../cache/new.html",
        "cut t.json --time : --force -o STORE/meta.json",
        "cut STORE --time : --force -o hard.json",
    ],
)  # fmt: skip
def test_no_other_input_and_no_store(argv: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(api.open("t.json").folder)
    Path("stepscope.toml").write_text(BUDGETS, encoding="utf-8")
    Path("pyproject.toml").write_text("[tool.stepscope.scalar-reads]\n", encoding="utf-8")
    before = contents(folder)
    kept = set(contents(Path(store)))
    assert main(argv.replace("STORE", store).split()) == 1, capsys.readouterr().out
    told = capsys.readouterr()
    assert any(said in told.err for said in ("is an input of", "is inside", "is in the cache")), told.err
    assert contents(folder) == before
    assert {
        name for name in contents(Path(store)) if not name.endswith((".parquet", ".sums.txt", ".lock"))
    } <= kept
    assert not list(folder.parent.rglob("*.partial"))


@pytest.mark.parametrize("command", LINES_OF)
def test_a_summary_of_a_job_is_not_added_to_an_input(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "t.json")
    form = ["--format", "github"] if command not in ("cut", "export", "open", "summarize") else []
    main([*typed(command, "/dev/null"), *form])
    assert contents(folder) == before


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = line.replace("stepscope", " ".join(STEPSCOPE), 1)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(folder.parent / "cache"),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.parametrize(
    "line",
    [
        "stepscope report - -o t.json < t.json",
        "stepscope info t.json >> t.json",
        "stepscope info - < t.json 1<>t.json",
    ],
)
def test_what_the_shell_opened_is_an_input_too(line: str, folder: Path) -> None:
    before = contents(folder)
    done = shell(line, folder)
    assert done.returncode == 1
    assert "read" in done.stderr or "input" in done.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("command", LINES_OF)
def test_an_old_file_is_replaced_at_once(command: str, folder: Path) -> None:
    old = Path("out.json")
    old.write_text("old", encoding="utf-8")
    old.chmod(0o640)
    with old.open(encoding="utf-8") as reader:
        assert main(typed(command, "out.json")) == 0
        assert reader.read() == "old", "who had it open keeps what was there"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert old.stat().st_size > 3


def test_a_new_file_has_the_rights_of_the_user(folder: Path) -> None:
    before = os.umask(0o027)
    try:
        assert main(typed("report", "out.md")) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path("out.md").stat().st_mode) == 0o640


def test_a_link_stays_a_link(folder: Path) -> None:
    Path("real.md").write_text("old", encoding="utf-8")
    Path("to.md").symlink_to("real.md")
    Path("hanging.md").symlink_to("later.md")
    assert main(typed("report", "to.md")) == main(typed("report", "hanging.md")) == 0
    assert Path("to.md").is_symlink()
    assert (
        Path("real.md").read_text(encoding="utf-8") == Path("later.md").read_text(encoding="utf-8") != "old"
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left"), ZeroDivisionError])
def test_a_failure_leaves_the_old_file_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("old", encoding="utf-8")

    def fail() -> None:
        with written(file) as sink:
            sink.write(b"half")
            raise error

    with pytest.raises((KeyboardInterrupt, StepscopeError, ZeroDivisionError)):
        fail()
    assert contents(tmp_path) == {"out": b"old"}


def test_a_name_as_long_as_can_be(folder: Path) -> None:
    assert main(typed("report", "x" * 252 + ".md")) == 0


@pytest.mark.parametrize("command", LINES_OF)
@pytest.mark.parametrize(
    "file,message",
    [
        ("no/where/out", "the folder no/where does not exist\n  hint: mkdir -p no/where"),
        ("t.json/out", "does not exist"),
        ("runs", "it is a folder\n  hint: name a file in it: runs/FILE"),
        ("/dev/full", "the disk is full"),
        ("/proc/none", "cannot write /proc/none"),
    ],
)
def test_what_cannot_be_written(
    command: str, file: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed(command, file)) == 1
    told = capsys.readouterr().err
    assert told.startswith("stepscope: cannot write")
    assert message in told
    assert told.count("\n") == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", some(LINES_OF, 1))
def test_folders_and_files_that_may_not_be_written(command: str, folder: Path) -> None:
    cache = folder.parent / "cache"
    Path("locked").mkdir()
    Path("locked/old").write_text("old", encoding="utf-8")
    Path("locked").chmod(0o555)
    Path("sealed").write_text("old", encoding="utf-8")
    Path("sealed").chmod(0o444)
    for file in ("locked/new", "sealed"):
        done = stepscope(*typed(command, file), cache=cache, prepare=obey_permissions)
        assert done.returncode == 1
        assert f"cannot write {file}: Permission denied" in done.stderr
    assert Path("sealed").read_text(encoding="utf-8") == "old"
    # A file of ours in a folder that is not: there is no place beside it.
    done = stepscope(*typed(command, "locked/old"), cache=cache, prepare=obey_permissions)
    assert done.returncode == 0, done.stderr
    assert Path("locked/old").read_bytes() != b"old"


@pytest.mark.parametrize("command", LINES_OF)
def test_a_pipe_is_written_to(command: str, folder: Path) -> None:
    os.mkfifo("pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_bytes()), daemon=True)
    reader.start()
    assert main(typed(command, "pipe")) == 0
    reader.join(timeout=60)
    assert len(read[0]) > 10
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_standard_output_by_its_names(name: str, folder: Path) -> None:
    done = shell(f"stepscope report t.json --format json -o {name} > out.json; tail -c 2 out.json", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "}\n", "")
    assert not (folder / "-").exists()


def test_a_program_writes_what_it_likes(tmp_path: Path) -> None:
    """The inputs of one command are not those of the next."""
    file = tmp_path / "a"
    file.write_text("old", encoding="utf-8")

    def write() -> None:
        with written(file) as sink:
            sink.write(b"new")

    with one_command():
        protect(file)
        with pytest.raises(StepscopeError, match="is an input"):
            write()
    write()
    assert file.read_bytes() == b"new"


def test_only_one_place_opens_files_for_writing() -> None:
    """Whoever writes files elsewhere makes stores, or the pages of this repository."""
    makers = {"writing.py", "registry.py", "reference.py", "sources/_input.py"}
    signs = [
        ".write_text(",
        ".write_bytes(",
        "os.fdopen(",
        'open("w',
        'open("a',
        '"wb")',
        '"ab")',
        "os.replace(",
    ]
    signs += ["sys.stdout", "sys.stderr", "sys.__std", "os.write("]
    allowed = {"cli/output.py", "cli/screen.py", "cli/main.py", "cli/progress.py", "store/export.py"}
    allowed |= {"cli/supervision.py"}  # hands on what its child, which guards it, has said
    # Adds to a ledger; keeps what programs print in a folder that goes; answers in a process of its own.
    allowed |= {"trials/ledger.py", "trials/running.py", "doctor/probe.py"}
    allowed |= {"web/serving.py", "web/sources.py"}  # hands on at once what was said; only reads
    found = set()
    for path in registry.PACKAGE.rglob("*.py"):
        name = str(path.relative_to(registry.PACKAGE))
        if name.startswith("capture/"):
            continue  # runs in the programs of others, and has a folder of its own
        text = path.read_text(encoding="utf-8")
        if any(sign in text for sign in signs):
            found.add(name)
    stores = {name for name in found if name.startswith("store/")} - {"store/export.py"}
    assert stores <= {
        f"store/{name}.py"
        for name in ("columns", "layout", "leftovers", "links", "rows", "sums", "timeline_files", "writer")
    }
    # A timer says a fixed line when nothing else can be said.
    assert found - stores <= makers | allowed | {"cli/commands/query.py"}
    query = (registry.PACKAGE / "cli/commands/query.py").read_text(encoding="utf-8")
    assert [sign for sign in signs if sign in query] == ["os.write("]
