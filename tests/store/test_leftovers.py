"""What killed runs leave: found and removed, and never what belongs to a living one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.commands import half_read
from tests.commands import stepscope as command
from tests.drawing import Drawing

import stepscope
from stepscope.store import leftovers
from stepscope.store.leftovers import OWNER, abandoned, abandoned_scratch, owned_folder, scratch, sweep


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, of this process and of its children."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def old(folder: Path, hours: float = 30) -> None:
    then = time.time() - 3600 * hours
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))


def killed(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


@pytest.mark.slow
class TestKilledIngests:
    def test_they_are_listed_and_cleared_and_the_living_are_not(self, cache: Path, temporary: Path) -> None:
        living, dead = half_read("ingest", cache), half_read("ingest", cache / "dead")
        killed(dead)
        (left,) = (cache / "dead").iterdir()
        (kept,) = cache.glob(".*.partial")
        left = left.rename(cache / left.name)
        *listed, total, rest = command("cache", cache=cache).stdout.splitlines()
        assert len(listed) == 1
        assert left.name in listed[0]
        assert listed[0].endswith("(left by a run that was killed)")
        assert total.startswith("0 stores, ")
        assert "left by killed runs: stepscope cache --clear" in rest
        assert "removed what killed runs left: " in command("cache", "--clear", cache=cache).stdout
        assert not left.exists()
        assert kept.exists()
        killed(living)
        assert "removed what killed runs left: " in command("cache", "--clear", cache=cache).stdout
        assert not list(cache.glob(".*"))

    def test_the_next_ingest_tidies_up(self, cache: Path, tmp_path: Path) -> None:
        killed(half_read("ingest", cache))
        assert abandoned(cache)
        drawing = Drawing().op("aten::mm", 0, 10)
        store = stepscope.open(drawing.write(tmp_path / "a.json"), store=cache).folder
        assert names(cache) == [store.name]

    def test_temporary_files_go_too(self, cache: Path, temporary: Path, tmp_path: Path) -> None:
        code = (
            "from stepscope.store.leftovers import scratch; import os\n"
            "(scratch() / 'spill').write_bytes(bytes(2_000_000)); os.kill(os.getpid(), 9)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
        (left,) = temporary.iterdir()
        mine = scratch()
        *_, listed, _, total = command("cache", cache=cache).stdout.splitlines()
        assert str(left) in listed
        assert total.startswith("1.91 MiB left by killed runs")
        stepscope.open(Drawing().op("aten::mm", 0, 10).write(tmp_path / "a.json"), store=cache)
        assert names(temporary) == [mine.name]


class TestWhoseItIs:
    def test_a_folder_goes_with_its_end_and_not_before(self, cache: Path) -> None:
        with owned_folder("a", cache) as mine:
            assert abandoned(cache) == []
            sweep(cache)
            assert mine.is_dir()
        assert names(cache) == []

    def test_without_a_lock_it_stays_for_a_day(self, cache: Path) -> None:
        for name, hours in ((".a.x.partial", 30), (".b.x.partial", 20), (".mine", 99), ("c.partial", 99)):
            (cache / name).mkdir()
            old(cache / name, hours)
        sweep(cache)
        assert names(cache) == [".b.x.partial", ".mine", "c.partial"]

    def test_of_another_machine_it_stays_for_a_day(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its lock may not be seen from here: not all shared disks tell of locks."""
        folder = cache / ".a.x.partial"
        folder.mkdir()
        (folder / OWNER).write_bytes(leftovers._machine())
        assert abandoned(cache) == [folder]
        (folder / OWNER).write_bytes(b"stepscope elsewhere 1\n")
        assert abandoned(cache) == []
        old(folder)
        (folder / "ops.parquet").touch()
        assert abandoned(cache) == []
        old(folder)
        assert abandoned(cache) == [folder]

    def test_what_was_being_removed_goes_at_once(self, cache: Path) -> None:
        (cache / ".a.12345678.removed").mkdir()
        sweep(cache)
        assert names(cache) == []

    def test_a_disk_without_locks(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr("fcntl.flock", refuse)
        with owned_folder("a", cache) as mine:
            assert names(mine) == []
            assert abandoned(cache) == []
            old(mine)
            assert abandoned(cache) == [mine]

    def test_what_others_call_by_our_name_stays(self, temporary: Path) -> None:
        for name in ("stepscope-0123456789ab", "stepscope-snapshot", "stepscope-venv", "stepscope"):
            (temporary / name).mkdir()
            old(temporary / name, 1000)
        (temporary / "target").mkdir()
        (temporary / "stepscope-spill-0123456789ab").symlink_to(temporary / "target")
        assert abandoned_scratch() == []
        (temporary / "stepscope-spill-0123456789ac").mkdir()
        assert abandoned_scratch() == []
        old(temporary / "stepscope-spill-0123456789ac")
        assert [path.name for path in abandoned_scratch()] == ["stepscope-spill-0123456789ac"]


class TestScratch:
    def test_it_is_one_and_goes_when_the_process_ends(self, temporary: Path) -> None:
        code = (
            "from stepscope.store.leftovers import scratch; import os, sys\n"
            "assert scratch() == scratch(); (scratch() / 'a').touch()\n"
            "if not (child := os.fork()): assert len(os.listdir(scratch())) == 1; sys.exit()\n"
            "os.waitpid(child, 0); assert (scratch() / 'a').exists()"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        assert names(temporary) == []

    def test_it_is_made_again_if_somebody_removes_it(self) -> None:
        shutil.rmtree(scratch())
        assert scratch().is_dir()
