"""Which version of the program ran: its commit, and how much was changed since."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["folder_of_program", "repository"]

_LONGEST_S = 0.4
"""In all. On a slow network disk, git may look at a hundred thousand files."""
# Nothing that a repository's own settings may start, no locks, no questions, no fetching.
_ALONE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
_COUNTS = {"files": r"(\d+) files? changed", "insertions": r"(\d+) insertion", "deletions": r"(\d+) deletion"}


def folder_of_program() -> Path:
    """Where the program's main file lies; where it has none, as in a notebook, the current folder."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if isinstance(main, str) else Path.cwd()


def repository(folder: Path) -> dict[str, Any]:
    """Commit, whether anything was changed since, and by how many lines; untracked files do not count.

    Raises `LookupError` with the reason where git does not tell, after half a second at most.
    """
    until = time.monotonic() + _LONGEST_S
    commit = _git(folder, until, "rev-parse", "--verify", "HEAD").strip()
    changed = _git(folder, until, "diff", "HEAD", "--shortstat", "--no-ext-diff", "--no-textconv")
    found = {name: re.search(pattern, changed) for name, pattern in _COUNTS.items()}
    counts = {name: int(match[1]) if match else 0 for name, match in found.items()}
    return {
        "commit": commit,
        "dirty": bool(changed.strip()),
        "changed_files": counts["files"],
        "inserted_lines": counts["insertions"],
        "deleted_lines": counts["deletions"],
    }


def _git(folder: Path, until: float, *words: str) -> str:
    import subprocess  # slow to import, and asked for once

    try:
        done = subprocess.run(  # noqa: S603  # its words are our own
            ("git", "-C", str(folder), *_ALONE, *words),  # noqa: S607  # the user's own git
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.05, until - time.monotonic()),
            env={**os.environ, **_QUIET},
            check=False,
        )
    except FileNotFoundError:
        raise LookupError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise LookupError(f"git took longer than {_LONGEST_S:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise LookupError(said[-1][:200] if said else f"git ended with {done.returncode}")
    return done.stdout.decode(errors="replace")
