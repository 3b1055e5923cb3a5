"""What to do next, in the order that is taught: one change, a closer look, a better recording."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.findings import Finding
from stepscope.findings.facts import Facts
from stepscope.findings.program import Framework, Vendor
from stepscope.findings.report import NextStep, NotRun, Verdict
from stepscope.findings.start_up_time import mostly_start_up, start_up_share
from stepscope.schema import WHOLE_GRAPH
from stepscope.tables import Table

if TYPE_CHECKING:
    from stepscope.analyses.kernels import Kernel
    from stepscope.findings.mean_step import MeanStep

__all__ = ["TRIED", "next_steps_of"]

_ON_DEVICE = ("device-bound", "compute-bound", "memory-bandwidth-bound", "healthy")
TRIED = ("graph", "no_sync", "no_loader", "overlap_copies")
"""Changes that are suggested to try, if the simulation says that they gain."""
LEAST_GAIN = 0.03
LEAST_KERNEL_SHARE = 0.10
MOST_OF_A_NAME = 60
"""Characters; the names of generated kernels can have hundreds."""
_ELSEWHERE = ("etdump", "xplane")
"""Kinds of files whose operators PyTorch's profiler did not record, and cannot."""
_FLAGS = {"stacks": "with_stack=True", "shapes": "record_shapes=True", "memory": "profile_memory=True"}


def next_steps_of(
    mean_step: MeanStep,
    facts: Facts,
    verdict: Verdict,
    findings: Sequence[Finding],
    not_run: Sequence[NotRun],
    tables: Mapping[str, Table[Any]],
) -> tuple[NextStep, ...]:
    """The next steps for a trace."""
    tried = () if mostly_start_up(findings) else (*_change(findings), *_try(mean_step, verdict, tables))
    return (
        *_without_start(findings, tables),
        *tried,
        *_closer(facts, verdict, tables),
        *(_executorch() if facts.kind == "etdump" else ()),
        *(_record(facts, not_run) if facts.kind not in _ELSEWHERE else ()),
    )


def _change(findings: Sequence[Finding]) -> Iterator[NextStep]:
    """The first finding that gains time: how to read about it, and how to see that its fix helped."""
    place = next((place for place, one in enumerate(findings, 1) if one.gain.high_ns), None)
    if place is not None:
        yield NextStep(
            f"Read what #{place} means, how its gain is computed and when to ignore it:",
            f"stepscope explain {findings[place - 1].id}",
        )
        yield NextStep(
            f"Fix #{place} and nothing else, record again, and compare:", "stepscope diff BEFORE AFTER"
        )


def _without_start(findings: Sequence[Finding], tables: Mapping[str, Table[Any]]) -> Iterator[NextStep]:
    """How to look at steps in which the program does not start."""
    if not start_up_share(findings):
        return
    last = max(row.step for row in tables.get("start_ups", ()) if row.step is not None)
    after = [
        row.step
        for row in tables.get("steps_by_any", ())
        if (row.name or "").startswith("ProfilerStep#") and row.step > last and row.kernel_ns + row.cpu_ns
    ]
    if after:
        yield NextStep(
            f"Look at the {units.counted(len(after), 'step')} after the start of the program alone:",
            f"stepscope cut TRACE --steps {min(after)}: -o steady.json.gz && stepscope steady.json.gz",
        )
    else:
        yield NextStep("Record steps after the start of the program:", "stepscope explain start-up")


def _try(mean_step: MeanStep, verdict: Verdict, tables: Mapping[str, Table[Any]]) -> Iterator[NextStep]:
    """The change that gains most of those which a simulation can try before the program does."""
    if not mean_step.is_simulated:
        return
    gains = {
        f"--{name.replace('_', '-')}": row.gain_low_share
        for name in TRIED
        for row in tables.get(f"changed_steps_by_{name}", ())
    }
    kernel = _most_expensive(tables)
    tried = verdict.word in _ON_DEVICE and kernel is not None and not _is_whole_graph(kernel)
    if tried and kernel is not None and (kernel.share or 0.0) >= LEAST_KERNEL_SHARE:
        alike = _pattern(kernel.name).replace(".", "?")
        gains = {f"--kernels '*{alike}*' x0.5": LEAST_GAIN}
    change = max(gains, key=lambda flag: gains[flag], default="")
    if change and gains[change] >= LEAST_GAIN:
        yield NextStep(
            "Estimate what a change would gain before you make it:",
            f"stepscope whatif TRACE {change}",
        )


