"""What can be said of a file that has no steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from stepscope import units
from stepscope.findings._phrases import times
from stepscope.findings.facts import Facts
from stepscope.tables import Table

__all__ = ["is_cut", "without_steps"]


def without_steps(facts: Facts, tables: Mapping[str, Table[Any]]) -> str:
    """The sentence of the verdict: what kind of file it is, and the most that it says."""
    said = _OF_KINDS[facts.kind](tables) if facts.kind in _OF_KINDS else ""
    return said or "The profile has no steps, so there is nothing to judge."


def _compile_log(tables: Mapping[str, Table[Any]]) -> str:
    told = "A compile log has no steps: it says what torch.compile did, not what a step takes."
    rows = [row for row in tables.get("compile_units", ()) if row.kind != "runtime"]
    total = sum(row.dur_ns or 0 for row in rows)
    if not rows:
        return told
    ranks = len({row.rank for row in rows})
    where = f" on {units.count(ranks)} ranks" if ranks > 1 else ""
    took = f" took {units.duration(total)}" if total else ", whose time it does not have"
    longest = max(rows, key=lambda row: row.dur_ns or 0)
    most = (
        f", {units.duration(longest.dur_ns)} of that for region {longest.region}"
        if total and len(rows) > 1
        else ""
    )
    return f"{told} {times(len(rows), 'compilation')}{where}{took}{most}."


_NO_TIMES = "has no times of kernels: nothing is said about speed."


def is_cut(tables: Mapping[str, Table[Any]]) -> bool:
    """Whether a snapshot ends before its end."""
    told = tables.get("allocators")
    said = [row.explanation for row in tables.get("trust", ())]
    said += () if told is None else told.notes
    return any("snapshot is cut" in one for one in said)


def _snapshot(tables: Mapping[str, Table[Any]]) -> str:
    rows = tables.get("allocators", ())
    held = max(rows, key=lambda one: one.peak_bytes or one.active_bytes, default=None)
    cut = is_cut(tables)
    if held is None:
        return "The snapshot is cut short: nothing in it says what is in use." if cut else ""
    if cut:
        known = (
            f"It is cut short: at least {units.size(held.active_bytes)} is in use, and the peak is not known."
            if held.active_bytes
            else "It is cut short, before anything that says what is in use."
        )
    elif held.peak_bytes is None:
        known = f"At its end {units.size(held.active_bytes)} is in use; the peak is not known."
    else:
        known = f"At most {units.size(held.peak_bytes)} was in use."
    return f"A memory snapshot {_NO_TIMES} {known}"


def _memory_timeline(tables: Mapping[str, Table[Any]]) -> str:
    rows = list(tables.get("timeline_kinds", ()))
    peak = sum(row.at_peak_bytes for row in rows)
    most = max(rows, key=lambda row: row.at_peak_bytes, default=None)
    if most is None:
        return ""
    return (
        f"A memory timeline {_NO_TIMES} At most {units.size(peak)} was allocated, most of it {most.category}."
    )


def _ncu(tables: Mapping[str, Table[Any]]) -> str:
    told = "Counters of kernels alone: how often they run in a program, and what a step takes, is not here."
    rows = list(tables.get("measured_kernels", ()))
    if not rows:
        return f"{told} No counter has a value: the launches failed, or the file is cut."
    limits = Counter(row.bound for row in rows if row.bound != "unknown")
    named = ", ".join(f"{units.count(n)} by {_LIMITS[bound]}" for bound, n in limits.most_common())
    said = (
        f"{times(sum(row.launches for row in rows), 'launch')} of {times(len(rows), 'kernel')} were measured"
    )
    return f"{told} {said}" + (f"; limited {named}." if named else ".")


def _samples(tables: Mapping[str, Table[Any]]) -> str:
    told = "Samples of the CPU have no steps: they say where threads were, not what a step takes."
    rows = list(tables.get("cpu_parts", ()))
    counts = Counter[str]()
    for row in rows:
        counts[row.part] += row.samples
    total = counts.total()
    if not total:
        return (
            "Counters of the CPU over a whole run say nothing of steps; stepscope show cpu_totals lists them."
        )
    most = ", ".join(f"{part} {units.percent(n / total)}" for part, n in counts.most_common(3))
    threads = len({(row.process, row.thread, row.command) for row in rows})
    return f"{told} {times(total, 'sample')} of {times(threads, 'thread')}: {most}."


def _execution_trace(tables: Mapping[str, Table[Any]]) -> str:
    """Only its reader knows whether nodes have durations, and says so."""
    told = (row.explanation for row in tables.get("trust", ()))
    said = next(
        (one for one in told if one.startswith("An execution trace has")),
        "An execution trace has no timeline: it says what operators were given.",
    )
    return f"{said} `stepscope show op_inputs` lists them."


_LIMITS = {"compute": "arithmetic", "memory": "memory bandwidth", "latency": "latency"}
_OF_KINDS: Mapping[str, Callable[[Mapping[str, Table[Any]]], str]] = {
    "compile_log": _compile_log,
    "execution_trace": _execution_trace,
    "memory_timeline": _memory_timeline,
    "ncu": _ncu,
    **dict.fromkeys(("perf", "collapsed", "speedscope"), _samples),
    "proton": lambda _: (
        "A profile of Proton has no timeline: it says how long kernels took, not what a step waits for. "
        "`stepscope show proton_scopes` lists them."
    ),
    "snapshot": _snapshot,
    "triton_log": lambda _: (
        "A log of Triton's compiler has no times of kernels: it says which were compiled, for which line. "
        "`stepscope show generated_kernels` lists them."
    ),
}
