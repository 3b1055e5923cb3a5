from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.loops import Loop
from stepscope.analyses.phases import Phase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.mean_step import FasterDevice, MeanStep
from stepscope.findings.rules.repeated_calls import repeated_calls

# The host alone takes the whole step of 10 ms, the GPU 1 ms of it.
STEP = mean_step(
    busy_ns=1.0 * MS, starved_ns=8.0 * MS, latency_ns=1.0 * MS, waiting_ns=0.0, host_path_share=1.0
)
BACKWARD = {
    "name": "autograd::engine::evaluate_function: MmBackward0",
    "phase": "backward",
    "host_ns": 40 * MS,
}


def loop(contains: str, **figures: Any) -> dict[str, Any]:
    """A loop of 48 repetitions that takes half of the host's time, recorded without stacks."""
    return {
        "repeats": 48,
        "ops": len(contains.split(", ")),
        "first_ops": contains,
        "contains": contains,
        "host_ns": 5 * MS,
        "host_share": 0.5,
        "op_share": 0.9,
        "launches": 90,
        "launch_share": 0.9,
    } | figures


LSTM = "aten::addmm, aten::sigmoid, aten::tanh, aten::mul"
EXPERTS = "aten::eq, aten::index, aten::index_add, aten::mm, aten::nonzero"
POLICY = "aten::addmm, aten::item, aten::multinomial, aten::softmax"
BLOCK = "aten::addmm, aten::layer_norm, aten::gelu"
CALL = {"same_place": True, "module": "nn.Module: Net_0"}


def advised(
    *loops: dict[str, Any],
    step: MeanStep = STEP,
    classes: tuple[dict[str, Any], ...] = (),
    ops: tuple[dict[str, Any], ...] = (),
    phases: tuple[dict[str, Any], ...] = (),
    **thresholds: float,
) -> Advice | None:
    tables = drawn(Loop, *loops), drawn(StepClass, *classes), drawn(StepOp, *ops), drawn(Phase, *phases)
    return repeated_calls(step, *tables, **thresholds)


@pytest.mark.parametrize(
    "row, title, fix",
    [
        (loop("aten::gru_cell"), "A loop of 48 GRU cells could be one call", "nn.GRU("),
        (loop(LSTM), "A loop of 48 LSTM cells could be one call", "nn.LSTM("),
        (loop(EXPERTS, repeats=8), "A loop over 8 experts or relations could be one call", "_grouped_mm"),
        (
            loop("aten::eq, aten::index, aten::mean, aten::nonzero"),
            "A loop over 48 groups could be one call",
            "index_add_",
        ),
        (loop("aten::linalg_vector_norm"), "A loop over 48 tensors could be one call", "_foreach_norm"),
        (loop("aten::select, aten::linear"), "48 layers side by side could be one call", "baddbmm"),
        (
            loop("aten::linear", same_place=False, module="nn.Module: Heads_0", same_shapes=True),
            "48 layers side by side could be one call",
            ".chunk(",
        ),
    ],
)
def test_a_loop_is_named_with_what_does_its_work_in_one_call(
    row: dict[str, Any], title: str, fix: str
) -> None:
    advice = assert_bounded(advised(row), STEP)
    assert advice.title == title
    assert fix in advice.fix
    gain = STEP.gain(advice.saving)
    part = 0.5 * (1 - 1 / row["repeats"])  # half of the host's time, once instead of so often
    assert gain.high_share == pytest.approx(part)
    assert gain.low_share == pytest.approx(0.85 * part)


@pytest.mark.parametrize(
    "row, title, fix",
    [
        (loop(POLICY, same_place=True), "A loop of 48 moments could serve many at once", "gymnasium.vector"),
        (loop(BLOCK, **CALL, same_shapes=True), "A loop of 48 calls could be one call", "torch.stack("),
        (loop(BLOCK, **CALL, same_shapes=False), "A loop of 48 calls could be one call", "pad_sequence"),
        (loop("aten::sort, aten::sin"), "A loop of 48 calls could be one call", "torch.stack("),
    ],
)
def test_calls_that_may_need_one_another_gain_nothing_at_least(
    row: dict[str, Any], title: str, fix: str
) -> None:
    advice = assert_bounded(advised(row), STEP)
    assert (advice.title, advice.certainty) == (title, "possible")
    assert fix in advice.fix
    assert STEP.gain(advice.saving).low_share == 0
    assert "needs the result of the one before" in advice.because
    own = assert_bounded(advised(row | {"inputs": 48}), STEP)  # the host gives each its own data
    assert own.certainty == "likely"
    assert STEP.gain(own.saving).low_share > 0.4


