"""Plans of runs for property tests."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.runs.drawn import Fault, Plan, Program
from tests.runs.programs import data_parallel, experts, pipeline, sharded, tensor_data

__all__ = ["CAUSES", "PROGRAMS", "faulty_plans", "plans"]

CAUSES = ("input", "more work", "slower device", "host", "memory", "collector", "compiling")

PROGRAMS: dict[str, tuple[Program, int]] = {
    "data": (data_parallel(4), 4),
    "blocking": (data_parallel(5, overlapped=False), 5),
    "two": (data_parallel(2, layers=4), 2),
    "sharded": (sharded(4), 4),
    "tensor": (tensor_data(2, 3), 6),
    "pipeline": (pipeline(2, micro_batches=3, data=2), 4),
    "1F1B": (pipeline(3, micro_batches=4, schedule="1F1B", data=2), 6),
    "experts": (experts(4, [9_000, 12_000, 8_000, 11_000]), 4),
}
"""Programs by name, with the number of their ranks."""


@st.composite
def plans(draw: st.DrawFn, /, names: tuple[str, ...] = tuple(PROGRAMS), **fixed: object) -> Plan:
    """Runs with clocks that are off, ends that are not quite together, and ranks that lack something."""
    program, ranks = PROGRAMS[draw(st.sampled_from(names))]
    hosts = draw(st.integers(1, 3)) if ranks > 2 else draw(st.integers(1, 2))
    chosen: dict[str, object] = {
        "ranks": ranks,
        "steps": draw(st.integers(2, 6)),
        "hosts": hosts,
        "offsets_ns": tuple(draw(st.integers(-(10**10), 10**10)) for _ in range(hosts)),
        "drifts_ppm": tuple(draw(st.floats(-60, 60)) for _ in range(hosts)),
        "named_hosts": draw(st.booleans()),
        "jitter_ns": draw(st.sampled_from([0, 1_000, 8_000])),
        "noise": draw(st.sampled_from([0.0, 0.01, 0.05])),
        "sequence": draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
    }
    if draw(st.booleans()):
        chosen["missing"] = (draw(st.integers(0, ranks - 1)),)
    if draw(st.booleans()):
        chosen["begins"] = {draw(st.integers(0, ranks - 1)): 1}
    return Plan(program, **{**chosen, **fixed})  # type: ignore[arg-type]


@st.composite
def faulty_plans(draw: st.DrawFn, /, names: tuple[str, ...] = tuple(PROGRAMS)) -> Plan:
    """Runs in which one rank is late for one cause."""
    program, ranks = PROGRAMS[draw(st.sampled_from(names))]
    fault = Fault(
        draw(st.integers(0, ranks - 1)),
        draw(st.sampled_from(CAUSES)),
        draw(st.integers(2_000_000, 6_000_000)),
    )
    hosts = draw(st.integers(1, 2))
    return Plan(
        program,
        ranks=ranks,
        steps=draw(st.integers(3, 5)),
        faults=(fault,),
        hosts=hosts,
        offsets_ns=(0, draw(st.integers(-(10**9), 10**9))),
        drifts_ppm=(0, draw(st.floats(-30, 30))),
        jitter_ns=draw(st.sampled_from([0, 5_000])),
        noise=draw(st.sampled_from([0.0, 0.01])),
        sequence=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )
