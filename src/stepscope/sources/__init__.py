"""Readers of profiles, one file each: `sniff` tells from the first bytes whether a reader is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter
    from stepscope.streams import ByteStream, Progress

__all__ = ["RECORD_ONE", "Source", "source"]

RECORD_ONE = "record one with torch.profiler.profile(...).export_chrome_trace('trace.json.gz')"
"""What to type for someone whose file is no profile."""


class Source(Protocol):
    """Reads a stream into a store."""

    sniff: Callable[[bytes], bool]

    def __call__(self, stream: ByteStream, writer: StoreWriter, progress: Progress | None) -> None:
        """Reads everything and finishes the store."""


Function = TypeVar("Function", bound=Callable[..., Any])


def source(*, sniff: Callable[[bytes], bool]) -> Callable[[Function], Function]:
    """Marks a function as a reader of profiles."""

    def mark(function: Function) -> Function:
        function.sniff = sniff  # type: ignore[attr-defined]
        return function

    return mark