def test_a_network_called_for_one_input_after_another_is_told_from_layers() -> None:
    assert advised(loop(BLOCK)) is None
    assert advised(loop(BLOCK, inputs=47)) is None
    assert (
        assert_bounded(advised(loop(BLOCK, inputs=48)), STEP).title == "A loop of 48 calls could be one call"
    )


def test_a_loop_has_its_place_and_adds_up_over_layers() -> None:
    rows = loop(
        EXPERTS, user_frame="model.py(8): forward", same_shapes=False, launch_share=0.4, host_share=0.2
    )
    advice = assert_bounded(advised(rows, rows), STEP)
    assert "2 × 48 times a step, with shapes that differ: 80.0 %" in advice.because
    assert str(advice.locations[0]) == "model.py:8 forward"
    assert advice.evidence["loop_repeats"] == 96
    assert STEP.gain(advice.saving).high_share == pytest.approx(0.4 * 47 / 48)


def test_micro_batches_include_their_backward_pass_other_loops_do_not() -> None:
    passes = {"step_class": 0, "backward_passes": 8, "optimizer": True}
    row = loop(BLOCK, repeats=8)
    micro = assert_bounded(advised(row, classes=(passes,), ops=(BACKWARD,)), STEP)
    assert micro.title == "8 micro-batches could be fewer and larger"
    assert "2 * batch_size" in micro.fix
    assert STEP.gain(micro.saving).high_share == pytest.approx(0.5 * 7 / 8)
    # 40 ms of backward in ten steps, nine tenths of it behind the operators of the loop.
    row = loop(EXPERTS, repeats=8, has_backward=True)
    experts = assert_bounded(advised(row, ops=(BACKWARD,)), STEP)
    assert STEP.gain(experts.saving).high_share == pytest.approx((0.5 + 0.9 * 0.4) * 7 / 8)
    # With the time between its operators the backward pass takes 50 ms: at most, that goes with them.
    stretch = {"phase": "backward", "stretch_ns": 50 * MS}
    between = STEP.gain(assert_bounded(advised(row, ops=(BACKWARD,), phases=(stretch,)), STEP).saving)
    assert between.low_share == STEP.gain(experts.saving).low_share
    assert between.high_share == pytest.approx((0.5 + 0.9 * 0.5) * 7 / 8)
    for told in ({"op_share": 0.0}, {"has_backward": False}):
        quiet = assert_bounded(advised(row | told, ops=(BACKWARD,)), STEP)
        assert STEP.gain(quiet.saving).high_share == pytest.approx(0.5 * 7 / 8)


def test_where_the_gpu_sets_the_pace_only_short_kernels_pay() -> None:
    step = mean_step(busy_ns=10.0 * MS, starved_ns=0.0, latency_ns=0.0, waiting_ns=0.0, host_path_share=0.1)
    assert advised(loop(EXPERTS, device_ns=9 * MS), step=step) is None
    tiny = {"device_ns": 9 * MS, "tiny_ns": 3 * MS, "short_ns": 5 * MS}
    gain = step.gain(assert_bounded(advised(loop(EXPERTS, **tiny), step=step), step).saving)
    assert gain.low_share == pytest.approx(0.3 * 47 / 48)
    assert gain.high_share == pytest.approx(0.5 * 47 / 48)


@pytest.mark.parametrize(
    "row",
    [
        loop(BLOCK, same_place=False),  # layers
        loop(LSTM, same_place=False),
        loop(BLOCK, same_place=True),  # layers that are functions
        loop("aten::gru_cell", repeats=4),
        loop("aten::gru_cell", host_share=0.05),
        loop("aten::mul_, aten::add_", same_place=True),  # weights
        loop("aten::add, aten::lift_fresh", same_place=True, module="nn.Module: Net_0"),
        loop("aten::sort, aten::sin", repeats=8),
    ],
)
def test_layers_weights_and_small_loops_are_not_named(row: dict[str, Any]) -> None:
    assert advised(row) is None


def test_the_threshold_can_be_set() -> None:
    assert advised(loop(EXPERTS), least_share=0.6) is None


