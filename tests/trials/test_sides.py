"""Both sides of a trial, in real repositories and processes: what they see, and what stays untouched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import StepscopeError
from stepscope.trials import copies
from stepscope.trials.running import Side
from stepscope.trials.sides import Change, both_sides

SHOW = """
import json, os, sys
import part
here = os.getcwd()
print(json.dumps({
    "part": part.VALUE, "file": part.__file__, "here": here, "words": sys.argv[1:],
    "set": os.environ.get("SET_BY_TRY"),
    "numbers": open(sys.argv[1]).read().strip() if sys.argv[1:] else None,
}))
"""


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with one commit, an ignored data set and a change that is not committed."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "show.py").write_text(SHOW)
    (folder / "part.py").write_text("VALUE = 'committed'\n")
    (folder / ".gitignore").write_text("numbers/\n__pycache__/\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    (folder / "numbers").mkdir()
    (folder / "numbers" / "few.txt").write_text("1 2 3")
    (folder / "part.py").write_text("VALUE = 'changed'\n")
    monkeypatch.chdir(folder)
    return folder


PATCH = b"""--- a/part.py
+++ b/part.py
@@ -1 +1 @@
-VALUE = 'changed'
+VALUE = 'patched'
"""


def seen(side: Side) -> dict[str, Any]:
    environment = {**os.environ, **side.variables, "PYTHONPATH": os.pathsep.join(side.places)}
    done = subprocess.run(
        side.command, cwd=side.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """What git and the file system say of a folder is the same afterwards, and no work tree is left."""
    before = (git(folder, "status", "--porcelain"), (folder / "part.py").read_text())
    yield
    assert (git(folder, "status", "--porcelain"), (folder / "part.py").read_text()) == before
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_a_patch_is_on_one_side_alone(repository: Path) -> None:
    words = ["show.py", "numbers/few.txt"]
    with untouched(repository), both_sides(words, Change(("fix.diff", PATCH)), repository) as sides:
        before, after = seen(sides.before), seen(sides.after)
        assert (before["part"], after["part"]) == ("changed", "patched")
        assert before["numbers"] == after["numbers"] == "1 2 3"
        for found in (before, after):
            assert Path(found["file"]).parent == Path(found["here"]) != repository
        scratch = sides.scratch
        assert sides.commit == git(repository, "rev-parse", "--short", "HEAD").strip() + "+"
    assert not scratch.exists()


def test_a_program_in_a_copy_still_finds_its_commit(repository: Path) -> None:
    with untouched(repository), both_sides(["show.py"], Change(("fix.diff", PATCH)), repository) as sides:
        head = git(repository, "rev-parse", "HEAD")
        assert git(sides.after.folder, "rev-parse", "HEAD") == head
        assert "patched" in git(sides.after.folder, "diff")


def test_against_a_commit(repository: Path) -> None:
    with (
        untouched(repository),
        both_sides(["show.py", "numbers/few.txt"], Change(against="HEAD"), repository) as sides,
    ):
        before, after = seen(sides.before), seen(sides.after)
    assert (before["part"], after["part"]) == ("committed", "changed")
    assert before["numbers"] == "1 2 3"


def test_against_a_commit_that_is_none(repository: Path) -> None:
    with (
        pytest.raises(StepscopeError, match="no commit nowhere"),
        both_sides(["show.py"], Change(against="nowhere"), repository),
    ):
        pass


def test_against_a_commit_without_the_script(repository: Path) -> None:
    (repository / "new.py").write_text(SHOW)
    with (
        untouched(repository),
        pytest.raises(StepscopeError, match=r"there is no new\.py before the change"),
        both_sides(["new.py"], Change(against="HEAD"), repository),
    ):
        pass


def test_new_and_deleted_files_are_as_in_the_working_tree(repository: Path) -> None:
    (repository / "fresh.py").write_text("VALUE = 'fresh'\n")
    (repository / "show.py").write_text(SHOW.replace("import part", "import fresh as part"))
    (repository / "part.py").unlink()
    patch = b"--- a/fresh.py\n+++ b/fresh.py\n@@ -1 +1 @@\n-VALUE = 'fresh'\n+VALUE = 'patched'\n"
    with both_sides(["show.py"], Change(("fix.diff", patch)), repository) as sides:
        assert (seen(sides.before)["part"], seen(sides.after)["part"]) == ("fresh", "patched")
        assert not (sides.before.folder / "part.py").exists()
    assert (repository / "fresh.py").read_text() == "VALUE = 'fresh'\n"


def test_a_patch_that_does_not_apply(repository: Path) -> None:
    patch = PATCH.replace(b"'changed'", b"'other'")
    with (
        untouched(repository),
        pytest.raises(
            StepscopeError, match=r"fix\.diff does not apply: error: patch failed: part\.py:1"
        ) as refused,
        both_sides(["show.py"], Change(("fix.diff", patch)), repository),
    ):
        pass
    assert refused.value.hint.startswith("git apply --check fix.diff")


def test_a_patch_cannot_leave_the_copy(repository: Path, tmp_path: Path) -> None:
    patch = b"--- /dev/null\n+++ b/../../../outside.txt\n@@ -0,0 +1 @@\n+x\n"
    with (
        pytest.raises(StepscopeError, match="does not apply"),
        both_sides(["show.py"], Change(("fix.diff", patch)), repository),
    ):
        pass
    (repository / "numbers" / "few.txt").write_text("1 2 3\n")
    through_link = b"--- a/numbers/few.txt\n+++ b/numbers/few.txt\n@@ -1 +1 @@\n-1 2 3\n+4\n"
    with (
        pytest.raises(StepscopeError, match="symbolic link"),
        both_sides(["show.py"], Change(("fix.diff", through_link)), repository),
    ):
        pass
    assert (repository / "numbers" / "few.txt").read_text() == "1 2 3\n"


@pytest.mark.parametrize("name", ["a/part.py", "part.py", "a/inner/part.py", "inner/part.py"])
def test_from_a_folder_below_with_names_of_any_kind(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    inner = repository / "inner"
    inner.mkdir()
    (inner / "show.py").write_text(SHOW)
    (inner / "part.py").write_text("VALUE = 'changed'\n")
    monkeypatch.chdir(inner)
    if "inner" not in name:
        (repository / "part.py").write_text("VALUE = 'above'\n")
    patch = PATCH.replace(b"a/part.py", name.encode()).replace(
        b"b/part.py", name.replace("a/", "b/", 1).encode()
    )
    with both_sides(["show.py"], Change(("fix.diff", patch)), inner) as sides:
        assert (seen(sides.before)["part"], seen(sides.after)["part"]) == ("changed", "patched")
        assert sides.after.folder.name == "inner"


def test_a_script_named_from_elsewhere(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    change = Change(("fix.diff", PATCH))
    for script in ("../project/show.py", str(repository / "show.py")):
        with untouched(repository), both_sides([script], change, elsewhere) as sides:
            before, after = seen(sides.before), seen(sides.after)
        assert (before["part"], after["part"]) == ("changed", "patched")
        assert after["here"] == str(elsewhere)


def test_a_module_on_the_path_is_that_of_the_copy(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "lib").mkdir()
    (repository / "part.py").rename(repository / "lib" / "part.py")
    monkeypatch.setenv("PYTHONPATH", str(repository / "lib"))
    patch = PATCH.replace(b"part.py", b"lib/part.py")
    with both_sides(["-m", "show"], Change(("fix.diff", patch)), repository) as sides:
        assert (seen(sides.before)["part"], seen(sides.after)["part"]) == ("changed", "patched")


def test_settings_need_no_copy(repository: Path) -> None:
    change = Change(settings=("SET_BY_TRY=1", "--lr=2"))
    with untouched(repository), both_sides(["show.py", "numbers/few.txt"], change, repository) as sides:
        before, after = seen(sides.before), seen(sides.after)
    assert (before["set"], after["set"]) == (None, "1")
    assert (before["words"], after["words"]) == (["numbers/few.txt"], ["numbers/few.txt", "--lr=2"])
    assert before["here"] == after["here"] == str(repository)
    assert str(change) == "set SET_BY_TRY=1, set --lr=2"


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is in no repository."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "show.py").write_text(SHOW)
    (folder / "part.py").write_text("VALUE = 'changed'\n")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(folder)
    return folder


def test_a_folder_without_git(plain: Path) -> None:
    with both_sides(["show.py"], Change(("fix.diff", PATCH)), plain) as sides:
        assert (seen(sides.before)["part"], seen(sides.after)["part"]) == ("changed", "patched")
        assert sides.commit is None
    assert sorted(entry.name for entry in plain.iterdir() if entry.name != "__pycache__") == [
        "part.py",
        "show.py",
    ]


def test_a_folder_without_git_has_no_commits(plain: Path) -> None:
    with (
        pytest.raises(StepscopeError, match="not in a git repository"),
        both_sides(["show.py"], Change(against="HEAD"), plain),
    ):
        pass


def test_a_large_folder_without_git_is_not_copied(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_MOST_BYTES", 1000)
    (plain / "weights.bin").write_bytes(bytes(2000))
    with (
        pytest.raises(StepscopeError, match="too large to copy") as refused,
        both_sides(["show.py"], Change(("fix.diff", PATCH)), plain),
    ):
        pass
    assert refused.value.hint.startswith("git init")


def test_a_large_folder_that_git_does_not_track_is_linked(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_MOST_BYTES", 1000)
    (repository / "weights").mkdir()
    (repository / "weights" / "all.bin").write_bytes(bytes(2000))
    with both_sides(["show.py"], Change(("fix.diff", PATCH)), repository) as sides:
        assert (sides.after.folder / "weights").is_symlink()
        assert (sides.after.folder / "weights" / "all.bin").stat().st_size == 2000


def test_no_program(repository: Path) -> None:
    for words in ([], ["-m"], ["absent.py"]):
        with (
            pytest.raises(StepscopeError),
            both_sides(words, Change(settings=("A=1",)), repository),
        ):
            pass


def test_the_python_of_this_process_runs_scripts(repository: Path) -> None:
    with both_sides(["show.py"], Change(settings=("A=1",)), repository) as sides:
        assert sides.before.command == (sys.executable, "show.py")


@pytest.mark.parametrize("finder", ["mapping", "hook"])
def test_packages_that_are_installed_from_the_code(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    """Editable installs: by a finder with a table, as of setuptools, or one that nothing can come before."""
    place = repository / "src" / "part"
    place.mkdir(parents=True)
    (repository / "part.py").rename(place / "__init__.py")
    table = f"MAPPING = {{'part': {str(place)!r}}}" if finder == "mapping" else ""
    known = f"    known_source_files = {{'part': {str(place / '__init__.py')!r}}}" if finder == "hook" else ""
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "editable.py").write_text(
        f"import importlib.util, sys\n{table}\nclass Finder:\n{known}\n"
        "    @classmethod\n    def find_spec(cls, name, path=None, target=None):\n"
        "        if name == 'part':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(place / '__init__.py')!r})\n"
    )
    order = (
        "sys.meta_path.append(editable.Finder)"
        if finder == "mapping"
        else "sys.meta_path.insert(0, editable.Finder)"
    )
    (installed / "sitecustomize.py").write_text(f"import sys, editable\n{order}\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    patch = PATCH.replace(b"part.py", b"src/part/__init__.py")
    with both_sides(["show.py"], Change(("fix.diff", patch)), repository) as sides:
        before, after = seen(sides.before), seen(sides.after)
    assert before["part"] == "changed"
    assert after["part"] == ("patched" if finder == "mapping" else "changed")
    assert bool(sides.warnings) == (finder == "hook")
