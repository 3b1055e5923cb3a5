# ruff: noqa: INP001 - a script that `make docs` runs
"""Draws docs/images/terminal.svg: real commands on the demo profile, and what they print."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

TARGET = Path(__file__).with_name("terminal.svg")
COLUMNS = 80
STYLE = (
    "<style>text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    ".answer{fill:#d5dae3}.typed{fill:#8fd6a4}</style>"
)
CHARACTER, LINE, EDGE, BAR = 8.4, 19, 20, 34

COMMANDS = (("slow_item.pt.trace.json.gz", ["report", "--demo"]),)
SHOWN = 42
"""How many lines of the answer are drawn."""


def printed(arguments: list[str], cache: str) -> list[str]:
    """What stepscope prints, line by line, up to what fits the picture: whole paragraphs."""
    environment = {**os.environ, "STEPSCOPE_CACHE": cache, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "stepscope", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"stepscope {shlex.join(arguments)} failed: {done.stderr}")
    lines = done.stdout.rstrip().splitlines()
    whole = [number for number, line in enumerate(lines) if not line and number <= SHOWN]
    return [*lines[: whole[-1]], "", "…"] if len(lines) > SHOWN and whole else lines


def screen() -> list[tuple[str, str]]:
    """Lines and their kinds: what was typed, and what came back."""
    lines: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as cache:
        for typed, arguments in COMMANDS:
            first, *more = typed.splitlines()
            lines += [("typed", f"$ stepscope {first}"), *(("typed", line) for line in more)]
            lines += [("answer", line) for line in printed(arguments, cache)]
            lines.append(("answer", ""))
    return lines[:-1]


def drawn(lines: list[tuple[str, str]]) -> str:
    """The SVG: every line is stretched to its number of characters, so that columns meet in any font."""
    wide = max(len(text) for _, text in lines)
    width, height = wide * CHARACTER + 2 * EDGE, len(lines) * LINE + BAR + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">',
        STYLE,
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#1b1f27"/>',
        *(
            f'<circle cx="{22 + 18 * n}" cy="18" r="5" fill="{fill}"/>'
            for n, fill in enumerate(["#e2675d", "#e3b34f", "#6fbf6b"])
        ),
    ]
    for number, (kind, text) in enumerate(lines):
        inner = text.lstrip(" ")
        if inner:
            x = EDGE + (len(text) - len(inner)) * CHARACTER
            y = BAR + LINE * number + 14
            parts.append(
                f'<text class="{kind}" x="{x:.1f}" y="{y}" textLength="{len(inner) * CHARACTER:.1f}" '
                f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{escape(inner, quote=False)}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(drawn(screen()), encoding="utf-8")
