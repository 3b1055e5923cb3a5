"""What messages of torch's compilers say: graph breaks, guards that failed, CUDA graphs that were skipped."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["graph_break", "graph_skip", "guard_failures", "kernels_in_code", "lines_of_nodes"]

LONGEST = 1000
"""Characters of a text that is kept."""
_AT = re.compile(r"Graph break (?:\([^)\n]*\) )?in user code at (.{1,1000}):(\d{1,9})\s*$", re.MULTILINE)
_FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}), in (\S[^\n]{0,300})\n?[ \t]*([^\n]{0,500})')
_REASON = re.compile(r"^\s*(?:Graph Break )?Reason: (.*)", re.MULTILINE)
_GENERAL = re.compile(r"^(Encountered graph break|Failed to handle graph break gracefully)")
_HINT = re.compile(r"^\s*Hint: (.+)$", re.MULTILINE)
_SKIPPED = (
    "will skip tracing the frame",
    "which results in a skip",
    "Skipping the function and falling back to eager",
    "Skipping the frame and falling back to eager",
)
_OWN_TRACEBACK = "Traceback (most recent call last)"


def graph_break(text: str) -> dict[str, Any]:
    """Where tracing could not go on, and why."""
    told = text.partition(_OWN_TRACEBACK)[0]  # what follows is torch's own stack
    frames = _FRAME.findall(told)
    at = _AT.search(told)
    file, line = (
        (at[1], int(at[2])) if at else (frames[-1][0], int(frames[-1][1])) if frames else (None, None)
    )
    inner = next((one for one in reversed(frames) if (one[0], int(one[1])) == (file, line)), None)
    hint = _HINT.search(text)
    return {
        "file": file,
        "line": line,
        "function": inner[2] if inner else None,
        "code": inner[3].strip() or None if inner else None,
        "reason": _reason(text, told),
        "hint": hint[1].strip()[:LONGEST] if hint else None,
        "skipped": int(any(words in told for words in _SKIPPED)),
    }


def _reason(text: str, told: str) -> str:
    """The first line that says something of this break: newer versions say what they traced before it."""
    found = _REASON.search(told)
    lines = (told[found.start(1) :] if found else _after_own_stack(text) or told).splitlines()
    for line in lines:
        if line.strip() and not _GENERAL.match(line.strip()):
            said = line.strip().removeprefix("Graph break: ").removesuffix(" from user code at:")
            return said[:LONGEST]
    return "no reason given"


def _after_own_stack(text: str) -> str:
    """The error at the end of torch's own stack, where nothing else gives a reason."""
    errors = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception|Unsupported)\b:? ?[^\n]*)", text, re.MULTILINE)
    return errors[-1] if errors else ""


_RECOMPILING = re.compile(r"Recompiling function (.{1,300}) in (.{1,1000}):(\d{1,9})")
_VERSION = re.compile(r"^\s*(?:- )?((?:!\d+/)?\d+/\d+(?:_\d+)?): (.*)$")
_LIMIT = re.compile(r"hit config\.(\w*(?:recompile|cache_size)_limit)")
_OF = re.compile(r"function: '([^'\n]{1,300})' \((.{1,1000}):(\d{1,9})\)")
_LAST = re.compile(r"last reason: (.+)")


def guard_failures(reasons: list[str]) -> list[dict[str, Any]]:
    """The guards that failed, each with the version that it belongs to."""
    told = "\n".join(reasons)
    place = _RECOMPILING.search(told) or _OF.search(told)
    limit = _LIMIT.search(told)
    named = dict(zip(("function", "file", "line"), place.groups(), strict=True)) if place else {}
    if "line" in named:
        named["line"] = int(named["line"])
    if limit:
        last = _LAST.search(told)
        reasons = [last[1] if last else f"the limit {limit[1]} is reached"]
    lines = [_VERSION.match(line) for reason in reasons for line in reason.splitlines()]
    failed = [{**named, "version": found[1], **_guard(found[2])} for found in lines if found]
    if not failed:  # older versions do not say which version it is of
        listed = [line.strip() for reason in reasons for line in reason.splitlines() if line.strip()]
        guards = [line[2:] for line in listed if line.startswith("- ")] or listed[:1]
        failed = [{**named, "version": None, **_guard(line)} for line in guards]
    return [
        {"function": None, "file": None, "line": None, "limit": int(bool(limit)), **one} for one in failed
    ]


def _guard(text: str) -> dict[str, str | None]:
    """A guard, and the line of the program that made it, which newer versions add as a comment."""
    guard, _, comment = text.strip().partition("  #")
    code = comment.strip().partition("  # ")[0].strip()
    return {"guard": guard.strip()[:LONGEST] or "unknown", "code": code[:LONGEST] or None}


_SKIP = re.compile(r"skipping cudagraphs due to (.+)", re.IGNORECASE)
_FROM = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9})')


def graph_skip(text: str) -> dict[str, Any] | None:
    """Why no CUDA graph was made, if a text says so."""
    if not (found := _SKIP.search(text)):
        return None
    reason = found[1].strip().rstrip(".").removesuffix(". Found from :").removesuffix(" Found from :")
    places = _FROM.findall(text)
    return {"reason": reason[:LONGEST], "place": ":".join(places[-1]) if places else None}


_MADE = re.compile(r"^\s*(\w{1,500}) = async_compile\.(\w+)\(", re.MULTILINE)
_ATEN = re.compile(r"# Topologically Sorted Source Nodes: \[.*?\], Original ATen: \[(.*?)\]")
_NODE = re.compile(r"^\s*#\s+%(\w+) : ", re.MULTILINE)


def kernels_in_code(code: str) -> dict[str, dict[str, Any]]:
    """The kernels that Inductor's code defines, with operators and nodes, by the comments above each."""
    found: dict[str, dict[str, Any]] = {}
    before = 0
    for one in _MADE.finditer(code):
        above = code[before : one.start()]
        before = one.end()
        ops = [match for match in _ATEN.findall(above) if match]
        at = above.rfind("# Topologically Sorted")
        nodes = _NODE.findall(above[at:]) if at >= 0 else []
        found[one[1]] = {"ops": _few(ops[-1].split(", ") if ops else ()), "nodes": list(dict.fromkeys(nodes))}
    return found


def _few(names: Any) -> str | None:
    return ", ".join(dict.fromkeys(name.strip() for name in names if name.strip()))[:LONGEST] or None


_GRAPH_LINE = re.compile(
    r"^\s*(?:# File: (.{1,1000}?):(\d{1,9}) in \S[^,\n]{0,300}, code: ([^\n]{0,500})"
    r"|# (No stacktrace)|(\w+)(?:: \"[^\"\n]*\")? = )",
    re.MULTILINE,
)


def lines_of_nodes(graph: str) -> dict[str, tuple[str, str]]:
    """The line of the program that each node of a printed graph came from, and its text."""
    found: dict[str, tuple[str, str]] = {}
    current: tuple[str, str] | None = None
    for file, line, code, none, node in _GRAPH_LINE.findall(graph):
        if file:
            current = (f"{file}:{line}", code.strip())
        elif none:
            current = None
        elif current:
            found[node] = current
    return found