def test_a_loop_that_reads_results_also_gains_the_lead_of_the_host() -> None:
    """Host and GPU take turns: each takes half of the step, and the loop a fifth of the host's."""
    turns = mean_step(
        unprofiled_ns=(10.0 * MS, 10.0 * MS),
        busy_ns=5.0 * MS,
        starved_ns=5.0 * MS,
        faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 0.5, 0.5)),
    )
    reads, none = (
        assert_bounded(advised(loop(names, host_share=0.25), step=turns), turns)
        for names in ("aten::linalg_vector_norm, aten::item", "aten::linalg_vector_norm, aten::mul")
    )
    assert turns.gain(reads.saving).low_share == turns.gain(none.saving).low_share
    assert turns.gain(reads.saving).high_share > 2 * turns.gain(none.saving).high_share


def test_a_loop_that_launches_nothing_is_for_other_rules() -> None:
    assert advised(loop("aten::select, aten::unsqueeze", **CALL)) is not None
    assert advised(loop("aten::select, aten::unsqueeze", **CALL, launch_share=0.001)) is None


def test_a_network_that_is_called_again_without_stacks() -> None:
    assert advised(loop(BLOCK)) is None
    advice = assert_bounded(advised(loop(BLOCK, layers=12)), STEP)
    assert "A loop of 48 calls" in advice.title
    assert advice.certainty == "possible"


def test_a_recurrent_layer_that_is_called_for_each_moment() -> None:
    advice = assert_bounded(advised(loop("aten::_cudnn_rnn, aten::gru, aten::slice")), STEP)
    assert advice.title == "A loop of 48 GRU calls could be one call"
    assert "nn.GRU" in advice.fix
    assert advised(loop("aten::lstm", repeats=4)) is None, "layers of a network"


def test_what_is_looked_up_again_may_stay_the_same() -> None:
    """Without stacks, too: no layer of a network looks up rows of a table."""
    turn = loop("aten::embedding, aten::addmm, aten::layer_norm", lookup="given")
    advice = assert_bounded(advised(turn), STEP)
    assert "belongs before the loop" in advice.because
    brought = advised({**turn, "inputs": 48})
    assert brought is not None
    assert "belongs before the loop" not in brought.because
    assert advised({**turn, "lookup": "chosen"}) is None


def test_layers_that_print_are_no_experts() -> None:
    printed = f"{EXPERTS}, aten::masked_select, aten::scaled_dot_product_attention"
    assert advised(loop(printed, repeats=6)) is None


CRITIC = "aten::linear, aten::relu, aten::linear, aten::squeeze"


def test_networks_side_by_side() -> None:
    told = loop(CRITIC, narrows=True, same_place=False, same_shapes=True, module="nn.Module: Linear_2")
    advice = assert_bounded(advised(told), STEP)
    assert advice.title == "48 networks side by side could be one call"
    assert "torch.func.stack_module_state" in advice.fix
    assert advice.certainty == "likely"
    for other in ({"narrows": False}, {"narrows": None}, {"same_shapes": False}):
        assert advised(told | other) is None, "layers, one after the other"


def test_networks_without_shapes_are_told_by_their_stacked_results() -> None:
    told = loop(CRITIC, stacked=True)
    advice = assert_bounded(advised(told), STEP)
    assert advice.title == "48 networks side by side could be one call"
    assert (advice.certainty, STEP.gain(advice.saving).low_share) == ("possible", 0.0)
    assert advised(told | {"stacked": False}) is None
    assert advised(loop(f"aten::add, {CRITIC}", stacked=True)) is None, "layers that add to what came in"


def test_parts_of_a_tensor() -> None:
    told = loop("aten::select, aten::mul, aten::sum, aten::add", narrows=True, same_place=True)
    advice = assert_bounded(advised(told), STEP)
    assert advice.title == "A loop over 48 parts of a tensor could be one call"
    assert advice.certainty == "likely"
    assert assert_bounded(advised(told | {"narrows": None}), STEP).certainty == "possible"


BLEND = "aten::select, aten::mul, aten::select, aten::mul, aten::add, aten::select, aten::copy_"


def test_rows_that_are_written_one_by_one() -> None:
    advice = assert_bounded(advised(loop(BLEND, same_place=True)), STEP)
    assert advice.title == "A loop over 48 rows of a tensor could be one call"
    assert (advice.certainty, STEP.gain(advice.saving).low_share) == ("possible", 0.0)
    assert advised(loop("aten::mul_, aten::add_, aten::copy_", same_place=True)) is None, "weights"
    assert advised(loop(f"{BLEND}, aten::linear", same_place=True)) is None, "more than rows"


