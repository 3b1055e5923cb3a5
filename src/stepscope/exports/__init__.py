"""Formats in which a trace is written for other tools: one file each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from stepscope import registry
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.store.export import Export
    from stepscope.store.trace import Trace

__all__ = ["ExportFormat", "export_format", "format_for"]

FOLDER = "exports"
_PACKED = (".gz", ".zst")


class ExportFormat(Protocol):
    """Writes a trace to a file."""

    endings: tuple[str, ...]
    """Of its files, without those of compression; the first one is the usual one."""

    def __call__(self, trace: Trace, path: str) -> Export:
        """Writes the file; `-` is standard output."""


Function = TypeVar("Function", bound=Callable[..., Any])


def export_format(*endings: str) -> Callable[[Function], Function]:
    """Marks a function as a format of `stepscope export`; `-o x.pftrace.gz` chooses that of `.pftrace`."""

    def mark(function: Function) -> Function:
        function.endings = endings  # type: ignore[attr-defined]
        return function

    return mark


def format_for(path: str, name: str | None = None) -> ExportFormat:
    """The format of that name; without a name the one that the file's ending says."""
    known = [one for one, _ in registry.names(FOLDER, installed=True)]
    if name is not None:
        return cast("ExportFormat", registry.load(FOLDER, name))
    plain = path
    for ending in _PACKED:
        plain = plain.removesuffix(ending)
    loaded = [cast("ExportFormat", registry.load(FOLDER, one)) for one in known]
    fitting = [(ending, one) for one in loaded for ending in one.endings if plain.endswith(ending)]
    if not fitting:
        endings = ", ".join(one.endings[0] for one in loaded)
        raise StepscopeError(
            f"the name {path} does not say which format to write",
            hint=f"name one: --format {known[0]}, or end the name in one of {endings}",
            exit_code=2,
        )
    return max(fitting, key=lambda one: len(one[0]))[1]
