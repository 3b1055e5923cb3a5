"""Names of kernels: the function alone, however a tool writes them."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["function_of"]

_LONGEST = 4000
_PART = re.compile(r"(\d{1,4})")
_WORD = re.compile(r"[\w$~]+")


@lru_cache(maxsize=1 << 16)
def function_of(name: str) -> str:
    """The name of a kernel without return type, namespaces, templates and arguments.

    Tools write the same kernel in several ways: mangled, with or without arguments, with other names for what
    has none.
    """
    name = name[:_LONGEST].strip()
    if name.startswith("_Z"):
        return _demangled(name[2:]) or name
    depth, words, kept = 0, [""], ""
    for at, letter in enumerate(name):
        if letter == "(" and not depth and kept.strip() and not name.startswith("(anonymous", at):
            break  # its arguments begin
        if letter in "<({[":
            depth += 1
        if not depth:
            kept += letter
        if letter in ">)}]":
            depth = max(0, depth - 1)
    words = _WORD.findall(kept.rpartition("::")[2])
    return words[-1] if words else name


def _demangled(rest: str) -> str:
    """The last part of the nested name of a mangled one; empty where it cannot be read."""
    found = ""
    rest = rest.lstrip("NKVrL")
    while (part := _PART.match(rest)) is not None:
        size = int(part[1])
        found, rest = rest[part.end() : part.end() + size], rest[part.end() + size :]
        if len(found) < size or not size:
            return ""
        rest = rest.lstrip("L") if rest[:2] in ("L1", "L2") else rest
    return found
