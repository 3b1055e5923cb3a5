"""Finds plug-ins: one function in one file, both of one name.

Some folders of this package hold plug-ins. `manifest.json` lists their names and first lines, so that
`--help` imports none of them. Other packages add theirs by entry points in the group `stepscope.<folder>`.
`python -m stepscope.registry` writes the manifest.
"""

from __future__ import annotations

import importlib
import json
import keyword
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

__all__ = ["FOLDERS", "MANIFEST", "among", "file_of", "has_plug_ins", "load", "names", "scan"]

FOLDERS = {
    "sources": "source",
    "analyses": "analysis",
    "findings.rules": "rule",
    "runs.analyses": "analysis of runs",
    "runs.rules": "rule about runs",
    "present.report": "report format",
    "present.diff": "diff format",
    "present.check": "check format",
    "exports": "export format",
    "web.pages": "page",
    "web.answers": "answer to a page",
    "cli.commands": "command",
}
"""The folders that hold plug-ins, and what one of them is called."""

PACKAGE = Path(__file__).parent
MANIFEST = PACKAGE / "manifest.json"


def names(folder: str, *, installed: bool = False) -> list[tuple[str, str]]:
    """Name and first line of every plug-in of a folder, and on demand of those of other packages."""
    own = _manifest()[folder]
    listed = list(own.items())
    if installed:
        listed += [
            (point.name, f"From the package {point.dist.name}." if point.dist else "")
            for point in _entry_points(folder)
            if point.name not in own
        ]
    return sorted(listed)


def load(folder: str, name: str) -> Callable[..., Any]:
    """The plug-in of that name; ours comes before those of other packages."""
    if name in _manifest()[folder]:
        plugin = getattr(importlib.import_module(f"stepscope.{folder}.{file_of(name)}"), file_of(name))
    else:
        for point in _entry_points(folder):
            if point.name == name:
                plugin = point.load()
                break
        else:
            raise _unknown([folder], name)
    if not callable(plugin):
        raise TypeError(f"the plug-in {name!r} of stepscope.{folder} is no function")
    return plugin  # type: ignore[no-any-return]  # callable() tells mypy nothing of the result


def among(folders: Sequence[str], name: str) -> str:
    """The first of some folders that has a plug-in of that name."""
    for folder in folders:
        if name in _manifest()[folder] or any(point.name == name for point in _entry_points(folder)):
            return folder
    raise _unknown(folders, name)


def has_plug_ins() -> bool:
    """Whether other packages bring any."""
    return any(_entry_points(folder) for folder in FOLDERS)


def scan() -> dict[str, dict[str, str]]:
    """What the manifest should hold: read from the files, without importing them."""
    return {
        folder: {
            _name_of(path): _first_line(path)
            for path in sorted(PACKAGE.joinpath(*folder.split(".")).glob("*.py"))
            if not path.name.startswith("_")
        }
        for folder in FOLDERS
    }


def file_of(name: str) -> str:
    """What the file and the function of a plug-in are called: `try_`, for Python keeps the word `try`."""
    return f"{name}_" if keyword.iskeyword(name) else name


def _name_of(path: Path) -> str:
    plain = path.stem.removesuffix("_")
    return plain if keyword.iskeyword(plain) else path.stem


@cache
def _manifest() -> dict[str, dict[str, str]]:
    manifest: dict[str, dict[str, str]] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return manifest


def _entry_points(folder: str) -> Iterable[EntryPoint]:
    """The plug-ins of other packages."""
    path = tuple(sys.path)
    return _installed(path).select(group=f"stepscope.{folder}") if _has_any(path) else ()


@cache
def _installed(_path: tuple[str, ...]) -> EntryPoints:
    """Looks once: every package on the path is asked for its entry points."""
    from importlib.metadata import entry_points

    return cast("EntryPoints", entry_points())


@cache
def _has_any(path: tuple[str, ...]) -> bool:
    """Whether a package on the path may have plug-ins: a quick look, for most have none."""
    return any(_names_plug_ins(Path(entry)) for entry in path)


def _names_plug_ins(folder: Path) -> bool:
    try:
        found = [path for path in folder.iterdir() if path.suffix in (".dist-info", ".egg-info")]
    except NotADirectoryError:
        return True  # an archive: importlib looks into it
    except OSError:
        return False
    for path in found:
        try:
            if b"[stepscope." in (path / "entry_points.txt").read_bytes():
                return True
        except OSError:
            continue
    return False


def _unknown(folders: Sequence[str], name: str) -> StepscopeError:
    known = [known for folder in folders for known, _ in names(folder, installed=True)]
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    if close:
        hint = f"did you mean {close[0]}?"
    else:
        hint = f"there are: {', '.join(known)}" if known else ""
    return StepscopeError(f"unknown {FOLDERS[folders[0]]} {name!r}", hint=hint, exit_code=2)


def _first_line(path: Path) -> str:
    """The first line of the docstring of the function that is named like its file."""
    import ast

    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == path.stem:
            docstring = ast.get_docstring(node)
            if not docstring:
                raise ValueError(f"{path}: {path.stem} has no docstring; its first line is the help text")
            return docstring.splitlines()[0]
    raise ValueError(f"{path}: holds no function {path.stem}; a file that is no plug-in starts with _")


if __name__ == "__main__":
    MANIFEST.write_text(json.dumps(scan(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
