from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.attention import Attention
from stepscope.analyses.kernel_chains import KernelChain
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import FasterDevice, MeanStep
from stepscope.findings.rules.elementwise_chains import elementwise_chains


def kernel(family: str, per_step: int, time_ms: float, name: str = "") -> dict[str, Any]:
    """A kernel in 10 steps."""
    total = round(10 * time_ms * MS)
    return {
        "name": name or f"{family}_kernel", "family": family, "calls": 10 * per_step, "total_ns": total,
        "exclusive_ns": total, "mean_ns": total / (10 * per_step),
    }  # fmt: skip


ELEMENTWISE = kernel("elementwise", 30, 3.0)
PRODUCTS = kernel("matmul", 9, 6.0)
ROW = {
    "ops": "aten::mul, aten::add",
    "kernels": 3,
    "chains": 100,
    "device_ns": 30 * MS,
    "shortest_ns": 10 * MS,
}
"""Chains of three such kernels; 2 ms of a step go if they become one."""
FORWARD = {"name": "aten::mul", "phase": "forward", "user_frame": "m.py(3): f", "device_ns": 10, "calls": 10}


def found(
    *kernels: dict[str, Any],
    ops: tuple[dict[str, Any], ...] = (FORWARD,),
    chains: tuple[dict[str, Any], ...] = (ROW,),
    attention: tuple[dict[str, Any], ...] = (),
    step: MeanStep | None = None,
    told: Facts | None = None,
    **more: Any,
) -> Advice | None:
    families = [{"family": row["family"], "total_ns": row["total_ns"]} for row in kernels]
    return elementwise_chains(
        step or busy_pace(),
        drawn(Kernel, *kernels),
        drawn(KernelFamily, *families),
        drawn(KernelChain, *chains),
        drawn(StepOp, *ops),
        drawn(Attention, *attention),
        told or facts(),
        **more,
    )


def gained(advice: Advice, step: MeanStep | None = None) -> tuple[float, float]:
    """Parts of the step."""
    gain = (step or busy_pace()).gain(advice.saving)
    return gain.low_share, gain.high_share


def test_a_chain_of_kernels() -> None:
    advice = assert_bounded(found(ELEMENTWISE, PRODUCTS), busy_pace())
    # 30 kernels between 9 products and the end of the step.
    assert advice.evidence["chain_length"] == 3
    # The shortest kernel of each is left; 0.4 of that goes at least.
    assert gained(advice) == pytest.approx((0.08, 0.2), abs=0.002)
    assert [place.function for place in advice.locations] == ["f"]


def test_casts_and_copies_of_a_chain_are_fused_with_it() -> None:
    chain = ROW | {"copies_ns": 4 * MS, "beside_ns": 6 * MS}
    advice = assert_bounded(found(ELEMENTWISE, PRODUCTS, chains=(chain,)), busy_pace())
    assert gained(advice) == pytest.approx((0.12, 0.3), abs=0.001)
    loss = {**LONG, "ops": "aten::_log_softmax"}
    advice = assert_bounded(found(ELEMENTWISE, PRODUCTS, chains=(ROW, loss)), busy_pace())
    assert gained(advice) == pytest.approx((0.08, 0.2), abs=0.002), "another rule promises that"


def test_xla_fuses_by_itself() -> None:
    assert found(ELEMENTWISE, PRODUCTS, told=facts(kind="xplane")) is None


@pytest.mark.parametrize("name", ["MulFunctor<c10::complex<float>>", "vector_fft_r2c<256u>"])
def test_where_numbers_are_complex_nothing_may_be_gained(name: str) -> None:
    transform = kernel("elementwise", 30, 1.0, name)
    advice = assert_bounded(found(ELEMENTWISE, PRODUCTS, transform), busy_pace())
    assert gained(advice) == pytest.approx((0.0, 0.2), abs=0.002)
    assert "numbers beside them are complex" in advice.because
    assert advice.certainty == "possible"
    assert advice.evidence["kernels_per_step"] == 30
    assert found(PRODUCTS, transform) is None


def host_ops(*, device_ns: int) -> tuple[dict[str, Any], ...]:
    """Of the host's 8 ms a step half is for a chain and its gradients."""
    chain = {"name": "aten::mul", "phase": "forward", "host_ns": 20 * MS, "launches": 100}
    node = "autograd::engine::evaluate_function: MulBackward0"
    gradients = {"name": node, "phase": "backward", "host_ns": 20 * MS, "launches": 100}
    other = {"name": "aten::linear", "phase": "forward", "host_ns": 40 * MS, "launches": 90, "per_step": 9.0}
    return (*(row | {"device_ns": device_ns} for row in (chain, gradients)), other)


