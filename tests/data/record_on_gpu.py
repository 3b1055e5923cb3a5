"""Records small programs on a GPU, and beside each profile what torch itself counts in it.

    python -m tests.data.record_on_gpu FOLDER            all programs, each in a process of its own
    python -m tests.data.record_on_gpu FOLDER --only mlp_loader

Every program leaves `NAME.pt.trace.json.gz` and `NAME.key_averages.json`: torch's own table of that very
profile, by name and by name and shapes, and facts about the program (FLOPs of a step as torch counts them,
the time of a step without the profiler, sizes). Needs one CUDA device; it takes two or three minutes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.data.gpu_programs import ACTIVITIES, DEVICE, PROGRAMS
from torch.profiler import profile, schedule

SUFFIX = ".pt.trace.json"
SHAPES = {"record_shapes": True}
Step = Callable[[int], Any]
Facts = dict[str, Any]


class Recorder:
    """Runs the steps of one program, first without the profiler, then with it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    def __call__(
        self, step: Step, *, steps: int = 3, options: dict[str, bool] | None = None, **facts: Any
    ) -> None:
        """Records some steps with marks; a step is told its number in the profile, 0 before."""
        for _ in range(3):
            step(0)
        facts |= {"steps": steps, "unprofiled_step_ns": timed(step), "flop_counter": flops(step)}
        plan = schedule(skip_first=0, wait=0, warmup=2, active=steps, repeat=1)
        forget_peak()
        with profile(activities=ACTIVITIES, schedule=plan, **(options or SHAPES)) as profiler:
            for number in range(2 + steps):
                step(number)
                profiler.step()
        self.keep(profiler, facts | memory())

    def plain(self, work: Callable[[], Any], *, options: dict[str, bool] | None = None, **facts: Any) -> None:
        """Records some work as a whole: no schedule, no marks."""
        work()
        synchronize()
        with profile(activities=ACTIVITIES, **(options or SHAPES)) as profiler:
            work()
        self.keep(profiler, facts)

    def keep(self, profiler: Any, facts: Facts) -> None:
        path = Path(f"{self.name}{SUFFIX}")
        profiler.export_chrome_trace(str(path))
        text = neutral(path.read_text(encoding="utf-8"))
        path.unlink()
        packed = gzip.compress(text.encode(), 9, mtime=0)
        (self.folder / f"{path}.gz").write_bytes(packed)
        table = {
            "torch": torch.__version__,
            "facts": facts,
            "columns": COLUMNS,
            "by_name": rows_of(profiler.key_averages()),
            "by_shape": [row for row in rows_of(profiler.key_averages(group_by_input_shape=True)) if row[3]],
        }
        written = "{\n" + ",\n".join(f"{json.dumps(key)}: {lined(value)}" for key, value in table.items())
        (self.folder / f"{self.name}.key_averages.json").write_text(written + "\n}\n", encoding="utf-8")


COLUMNS = (
    "name", "side", "annotation", "shapes", "calls", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns",
    "self_cpu_bytes", "self_device_bytes",
)  # fmt: skip


def lined(value: Any) -> str:
    """JSON with one row of a table a line."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in value) + "\n]"


def rows_of(averages: Any) -> list[tuple[Any, ...]]:
    """The figures of torch's table; it sums whole nanoseconds as floating-point microseconds."""
    return [
        (
            row.key,
            "host" if str(row.device_type).endswith("CPU") else "device",
            bool(row.is_user_annotation),
            row.input_shapes or None,
            row.count,
            *(round(1000 * us) for us in (row.self_cpu_time_total, row.cpu_time_total)),
            *(round(1000 * us) for us in (row.self_device_time_total, row.device_time_total)),
            row.self_cpu_memory_usage,
            row.self_device_memory_usage,
        )
        for row in averages
    ]


def neutral(text: str) -> str:
    """The text of a profile without the names of the machine and of its folders."""
    text = re.sub(r'("host_name": )"[^"]*"', r'\1"recorder"', text, count=1)
    for place in sorted({sys.prefix, sys.base_prefix, str(Path.cwd()), str(Path.home())}, key=len)[::-1]:
        if place not in ("/", "/usr"):
            text = text.replace(place, "/somewhere")
    return text


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def forget_peak() -> None:
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()


def memory() -> Facts:
    """Bytes allocated on the device now, and at the most since the first step under the profiler."""
    if DEVICE != "cuda":
        return {}
    most = torch.cuda.max_memory_allocated()
    return {"allocated_bytes": torch.cuda.memory_allocated(), "most_allocated_bytes": most}


def timed(step: Step, repeats: int = 8) -> int:
    """Mean time of a step without the profiler."""
    synchronize()
    start = time.perf_counter_ns()
    for _ in range(repeats):
        step(0)
    synchronize()
    return (time.perf_counter_ns() - start) // repeats


def flops(step: Step) -> dict[str, int] | None:
    """What torch counts in one step, by operator; None where it cannot."""
    from torch.utils.flop_counter import FlopCounterMode

    if not getattr(step, "countable", True):
        return None
    with FlopCounterMode(display=False) as counter:
        step(0)
    synchronize()
    return {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=PROGRAMS, metavar="PROGRAM", help="in this process")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.only:
        torch.manual_seed(1)
        PROGRAMS[options.only](Recorder(options.folder.resolve(), options.only))
        return 0
    return max(run_all(options.folder))


def run_all(folder: Path) -> Iterator[int]:
    """Every program in its own process, so that none sees the caches of another."""
    for name in PROGRAMS:
        environment = os.environ | ({"CUDA_LAUNCH_BLOCKING": "1"} if name == "launch_blocking" else {})
        start = time.monotonic()
        command = [sys.executable, "-m", "tests.data.record_on_gpu", str(folder), "--only", name]
        try:
            code = subprocess.call(command, env=environment, timeout=120)
        except subprocess.TimeoutExpired:
            code = 124
        trace = folder / f"{name}{SUFFIX}.gz"
        size = f"{trace.stat().st_size:,} bytes" if trace.exists() else "no trace"
        sys.stdout.write(f"{name}: exit {code}, {size}, {time.monotonic() - start:.0f} s\n")
        sys.stdout.flush()
        yield code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
