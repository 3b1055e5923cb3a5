"""Files for speedscope, the viewer of flame graphs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import Any, get_args

from stepscope.errors import StepscopeError
from stepscope.exports import export_format
from stepscope.exports._paths import Weight, weighed_paths, write_pieces
from stepscope.store.export import Export
from stepscope.store.trace import Trace

__all__ = ["speedscope"]

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


@export_format(".speedscope.json")
def speedscope(trace: Trace, path: str) -> Export:
    """Writes call stacks of the host for speedscope: host time, and the device work that was launched."""
    frames: dict[str, int] = {}
    profiles = [one for weight in get_args(Weight) for one in _profiles(trace, weight, frames)]
    if not profiles:
        raise StepscopeError(
            f"{trace.path} has no call stacks of the host", hint="record with activities=[CPU, …]"
        )
    document = {
        "$schema": _SCHEMA,
        "name": PurePath(trace.path).name,
        "exporter": "stepscope",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }
    written = write_pieces(path, [json.dumps(document, ensure_ascii=True).encode()])
    return replace(written, events=sum(len(one["samples"]) for one in profiles))


def _profiles(trace: Trace, weight: Weight, frames: dict[str, int]) -> Iterator[dict[str, Any]]:
    """One of each thread; frames are numbered as they come."""
    threads: defaultdict[str, list[tuple[list[int], int]]] = defaultdict(list)
    for path in weighed_paths(trace, weight):
        (thread, *calls) = path.names
        stack = [frames.setdefault(name, len(frames)) for name in calls]
        threads[thread].append((stack, path.weight_ns))
    for thread, found in sorted(threads.items(), key=lambda one: -sum(ns for _, ns in one[1])):
        yield {
            "type": "sampled",
            "name": f"{thread}, {'host time' if weight == 'host' else 'device work launched'}",
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": sum(ns for _, ns in found),
            "samples": [stack for stack, _ in found],
            "weights": [ns for _, ns in found],
        }
