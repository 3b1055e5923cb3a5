"""How a checkup of the machine is written: for the terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from stepscope.doctor import SCHEMA, Checkup
from stepscope.present._lines import Line, fitted, printed, styled, wrapped

__all__ = ["checkup_json", "checkup_text"]

_SIGNS = {"yes": ("✓", "green"), "no": ("✗", "bold red"), "unsure": ("?", "yellow")}


def checkup_text(checkup: Checkup, *, width: int, color: bool) -> str:
    """A checkup for the terminal: a line per check, and what to type below those that need it."""
    return printed(_lines(checkup, fitted(width)), color=color)


def _lines(checkup: Checkup, width: int) -> Iterator[Line]:
    longest = max(len(check.name) for check in checkup.checks)
    indent = longest + 6
    for check in checkup.checks:
        sign, style = _SIGNS[check.state]
        first, *rest = wrapped(check.said, width, indent=indent)
        told = "".join(piece for piece, _ in first).lstrip()
        yield styled(" ", (sign, style), f"  {check.name.ljust(longest)}  {told}")
        yield from rest
        if check.fix:
            yield from wrapped(f"→ {check.fix}", width, indent=indent + 2, first=" " * indent, style="cyan")
    yield styled()
    yield from wrapped(checkup.sentence, width, style="bold" if checkup.can_record else "bold red")


def checkup_json(checkup: Checkup) -> str:
    """A checkup for other programs."""
    written = {
        "schema": SCHEMA,
        "can_record": checkup.can_record,
        "can_record_devices": checkup.can_record_devices,
        "checks": [dataclasses.asdict(check) for check in checkup.checks],
    }
    return json.dumps(written, indent=2, ensure_ascii=False) + "\n"
