"""Records every program, with its fault and mended, and times its step without the profiler.

    python -m benchmarks.faults.record FOLDER                       all programs
    python -m benchmarks.faults.record FOLDER --only anomaly_mode   some of them
    python -m benchmarks.faults.record FOLDER --graphs              only what a CUDA graph would gain
    python -m benchmarks.faults.record FOLDER --time-mended         mended sides are timed, not recorded

Each side runs in a process of its own and leaves `NAME.SIDE.light.pt.trace.json.gz` (four steps, no options)
and `NAME.SIDE.full.pt.trace.json.gz` (two steps with stacks, shapes, modules and memory). `measurements.json`
holds the times of all programs in the folder; what is recorded again is replaced. Needs one CUDA device; all
of it takes about a quarter of an hour. Processes start side by side, but only one at a time uses the device.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import gzip
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from benchmarks.faults import PROGRAMS, Program, Step
from benchmarks.faults.models import DEVICE, synchronize
from tests.data.record_on_gpu import neutral
from torch.profiler import ProfilerActivity, profile, schedule

SUFFIX = ".pt.trace.json"
MEASUREMENTS = "measurements.json"
GRAPHS, TIME_MENDED = "--graphs", "--time-mended"
ACTIVITIES = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
LIGHT: dict[str, bool] = {}
FULL = {"with_stack": True, "record_shapes": True, "profile_memory": True, "with_modules": True}
WARMUP_STEPS = 2
FULL_STEPS = 2
BLOCKS = 5
BLOCK_SECONDS = 0.25
LONG_STEP_SECONDS = 0.2
ONE_SIDE_SECONDS = 300
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")

Facts = dict[str, Any]


# ---------------------------------------------------------------- one side, in this process


def record(program: Program, side: str, folder: Path, *, profiles: bool) -> None:
    """Times one side of a program, records it if asked to, and leaves what was measured beside that."""
    name = f"{program.name}.{side}"
    with turn(folder):
        torch.manual_seed(1)
        step = program.sides[side]()
        warm(step)
        facts = measured(step)
        paths = {"light": traced(step, f"{name}.light", program.light_steps, LIGHT)} if profiles else {}
        if program.full and profiles:
            paths["full"] = traced(step, f"{name}.full", FULL_STEPS, FULL)
    for way, path in paths.items():
        text = neutral(path.read_text(encoding="utf-8"))
        path.unlink()
        facts[f"{way}_step_ns"] = recorded_step_ns(json.loads(text)["traceEvents"])
        packed = gzip.compress(text.encode(), 9, mtime=0)
        (folder / f"{path}.gz").write_bytes(packed)
    (folder / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Waits until no other process uses the device and half of the processors."""
    with (folder / ".turn").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.set_num_threads(move_to_half(first=True))
        yield
        synchronize()
    move_to_half(first=False)


def move_to_half(*, first: bool) -> int:
    """Moves this process to half of the processors, so that starting and packing disturb no other's turn."""
    processors = range(os.cpu_count() or 1)
    middle = len(processors) // 2
    half = processors[:middle] if first else processors[middle:]
    os.sched_setaffinity(0, half or processors)
    return len(half or processors)


def warm(step: Step) -> None:
    """Runs the step until it is compiled and the clocks of the device are up."""
    for _ in range(6):
        step()
    synchronize()
    end = time.monotonic() + 2 * BLOCK_SECONDS
    while time.monotonic() < end:
        step()
    synchronize()


def measured(step: Step) -> Facts:
    """Mean time of a step without the profiler, and how far the blocks of steps lie apart."""
    seconds = block_ns(step, 4) / 1e9
    if seconds > LONG_STEP_SECONDS:
        count = 4
    else:  # a multiple of four, because one program does something in every fourth step
        count = max(8, 4 * math.ceil(BLOCK_SECONDS / seconds / 4))
    blocks = [block_ns(step, count) for _ in range(BLOCKS)]
    return {
        "unprofiled_step_ns": round(sum(blocks) / BLOCKS),
        "spread_ns": round(max(blocks) - min(blocks)),
        "unprofiled_steps": BLOCKS * count,
    }


def block_ns(step: Step, count: int) -> float:
    """Mean time of a step over so many; the device is waited for at the ends alone."""
    synchronize()
    start = time.perf_counter_ns()
    for _ in range(count):
        step()
    synchronize()
    return (time.perf_counter_ns() - start) / count


def traced(step: Step, name: str, steps: int, options: dict[str, bool]) -> Path:
    """The profile of some steps. The device is idle when the first of them starts."""
    plan = schedule(wait=0, warmup=WARMUP_STEPS, active=steps, repeat=1)
    with profile(activities=ACTIVITIES, schedule=plan, **options) as profiler:
        for number in range(WARMUP_STEPS + steps):
            step()
            if number == WARMUP_STEPS - 1:
                synchronize()
            profiler.step()
    path = Path(f"{name}{SUFFIX}")
    profiler.export_chrome_trace(str(path))
    return path


