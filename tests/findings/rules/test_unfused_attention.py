from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, fix_for, mean_step

from stepscope.analyses.attention import Attention
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import FasterDevice
from stepscope.findings.program import Framework
from stepscope.findings.rules.unfused_attention import unfused_attention

BY_HAND = {
    "backend": "hand-written",
    "precision": "bf16",
    "query_length": 1024,
    "key_length": 1024,
    "head_dim": 64,
    "forward_calls": 40,
    "forward_ns": 20 * MS,
    "backward_calls": 40,
    "backward_ns": 30 * MS,
}
OPS = drawn(
    StepOp,
    {"name": "aten::bmm", "device_ns": 20 * MS, "per_step": 16.0, "user_frame": "model.py(7): forward"},
    {"name": "aten::_softmax", "device_ns": 8 * MS, "per_step": 4.0, "user_frame": "model.py(9): mixed"},
)


def test_it_fires_with_what_is_no_product_at_the_least() -> None:
    step = busy_pace()
    advice = assert_bounded(unfused_attention(step, drawn(Attention, BY_HAND), OPS), step)
    low, high = advice.saving.device_ns
    kept = 2 * 2048 * 64 / (2 * 2048 * 64 + 4 * 1024 * 1024)
    assert low == pytest.approx(5.0 * MS - 2.0 * MS)
    assert high == pytest.approx(5.0 * MS * (1 - kept))
    assert "1,024 × 1,024 scores for each head" in advice.because
    assert "8 times a step" in advice.because
    assert "F.scaled_dot_product_attention(q, k, v)" in advice.fix
    assert 'attn_implementation="sdpa"' in fix_for(advice, Framework.TRANSFORMERS)
    assert "autocast" not in advice.fix
    assert [place.function for place in advice.locations] == ["forward", "mixed"]


def test_at_least_the_softmax_goes_where_other_products_are_among_them() -> None:
    step = busy_pace()
    ops = drawn(
        StepOp,
        {"name": "aten::bmm", "device_ns": 90 * MS},
        {"name": "aten::_softmax", "device_ns": 8 * MS},
        {"name": "aten::_softmax_backward_data", "device_ns": 4 * MS},
    )
    advice = assert_bounded(unfused_attention(step, drawn(Attention, BY_HAND), ops), step)
    assert advice.saving.device_ns[0] == pytest.approx(1.2 * MS)


def test_copies_that_put_heads_into_order_may_go() -> None:
    step = busy_pace()
    clones = [
        {"name": "aten::clone", "within": name, "device_ns": 5 * MS}
        for name in ("aten::reshape", "aten::add")
    ]
    ops = drawn(StepOp, {"name": "aten::bmm", "device_ns": 20 * MS}, *clones)
    advice = assert_bounded(unfused_attention(step, drawn(Attention, BY_HAND), ops), step)
    kept = 2 * 2048 * 64 / (2 * 2048 * 64 + 4 * 1024 * 1024)
    assert advice.saving.device_ns[1] == pytest.approx(5.0 * MS * (1 - kept) + 0.5 * MS)


def test_the_host_no_longer_calls_these_operators() -> None:
    step = busy_pace(faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 0.6, 0.6)))
    rows = drawn(Attention, BY_HAND | {"forward_ns": 40 * MS, "backward_ns": 30 * MS})
    others = {"name": "aten::linear", "host_ns": 10 * MS}
    called = {"name": "aten::softmax", "host_ns": 30 * MS}
    without = assert_bounded(unfused_attention(step, rows, drawn(StepOp, others)), step)
    advice = assert_bounded(unfused_attention(step, rows, drawn(StepOp, others, called)), step)
    assert step.gain(without.saving).high_share == pytest.approx(0.4, abs=0.01), "the host alone takes 6 ms"
    assert step.gain(advice.saving).high_share > 0.6


def test_without_sizes_all_but_the_shortest_kernels_may_go() -> None:
    step = busy_pace()
    sizes = dict.fromkeys(("query_length", "key_length", "head_dim"))
    advice = assert_bounded(unfused_attention(step, drawn(Attention, BY_HAND | sizes), OPS), step)
    assert advice.saving.device_ns[1] == pytest.approx(5.0 * MS - 8 * 4_000)
    assert "the scores of all pairs of positions" in advice.because


