"""A run of a small program on the CPU: timed without the profiler, then recorded lightly and fully."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from tests.runs.folders import rank_document, written

__all__ = ["recorded_run"]

_TIMED = 20


def recorded_run(torch: Any, folder: Path) -> Path:
    """Records a run as the capture does: times first, then a light and a full pass."""
    step = _program(torch)
    folder.mkdir(parents=True)
    for _ in range(5):
        step()
    lengths = [_length(step) for _ in range(_TIMED)]
    half = 2 * stdev(lengths) / _TIMED**0.5
    middle = round(mean(lengths))
    files = [
        _recorded(torch, step, folder, "light", 4),
        _recorded(torch, step, folder, "full", 2, record_shapes=True, with_stack=True, profile_memory=True),
    ]
    told = {
        "mean": middle,
        "median": round(median(lengths)),
        "low": max(1, round(middle - half)),
        "high": round(middle + half),
        "steps": _TIMED,
    }
    document = rank_document(0, files, unprofiled_step_ns=told, unprofiled_steps_ns=lengths, devices=[])
    return written(folder, [document])


def _program(torch: Any) -> Callable[[], None]:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.randn(16, 32)

    def step() -> None:
        optimizer.zero_grad()
        model(rows).sum().backward()
        optimizer.step()

    return step


def _length(step: Callable[[], None]) -> int:
    start = time.perf_counter_ns()
    step()
    return time.perf_counter_ns() - start


def _recorded(
    torch: Any, step: Callable[[], None], folder: Path, name: str, steps: int, **options: bool
) -> dict[str, Any]:
    path = f"rank0.{name}.pt.trace.json"
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / path)),
        **options,
    ) as profiler:
        for _ in range(steps + 1):
            step()
            profiler.step()
    return {"path": path, "pass": name, "steps": [26, 25 + steps], "bytes": (folder / path).stat().st_size}