def recorded_step_ns(events: list[Facts]) -> int:
    """Mean time of a recorded step, from the first mark to the end of the last mark or kernel."""
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    marks = [event for event in marks if event["name"].startswith("ProfilerStep#")]
    work = [event for event in events if event.get("cat") in DEVICE_CATEGORIES]
    start = min(event["ts"] for event in marks)
    end = max(event["ts"] + event["dur"] for event in [*marks, *work])
    return round(1000 * (end - start) / len(marks))


def record_graph(program: Program, side: str, folder: Path) -> None:
    """Times one side as it is and as a CUDA graph of a whole step: what launching late costs."""
    with turn(folder):
        torch.manual_seed(1)
        step = program.sides[side]()
        warm(step)
        facts: Facts = {"step_ns": measured(step)["unprofiled_step_ns"], "graphed_step_ns": None}
        try:
            replay = captured(step)
        except Exception as error:  # noqa: BLE001  # most steps can be captured, some cannot
            facts["reason"] = str(error).splitlines()[0][:100]
        else:
            warm(replay)
            facts["graphed_step_ns"] = measured(replay)["unprofiled_step_ns"]
    (folder / f"{program.name}.{side}.json").write_text(json.dumps({"graph": facts}), encoding="utf-8")


def captured(step: Step) -> Step:
    """A step as a CUDA graph; optimizers must count their steps on the device for that."""
    for optimizer in (one for one in gc.get_objects() if isinstance(one, torch.optim.Optimizer)):
        for group in optimizer.param_groups:
            group["capturable"] = True
        for state in optimizer.state.values():
            if "step" in state:
                state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


# ---------------------------------------------------------------- all of them


def record_all(folder: Path, names: list[str], how: list[str]) -> int:
    """Records each side in its own process and gathers what they measured; 1 where one failed."""
    graphs = GRAPHS in how
    sides = [
        (name, side) for name in names for side in PROGRAMS[name].sides if not graphs or side != "faulty"
    ]
    written = folder / MEASUREMENTS
    table = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {"programs": {}}
    table |= {
        "command": "python -m benchmarks.faults.record FOLDER",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "none",
    }
    failed = 0
    move_to_half(first=False)
    with ThreadPoolExecutor(4) as pool:  # some start or pack while one is recorded
        for (name, side), code in zip(
            sides, pool.map(lambda one: run_side(folder, *one, how), sides), strict=True
        ):
            failed |= bool(code)
            if code == 0:
                keep(table["programs"], PROGRAMS[name], side, folder)
                written.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    (folder / ".turn").unlink(missing_ok=True)
    if not graphs:
        print_table(table["programs"], names)
    return failed


def run_side(folder: Path, name: str, side: str, how: list[str]) -> int:
    """Records one side in a process of its own."""
    program = PROGRAMS[name]
    environment = os.environ | (program.environment if side == "faulty" else {})
    start = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.faults.record", str(folder), "--only", name, "--side", side]
    command += how
    try:
        code = subprocess.call(command, env=environment, timeout=ONE_SIDE_SECONDS)
    except subprocess.TimeoutExpired:
        code = 124
    print(f"{name}.{side}: exit {code}, {time.monotonic() - start:.0f} s", flush=True)
    return code


def keep(programs: dict[str, Any], program: Program, side: str, folder: Path) -> None:
    """Moves what a process measured into the table of all programs."""
    path = folder / f"{program.name}.{side}.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    told = {"finding": program.finding, "kind": program.kind, "about": program.about, "mend": program.mend}
    before = programs.get(program.name, {}).get("sides", {})
    programs[program.name] = told | {"sides": before | {side: before.get(side, {}) | facts}}


def print_table(programs: dict[str, Any], names: list[str]) -> None:
    """Prints the times of both sides, the gain, and what the profiler adds."""
    for name in names:
        sides = programs.get(name, {}).get("sides", {})
        times = [facts["unprofiled_step_ns"] / 1e6 for facts in sides.values()]
        gain = f"{1 - times[1] / times[0]:7.1%}" if len(times) == 2 else "       "
        spread = [f"±{facts['spread_ns'] / facts['unprofiled_step_ns']:.0%}" for facts in sides.values()]
        ways = [
            f"x{facts[way] / facts['unprofiled_step_ns']:.2f}"
            for facts in sides.values()
            for way in ("light_step_ns", "full_step_ns")
            if way in facts
        ]
        shown = " ".join(f"{ms:9.3f}" for ms in times)
        print(f"{name:26} {shown} ms {gain} {' '.join(spread)} {' '.join(ways)}")


def main(arguments: list[str]) -> int:
    """Records what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="PROGRAM", default=list(PROGRAMS))
    parser.add_argument(GRAPHS, action="store_true", help="only time steps as CUDA graphs")
    parser.add_argument(TIME_MENDED, action="store_true", help="do not record mended sides")
    parser.add_argument("--side", choices=("faulty", "mended", "healthy"), help="in this process")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    if options.side:
        program = PROGRAMS[options.only[0]]
        if options.graphs:
            record_graph(program, options.side, folder)
        else:
            profiles = options.side != "mended" or not options.time_mended
            record(program, options.side, folder, profiles=profiles)
        return 0
    how = [flag for flag in (GRAPHS, TIME_MENDED) if flag in arguments]
    return record_all(folder, options.only, how)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