@pytest.mark.parametrize("weights", ["aten::_softmax", "aten::exp"])
def test_short_sequences_may_gain_nothing(weights: str) -> None:
    """Copies of queries take longer than the weights: there are fewer scores."""
    step = busy_pace()
    sizes = dict.fromkeys(("query_length", "key_length", "head_dim"))
    ops = drawn(
        StepOp,
        {"name": weights, "device_ns": MS, "launches": 10},
        {"name": "aten::clone", "within": "aten::reshape", "device_ns": 2 * MS, "launches": 10},
    )
    advice = assert_bounded(unfused_attention(step, drawn(Attention, BY_HAND | sizes), ops), step)
    assert advice.saving.device_ns[0] == 0
    assert advice.certainty == "possible"
    advice = assert_bounded(unfused_attention(step, drawn(Attention, BY_HAND), ops), step)
    assert advice.certainty == "likely"


def test_torchs_own_attention_is_told_what_kept_it() -> None:
    step = mean_step()
    own = {
        "name": "aten::scaled_dot_product_attention",
        "device_ns": 50 * MS,
        "starved_ns": 8 * MS,
        "per_step": 4.0,
    }
    math = drawn(Attention, {**BY_HAND, "backend": "math", "precision": "fp32"})
    advice = assert_bounded(unfused_attention(step, math, drawn(StepOp, own)), step)
    assert advice.saving.starved_ns == pytest.approx((0.0, 0.5 * step.with_latency(0.8 * MS)))
    assert Claim(Time.STARVED, Part.ATTENTION) in advice.claims
    assert "need 16 bits, and this is fp32" in advice.because
    assert "autocast" in advice.fix
    half = drawn(Attention, {**BY_HAND, "backend": "math"})
    advice = assert_bounded(unfused_attention(step, half, drawn(StepOp, own)), step)
    assert "A mask" in advice.because
    assert "is_causal" not in advice.fix
    assert "sdpa_kernel" in advice.fix


def test_compiled_code_that_took_attention_apart() -> None:
    step = busy_pace()
    fused = {"name": "triton_red_fused__safe_softmax_add_where_4", "device_ns": 50 * MS, "per_step": 4.0}
    math = drawn(Attention, {**BY_HAND, "backend": "math", "precision": "fp32"})
    advice = assert_bounded(unfused_attention(step, math, drawn(StepOp, fused)), step)
    assert "torch.compile took torch's attention apart" in advice.because
    assert "not torch.compile(plain), and compare" in advice.fix
    assert "bfloat16" not in advice.fix


@pytest.mark.parametrize(
    "mask,typed",
    [
        (None, "F.scaled_dot_product_attention(q, k, v) "),
        ("none", "F.scaled_dot_product_attention(q, k, v) "),
        ("some", "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"),
        ("causal", "F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
    ],
)
def test_only_a_mask_that_is_known_to_be_causal_is_called_so(mask: str | None, typed: str) -> None:
    step = busy_pace()
    advice = assert_bounded(unfused_attention(step, drawn(Attention, {**BY_HAND, "mask": mask}), OPS), step)
    assert typed in advice.fix
    assert ("flex_attention" in advice.fix) == (mask != "none")


def test_multihead_attention_is_told_not_to_return_weights() -> None:
    step = busy_pace()
    own = {"name": "aten::_native_multi_head_attention", "device_ns": 50 * MS, "per_step": 4.0}
    math = drawn(Attention, {**BY_HAND, "backend": "math", "precision": "tf32"})
    advice = assert_bounded(unfused_attention(step, math, drawn(StepOp, own)), step)
    assert "need_weights=False" in advice.fix
    assert "need_weights=True" in advice.because


def test_it_is_silent_where_attention_is_fused_or_little() -> None:
    assert unfused_attention(busy_pace(), drawn(Attention), OPS) is None
    assert unfused_attention(busy_pace(), drawn(Attention, {**BY_HAND, "backend": "flash"}), OPS) is None
    little = drawn(Attention, {**BY_HAND, "forward_ns": MS, "backward_ns": MS})
    assert unfused_attention(busy_pace(), little, OPS) is None
    assert unfused_attention(busy_pace(), little, OPS, least_share=0.01) is not None
