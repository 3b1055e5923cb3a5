"""Little memory: every command works or says so in a line, whatever the limit; small files stay small."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.bombs import BOMBS, MIB, take, write
from tests.commands import SLOW_ITEM, said, stepscope
from tests.drawing import Drawing
from tests.trying import some

from stepscope import memory
from stepscope.cli import supervision
from stepscope.cli.main import main
from stepscope.errors import OutOfMemoryError, StepscopeError
from stepscope.findings import build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")

LADDER_MIB = (60, 400, 4000)
"""Not enough to start, not enough for a report, and enough; before a release in finer steps."""
GIB = 1 << 30


def limited_to(mebibytes: int) -> Callable[[], None]:
    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))

    return prepare


COMMANDS = {
    "info": ("info", SLOW_ITEM),
    "report": ("report", SLOW_ITEM),
    "json": ("report", SLOW_ITEM, "--format", "json"),
    "query": ("query", SLOW_ITEM, "SELECT count(*) FROM events"),
    "show": ("show", "kernels", SLOW_ITEM),
    "diff": ("diff", SLOW_ITEM, SLOW_ITEM),
    "whatif": ("whatif", SLOW_ITEM, "--no-sync"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report"])
def test_a_command_works_or_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    check_ladder(name, LADDER_MIB, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_works_or_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    check_ladder(name, range(60, 1500, 70), tmp_path)


def check_ladder(name: str, ladder: Sequence[int], tmp_path: Path) -> None:
    free = stepscope(*COMMANDS[name], cache=tmp_path / "free")
    worked = []
    for mebibytes in ladder:
        found = stepscope(*COMMANDS[name], cache=tmp_path / str(mebibytes), prepare=limited_to(mebibytes))
        if found.returncode == free.returncode:
            worked.append(mebibytes)
            assert found.stdout.replace(f"/{mebibytes}/", "/free/") == free.stdout
        else:
            assert f"not enough memory: this process may use {mebibytes}" in said(found).replace(",", "")
            assert found.stderr.count("\n") == 2
            assert "ulimit -v" in found.stderr
    assert worked[-1] == max(ladder)


def test_help_and_version_work_with_very_little(tmp_path: Path) -> None:
    for option in ("--help", "--version"):
        assert stepscope(option, cache=tmp_path, prepare=limited_to(60)).returncode == 0


def test_a_user_error_under_a_limit_is_said_as_ever(tmp_path: Path) -> None:
    found = stepscope("info", tmp_path / "none.json", cache=tmp_path, prepare=limited_to(3000))
    assert "there is no file" in said(found)


def test_what_counts_as_lack_of_memory() -> None:
    class OutOfMemoryException(Exception):  # noqa: N818  # as DuckDB calls it
        pass

    for error in (
        MemoryError(),
        OutOfMemoryException("…"),
        RuntimeError("can't start new thread"),
        ImportError("x.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
    ):
        assert memory.is_lack_of_memory(error)
    wrapped = ValueError("no")
    wrapped.__cause__ = MemoryError()
    assert memory.is_lack_of_memory(wrapped)
    assert memory.is_lack_of_memory(memory.not_enough())
    # What a user typed may sound like it.
    for other in (StepscopeError("there is no file out of memory.json"), ValueError("no"), KeyError("x")):
        assert not memory.is_lack_of_memory(other)


@pytest.mark.parametrize(
    "said, lacks",
    [
        ("stepscope: there is no file out of memory.json\n  hint: type another\n", False),
        ("stepscope: there is not\nTraceback (most recent call last):\n  …\nMemoryError\n", True),
        ("Traceback (most recent call last):\n  …\nMemoryError\n", True),
        ("Traceback (most recent call last):\n  …\nSystemError: error return without exception set\n", True),
        ("Traceback (most recent call last):\n  …\nKeyError: 3\n", False),
    ],
)
def test_a_child_tells_of_memory_in_its_messages_or_instead_of_them(said: str, lacks: bool) -> None:
    assert supervision._tells_of_memory(said) is lacks


def test_a_rule_that_lacks_memory_is_no_rule_that_did_not_run() -> None:
    with pytest.raises(OutOfMemoryError):
        build.crashed("a-rule", memory.not_enough())
    assert build.crashed("a-rule", StepscopeError("no")).reason == "no"


def test_the_database_takes_a_share_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "address_space", lambda: None)
    assert memory.share_for_database() == 600_000_000
    for limit in (1 << 29, 1 << 30, 1 << 31, 1 << 40):
        monkeypatch.setattr(memory, "address_space", lambda limit=limit: limit)
        assert 64_000_000 <= memory.share_for_database() <= 600_000_000


# ------------------------------------------------ bombs

QUICK = (
    "threads",
    "header_lists",
    "header_texts",
    "long_names",
    "long_args",
    "long_layouts",
    "categories",
    "damages",
)
"""Those that blew up even when they are small."""


def check_bomb(name: str, size: int, tmp_path: Path) -> None:
    path = write(name, tmp_path / f"{name}.json.gz", size)
    read = take(["ingest", str(path)], tmp_path / "cache")
    assert read.code == 0, read.said
    assert read.peak_bytes < GIB
    reported = take(["report", str(path)], tmp_path / "cache")
    assert reported.code == 0, reported.said
    assert reported.peak_bytes < GIB


@pytest.mark.slow
@pytest.mark.parametrize("name", some(QUICK, 4))
def test_a_small_bomb_takes_little_memory(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path / f"{name}.json.gz", 96 * MIB)
    read = take(["ingest", str(path)], tmp_path / "cache")
    assert read.code == 0, read.said
    assert read.peak_bytes < 400 * MIB


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_less_than_a_gibibyte(name: str, tmp_path: Path) -> None:
    check_bomb(name, 64 * MIB, tmp_path)


# ------------------------------------------------ times


@pytest.mark.slow
@pytest.mark.parametrize(
    "ts,dur",
    some(
        [
            ("9223372036854775", "1"),
            ("5", "9223372036854775"),
            ("1e308", "1"),
            ("-9223372036854775.808", "9223372036854775.807"),
            ("NaN", "Infinity"),
            ("6311433600000000", "1"),
        ],
        2,
    ),
)
@pytest.mark.usefixtures("answers_kept")
def test_one_bad_time_does_not_stop_the_report(
    ts: str, dur: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawing = Drawing(base_ns=1767225600000000000)
    for step in range(4):
        at = 1000 * step
        drawing.mark(step, at, 990)
        drawing.op("aten::mm", at + 1, 10).launch("cudaLaunchKernel", at + 2, 1, corr=step + 1)
        drawing.kernel("gemm", at + 5, 900, corr=step + 1)
    sound = drawing.json()
    bad = (
        f'{{"ph": "X", "cat": "kernel", "name": "bad", "pid": 0, "tid": 7, "ts": {ts}, "dur": {dur}, '
        '"args": {"device": 0, "stream": 7, "correlation": 99}},'
    )
    answers = []
    for name, text in (
        ("sound", sound),
        ("bad", sound.replace('"traceEvents": [', '"traceEvents": [' + bad, 1)),
    ):
        (tmp_path / f"{name}.json").write_text(text)
        file = str(tmp_path / f"{name}.json")
        assert main(["show", "devices", file, "--format", "json"]) == 0
        answers.append(capsys.readouterr().out)
        assert main(["report", file]) == 0
        assert "overflow" not in capsys.readouterr().out.lower()
    if ts != "NaN":  # a kernel without a time is still one
        assert answers[0] == answers[1]
    assert main(["info", str(tmp_path / "bad.json")]) == 0
    said_of = capsys.readouterr().out
    assert "impossible time, set aside" in said_of or "a time that is no number" in said_of


ASKED = """
import threading
from stepscope import memory
memory.keep_little()
import duckdb, pyarrow as pa

def said(key):
    return int(open("/proc/self/status").read().partition(key)[2].split()[0]) >> 10

def ask():
    database.cursor().execute("FROM (SELECT i, count(*) AS n FROM range(3_000_000) t(i) GROUP BY i) LIMIT 1")
    pa.concat_arrays([pa.array(range(10_000))] * 800).cast(pa.string())

database = duckdb.connect()
database.execute("SET threads = 2; SELECT 1").fetchall()
pa.array([1])
before = said("VmRSS:")
for thread in [threading.Thread(target=ask) for _ in range(3)]:
    thread.start()
    thread.join()
memory.release_freed()
print(pa.default_memory_pool().backend_name, said("VmRSS:") - before)
"""


@pytest.mark.slow
def test_a_window_gives_back_what_answers_took() -> None:
    """Its threads ask DuckDB and pyarrow; each of these would keep 200 to 400 MiB for the next question."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, check=True, timeout=120
    )
    pool, kept_mib = done.stdout.split()
    assert pool == "system"
    assert int(kept_mib) < 100
