from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, drawn, facts, mean_step

from stepscope.analyses.annotations import Annotation
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice
from stepscope.findings.facts import Facts
from stepscope.findings.rules.gloo_backend import gloo_backend

GLOO = facts(backend="gloo", world_size=2)


def judged(
    told: Facts = GLOO,
    *,
    communication_ns: int = 6 * MS,
    kernels_ns: int = 0,
    ranges: str = "gloo:all_reduce",
    copied_ns: int = 5 * MS,
    **thresholds: Any,
) -> Advice | None:
    """Ten steps of 10 ms with 40 collectives; copying to the host takes `copied_ns` in all."""
    return gloo_backend(
        mean_step(),
        told,
        drawn(Step, *[{"dur_ns": 10 * MS, "communication_ns": communication_ns}] * 10),
        drawn(KernelFamily, {"family": "communication", "total_ns": kernels_ns}),
        drawn(Annotation, {"name": ranges, "calls": 40}),
        drawn(StepOp, {"name": "c10d::allreduce_", "calls": 40, "device_ns": copied_ns}),
        **thresholds,
    )


def test_it_fires_and_leaves_the_copies_there_and_back() -> None:
    advice = assert_bounded(judged(), mean_step())
    assert advice.saving.waited_ns == (0.75 * 5.0 * MS, 5.0 * MS)
    assert advice.evidence["collectives_per_step"] == 4


def test_between_machines_the_network_may_be_the_cause() -> None:
    advice = assert_bounded(judged(facts(backend="gloo", world_size=64)), mean_step())
    assert advice.saving.waited_ns == (0.0, 5.0 * MS)
    advice = assert_bounded(judged(facts(backend="gloo")), mean_step())
    assert advice.saving.waited_ns[0] == 0


def test_it_is_silent_for_tensors_of_the_host() -> None:
    assert judged(copied_ns=0) is None
    assert judged(facts(backend="gloo", world_size=2, device_work=False)) is None


def test_it_is_silent_where_another_backend_communicates() -> None:
    assert judged(ranges="mpi:all_reduce") is None
    assert judged(facts(backend="nccl"), kernels_ns=5 * MS) is None
    assert judged(communication_ns=6 * MS, kernels_ns=60 * MS) is None


def test_it_is_silent_where_it_costs_little() -> None:
    assert judged(communication_ns=int(0.3 * MS)) is None
    assert judged(communication_ns=int(0.3 * MS), copied_ns=100, least_share=0.02) is not None
