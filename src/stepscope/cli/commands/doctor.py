"""Says what this machine can record."""

from __future__ import annotations

import shutil
import sys
import tempfile
from typing import Annotated, Literal

from stepscope.cli.output import color, put, width
from stepscope.errors import StepscopeError

__all__ = ["doctor"]

_FACTS_S, _RECORD_S = 90.0, 120.0


def doctor(
    *,
    python: Annotated[str | None, "the Python that runs your program (default: this one)"] = None,
    format: Annotated[Literal["terminal", "json"], "how to write the result"] = "terminal",
) -> int:
    """Says what this machine can record, and what to type for what it cannot.

    Looks at Python, torch, the driver and the limits of the container, and records a tiny profile to see what
    comes back. ✓ is fine, ✗ is in the way, ? may be, or leaves a part out. The exit code is 0 if a profile
    can be recorded, and 1 if not.
    """
    from stepscope.doctor.asking import Answer, ask
    from stepscope.doctor.judging import judged
    from stepscope.doctor.machine import look
    from stepscope.present._checkup import checkup_json, checkup_text

    chosen = python or sys.executable
    if shutil.which(chosen) is None:
        raise StepscopeError(f"there is no Python {chosen}", hint="stepscope doctor --python $(which python)")
    facts = ask(chosen, "facts", _FACTS_S)
    record = (
        ask(chosen, "record", _RECORD_S) if facts.told.get("torch") else Answer(problem="there is no torch")
    )
    checkup = judged(facts, record, look(), _cache_problem(), chosen)
    put(checkup_json(checkup) if format == "json" else checkup_text(checkup, width=width(), color=color()))
    return 0 if checkup.can_record else 1


def _cache_problem() -> str:
    """Why stores cannot be kept; empty if they can."""
    from stepscope.store import cache

    try:
        folder = cache.root()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except StepscopeError as error:
        return error.message
    except OSError as error:
        return f"cannot be written to: {error.strerror or error}"
    return ""