def test_launches_of_a_chain_go_where_the_host_sets_the_pace() -> None:
    late = mean_step(
        unprofiled_ns=(8.0 * MS, 8.0 * MS),
        busy_ns=4.0 * MS,
        starved_ns=6.0 * MS,
        faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 1.0, 1.0)),
    )
    ops = host_ops(device_ns=10 * MS)
    advice = assert_bounded(found(ELEMENTWISE, kernel("matmul", 9, 0.5), ops=ops, step=late), late)
    # 2/3 of half of the host's work, and 3/4 of that at the least.
    assert gained(advice, late) == pytest.approx((1 / 4, 1 / 3))
    # Two products and their gradients, of several kernels each, make five chains: 5/6 at the most.
    linear, node = ops[2], "autograd::engine::evaluate_function: AddmmBackward0"
    gradient = {"name": node, "phase": "backward", "launches": 50, "per_step": 2.0}
    some = (*ops[:2], linear | {"per_step": 2.0}, gradient)
    advice = assert_bounded(found(ELEMENTWISE, kernel("matmul", 9, 0.5), ops=some, step=late), late)
    assert gained(advice, late) == pytest.approx((1 / 4, 5 / 12))
    assert Claim(Time.STARVED, Part.ELEMENTWISE) in advice.claims
    short = found(ELEMENTWISE, kernel("matmul", 9, 0.5), ops=host_ops(device_ns=1000), step=late)
    assert short is None  # the chain is of others, and the device is not what is slow


def test_norms_make_a_chain_longer() -> None:
    advice = assert_bounded(found(ELEMENTWISE, PRODUCTS, kernel("normalisation", 20, 0.5)), busy_pace())
    assert advice.evidence["chain_length"] == 5


def test_the_optimizer_and_sums_of_gradients_are_not_part_of_it() -> None:
    optimizer = {"name": "aten::add_", "phase": "optimizer", "device_ns": 10 * MS}
    adding = {"name": "aten::add_", "within": "torch::autograd::AccumulateGrad", "device_ns": 5 * MS}
    adding["launches"] = 50
    advice = assert_bounded(found(ELEMENTWISE, PRODUCTS, ops=(FORWARD, optimizer, adding)), busy_pace())
    assert advice.evidence["elementwise_ns"] == 1.5 * MS
    assert advice.evidence["kernels_per_step"] == 25
    assert advice.evidence["chain_length"] == 2.5
    assert gained(advice)[1] == pytest.approx(0.5 / 9.9, abs=0.002), "they are among the chains of the step"


def test_only_what_ran_in_steps_counts() -> None:
    families = drawn(KernelFamily, {"family": "elementwise", "total_ns": 45 * MS})
    kernels = drawn(Kernel, kernel("elementwise", 30, 3.0), kernel("matmul", 30, 6.0))
    nothing = drawn(KernelChain, ROW), drawn(StepOp), drawn(Attention)
    advice = assert_bounded(
        elementwise_chains(busy_pace(), kernels, families, *nothing, facts()), busy_pace()
    )
    assert advice.certainty == "possible"  # half of it: 15 kernels between 16
    kernels = drawn(Kernel, kernel("elementwise", 30, 9.0))
    advice = assert_bounded(
        elementwise_chains(busy_pace(), kernels, families, *nothing, facts()), busy_pace()
    )
    assert advice.evidence["elementwise_ns"] == 4.5 * MS
    assert advice.evidence["chain_length"] == 15


@pytest.mark.parametrize(
    "kernels",
    [
        (),
        (PRODUCTS,),
        (kernel("elementwise", 30, 3.0, "triton_poi_fused_add_0"), PRODUCTS),  # compiled
        (kernel("elementwise", 1000, 3.0), PRODUCTS),  # short
    ],
)
def test_it_is_silent(kernels: tuple[dict[str, Any], ...]) -> None:
    assert found(*kernels) is None


@pytest.mark.parametrize(
    "elementwise",
    [
        kernel("elementwise", 15, 3.0),  # one or two between products
        kernel("elementwise", 30, 0.5),  # little, but with norms and casts beside it
    ],
)
def test_short_chains_may_be_fused_or_not(elementwise: dict[str, Any]) -> None:
    advice = assert_bounded(found(elementwise, PRODUCTS), busy_pace())
    assert gained(advice) == pytest.approx((0.079, 0.198), abs=0.002)
    assert advice.certainty == "possible"
    assert "Chains of them are short" in advice.because
    assert "attention" not in advice.because + advice.fix
    with_attention = assert_bounded(
        found(elementwise, PRODUCTS, attention=({"backend": "flash"},)), busy_pace()
    )
    assert "attention_mask=torch.ones_like(ids)" in with_attention.fix
    assert gained(with_attention) == pytest.approx((0, 0.198), abs=0.001)
    little = ROW | {"device_ns": 18 * MS}
    assert found(elementwise, PRODUCTS, chains=(little,)) is None
    compiled = kernel("elementwise", 15, 3.1, "triton_poi_fused_add_0")
    assert found(elementwise, compiled, PRODUCTS) is None


