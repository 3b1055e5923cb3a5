"""The two sides of a trial: which code they run, with which arguments and variables, and where."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepscope.capture.launching import command_of
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.trials import git
from stepscope.trials.arguments import settings_of
from stepscope.trials.copies import Code, code_of, copied, moved, moved_paths
from stepscope.trials.running import Side

__all__ = ["Change", "Sides", "both_sides"]


@dataclass(frozen=True, slots=True)
class Change:
    """What differs after the change."""

    patch: tuple[str, bytes] | None = None
    """The name of a patch, and what is in it."""
    against: str | None = None
    """The commit before the change; after it is the code as it is now."""
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = [f"patch {Path(self.patch[0]).name}"] if self.patch else []
        told += [f"against {self.against}"] if self.against else []
        told += [f"set {shlex.quote(one)}" for one in self.settings]
        return ", ".join(told)


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides, ready to run."""

    before: Side
    after: Side
    commit: str | None
    scratch: Path
    """A folder for what runs write; it is removed in the end."""
    warnings: tuple[str, ...] = ()


@contextlib.contextmanager
def both_sides(words: Sequence[str], change: Change, start: Path) -> Iterator[Sides]:
    """Makes copies of the code where the sides differ in it; everything is removed in the end."""
    command_of(words)  # says what is wrong with it before anything is copied
    changed, variables = settings_of(change.settings, words)
    with contextlib.ExitStack() as stack:
        scratch = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="stepscope-try-", ignore_cleanup_errors=True)
            )
        ).resolve()
        if change.patch is None and change.against is None:
            commit = _commit(start)
            before = Side("before the change", tuple(command_of(words)), start)
            after = Side("after the change", tuple(command_of(changed)), start, variables)
            yield Sides(before, after, commit, scratch)
            return
        code = code_of(words, start)
        earlier = _commit_before(code, change)
        copies = [
            stack.enter_context(copied(code, scratch / "before" / code.top.name, earlier)),
            stack.enter_context(copied(code, scratch / "after" / code.top.name)),
        ]
        if change.patch is not None:
            git.patched(copies[1], change.patch[1], change.patch[0], code.inside)
        before = _moved_side("before the change", words, code, copies[0])
        after = _moved_side("after the change", changed, code, copies[1])
        after = Side(after.name, after.command, after.folder, variables, after.places)
        yield Sides(before, after, code.commit, scratch, _warnings(before.command[0], code, copies[0]))


def _commit_before(code: Code, change: Change) -> str | None:
    if change.against is None:
        return None
    if not code.in_git:
        raise StepscopeError(
            f"{code.top} is not in a git repository, so there is no {change.against}",
            hint="--patch FILE, or --set NAME=VALUE",
        )
    return git.commit_of(code.top, change.against)


def _moved_side(name: str, words: Sequence[str], code: Code, copy: Path) -> Side:
    """The program in a copy: started at the same place, its own files named there."""
    command = command_of(words)
    place = command.index(words[0]) if words and words[0] in command else 1
    moved_words = [*command[:place], *(moved(word, code, copy) for word in command[place:])]
    folder = copy / code.inside if code.inside else code.start
    if not folder.is_dir():
        raise StepscopeError(f"there is no folder {code.inside} {name}", hint="git show --stat COMMIT")
    script = Path(moved_words[place]) if words[0] not in ("-m", "--") else None
    if script is not None and script.suffix == ".py" and not (folder / script).exists():
        raise StepscopeError(f"there is no {words[0]} {name}", hint=f"git log -- {words[0]}")
    places, _ = moved_paths(_python_of(command), code, copy)
    places += [moved(place, code, copy) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return Side(name, tuple(moved_words), folder, places=tuple(dict.fromkeys(filter(None, places))))


def _python_of(command: Sequence[str]) -> str:
    """The Python that most likely runs the program."""
    return command[0] if "python" in Path(command[0]).name else sys.executable


def _warnings(program: str, code: Code, copy: Path) -> tuple[str, ...]:
    _, is_kept = moved_paths(_python_of([program]), code, copy)
    if not is_kept:
        return ()
    said = (
        f"A package is installed from {code.top} with an import hook, which copies cannot replace: "
        "its modules are the same on both sides."
    )
    return (said,)


def _commit(start: Path) -> str | None:
    top = git.repository_of(start)
    return Code(top, in_git=True, start=start).commit if top else None
