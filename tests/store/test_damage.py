"""Damaged stores: whatever happens to a file, the answers are those of before, or the file is named."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.commands import obey_permissions
from tests.commands import stepscope as command
from tests.drawing import Drawing

import stepscope
from stepscope.errors import StepscopeError
from stepscope.schema import DERIVED
from stepscope.store import connection
from stepscope.store.sums import DamagedStore
from stepscope.store.trace import Trace
from stepscope.store.views import VIEWS

MADE = {name for tables in DERIVED for name in tables.names}
QUICK, MANY = 16, 500


def drawn(number: int) -> Drawing:
    """Some steps with all kinds of events; those of two numbers have files of the same sizes."""
    drawing = Drawing()
    for step in range(4):
        at = 1000 * step
        drawing.mark(step, at, 900).frame(f"train.py(1{number}): step", at + 10, 800)
        for call in range(6):
            corr, begun = 10 * step + call, at + 20 + 100 * call
            drawing.op(f"aten::mm_{call}", begun, 90)
            drawing.launch("cudaLaunchKernel", begun + 10, 5 + number, corr=corr)
            drawing.kernel(f"gemm_{number}", begun + 40, 30 + call, corr=corr)
        drawing.memory(at + 30, 512 + number)
    return drawing


def answers(trace: Trace) -> dict[str, object]:
    """All rows of all views, in a few numbers, and what the store says of itself."""
    tables = [*(view.name for view in VIEWS if view.name != "meta"), "stored.runs", "stored.threads"]
    selects = [
        f"SELECT '{name}' AS of, count(*) AS n, bit_xor(hash(t)) AS rows FROM {name} t" for name in tables
    ]
    found = {row["of"]: row for row in trace.arrow(" UNION ALL ".join(selects)).to_pylist()}
    return {**found, "meta": trace.meta}


@dataclass(frozen=True)
class Whole:
    """A store that is whole, with all derived tables, and one of another profile."""

    profile: Path
    folder: Path
    other: Path
    answers: dict[str, object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return made_whole(tmp_path_factory.mktemp("whole"))


def made_whole(place: Path) -> Whole:
    """Makes them in a folder."""
    profiles = [drawn(number).write(place / f"{number}.json.gz") for number in (1, 2)]
    profiles[0] = profiles[0].rename(place / "a.json.gz")
    one, other = (stepscope.open(profile, store=place / "stores") for profile in profiles)
    answers(other)
    found = answers(one)
    # A store remembers where its profile was, and would be made again from there.
    (place / "elsewhere").mkdir()
    return Whole(profiles[0].rename(place / "elsewhere" / "a.json.gz"), one.folder, other.folder, found)


Change = Callable[[Path, Path, random.Random], None]


def flipped(file: Path, _: Path, dice: random.Random) -> None:
    raw = bytearray(file.read_bytes())
    raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
    file.write_bytes(raw)


def cut_short(file: Path, _: Path, dice: random.Random) -> None:
    raw = file.read_bytes()
    file.write_bytes(raw[: dice.randrange(len(raw))])


def made_longer(file: Path, _: Path, dice: random.Random) -> None:
    file.write_bytes(file.read_bytes() + dice.randbytes(dice.randrange(1, 100)))


def emptied(file: Path, _: Path, __: random.Random) -> None:
    file.write_bytes(b"")


def removed(file: Path, _: Path, __: random.Random) -> None:
    file.unlink()


def a_folder(file: Path, _: Path, __: random.Random) -> None:
    file.unlink()
    file.mkdir()


def swapped(file: Path, other: Path, _: random.Random) -> None:
    if file.read_bytes() == other.read_bytes():  # of a table without rows
        file.write_bytes(b"")
    else:
        shutil.copyfile(other, file)


CHANGES: tuple[Change, ...] = (cut_short, made_longer, emptied, removed, a_folder, swapped)


def changed(whole: Whole, place: Path, seed: int) -> tuple[Path, Path, str]:
    """A copy of the profile, and of its store with one file changed, half of the time by a single bit."""
    dice = random.Random(seed)
    store, profile = place / whole.folder.name, place / "a.json.gz"
    shutil.copytree(whole.folder, store)
    shutil.copyfile(whole.profile, profile)
    files = sorted(file.name for file in store.iterdir() if file.name != ".lock")
    # By turns, so that a few tries see every file.
    name = files[seed % len(files)]
    (store / name).chmod(0o644)
    change = dice.choice((*[flipped] * len(CHANGES), *CHANGES))
    change(store / name, whole.other / name, dice)
    return profile, store, name


def check_remade(whole: Whole, place: Path, seed: int, told: pytest.LogCaptureFixture) -> None:
    """Opened by its profile, a store is made again, with a line about it, and then it is whole."""
    profile, store, name = changed(whole, place, seed)
    trace = stepscope.open(profile, store=place)
    assert trace.folder == store
    found = answers(trace)
    assert {**found, "meta": trace.meta.rows} == {**whole.answers, "meta": trace.meta.rows}
    assert trace.meta.sources[0].events == 4 * (2 + 6 * 3 + 1)
    if name.partition(".")[0] not in MADE:
        assert len(told.messages) == 1
        # Where a sum was changed, the file does not have it: which of the two is wrong cannot be told.
        assert name in told.messages[0] or (name == "sums.txt" and "checksum" in told.messages[0])
        assert "made again" in told.messages[0]
    told.clear()
    stepscope.open(profile, store=place).check_stored()
    assert told.messages == []


def check_named(whole: Whole, place: Path, seed: int) -> None:
    """Opened by its folder, without the profile, a store is refused; what was derived is made again."""
    profile, store, name = changed(whole, place, seed)
    profile.unlink()
    if name.partition(".")[0] in MADE:
        assert answers(stepscope.open(store)) == whole.answers
        return
    with pytest.raises(StepscopeError) as refused:
        answers(stepscope.open(store))
    assert name in refused.value.message
    assert str(store) in refused.value.message
    assert f"rm -r {store}" in refused.value.hint


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of small files are read when a store is opened, those of large ones when they are asked."""
    if request.param == "large":
        monkeypatch.setattr(connection, "SMALL_BYTES", 0)


