"""What every command does with its TRACE: opens it with progress, or takes the small one of the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.compare import Comparison
    from stepscope.store.trace import Trace

__all__ = ["DEMO", "compared", "here", "open_with_progress"]

DEMO = Path(__file__).parent.parent / "demo" / "slow_item.pt.trace.json.gz"
"""A real profile in the package: ten steps on an H200 of a loop that reads a scalar in every layer."""


def open_with_progress(
    trace: str | None,
    *,
    also: Sequence[str] = (),
    store: Path | None = None,
    demo: bool = False,
    refresh: bool = False,
) -> Trace:
    """Opens the trace of a command line."""
    import stepscope
    from stepscope.cli.progress import ProgressLine

    if (trace is None) != demo:
        problem = "give either a trace or --demo, not both" if demo else "no trace given"
        raise StepscopeError(problem, hint="name a profile, or use --demo", exit_code=2)
    source = str(DEMO) if trace is None else trace
    return stepscope.open(source, also=also, store=store, refresh=refresh, progress=ProgressLine())


def compared(words: Sequence[str], *, store: Path | None = None) -> Comparison:
    """Compares the sides of a command line, each a word that names one recording or several."""
    from stepscope.cli.progress import ProgressLine
    from stepscope.compare.build import compare, names_of
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.opening import check_pipes, open_trace, recordings_of

    thresholds = nearest_thresholds(here())
    found = [recordings_of(word) for word in words]
    check_pipes([one for side in found for one in side])
    traces = [[open_trace(one, store=store, progress=ProgressLine()) for one in side] for side in found]
    named = zip(names_of(words), traces, strict=True)
    return compare(list(named), thresholds=thresholds, progress=ProgressLine())


def here() -> Path:
    """The folder in which the command was typed; the root of all where it is gone."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")
