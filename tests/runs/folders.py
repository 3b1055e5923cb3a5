"""Run folders as the capture leaves them, put together from real recordings and what was measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.faults import PROGRAMS, recording

__all__ = ["PROGRAM", "STEP", "rank_document", "run_folder", "run_of_fault", "written"]

PROGRAM = "scalar_reads_layers"
"""A program with a light and a full recording, and a step that was timed without the profiler."""
STEP = "A step is one call of AdamW.step."


def rank_document(rank: int = 0, files: Iterable[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
    """What the capture writes about one rank."""
    return {
        "schema": "stepscope.rank/1",
        "rank": rank,
        "local_rank": rank,
        "world_size": 1,
        "host": "node7",
        "pid": 123,
        "command": ["python", "train.py", "--epochs", "3"],
        "started": "2026-11-16T09:30:00Z",
        "ended": "2026-11-16T09:31:00Z",
        "exit_code": 0,
        "state": "finished",
        "devices": ["NVIDIA H200"],
        "files": [*files],
        "unprofiled_step_ns": None,
        "unprofiled_steps_ns": [],
        "recorded_step_ns": {},
        "step": {"found_by": "optimizer", "name": "AdamW.step", "calls": 1, "sentence": STEP},
        "environment": {},
        "notes": [],
        **more,
    }


def timed(mean_ns: int, steps: int = 40) -> dict[str, Any]:
    """Steps around a mean, half of them 2 % longer and half 2 % shorter; the mean is sure to 0.6 %."""
    lengths = [mean_ns + (mean_ns // 50 if place % 2 else -mean_ns // 50) for place in range(steps)]
    ends = {"low": mean_ns * 994 // 1000, "high": mean_ns * 1006 // 1000}
    told = {"mean": mean_ns, "median": mean_ns, **ends, "steps": steps}
    return {"unprofiled_step_ns": told, "unprofiled_steps_ns": lengths}


def written(folder: Path, ranks: Iterable[Mapping[str, Any]], **more: Any) -> Path:
    """Writes the files of the ranks, and run.json from them."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [dict(one) for one in ranks]
    for one in documents:
        (folder / f"rank{one['rank']}.json").write_text(json.dumps(one), encoding="utf-8")
    first = documents[0] if documents else rank_document()
    told = {key: first[key] for key in ("command", "started", "ended", "exit_code", "environment")}
    inner = [{key: one[key] for key in one if key not in ("command", "environment")} for one in documents]
    run = {"schema": "stepscope.run/1", "world_size": len(documents), **told, "ranks": inner, **more}
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return folder


def run_folder(folder: Path, passes: Mapping[str, Path], rank: int = 0, **more: Any) -> dict[str, Any]:
    """Copies profiles to a folder and returns the document of their rank."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, profile in passes.items():
        path = f"rank{rank}.{name}.pt.trace.json{'.gz' if profile.suffix == '.gz' else ''}"
        shutil.copy(profile, folder / path)
        files.append({"path": path, "pass": name, "steps": [31, 35], "bytes": profile.stat().st_size})
    return rank_document(rank, files, **more)


def run_of_fault(
    folder: Path, name: str = PROGRAM, passes: Iterable[str] = ("light", "full"), *, times: bool = True
) -> Path:
    """A run of a program with a planted fault: its recordings, and its step without the profiler."""
    facts = PROGRAMS[name]["sides"]["faulty"]
    found = {one: recording(name, "faulty", one) for one in passes}
    more = timed(facts["unprofiled_step_ns"]) if times else {}
    recorded = {one: facts[f"{one}_step_ns"] for one in found}
    return written(folder, [run_folder(folder, found, **more, recorded_step_ns=recorded)])
