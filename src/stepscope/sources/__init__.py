"""Readers of profiles, one file each: `sniff` says whether a reader is meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from stepscope import registry
from stepscope.sources._input import Input
from stepscope.store.meta import Damage, SourceMeta

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["RECORD_ONE", "Damage", "Input", "Source", "SourceMeta", "reader_of", "source"]

_KINETO_BEGINS = re.compile(rb'\s*\{\s*"schemaVersion"\s*:')

RECORD_ONE = "record one with torch.profiler.profile(...).export_chrome_trace('trace.json.gz')"
"""What to type for someone whose file is no profile."""


class Source(Protocol):
    """Reads an input into a store."""

    sniff: Callable[[Input], bool]
    beside: bool
    """Whether it adds to a trace that another source began; alone it may say something, or refuse."""
    several: bool
    """Whether several such files of one process can be read together."""

    def __call__(self, given: Input, writer: StoreWriter) -> SourceMeta:
        """Reads everything, and tells what was read."""


Function = TypeVar("Function", bound=Callable[..., Any])


def source(
    *, sniff: Callable[[Input], bool], beside: bool = False, several: bool = False
) -> Callable[[Function], Function]:
    """Marks a function as a reader; `sniff` looks at `head`, `path` and `listing` of what is to be read.

    What is `beside` has no timeline of the program: given with a trace, it is read after it, and adds to it.
    Of such a kind one file is read with a trace, or `several` that fill different tables.
    """

    def mark(function: Function) -> Function:
        function.sniff = sniff  # type: ignore[attr-defined]
        function.beside = beside  # type: ignore[attr-defined]
        function.several = several  # type: ignore[attr-defined]
        return function

    return mark


def reader_of(given: Input) -> tuple[str, Source] | None:
    """The source that reads it, with its name; Kineto's is asked last, for it takes any JSON.

    What begins as Kineto writes it is no other format of ours: the readers of those need not be loaded.
    """
    own = [name for name, _ in registry.names("sources")]
    others = [name for name, _ in registry.names("sources", installed=True) if name not in own]
    if not _KINETO_BEGINS.match(given.head):
        others += own
    for name in [*sorted({*others} - {"kineto"}), "kineto"]:
        candidate = cast("Source", registry.load("sources", name))
        if candidate.sniff(given):
            return name, candidate
    return None