def test_the_threshold() -> None:
    assert found(ELEMENTWISE, PRODUCTS, least_share=0.4) is None
    assert found(kernel("elementwise", 30, 0.5), PRODUCTS, least_share=0.01) is not None


LONG = {"ops": "aten::sub, aten::pow, aten::sum", "kernels": 5, "chains": 10, "device_ns": 30 * MS,
        "shortest_ns": MS}  # fmt: skip


def test_one_long_chain_counts_where_the_others_are_short() -> None:
    many = kernel("matmul", 90, 6.0)
    advice = assert_bounded(found(ELEMENTWISE, many, chains=(LONG,)), busy_pace())
    # 3 ms in five kernels: the shortest is left.
    assert advice.saving.device_ns == pytest.approx((0.4 * 2.9 * MS, 2.9 * MS))
    assert "5 kernels in a row (aten::sub, aten::pow, aten::sum, …)" in advice.because
    assert "torch.cdist" in advice.fix


def test_compiling_fuses_short_chains_beside_a_long_one() -> None:
    many, long = kernel("matmul", 90, 6.0), {**LONG, "ops": "aten::mul, aten::add"}
    advice = assert_bounded(found(ELEMENTWISE, many, chains=(long, ROW)), busy_pace())
    assert advice.saving.device_ns[1] == pytest.approx(4.9 * MS)
    distances = assert_bounded(found(ELEMENTWISE, many, chains=(LONG, ROW)), busy_pace())
    assert distances.saving.device_ns[1] == pytest.approx(2.9 * MS), "another way replaces these alone"


@pytest.mark.parametrize(
    "ops,title",
    [
        ("aten::sub, aten::linalg_vector_norm, aten::lt, aten::nonzero", "Distances"),
        ("aten::unsqueeze, aten::sub, aten::pow, aten::sum, aten::sqrt", "Distances"),
        ("aten::sub, aten::pow, aten::mul, aten::sum", "A long chain"),  # a weighted error
    ],
)
def test_what_are_distances(ops: str, title: str) -> None:
    many = kernel("matmul", 90, 6.0)
    advice = assert_bounded(found(ELEMENTWISE, many, chains=({**LONG, "ops": ops},)), busy_pace())
    assert advice.title.startswith(title)
    assert ("radius_graph" in advice.fix) == ("aten::lt" in ops)


def test_distances_count_alone_if_most_of_the_time_is_in_them() -> None:
    advice = assert_bounded(found(ELEMENTWISE, PRODUCTS, chains=(LONG,)), busy_pace())
    assert advice.title == "Distances are computed by elementwise operators"
    assert advice.saving.device_ns == pytest.approx((0.4 * 2.9 * MS, 2.9 * MS))
    longer = {**LONG, "ops": "aten::mul, aten::add", "device_ns": 40 * MS}
    both = assert_bounded(found(ELEMENTWISE, PRODUCTS, chains=(LONG, longer)), busy_pace())
    assert both.title == "Elementwise operators run as separate kernels"


def test_chains_that_are_short_or_small_each_time_do_not_count_alone() -> None:
    many = kernel("matmul", 90, 6.0)
    loss = {"ops": "aten::div, aten::_log_softmax, aten::nll_loss_forward, aten::mul"}
    draw = {"ops": "aten::min, aten::sum, aten::exponential_, aten::div"}  # torch.multinomial
    for other in ({"kernels": 3}, {"chains": 100}, {"device_ns": 4 * MS}, loss, draw):
        assert found(ELEMENTWISE, many, chains=({**LONG, **other},)) is None
    assert (
        "torch.cdist"
        not in assert_bounded(
            found(ELEMENTWISE, many, chains=({**LONG, "ops": "aten::mul, aten::add"},)), busy_pace()
        ).fix
    )


def test_a_softmax_that_is_no_attention_with_a_rule_of_its_own() -> None:
    many = kernel("matmul", 90, 6.0)
    scores = {**LONG, "ops": "aten::add, aten::leaky_relu, aten::where, aten::_softmax, aten::native_dropout"}
    written = found(ELEMENTWISE, many, chains=(scores,), attention=({"backend": "hand-written"},))
    assert written is None
    advice = assert_bounded(
        found(ELEMENTWISE, many, chains=(scores,), attention=({"backend": "flash"},)), busy_pace()
    )
    assert "if most pairs are masked" in advice.fix
    unmasked = {**scores, "ops": "aten::add, aten::_softmax, aten::mul"}
    assert "pairs" not in assert_bounded(found(ELEMENTWISE, many, chains=(unmasked,)), busy_pace()).fix
