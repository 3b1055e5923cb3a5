"""Says why a PyTorch program is slow: reads its profile, finds what costs time, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.opening import diff, report
    from stepscope.opening import open_trace as open  # noqa: A004 - stepscope.open reads like io.open

    __version__: str

__all__ = ["__version__", "diff", "open", "report"]


def __getattr__(name: str) -> Any:
    # `import stepscope` stays cheap: what a name needs is imported when the name is used.
    if name == "__version__":
        from importlib.metadata import version

        return version("stepscope")
    if name == "open":
        from stepscope.opening import open_trace

        return open_trace
    if name in ("diff", "report"):
        from stepscope import opening

        return getattr(opening, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
