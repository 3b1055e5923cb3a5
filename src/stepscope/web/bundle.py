"""Modules of scripts as one script: a page asks the server once, and a page that is saved has them all.

Our modules keep to one style, which a test sees to: an `import` names what it takes from a relative address,
an `export` stands before a function, class or constant, and nobody imports in a circle. So each module
becomes a function that gives what it exports, called after those that it imports.
"""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from pathlib import Path

__all__ = ["EXPORT", "IMPORT", "blocks_of", "bundled"]

IMPORT = re.compile(r'^import (?:\{([^}]*)\}|\* as (\w+)) from "(\.[^"]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function\*?|class|const) (\w+))", re.MULTILINE)
LOAD = re.compile(r"\bimport\(")
_BLOCK = re.compile(r' data-block="(\w+)"')
_STATIC = Path(__file__).parent / "static"


def blocks_of(content: str) -> list[str]:
    """The modules that draw the blocks of a page."""
    return [f"blocks/{kind}.js" for kind in dict.fromkeys(_BLOCK.findall(content))]


@lru_cache(maxsize=64)
def bundled(*entries: str) -> str:
    """The modules of these names, and all that they import, as one script that runs the first one last."""
    order: list[str] = []
    for name in reversed(entries):
        _visit(name, order, ())
    parts = [_module(name) for name in order]
    # Names are those of our own files, and what is loaded later has to be one of them.
    return "\n".join(
        [
            "const modules = {};",
            "const load = (from, name) => {",
            "  const found = modules[new URL(name, `file:///${from}`).pathname.slice(1)];",
            "  if (found) return Promise.resolve(found);",
            '  return Promise.reject(new Error("this part is not in the script"));',
            "};",
            *parts,
            "",
        ]
    )


def _visit(name: str, order: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import each other: {' -> '.join((*above, name))}")
    if name in order:
        return
    for found in IMPORT.finditer(_text(name)):
        _visit(_beside(name, found[3]), order, (*above, name))
    order.append(name)


def _module(name: str) -> str:
    text = _text(name)
    exports = [found[1] for found in EXPORT.finditer(text)]
    body = EXPORT.sub("", IMPORT.sub(lambda found: _taken(name, found), text))
    body = LOAD.sub(f'load("{name}", ', body)
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exports)} }};\n}})();'


def _taken(name: str, found: re.Match[str]) -> str:
    """What an import takes, from the module that ran before."""
    source = f'modules["{_beside(name, found[3])}"]'
    if found[2]:
        return f"const {found[2]} = {source};"
    names = re.sub(r"(\w+) as (\w+)", r"\1: \2", found[1])
    return f"const {{{names}}} = {source};"


def _beside(name: str, address: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), address))


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
