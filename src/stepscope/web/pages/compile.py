"""What torch.compile did: regions, compilations, graph breaks, recompilations, phases, generated kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.present._markup import Markup, joined
from stepscope.web.grids import RowLink
from stepscope.web.page import page
from stepscope.web.parts import Part, beginning, heading, in_timeline, section, sections

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["compile"]


@page(title="Compile", order=35)
def compile(request: Request) -> Markup:  # noqa: A001 - the page is named so
    """Shows what torch.compile compiled, what broke it, and what it made."""
    return joined(
        [
            heading(
                "Compile", "What torch.compile and CUDA graphs did, by the profile and by a compile log."
            ),
            sections([*_of_log(request), *_of_profile(request)]),
        ]
    )


def _of_profile(request: Request) -> list[Part]:
    at = [in_timeline(request, "start_ns", "from")]
    return [
        section(request, "Compiled regions", "compiled_regions", sort="device_ns", bar="device_ns",
                columns=("region", "inside", "calls", "calls_per_step", "regions_inside", "host_self_ns",
                         "device_ns", "graph_launches", "backward_device_ns", "compiling_ns"),
                told="Regions inside a region let suspect a graph break."),
        section(request, "Compiling inside the profile", "compilations", sort="total_ns",
                bar="total_ns", links=at),
        section(request, "Replayed CUDA graphs", "graph_replays", sort="span_ns", links=at,
                columns=("graph", "step", "start_ns", "kernels", "span_ns", "busy_ns", "idle_ns",
                         "launch_ns")),
        section(request, "What a run does once", "start_ups", sort="total_ns", bar="total_ns", links=at),
    ]  # fmt: skip


def _of_log(request: Request) -> list[Part]:
    kernel = [RowLink("The kernel in the trace", beginning(request, "kernels", "kernel"), "name")]
    return [
        section(request, "Graph breaks", "graph_break_lines", sort="breaks", bar="breaks",
                columns=("place", "reason", "code", "breaks", "regions", "skipped")),
        section(request, "Recompilations", "recompile_guards", sort="compiling_ns", bar="compiling_ns",
                columns=("function", "guard", "recompilations", "versions", "compiling_ns", "gave_up")),
        section(request, "Compilations", "compile_units", sort="dur_ns", bar="dur_ns",
                columns=("function", "region", "kind", "dur_ns", "inductor_ns", "code_ns", "restarts_ns",
                         "graph_ops", "breaks", "cache")),
        section(request, "Phases", "compile_phases", sort="self_ns", bar="share",
                columns=("name", "self_ns", "share", "total_ns", "times", "longest_ns", "longest_region")),
        section(request, "Generated kernels", "generated_kernels", sort="device_ns", bar="share",
                links=kernel,
                columns=("name", "device_ns", "share", "calls", "ops", "lines", "compile_ns", "configs")),
        section(request, "No CUDA graph", "graph_skips", sort="skips"),
        section(request, "Caches of the compilers", "compile_caches", sort="lookups"),
    ]  # fmt: skip