def _most_expensive(tables: Mapping[str, Table[Any]]) -> Kernel | None:
    """The kernel that takes most time, of those that compute: a collective cannot be run by itself."""
    computing = [row for row in tables.get("kernels", ()) if row.name and row.family != "communication"]
    return max(computing, key=lambda row: row.exclusive_ns, default=None)


def _is_whole_graph(kernel: Kernel) -> bool:
    """Whether it is no kernel, but a graph whose kernels the profile does not have."""
    return (kernel.name or "").endswith(WHOLE_GRAPH)


def _closer(facts: Facts, verdict: Verdict, tables: Mapping[str, Table[Any]]) -> Iterator[NextStep]:
    """The command that shows more than this trace can, from the maker of the device; none for the others."""
    if verdict.word in _ON_DEVICE:
        kernel = _most_expensive(tables)
        if kernel is not None and _is_whole_graph(kernel):
            yield NextStep(
                "Most time is in graphs that were recorded as a whole. Record their kernels:",
                f"nsys profile --trace=cuda,nvtx,osrt --cuda-graph-trace=node -o step {_started(facts)}",
            )
        elif kernel is not None and (command := _COUNTERS.get(facts.vendor)):
            yield NextStep(
                f"See why the most expensive kernel ({units.share(kernel.share)} of kernel time) is slow, "
                "with counters:",
                command.format(kernel=_pattern(kernel.name), program=_started(facts)),
            )
    elif verdict.word in ("host-bound", "sync-bound", "input-bound", "copy-bound") and not facts.stacks:
        yield NextStep("The profile has no stacks, so it cannot name the lines that keep the GPU waiting.")
    waits = verdict.word in ("host-bound", "input-bound", "communication-bound")
    if facts.device_work and waits and (command := _TIMELINES.get(facts.vendor)):
        yield NextStep(
            "See what the operating system and other threads did meanwhile:",
            command.format(program=_started(facts)),
        )


_COUNTERS = {
    Vendor.NVIDIA: "ncu --set full --kernel-name 'regex:{kernel}' --launch-skip 10 --launch-count 3 "
    "-o kernel {program}",
    Vendor.AMD: "rocprof-compute profile --name kernel --kernel {kernel} -- {program}",
}
_TIMELINES = {
    Vendor.NVIDIA: "nsys profile --trace=cuda,nvtx,osrt --sample=process-tree --capture-range="
    "cudaProfilerApi -o step {program}",
    Vendor.AMD: "rocprofv3 --sys-trace --output-format pftrace -d step -- {program}",
}
_STARTED = {
    Framework.VLLM: "vllm serve MODEL",
    Framework.SGLANG: "python -m sglang.launch_server ...",
    Framework.TENSORRT_LLM: "trtllm-serve MODEL",
}


def _started(facts: Facts) -> str:
    """How the program is started."""
    return next((_STARTED[one] for one in facts.frameworks if one in _STARTED), "python train.py")


def _pattern(name: str | None) -> str:
    """The part of a kernel's name by which ncu finds it: the function's name without its templates."""
    plain = (name or "").removeprefix("void ").partition("(anonymous namespace)::")
    bare = re.split(r"[<(]", plain[2] or plain[0], maxsplit=1)[0]
    return re.sub(r"[^\w]", ".", bare.rpartition("::")[2] or bare)[:MOST_OF_A_NAME]


def _executorch() -> Iterator[NextStep]:
    """What shows more of what ExecuTorch ran."""
    yield NextStep("See which operators take the time:", "stepscope show ops TRACE")
    yield NextStep(
        "Name operators by the lines of your model, with the ETRecord of its export:",
        "python -m executorch.devtools.inspector.inspector_cli --etdump_path TRACE --etrecord_path ETRECORD",
    )


def _record(facts: Facts, not_run: Sequence[NotRun]) -> Iterator[NextStep]:
    """What to record for rules without an answer: each flag costs time, so only those that are missing."""
    missing = [flag for name, flag in _FLAGS.items() if not getattr(facts, name)]
    wanted = [
        flag for flag in missing if any(flag in one.record for one in not_run) or flag == "with_stack=True"
    ]
    if facts.host_ops and wanted:
        needed = any(flag in one.record for one in not_run for flag in wanted)
        yield NextStep(
            "Record a few more steps for the rules that could not judge, with:"
            if needed
            else "Record a few more steps with stacks, to see the lines of your code:",
            f"torch.profiler.profile({', '.join(wanted)})",
        )