def check_all(whole: Whole, place: Path, seeds: range, told: pytest.LogCaptureFixture) -> None:
    told.set_level(logging.WARNING, "stepscope")
    for seed in seeds:
        check_remade(whole, place / f"{seed}-remade", seed, told)
        check_named(whole, place / f"{seed}-named", seed)
        told.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("size")
def test_a_changed_file_changes_no_answer(
    whole: Whole, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_all(whole, tmp_path, range(QUICK // 2), caplog)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("size")
def test_many_changed_files_change_no_answer(
    whole: Whole, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_all(whole, tmp_path, range(QUICK, QUICK + MANY // 2), caplog)


def test_a_store_is_made_again_where_its_profile_is_found(
    whole: Whole, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened by its folder, from anywhere, by a profile that was named from another folder."""
    drawn(1).write(tmp_path / "a.json")
    monkeypatch.chdir(tmp_path)
    store = stepscope.open("a.json", store="stores").folder.resolve()
    monkeypatch.chdir("/")
    (store / "ops.parquet").unlink()
    assert answers(stepscope.open(store))["ops"] == whole.answers["ops"]
    assert f"made again from {tmp_path}/a.json" in caplog.text
    # But not from a profile that is another by now.
    (store / "ops.parquet").unlink()
    drawn(2).write(tmp_path / "a.json")
    with pytest.raises(DamagedStore, match=r"ops\.parquet is missing"):
        stepscope.open(store)


def test_damage_that_is_found_late(
    whole: Whole, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large table that is first asked for when others were read."""
    monkeypatch.setattr(connection, "SMALL_BYTES", 0)
    trace = stepscope.open(shutil.copy(whole.profile, tmp_path), store=tmp_path)
    trace.arrow("SELECT * FROM kernels")
    raw = bytearray((trace.folder / "memory_events.parquet").read_bytes())
    raw[20] ^= 1
    (trace.folder / "memory_events.parquet").chmod(0o644)
    (trace.folder / "memory_events.parquet").write_bytes(raw)
    assert answers(trace)["memory_events"] == whole.answers["memory_events"]
    assert caplog.text.count("made again") == 1


def test_a_store_that_comes_out_otherwise_is_not_mixed_with_what_was_read(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SMALL_BYTES", 0)
    profile = shutil.copy(whole.profile, tmp_path)
    trace = stepscope.open(profile, store=tmp_path)
    trace.arrow("SELECT * FROM kernels")
    raw = (trace.folder / "memory_events.parquet").read_bytes()
    (trace.folder / "memory_events.parquet").chmod(0o644)
    (trace.folder / "memory_events.parquet").write_bytes(raw[:-9] + b"x" + raw[-8:])
    # As another version of a library would write it.
    monkeypatch.setattr("stepscope.store.columns.ROW_GROUP", 8)
    monkeypatch.setattr("stepscope.store.links.ROW_GROUP", 8)
    with pytest.raises(StepscopeError, match="made again") as found:
        trace.arrow("SELECT * FROM memory_events")
    assert found.value.hint == "type the command again"
    assert answers(stepscope.open(profile, store=tmp_path))["memory_events"] == whole.answers["memory_events"]


def test_a_damaged_store_that_cannot_be_made_again_is_named(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = shutil.copy(whole.profile, tmp_path)
    store = stepscope.open(profile, store=tmp_path).folder
    (store / "ops.parquet").unlink()

    def refuse(*_: object) -> None:
        raise StepscopeError("the disk is full", hint="none")

    monkeypatch.setattr("stepscope.opening.restore", refuse)
    with pytest.raises(DamagedStore, match=r"ops\.parquet is missing"):
        stepscope.open(profile, store=tmp_path)


@pytest.mark.slow
def test_the_command_says_it_in_one_line(whole: Whole, tmp_path: Path) -> None:
    profile = Path(shutil.copy(whole.profile, tmp_path))
    first = command("report", profile, "--format", "markdown", cache=tmp_path / "cache")
    (store,) = (tmp_path / "cache").iterdir()
    (store / "names.arrow").unlink()
    again = command("report", profile, "--format", "markdown", cache=tmp_path / "cache")
    assert (first.returncode, again.returncode, first.stderr) == (0, 0, "")
    assert again.stdout == first.stdout
    (line,) = again.stderr.splitlines()
    assert line.startswith(
        f"stepscope: the store {store} is damaged: names.arrow is missing; it is made again"
    )
    (store / "names.arrow").unlink()
    profile.unlink()
    refused = command("report", store, cache=tmp_path / "cache")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "names.arrow is missing" in refused.stderr


def test_finished_files_are_not_to_be_written(whole: Whole) -> None:
    files = [file for file in whole.folder.iterdir() if file.name != ".lock"]
    assert {file.stat().st_mode & 0o222 for file in files} == {0}
    assert {"host_tree.parquet", "meta.json", "ops.parquet", "sums.txt"} <= {file.name for file in files}


@pytest.mark.slow
def test_finished_files_are_replaced_and_cleared_all_the_same(whole: Whole, tmp_path: Path) -> None:
    profile, cache = shutil.copy(whole.profile, tmp_path), tmp_path / "cache"

    def run(*args: object) -> None:
        done = command(*args, cache=cache, prepare=obey_permissions)
        assert done.returncode == 0, done.stderr

    run("ingest", profile)
    run("ingest", profile, "--refresh")
    (store,) = cache.iterdir()
    (store / "ops.parquet").unlink()
    run("show", "ops", profile)
    assert (store / "ops.parquet").stat().st_mode & 0o222 == 0
    run("cache", "--clear")
    assert not list(cache.iterdir())
