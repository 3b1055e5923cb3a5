"""What was promised: by the user's word, or by a finding of a report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.trials import Promise

__all__ = ["promise_in", "promise_of", "promise_of_gains"]

_RANGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%?\s*(?:(?:-|–|…|\.\.|to)\s*(\d+(?:\.\d+)?)\s*%?\s*)?")


def promise_of(text: str) -> Promise:
    """A promise as people write it: `12-18 %`, `12–18`, `15 %`."""
    found = _RANGE.fullmatch(text)
    if not found:
        raise StepscopeError(
            f"--promise {text} is no gain in per cent", hint='--promise "12-18 %"', exit_code=2
        )
    low = float(found[1])
    high = float(found[2]) if found[2] else low
    return Promise(min(low, high) / 100, max(low, high) / 100)


def promise_in(path: Path, finding: str) -> Promise | None:
    """The gain of a finding in a file that `report --format json` wrote; None if it is no such file."""
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(read, dict) or not str(read.get("schema", "")).startswith("stepscope.report/"):
        return None
    gains = [(one["id"], one["gain"]["low_share"], one["gain"]["high_share"]) for one in read["findings"]]
    return promise_of_gains(gains, finding, str(path))


def promise_of_gains(gains: Iterable[tuple[str, float, float]], finding: str, source: str) -> Promise:
    """The promise of one of the findings of a report."""
    known = {name: (low, high) for name, low, high in gains}
    wanted = finding.replace("_", "-")
    if wanted not in known:
        raise StepscopeError(
            f"the report of {source} has no finding {finding}",
            hint=f"it has: {', '.join(known)}" if known else f"stepscope report {source}",
        )
    return Promise(*known[wanted], finding=wanted)
