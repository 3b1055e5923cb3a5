"""Random small profiles: few names, few instants, so that ties and crossings are common."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from tests.drawing import Drawing
from tests.trying import tries

OPS = ["aten::mm", "aten::add", "autograd::engine"]
KERNELS = ["gemm", "elementwise", "ncclDevKernel_AllReduce_Sum"]
THREADS = [1, 2, "worker"]
LAST = 30

# A store is dear to make, so a profile holds several worlds; what needs no store is tried more often.
WORLDS = 12
# For the same reason a failure is shown as it was found: making it small could take minutes.
HOW = settings(
    max_examples=tries(5, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

Spec = tuple[str, str, int, int, Any, int, int]
"""Kind, name, start and duration in ns, thread or device, correlation, stream."""

NAMES = {
    "op": OPS,
    "launch": ["cudaLaunchKernel", "cudaMemcpyAsync"],
    "driver": ["cuLaunchKernel"],
    "frame": ["train.py(3): step"],
    "annotation": ["gloo:all_reduce", "enumerate(DataLoader)#_Next", "forward"],
    "kernel": KERNELS,
    "memcpy": ["Memcpy HtoD (Pinned -> Device)"],
    "memset": ["Memset (Device)"],
    "device range": ["ProfilerStep#1", "forward"],
}
HOST = ("op", "launch", "driver", "frame", "annotation")


@st.composite
def specs(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(NAMES)) -> Spec:
    kind = draw(st.sampled_from(kinds))
    place = draw(st.sampled_from(THREADS if kind in HOST else [0, 1]))
    return (
        kind,
        draw(st.sampled_from(NAMES[kind])),
        draw(st.integers(0, LAST)),
        draw(st.integers(0, LAST // 2)),
        place,
        draw(st.integers(0, 4)),
        draw(st.sampled_from([7, 8])),
    )


@st.composite
def drawings(draw: st.DrawFn, *, marks: bool = False, worlds: int = 1) -> Drawing:
    """Profiles of up to 25 events a world; worlds share one file and nothing else."""
    drawing = Drawing()
    for world in range(draw(st.integers(1, worlds))):
        draw_all(draw(st.lists(specs(), min_size=1, max_size=25)), drawing, world=world)
    if marks:
        cuts = sorted(draw(st.lists(st.integers(0, LAST), min_size=2, max_size=4, unique=True)))
        for step, (start, end) in enumerate(pairwise(cuts)):
            drawing.mark(step, us(start), us(end - start))
    return drawing


def apart(worlds: int) -> st.SearchStrategy[list[list[Spec]]]:
    """Worlds without two events of a thread equal in start and length, where the file would decide."""
    unique = (place_and_time, call_and_time)
    return st.lists(st.lists(specs(), min_size=1, max_size=25, unique_by=unique), min_size=1, max_size=worlds)


def place_and_time(spec: Spec) -> tuple[Any, ...]:
    return spec[0] in HOST, spec[4], spec[2], spec[3]


def call_and_time(spec: Spec) -> tuple[Any, ...]:
    kind, _, start, _, place, correlation, _ = spec
    return (correlation, start) if kind in ("launch", "driver") else (kind, place, spec)


def us(ns: int) -> Decimal:
    return Decimal(ns) / 1000


def draw_worlds(
    worlds: list[list[Spec]], *, shift_ns: int = 0, rename: Callable[[Any], Any] = lambda thread: thread
) -> Drawing:
    """The drawing of some worlds, later by a shift, its threads renamed."""
    drawing = Drawing()
    for world, chosen in enumerate(worlds):
        moved = [
            (kind, name, start + shift_ns, dur, rename(place) if kind in HOST else place, correlation, stream)
            for kind, name, start, dur, place, correlation, stream in chosen
        ]
        draw_all(moved, drawing, world=world)
    return drawing


def draw_all(chosen: list[Spec], drawing: Drawing, *, world: int = 0) -> None:
    """Adds events whose names, processes, devices and correlations are those of one world."""
    for kind, plain, start, dur, place, number, stream in chosen:
        name, correlation, pid = f"{plain} {world}", number + 10 * world, 100 + world
        at = us(start), us(dur)
        if kind == "op":
            drawing.op(name, *at, pid=pid, thread=place)
        elif kind in ("launch", "driver"):
            category = "cuda_runtime" if kind == "launch" else "cuda_driver"
            drawing.launch(name, *at, corr=correlation, pid=pid, thread=place, cat=category)
        elif kind == "frame":
            drawing.frame(name, *at, pid=pid, thread=place)
        elif kind == "annotation":
            drawing.annotation(plain, *at, pid=pid, thread=place)
        elif kind == "device range":
            drawing.annotation(plain, *at, cat="gpu_user_annotation", pid=place + 2 * world, thread=stream)
        else:
            device = place + 2 * world
            blocks = {"blocks per SM": (number + 1) / 4} if kind == "kernel" else {}
            work = {"kernel": drawing.kernel, "memcpy": drawing.memcpy, "memset": drawing.memset}[kind]
            work(name, *at, corr=correlation, device=device, stream=stream, args=blocks)
