"""Readers of profiles, one file each: `sniff` says whether a reader is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stepscope.sources._input import Input
from stepscope.store.meta import Damage, SourceMeta

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["RECORD_ONE", "Damage", "Input", "Source", "SourceMeta", "source"]

RECORD_ONE = "record one with torch.profiler.profile(...).export_chrome_trace('trace.json.gz')"
"""What to type for someone whose file is no profile."""


class Source(Protocol):
    """Reads an input into a store."""

    sniff: Callable[[Input], bool]

    def __call__(self, given: Input, writer: StoreWriter) -> SourceMeta:
        """Reads everything, and tells what was read."""


Function = TypeVar("Function", bound=Callable[..., Any])


def source(*, sniff: Callable[[Input], bool]) -> Callable[[Function], Function]:
    """Marks a function as a reader; `sniff` looks at `head`, `path` and `listing` of what is to be read."""

    def mark(function: Function) -> Function:
        function.sniff = sniff  # type: ignore[attr-defined]
        return function

    return mark
