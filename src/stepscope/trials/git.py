"""What is asked of git, always about one repository and never changing its files, index or branches."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from stepscope.errors import StepscopeError

__all__ = ["ask", "commit_of", "patched", "repository_of"]

_OURS = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
_NOT_PASSED_ON = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Set inside of hooks: they would name another repository than the folder does."""
_PREFIXED = re.compile(rb"^(?:---|\+\+\+) \"?[ab]/", re.MULTILINE)
"""Names in a patch that git made begin with a/ and b/."""


def ask(folder: Path, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs git in a folder; no hook of the user's runs."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    try:
        return subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *words],  # noqa: S607
            env={**environment, **_OURS},
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise StepscopeError("git is not installed", hint="install git, which makes the copies") from error


def _line(folder: Path, *words: str) -> str | None:
    asked = ask(folder, *words)
    return asked.stdout.decode(errors="replace").strip() if asked.returncode == 0 else None


def repository_of(folder: Path) -> Path | None:
    """The top folder of the repository that a folder is in; None without one, or without git."""
    if shutil.which("git") is None:
        return None
    top = _line(folder, "rev-parse", "--show-toplevel")
    return Path(top).resolve() if top else None


def commit_of(repository: Path, name: str = "HEAD") -> str:
    """The full name of a commit."""
    found = _line(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if not found:
        raise StepscopeError(f"there is no commit {name} in {repository}", hint="git log --oneline")
    return found


def patched(copy: Path, patch: bytes, name: str, inside: str) -> None:
    """Applies a patch to a copy, whatever its names are relative to."""
    refusal = ""
    places = [(), (f"--directory={inside}",)] if inside not in ("", ".") else [()]
    strips = ("-p1", "-p0") if _PREFIXED.search(patch) else ("-p0", "-p1")
    for place in places:
        for strip in strips:
            how = ("apply", strip, *place, "--whitespace=nowarn", "-")
            done = ask(copy, *how, given=patch)
            if done.returncode == 0:
                return
            refusal = refusal or done.stderr.decode(errors="replace").strip()
    raise StepscopeError(
        f"the patch {name} does not apply: {refusal}",
        hint=f"git apply --check {name}, and make it anew with git diff > {name}",
    )
