from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts

from stepscope.analyses.attention import Attention
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.masked_attention import masked_attention

SHARED = {
    "backend": "cudnn",
    "precision": "bf16",
    "batch": 4,
    "heads": 16,
    "query_length": 4096,
    "key_length": 4096,
    "head_dim": 64,
    "forward_calls": 40,
    "forward_ns": 20 * MS,
    "backward_calls": 40,
    "backward_ns": 40 * MS,
    "mask": "shared",
}
OPS = drawn(
    StepOp,
    {"name": "aten::scaled_dot_product_attention", "per_step": 4.0, "user_frame": "model.py(7): forward"},
    {"name": "aten::linear", "device_ns": 20 * MS, "per_step": 9.0, "user_frame": "model.py(9): forward"},
)


def test_half_is_skipped_and_the_rest_is_no_faster_than_the_best_kernels() -> None:
    step = busy_pace()
    advice = assert_bounded(masked_attention(step, facts(), drawn(Attention, SHARED), OPS), step)
    low, high = advice.saving.device_ns
    assert low == pytest.approx(6.0 * MS * (1 - (0.5 + 64 / 4096) / 0.85))
    flops = 4 * (4 * 16 * 4096 * 4096 / 2) * 64 * (4 + 2.5 * 4)
    assert high == pytest.approx(6.0 * MS - 1e9 * flops / (0.6 * 989e12))
    assert "4,096 × 4,096" in advice.because
    assert "is_causal=True" in advice.fix
    assert advice.certainty == "possible"
    assert [place.line for place in advice.locations] == [7]


def test_three_quarters_at_most_where_no_peak_is_known() -> None:
    step = busy_pace()
    rows = drawn(Attention, {**SHARED, "precision": "unknown"})
    advice = assert_bounded(masked_attention(step, facts(), rows, OPS), step)
    assert advice.saving.device_ns[1] == pytest.approx(4.5 * MS)


def test_without_shapes_a_boolean_mask_may_be_causal_or_not() -> None:
    step = busy_pace()
    sizes = dict.fromkeys(("batch", "heads", "query_length", "key_length", "head_dim"))
    rows = drawn(Attention, {**SHARED, **sizes, "mask": "some"})
    advice = assert_bounded(masked_attention(step, facts(), rows, OPS), step)
    assert advice.saving.device_ns == pytest.approx((0, 4.5 * MS))
    assert "record_shapes=True" in advice.because


def test_a_mask_for_each_sequence_may_be_needed_or_not() -> None:
    step = busy_pace()
    converted = {"name": "aten::where", "within": "aten::scaled_dot_product_attention", "device_ns": 10 * MS}
    ops = drawn(StepOp, {"name": "aten::scaled_dot_product_attention", "per_step": 4.0}, converted)
    advice = assert_bounded(
        masked_attention(step, facts(), drawn(Attention, SHARED | {"mask": "some", "batch": 2}), ops), step
    )
    # Eight documents in a row: an eighth of attention is left.
    assert advice.saving.device_ns == pytest.approx((0, 6.0 * MS * 7 / 8 + MS))
    assert "without attn_mask" in advice.fix
    assert "is_causal" not in advice.fix


@pytest.mark.parametrize("length,left", [(512, 1.0), (1024, 0.5), (2048, 0.25), (8192, 0.125)])
def test_documents_of_a_row_have_512_positions_or_more(length: int, left: float) -> None:
    sizes = {"mask": "some", "query_length": length, "key_length": length, "precision": "unknown"}
    rows = drawn(Attention, SHARED | sizes)
    advice = assert_bounded(masked_attention(busy_pace(), facts(), rows, OPS), busy_pace())
    # Where no peak is known, half of the time is left.
    assert advice.saving.device_ns == pytest.approx((0, 6.0 * MS * (1 - min(0.5, left))))


@pytest.mark.parametrize(
    "other",
    [
        {"mask": None},
        {"mask": "none"},
        {"mask": "some", "key_length": 77},
        {"mask": "causal"},
        {"backend": "math"},
        {"key_length": 77},
        {"query_length": 128, "key_length": 128},
        {"forward_ns": 2 * MS, "backward_ns": 2 * MS},
    ],
)
def test_it_is_silent_where_there_is_nothing_to_skip(other: dict[str, object]) -> None:
    assert masked_attention(busy_pace(), facts(), drawn(Attention, SHARED | other), OPS) is None


def test_the_threshold_can_be_changed() -> None:
    little = drawn(Attention, {**SHARED, "forward_ns": 2 * MS, "backward_ns": 2 * MS})
    assert masked_attention(busy_pace(), facts(), little, OPS, least_share=0.01) is not None
