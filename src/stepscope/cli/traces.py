"""What every command does with its TRACE: opens it with progress, or takes the small one that comes along."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["DEMO", "open_with_progress"]

DEMO = Path(__file__).parent.parent / "demo" / "slow_item.pt.trace.json.gz"
"""A real profile that comes along: ten steps on an H200 of a loop that reads a scalar in every layer."""


def open_with_progress(
    trace: str | None, *, store: Path | None = None, demo: bool = False, refresh: bool = False
) -> Trace:
    """Opens the trace of a command line."""
    import stepscope
    from stepscope.cli.progress import Line

    if (trace is None) != demo:
        problem = "a trace and --demo do not go together" if demo else "a trace is missing"
        raise StepscopeError(problem, hint="name a profile, or try it with --demo", exit_code=2)
    source = str(DEMO) if trace is None else trace
    return stepscope.open(source, store=store, refresh=refresh, progress=Line())
