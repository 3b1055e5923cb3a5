"""Says what a profile is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from stepscope import registry, units
from stepscope.cli.output import put, say
from stepscope.cli.traces import PassOption, RankOption, WantedPass, chosen_rank, open_with_progress

if TYPE_CHECKING:
    from stepscope.runs.choosing import ChosenRank
    from stepscope.store.meta import Damage, SourceMeta
    from stepscope.store.trace import Trace

__all__ = ["info"]

_HELD = (
    ("logged_compilations", "count(*)", "compilation"),
    ("logged_breaks", "count(*)", "graph break"),
    ("logged_kernels", "count(*)", "generated kernel"),
    ("cpu_samples", "sum(samples)", "sample"),
    ("cpu_counters", "count(*)", "CPU counter"),
    ("execution_nodes", "count(*)", "node"),
    ("proton_scopes", "count(*)", "scope"),
    ("kernel_counters", "count(DISTINCT kernel)", "measured kernel"),
    ("kernel_counters", "count(*)", "kernel counter"),
    ("allocator_segments", "count(*)", "segment"),
    ("allocator_blocks", "count(*)", "block"),
    ("allocator_events", "count(*) FILTER (action = 'alloc')", "allocation"),
    ("allocator_events", "count(*)", "allocator event"),
    ("memory_timeline", "count(*)", "change of memory"),
    ("device_counters", "count(*)", "reading of device counters"),
)
"""What files have that is no event of a timeline: its table, how many there are, and what one is called."""
_VERBS = ("Reads ", "Adds ")


def info(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, a run, or a store"] = None,
    *,
    format: Annotated[Literal["text", "json"], "how to write it"] = "text",
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: RankOption = None,
    pass_: PassOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Says what a profile is: where it was recorded, what it contains, what is damaged."""
    wanted = WantedPass(rank, pass_)
    opened = open_with_progress(trace, store=store, demo=demo, wanted=wanted)
    if format == "json":
        told = {"store": str(opened.folder), **opened.meta.as_json()}
        put(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        return
    run = None if trace is None else chosen_rank(trace, wanted)
    for label, text in (*(_run_lines(run) if run else ()), *_lines(opened)):
        say(f"{label:<10}{text}")


def _run_lines(chosen: ChosenRank) -> Iterator[tuple[str, str]]:
    """What the capture says of the run and of one rank of it."""
    run, record = chosen.run, chosen.record
    yield "run", shlex.join(run.command) or "unknown command"
    of = f" of {run.world_size}" if run.world_size > 1 else ""
    where = f" on {record.host}" if record.host else ""
    yield "", ", ".join(filter(None, (f"rank {record.rank}{of}{where}", record.state)))
    step = record.measured.said if record.measured else "not timed"
    yield "step", f"{step} without the profiler. {record.step}".rstrip()
    yield "passes", ", ".join(f"{one.name} ({one.path.name})" for one in record.passes)
    for note in record.notes:
        yield "note", note


def _lines(trace: Trace) -> list[tuple[str, str]]:
    meta = trace.meta
    text = "of JSON" if {one.kind for one in meta.sources} == {"kineto"} else "unpacked"
    lines = [
        ("profile", meta.source),
        ("kind", _kind(meta.kind)),
        *(
            ("also", ", ".join(filter(None, (f"{one.source} ({one.kind})", one.joined, _events(one)))))
            for one in meta.sources[1:]
        ),
        ("recorded", _recorded(meta.metadata)),
        ("devices", _devices(meta.metadata.get("deviceProperties"))),
        ("rank", f"{meta.rank} ({meta.rank_source})"),
        ("size", f"{units.size(meta.compressed_bytes)} on disk, {units.size(meta.bytes)} {text}"),
    ]
    held = _held(trace)
    if meta.events or not held:
        lines.append(("events", units.count(meta.events)))
    for row in registry.load("analyses", "categories")(trace):
        if row.phase == "X":
            label = row.category or "(none)"
            lines.append(("", f"{units.count(row.events):>12}  {label:<20} {units.duration(row.total_ns)}"))
    lines += [("holds", ", ".join(held))] if held else []
    lines += [("damage", _damage(one)) for one in meta.damage] or [("damage", "none")]
    lines.append(("store", str(trace.folder)))
    lines.append(("next", "stepscope report TRACE  ·  stepscope show  ·  stepscope query TRACE --schema"))
    return lines


def _kind(name: str) -> str:
    """The kind of a file: the name of its reader, and what that says it reads."""
    said = dict(registry.names("sources")).get(name, "")
    verb = next((verb for verb in _VERBS if said.startswith(verb)), None)
    what = said.removeprefix(verb).partition(":")[0].rstrip(".") if verb else ""
    return f"{what} ({name})" if what else name


def _held(trace: Trace) -> list[str]:
    """What is in it beside events, table by table."""
    found = []
    for table, count, noun in _HELD:
        if not trace.meta.rows.get(table):
            continue
        n = trace.rows(f"SELECT coalesce({count}, 0)::BIGINT AS n FROM {table}")[0]["n"]
        if n:
            found.append(f"{units.count(n)} {_of_several(noun) if n != 1 else noun}")
    return found


def _of_several(noun: str) -> str:
    """Its plural: `readings of device counters`."""
    one, of, what = noun.partition(" of ")
    return units.plural(one) + of + what


def _events(one: SourceMeta) -> str:
    return f"events: {units.count(one.events)}" if one.events else ""


def _recorded(metadata: dict[str, Any]) -> str:
    flags = ("with_stack", "record_shapes", "profile_memory", "with_flops", "with_modules")
    found = [flag for flag in flags if metadata.get(flag)]
    cuda, hip = metadata.get("cuda_runtime_version"), metadata.get("hip_runtime_version")
    versions = [f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"] if isinstance(cuda, int) else []
    versions += [f"HIP {hip}"] if hip else []
    host = [f"host {metadata['host_name']}"] if metadata.get("host_name") else []
    return ", ".join(host + versions + found) or "unknown: the profile does not say"


def _devices(properties: Any) -> str:
    listed = properties if isinstance(properties, list) else []
    names = [str(one.get("name")) for one in listed if isinstance(one, dict)]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none listed"


def _damage(one: Damage) -> str:
    text = f"{units.count(one.count)} x {one.reason}"
    if one.bytes:
        text += f", {units.size(one.bytes)} lost"
    if one.offsets:
        text += f", first at byte {units.count(one.offsets[0])}"
    return text
