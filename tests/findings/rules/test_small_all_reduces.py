from __future__ import annotations

from typing import Any

from tests.findings.drawn import assert_bounded, busy_pace, drawn, fix_for

from stepscope.analyses.collective_kinds import CollectiveKind
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.step_classes import StepClass
from stepscope.findings import Advice
from stepscope.findings.program import Framework
from stepscope.findings.rules.small_all_reduces import small_all_reduces

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
US = 1_000


def judged(
    *, kernel: str = NCCL, calls: int = 640, mean_ns: int = 25 * US, name: str = "",
    collective: str = "all-reduce",
    kind: str | None = "decode", training: bool = False, **thresholds: Any,
) -> Advice | None:  # fmt: skip
    """Ten steps of 10 ms with 64 all-reduces in each."""
    return small_all_reduces(
        busy_pace(),
        drawn(Iteration, {"kind": kind, "name": name}),
        drawn(StepClass, {"backward_passes": int(training)}),
        drawn(
            CollectiveKind,
            {
                "kind": collective,
                "backend": "device",
                "kernel": kernel,
                "calls": calls,
                "total_ns": calls * mean_ns,
            },
        ),
        **thresholds,
    )


def test_it_fires_with_all_but_the_latency_of_one_shot() -> None:
    advice = assert_bounded(judged(), busy_pace())
    assert advice.saving.device_ns == (0.0, 64 * 20.0 * US)
    assert advice.evidence["nccl"]


def test_the_fix_follows_engine_and_kernel() -> None:
    custom = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)"
    for kernel, engines, typed in (
        (NCCL, [Framework.VLLM], "--disable-custom-all-reduce"),
        (NCCL, [Framework.SGLANG], "--enable-symm-mem"),
        (custom, [Framework.VLLM], '{"pass_config": {"fuse_allreduce_rms": true}}'),
        (custom, [Framework.SGLANG], "--flashinfer-allreduce-fusion-backend"),
        (custom, [], "one_shot_all_reduce"),
    ):
        assert typed in fix_for(judged(kernel=kernel), *engines)


def test_it_is_silent_in_training() -> None:
    assert judged(kind=None, training=True) is None
    assert judged(kind=None) is not None


def test_it_is_silent_for_few_long_or_cheap_ones() -> None:
    assert judged(calls=100, mean_ns=49 * US, least_share=0.01) is None
    assert judged(mean_ns=60 * US) is None
    assert judged(mean_ns=60 * US, most_mean_ns=70 * US) is not None
    assert judged(mean_ns=6 * US) is None
    assert judged(mean_ns=6 * US, least_share=0.03) is not None
    assert judged(collective="all-to-all") is None
    assert judged(calls=0) is None
