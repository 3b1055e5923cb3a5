"""What to do next, in the order that is taught: one change, a closer look, a better recording."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope import units
from stepscope.findings import Finding
from stepscope.findings.facts import Facts
from stepscope.findings.report import NextStep, NotRun, Verdict
from stepscope.tables import Table

__all__ = ["next_steps_of"]

_ON_DEVICE = ("compute-bound", "memory-bandwidth-bound", "healthy")
_CHANGES = {
    "host-bound": "--graph",
    "sync-bound": "--no-sync",
    "input-bound": "--no-loader --overlap-copies",
    "compute-bound": "--kernels '*gemm*' x0.5",
    "memory-bandwidth-bound": "--kernels '*elementwise*' x0.5",
}
_FLAGS = {"stacks": "with_stack=True", "shapes": "record_shapes=True", "memory": "profile_memory=True"}


def next_steps_of(
    facts: Facts,
    verdict: Verdict,
    findings: Sequence[Finding],
    not_run: Sequence[NotRun],
    tables: Mapping[str, Table[Any]],
) -> tuple[NextStep, ...]:
    """The next steps for a trace."""
    return (
        *_change(findings),
        *_try(verdict),
        *_closer(facts, verdict, tables),
        *_record(facts, not_run),
    )


def _change(findings: Sequence[Finding]) -> Iterator[NextStep]:
    worth = [finding for finding in findings if finding.gain.high_ns]
    if worth:
        title = worth[0].advice.title
        yield NextStep(
            f"Change one thing first: {title[0].lower()}{title[1:]}. Then record again and compare:",
            "stepscope diff BEFORE AFTER",
        )


def _try(verdict: Verdict) -> Iterator[NextStep]:
    """The change that a simulation can make before the program does."""
    if change := _CHANGES.get(verdict.word):
        yield NextStep(
            "What a change would gain can be played before it is made:",
            f"stepscope whatif TRACE {change}",
        )


def _closer(facts: Facts, verdict: Verdict, tables: Mapping[str, Table[Any]]) -> Iterator[NextStep]:
    """The command that says more than this trace can."""
    if verdict.word in _ON_DEVICE:
        kernel = max(tables.get("kernels", ()), key=lambda row: row.exclusive_ns, default=None)
        if kernel is not None and kernel.name:
            share = units.share(kernel.share)
            yield NextStep(
                f"Why the kernel with the most time ({share} of it) is slow, counters tell:",
                f"ncu --set full --kernel-name 'regex:{_pattern(kernel.name)}' --launch-skip 10 "
                "--launch-count 3 -o kernel python train.py",
            )
    elif verdict.word in ("host-bound", "sync-bound", "input-bound") and not facts.stacks:
        yield NextStep("Which lines keep the device waiting is not recorded: record stacks (below).")
    if verdict.word in ("host-bound", "input-bound", "communication-bound"):
        yield NextStep(
            "What the operating system and other threads did meanwhile, Nsight Systems tells:",
            "nsys profile --trace=cuda,nvtx,osrt --sample=process-tree --capture-range=cudaProfilerApi "
            "-o step python train.py",
        )


def _pattern(name: str) -> str:
    """The part of a kernel's name by which ncu finds it: the function's name without its templates."""
    plain = name.removeprefix("void ").partition("(anonymous namespace)::")
    bare = re.split(r"[<(]", plain[2] or plain[0], maxsplit=1)[0]
    return re.sub(r"[^\w]", ".", bare.rpartition("::")[2] or bare)


def _record(facts: Facts, not_run: Sequence[NotRun]) -> Iterator[NextStep]:
    """What to record to settle what is not known: each flag costs time, so only those that are missing."""
    missing = [flag for name, flag in _FLAGS.items() if not getattr(facts, name)]
    wanted = [
        flag for flag in missing if any(flag in one.record for one in not_run) or flag == "with_stack=True"
    ]
    if facts.host_ops and wanted:
        yield NextStep(
            "To settle what is not judged, record a few steps with:",
            f"torch.profiler.profile({', '.join(wanted)})",
        )
