"""Cuts a part out of a trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from stepscope.cli.output import notice
from stepscope.cli.signature import Written
from stepscope.cli.traces import open_with_progress
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.store.cutting import Window
    from stepscope.store.trace import Trace

__all__ = ["cut"]

_UNITS = {"ns": 1, "us": 1000, "µs": 1000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(rf"(\d+(?:\.\d*)?|\.\d+)\s*({'|'.join(_UNITS)})")


def cut(
    trace: Annotated[str, "a profile, or the store of one"],
    *,
    steps: Annotated[
        str | None, "steps by the number in their mark, both included: 3:5, or 3, 3:, :5"
    ] = None,
    time: Annotated[str | None, "time since the first event, with units: 1.2s:1.5s, or 800ms:, :20us"] = None,
    output: Annotated[
        str,
        Written(),
        "-o",
        "the file to write: .json, .json.gz, .json.zst or .pftrace; - for standard output",
    ],
    format: Annotated[
        Literal["json", "pftrace"] | None, "what to write; default: what the ending of the file says"
    ] = None,
    force: Annotated[bool, "overwrite the output file"] = False,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Cuts some steps or a time range out of a trace, as a smaller trace.

    The result keeps all events that overlap the window, unchanged, and the metadata. It also keeps launches
    and their device work together, even if only one of them overlaps the window. Steps 3:5 are the steps 3, 4
    and 5: from the start of the mark ProfilerStep#3 to the end of ProfilerStep#5, and on until the device has
    finished what was launched by then. Marks of other steps are left out, so that part of a step is not
    taken for a whole one.
    """
    if (steps is None) == (time is None):
        raise StepscopeError(
            "cut needs a window: either --steps or --time",
            hint="stepscope cut TRACE --steps 3:5 -o FILE",
            exit_code=2,
        )
    from stepscope import units
    from stepscope.store.cutting import inside
    from stepscope.store.export import export
    from stepscope.writing import check_apart

    if Path(output).is_file() and output != "-" and not force:
        raise StepscopeError(f"{output} exists already", hint="choose another name, or overwrite it: --force")
    opened = open_with_progress(trace, store=store)
    if output != "-":
        check_apart(Path(output))
    window, shown = _steps(opened, steps) if steps is not None else _time(opened, time or "")
    if format == "pftrace" or (format is None and ".pftrace" in Path(output).suffixes):
        from stepscope.exports.pftrace import pftrace

        written = pftrace(opened, output, inside(opened, window))
    else:
        written = export(opened, output, inside(opened, window))
    where = "standard output" if output == "-" else f"{output}, {units.size(written.bytes)}"
    kept, total = units.count(written.events), units.count(opened.meta.events)
    notice(f"kept {kept} of {total} events, {shown}: {where}")


def _steps(trace: Trace, text: str) -> tuple[Window, str]:
    from stepscope import units
    from stepscope.store.cutting import step_numbers, steps_window

    found = re.fullmatch(r"\s*(\d*)\s*(:?)\s*(\d*)\s*", text)
    if not found or not (found[1] or found[3]):
        raise StepscopeError(f"--steps {text} names no steps", hint="--steps 3:5, both included", exit_code=2)
    numbers = step_numbers(trace)
    if not numbers:
        raise StepscopeError(
            f"{trace.path} has no step marks (ProfilerStep#…)", hint="cut by time: --time 1.2s:1.5s"
        )
    first = int(found[1] or numbers[0])
    last = int(found[3] or (numbers[-1] if found[2] else found[1]))
    if first > last:
        raise StepscopeError(
            f"--steps {text}: {first} is after {last}", hint=f"--steps {last}:{first}", exit_code=2
        )
    for number in (first, last):
        if number not in numbers:
            raise StepscopeError(f"the trace has no step {number}", hint=f"it has {_listed(numbers)}")
    window = steps_window(trace, first, last)
    shown = f"step {first}" if first == last else f"steps {first} to {last}, both included"
    return window, f"{shown} ({units.duration(window.end_ns - window.start_ns)})"


def _listed(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"step {numbers[0]} only"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"steps {numbers[0]} to {numbers[-1]}"
    return f"steps {', '.join(map(str, numbers[:20]))}{' …' if len(numbers) > 20 else ''}"


def _time(trace: Trace, text: str) -> tuple[Window, str]:
    from stepscope import units
    from stepscope.store.cutting import Window, extent

    start_text, colon, end_text = text.partition(":")
    if not colon:
        raise StepscopeError(
            f"--time {text} is not a time range", hint="--time 1.2s:1.5s, or 800ms:", exit_code=2
        )
    first, last = extent(trace)
    start = first + (_nanoseconds(start_text) if start_text.strip() else 0)
    end = first + _nanoseconds(end_text) if end_text.strip() else last + 1
    if start > last:
        raise StepscopeError(
            f"--time {text} begins after the end of the trace, which is {units.duration(last - first)} long"
        )
    if start >= end:
        raise StepscopeError(f"--time {text} is empty: it ends before it begins", exit_code=2)
    return Window(
        start, end
    ), f"from {units.duration(start - first)} to {units.duration(min(end, last) - first)}"


def _nanoseconds(text: str) -> int:
    """A time with its unit in ns, exact: 1.2s is 1,200,000,000."""
    from decimal import Decimal

    found = _TIME.fullmatch(text.strip())
    if not found:
        raise StepscopeError(
            f"{text.strip()!r} is not a time", hint="write a number with ns, us, ms or s: 1.2s", exit_code=2
        )
    return int(Decimal(found[1]) * _UNITS[found[2]])