def test_attention_over_parts() -> None:
    slices = "aten::slice, aten::slice, aten::slice, aten::scaled_dot_product_attention"
    advice = assert_bounded(advised(loop(slices, repeats=16)), STEP)
    assert advice.title == "Attention over 16 parts could be one call"
    assert "F.scaled_dot_product_attention(q, k, v)" in advice.fix
    assert advice.certainty == "likely", "no part needs another"
    heads = "aten::linear, aten::bmm, aten::softmax, aten::_softmax, aten::matmul"
    of_heads = loop(heads, repeats=6, same_place=False, module="nn.Module: Head_0", narrows=True)
    assert assert_bounded(advised(of_heads), STEP).title == "Attention over 6 parts could be one call"
    assert advised(of_heads | {"narrows": None}) is None, "they may be layers"
    ensemble = of_heads | loop("aten::linear, aten::relu, aten::linear, aten::softmax, aten::_softmax")
    advice = assert_bounded(advised(ensemble | {"repeats": 6, "narrows": True}), STEP)
    assert advice.title == "6 networks side by side could be one call"


def test_tensors_from_lists_are_left_to_others_where_a_turn_does_little_else() -> None:
    pictures = "aten::empty, aten::lift_fresh, aten::mul, aten::mean, aten::clamp"
    assert advised(loop(pictures, launches=48)) is None
    assert advised(loop(pictures, launches=480)) is not None


def test_results_of_tensors_from_lists_that_are_stacked_are_of_a_loop() -> None:
    turned = "aten::lift_fresh, aten::bmm, aten::grid_sampler"
    assert advised(loop(turned, launches=480)) is None, "layers have products, too"
    assert advised(loop(turned, launches=480, stacked=True)) is not None


def test_tables_side_by_side() -> None:
    row = loop(
        "aten::select, aten::embedding", repeats=200, lookup="given", same_place=False, same_shapes=False
    )
    gradient = {
        "name": "autograd::engine::evaluate_function: EmbeddingBackward0",
        "phase": "backward",
        "device_ns": 8 * MS,
    }
    advice = assert_bounded(advised(row | {"has_backward": True}, ops=(gradient,)), STEP)
    assert advice.title == "200 look-ups of embeddings could be one"
    assert "nn.Embedding(sum(sizes), width)" in advice.fix
    assert "Each turn looks up ids" not in advice.because, "they are one for each table"
    without = assert_bounded(advised(row | {"has_backward": True}), STEP)
    assert STEP.gain(advice.saving).high_share > STEP.gain(without.saving).high_share


PENALTY = loop("aten::square, aten::mul, aten::sum, aten::add", repeats=56, has_backward=True)


def test_a_penalty_on_many_tensors() -> None:
    advice = assert_bounded(advised(PENALTY, ops=(BACKWARD,)), STEP)
    assert advice.title == "A penalty on 56 tensors, one after the other"
    assert "weight_decay=2 * factor" in advice.fix
    assert advice.certainty == "likely"
    # At least its part of the forward pass goes: gradients of other operators may take most of backward.
    gain = STEP.gain(advice.saving)
    assert gain.low_share == pytest.approx(0.85 * 0.5 * (1 - 1 / 56), abs=0.01)
    assert gain.high_share > gain.low_share + 0.2
    without = advised({**PENALTY, "has_backward": False})
    assert without is not None
    assert "penalty" not in without.title


def test_a_loop_over_classes() -> None:
    dice = "aten::select, aten::eq, aten::to, aten::mul, aten::sum, aten::add"
    advice = assert_bounded(advised(loop(dice, has_backward=True)), STEP)
    assert advice.title == "A loop over 48 classes could be one call"
    assert "F.one_hot(target, classes)" in advice.fix
    for other in (loop(dice, stacked=True), loop(dice.replace("aten::eq", "aten::sub"))):
        found = advised(other)
        assert found is None or "classes" not in found.title


def test_pictures_that_are_changed_one_by_one_need_nothing_of_each_other() -> None:
    pictures = "aten::add, aten::bmm, aten::grid_sampler, aten::lift_fresh, aten::mul"
    advice = assert_bounded(advised(loop(pictures, stacked=True)), STEP)
    assert advice.saving.device_ns[0] > 0 or advice.saving.waited_ns[0] > 0
    assert "Whether a call needs" not in advice.because
    unknown = assert_bounded(advised(loop(pictures, stacked=False, **CALL)), STEP)
    assert "Whether a call needs" in unknown.because
