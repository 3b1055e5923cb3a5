"""Copies of a program's code: what it is now, with a patch, or at another commit.

Code is copied. What git does not track, as training sets and environments, is linked: it may be large, and a
program finds it where it expects it. The user's own files are never changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stepscope import units
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.trials import git

__all__ = ["Code", "code_of", "copied", "moved", "moved_paths"]

_MOST_BYTES, _MOST_FILES = 200_000_000, 20_000
"""So much of what git does not track is copied."""
_LEFT_OUT = ("__pycache__", ".git", "stepscope-runs", ".mypy_cache", ".pytest_cache", ".ruff_cache")

# The places from which Python imports; editable packages are there by a path, or by a finder with a table.
_PLACES = """
import json, sys
found = list(sys.path)
hooked = []
for finder in sys.meta_path:
    module = sys.modules.get(getattr(finder, "__module__", ""), None)
    table = getattr(module, "MAPPING", None)
    if isinstance(table, dict):
        found += [str(place).rpartition("/")[0] for place in table.values()]
    known = getattr(finder, "known_source_files", None)
    if isinstance(known, dict):
        hooked += [str(place) for place in known.values()]
print(json.dumps([found, hooked]))
"""


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a program: the folder that is copied, and where in it the program is started."""

    top: Path
    in_git: bool
    start: Path
    """The folder in which the command was typed."""

    @property
    def inside(self) -> str:
        """Where below the top that is; empty if it is elsewhere."""
        return str(self.start.relative_to(self.top)) if self.start.is_relative_to(self.top) else ""

    @property
    def commit(self) -> str | None:
        """The commit that is checked out, short; with a + for changes that are not committed."""
        if not self.in_git:
            return None
        asked = git.ask(self.top, "rev-parse", "--short", "HEAD")
        if asked.returncode:
            return None
        changed = git.ask(self.top, "status", "--porcelain", "--untracked-files=no").stdout.strip()
        return asked.stdout.decode().strip() + ("+" if changed else "")


def code_of(words: Sequence[str], start: Path) -> Code:
    """Where the code of a program is: the repository of its script, or that of the current folder."""
    start = start.resolve()
    script = start / words[0] if words and words[0] not in ("-m", "--") else None
    folder = script.resolve().parent if script is not None and script.is_file() else start
    top = git.repository_of(folder)
    if top is not None:
        return Code(top, in_git=True, start=start)
    if start in (folder, *folder.parents) and start != Path.home():
        folder = start
    _check_size(folder)
    return Code(folder, in_git=False, start=start)


@contextlib.contextmanager
def copied(code: Code, to: Path, commit: str | None = None) -> Iterator[Path]:
    """A copy of the code, as it is now or at a commit, that is removed in the end."""
    try:
        try:
            if code.in_git:
                _check_out(code.top, to, commit)
            else:
                _copy_folder(code.top, to)
        except OSError as error:
            raise StepscopeError(
                f"{code.top} cannot be copied to {to}: {error.strerror or error}",
                hint="use another disk: TMPDIR=FOLDER stepscope try …",
            ) from error
        yield to
    finally:
        shutil.rmtree(to, ignore_errors=True)
        if code.in_git:
            git.ask(code.top, "worktree", "prune")


def _check_out(top: Path, to: Path, commit: str | None) -> None:
    """Fills a work tree of its own: with a commit, or with the files as they are."""
    if commit is not None:
        made = git.ask(top, "worktree", "add", "--detach", str(to), commit)
        if made.returncode:
            said = made.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise StepscopeError(f"git cannot check out {commit}: {' '.join(said)}", hint="git worktree list")
    else:
        made = git.ask(top, "worktree", "add", "--detach", "--no-checkout", str(to))
        if made.returncode:  # as in a repository without a commit: the program does not see one then
            to.mkdir(parents=True, exist_ok=True)
        _copy(top, to, _listed(top, "--cached"))
        untracked = _listed(top, "--others", "--exclude-standard", "--directory")
        small = [name for name in untracked if _is_small(top / name)]
        _copy(top, to, small)
        _link(top, to, [name for name in untracked if name not in small])
        git.ask(to, "reset", "--quiet")
    _link(top, to, _listed(top, "--others", "--ignored", "--exclude-standard", "--directory"))
    _link(top, to, _modules(top))


