"""Python: where the host's time goes, as flame graphs of calls or of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.present._blocks import block
from stepscope.present._markup import Markup, el, joined
from stepscope.web.flames import MOST_BARS, calls_in_time, of_paths, sampled_stacks, threads
from stepscope.web.grids import nothing
from stepscope.web.page import page
from stepscope.web.parts import address, heading, section, sections, table_of, tabs

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["python"]


@page(title="Python", order=23)
def python(request: Request) -> Markup:
    """Shows the host's calls as flame graphs."""
    return joined(
        [
            heading("Python", "Where the host's time goes. Callers are above what they call."),
            _graph(request),
            sections(
                [
                    section(request, "Functions", "python_frames", sort="self_ns", bar="self_ns"),
                    section(request, "Functions that the device waits for", "host_functions", sort="idle_ns",
                            bar="share", columns=("function", "idle_ns", "share", "outer_host_ns", "calls",
                                                  "user_frame", "phase", "part")),
                    section(request, "Functions of libraries", "library_functions", sort="starved_ns",
                            columns=("name", "library_frame", "module", "per_step", "host_ns", "starved_ns",
                                     "device_ns", "user_frame")),
                    section(request, "Loops that call the same again and again", "loops"),
                    section(request, "Samples of the CPU by function", "cpu_functions", sort="self_share",
                            bar="self_share", columns=("name", "module", "part", "self_share", "total_share",
                                                       "self_samples", "threads")),
                    section(request, "Samples of the CPU by kind of code", "cpu_parts", sort="all_share",
                            bar="all_share"),
                ]
            ),
        ]
    )  # fmt: skip


def _graph(request: Request) -> Markup:
    opened = request.trace
    has_calls, has_samples = len(table_of(request, "call_paths")) > 0, opened.trace.has("cpu_samples")
    if not has_calls and not has_samples:
        return nothing(["No calls on the host: record with with_stack=True, or sample with py-spy or perf."])
    order = request.options.get("order", "paths" if has_calls else "samples")
    if order not in ("time", "samples") or (order == "samples" and not has_samples):
        order = "paths" if has_calls else "samples"
    ways = [
        ("Left-heavy", "paths", has_calls),
        ("In time", "time", has_calls),
        ("Samples", "samples", has_samples),
    ]
    choices = [
        (title, address(request, "python", order=way), way == order) for title, way, able in ways if able
    ]
    shown = tabs("Order of the bars", choices)
    if order == "time":
        return joined([shown, _in_time(request)])
    if order == "samples":
        data = opened.once("sampled stacks", lambda: sampled_stacks(opened.trace))
    else:
        data = opened.once("call paths", lambda: of_paths(table_of(request, "call_paths")))
    return joined([shown, block("flame", data, label="Flame graph"), _cut(len(data.get("name", ())))])


def _in_time(request: Request) -> Markup:
    opened = request.trace
    found = opened.once("threads", lambda: threads(opened.trace))
    given = request.options.get("thread", "0")
    at = int(given) if given.isascii() and given.isdigit() and len(given) < 7 else 0
    at = min(at, len(found) - 1)
    choices = [
        (f"{one['pid']} / {one['tid']}", address(request, "python", order="time", thread=nth), nth == at)
        for nth, one in enumerate(found[:12])
    ]
    thread = found[at]["thread"]
    data = opened.once(("calls", thread), lambda: calls_in_time(opened.trace, thread))
    if not data["name"]:
        return joined([tabs("Threads", choices), nothing(["This thread has no calls with a length."])])
    drawn = block("flame", data, label="Calls in their time")
    return joined([tabs("Threads", choices), drawn, _cut(len(data["name"]))])


def _cut(bars: int) -> Markup | None:
    if bars < MOST_BARS:
        return None
    told = f"The {units.count(MOST_BARS)} longest; the timeline has all."
    return el("p", told, class_="note small muted")
