"""A profile in which every text tries to steer a terminal, a log, a page or a table."""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

from tests.commands import SLOW_ITEM

MARK = "EVIL"
"""Stands in every hostile text, so that a test sees that it was shown at all."""
LINES = "\nFORGED line\n::error::PWNED\n  ::set-output name=x::PWNED\n##[error]PWNED ##vso[task]PWNED"
SIGNS = (
    "\x1b[31m\x1b]0;title\x07\x1b[2J\r\x08\x0b\x0c\x7f\x85\x9b2J\u00ad\u034f\u061c\u115f\u180e\u200b\u200e\u202e"
    "\u2028\u2029\u2060\u2066\u3164\ufe0f\ufeff\ufff9\U000e0041\U000e0100"
)
MARKUP = "<script>alert(1)</script>\"><b>'&|`*_[x](http://evil) ]]>"
TEXT = f"=cmd|'/C calc'!A0 {MARK} {SIGNS}{LINES} {MARKUP} ::error::PWNED ::error::PWNED"
CATEGORY = f"=cmd {MARK} {SIGNS[:30]}\n::error::PWNED"
"""The same for what may have 256 bytes."""
NAME = f"=cmd {MARK}{SIGNS}{LINES} ::error::PWNED".replace("/", "_")
"""For files and folders; the shortest that has it all, for a name may have 255 bytes."""

_FORGED = re.compile(r"^\s*(?:FORGED|::[a-z-]+[^\n]*::PWNED)|##(?:\[|vso\[)", re.MULTILINE)
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_HIDDEN = {"\u034f", "\u115f", "\u3164", "\ufe0f", "\U000e0100"}


def hostile_trace(path: Path, *, evil: str = TEXT, times: float = 1.0) -> Path:
    """A real profile whose texts end in what is hostile; what stepscope knows names by comes first."""
    trace = json.loads(gzip.decompress(SLOW_ITEM.read_bytes()))
    for event in trace["traceEvents"]:
        _spoil_event(event, evil, times)
    for device in trace["deviceProperties"]:
        device["name"] += evil
    begun = max(event["ts"] for event in trace["traceEvents"] if event.get("ph") == "X")
    more = [
        {"ph": "X", "cat": CATEGORY, "name": evil, "pid": 1, "tid": 2, "ts": begun + 1, "dur": 5},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": evil}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": evil}},
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": evil,
            "pid": evil,
            "tid": evil,
            "ts": begun + 5,
            "dur": 5,
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": evil,
            "pid": 1,
            "tid": 2,
            "ts": begun + 9,
            "dur": 5,
            "args": {evil: evil},
        },
    ]
    trace |= {"host_name": evil, evil: evil, "cuda_driver_version": evil, "hip_runtime_version": evil}
    trace["traceEvents"] += more
    written = json.dumps(trace)
    path.write_text(f"{written[:-1]}, damaged N/A{written[-1]}", encoding="utf-8")
    return path


def _spoil_event(event: dict[str, Any], evil: str, times: float) -> None:
    if event.get("ph") == "X":
        event["dur"] = event.get("dur", 0) * times if event.get("cat") == "kernel" else event.get("dur", 0)
        if not event["name"].startswith("ProfilerStep#"):
            event["name"] += evil if event["cat"] != "cuda_runtime" else ""
    for key, value in event.get("args", {}).items():
        if isinstance(value, str) and event.get("ph") == "M":
            event["args"][key] = value + evil


def check_text(text: str, *, colour: bool = False, commands: bool = False) -> None:
    """That a text does to no terminal or log what a profile says."""
    assert "\x1b[31mEVIL" not in text
    assert "\x1b[31m\x1b]0" not in text
    plain = _COLOUR.sub("", text) if colour else text
    for sign in set(plain) - set("\n\t"):
        odd = unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") or sign in _HIDDEN
        assert not odd, (
            f"U+{ord(sign):04X} after {plain[max(0, plain.index(sign) - 60) : plain.index(sign)]!r}"
        )
    if commands:
        for line in plain.splitlines():
            assert re.match(r"::(notice|warning|error) (file|title)=[^:]*::(?! *PWNED)", line), line
    else:
        assert not _FORGED.search(plain), plain[max(0, _FORGED.search(plain).start() - 200) :][:500]  # type: ignore[union-attr]