def _listed(top: Path, *words: str) -> list[str]:
    return [os.fsdecode(name) for name in git.ask(top, "ls-files", "-z", *words).stdout.split(b"\0") if name]


def _modules(top: Path) -> list[str]:
    """Repositories inside of this one."""
    lines = _listed(top, "--stage")
    return [line.partition("\t")[2] for line in lines if line.startswith("160000 ")]


def _copy(top: Path, to: Path, names: Iterable[str]) -> None:
    """Copies files and folders as they are."""
    for name in dict.fromkeys(names):
        source, target = top / name, to / name
        if not os.path.lexists(source) or set(Path(name).parts) & set(_LEFT_OUT):
            continue  # one that is deleted is in the list
        target.parent.mkdir(parents=True, exist_ok=True)
        if not source.is_dir() or source.is_symlink():
            shutil.copy2(source, target, follow_symlinks=False)
        elif name.endswith("/"):  # without it, it is another repository
            _copy_folder(source, target)


def _copy_folder(source: Path, target: Path) -> None:
    shutil.copytree(
        source, target, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True
    )


def _link(top: Path, to: Path, names: Iterable[str]) -> None:
    """Links files and folders that are not in the copy."""
    for name in names:
        source, target = top / name.rstrip("/"), to / name.rstrip("/")
        if source.name in _LEFT_OUT or source.suffix == ".pyc" or not source.exists():
            continue
        if target.is_dir() and not target.is_symlink() and not any(target.iterdir()):
            target.rmdir()
        if not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)


def _is_small(place: Path) -> bool:
    """Whether a file or folder is small enough to be copied."""
    files, size = 0, 0 if place.is_dir() else place.lstat().st_size
    for where, folders, names in os.walk(place):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            with contextlib.suppress(OSError):
                files, size = files + 1, size + os.lstat(os.path.join(where, name)).st_size  # noqa: PTH118
        if files > _MOST_FILES or size > _MOST_BYTES:
            return False
    return size <= _MOST_BYTES


def _check_size(folder: Path) -> None:
    """Refuses to copy a folder that holds more than code."""
    if not _is_small(folder):
        raise StepscopeError(
            f"{folder} is not in a git repository, and is too large to copy: it holds more than "
            f"{_MOST_BYTES // 1_000_000} MB or {units.count(_MOST_FILES)} files",
            hint=f"git init {folder}, and git add the code: large files that git does not track are linked",
        )


def moved(word: str, code: Code, copy: Path) -> str:
    """A path into the code as one into the copy; any other word stays."""
    if code.inside and not os.path.isabs(word):  # noqa: PTH117
        return word  # relative to a folder that moved as well
    path = code.start / word
    if not os.path.lexists(path):
        return word
    place = path.parent.resolve() / path.name
    if not place.is_relative_to(code.top) or not os.path.lexists(copy / place.relative_to(code.top)):
        return word
    return str(copy / place.relative_to(code.top))


def moved_paths(python: str, code: Code, copy: Path) -> tuple[list[str], bool]:
    """The places in the copy from which the program's Python imports, and whether some cannot be moved."""
    try:
        asked = subprocess.run(  # noqa: S603
            [python, "-c", _PLACES], capture_output=True, check=True, timeout=60, stdin=subprocess.DEVNULL
        )
        places, hooked = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return [], False  # no Python: then nothing is imported
    found = []
    for place in filter(None, places):
        path = Path(place).resolve()
        if path.is_relative_to(code.top) and (copy / path.relative_to(code.top)).is_dir():
            target = copy / path.relative_to(code.top)
            if not target.is_symlink() and "site-packages" not in path.parts:
                found.append(str(target))
    kept = any(Path(place).resolve().is_relative_to(code.top) for place in hooked)
    return list(dict.fromkeys(found)), kept
