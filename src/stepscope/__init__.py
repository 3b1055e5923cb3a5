"""Says why a PyTorch program is slow: reads its profile, finds what costs time, and what to change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.capture.in_code import profile
    from stepscope.capture.own_profiler import on_trace_ready
    from stepscope.cluster.comparing import diff
    from stepscope.cluster.reporting import report
    from stepscope.opening import open_trace as open  # noqa: A004 - stepscope.open reads like io.open

    __version__: str

__all__ = ["__version__", "diff", "on_trace_ready", "open", "profile", "report", "step"]

_CAPTURE = {"profile": "in_code", "on_trace_ready": "own_profiler"}


def step() -> None:
    """Ends a step of the program, which then begins the next; without a capture it does nothing.

    Programs whose optimizer is called once in each step need no such call.
    """
    # Whoever records has imported this; a program that nobody records should not pay for an import.
    control = sys.modules.get("stepscope.capture.control")
    if control is not None:
        control.step()


def __getattr__(name: str) -> Any:
    # `import stepscope` stays cheap: what a name needs is imported when the name is used.
    if name == "__version__":
        from importlib.metadata import version

        return version("stepscope")
    if name == "open":
        from stepscope.opening import open_trace

        return open_trace
    if name == "report":
        from stepscope.cluster.reporting import report

        return report
    if name == "diff":
        from stepscope.cluster.comparing import diff

        return diff
    if name in _CAPTURE:
        from importlib import import_module

        return getattr(import_module(f"stepscope.capture.{_CAPTURE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
