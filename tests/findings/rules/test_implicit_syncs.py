from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.loops import Loop
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.implicit_syncs import implicit_syncs

FRAME = "train.py(7): loss"
MASK = {"call": "cudaStreamSynchronize", "op": "aten::nonzero", "user_frame": FRAME, "calls": 20,
        "waited_ns": 2 * MS, "starved_ns": 8 * MS}  # fmt: skip
NONZERO = {"name": "aten::nonzero", "phase": "forward", "within": "aten::index", "calls": 20,
           "host_ns": 3 * MS, "launches": 120}  # fmt: skip
ADD = {"name": "aten::add", "phase": "forward", "calls": 100, "host_ns": 1 * MS, "launches": 100}
COPY = {**MASK, "op": "aten::copy_"}


def copied(direction: str, n_bytes: int, calls: int = 20) -> dict[str, Any]:
    return {
        "direction": direction,
        "host_memory": "pageable",
        "place": FRAME,
        "calls": calls,
        "bytes": n_bytes,
    }


def advised(
    *syncs: dict[str, Any],
    ops: tuple[dict[str, Any], ...] = (NONZERO, ADD),
    copies: tuple[dict[str, Any], ...] = (),
    step: MeanStep | None = None,
    stacks: bool = True,
    kernels: tuple[dict[str, Any], ...] = (),
    source: str = "mark",
    loops: tuple[dict[str, Any], ...] = (),
    **thresholds: float,
) -> Advice | None:
    by_op = ({**copy, "place": "aten::copy_"} for copy in copies)
    return implicit_syncs(
        step or mean_step(),
        facts(stacks=stacks),
        drawn(HostSync, *syncs),
        drawn(StepOp, *ops),
        drawn(IdleGap),
        drawn(Kernel, *kernels),
        drawn(Iteration, {"source": source}),
        drawn(Copy, *by_op),
        drawn(Copy, *copies),
        drawn(Loop, *loops),
        drawn(StepClass),
        **thresholds,
    )


def shares(advice: Advice | None, step: MeanStep) -> tuple[float, float]:
    gain = step.gain(assert_bounded(advice, step).saving)
    return gain.low_share, gain.high_share


def test_it_fires_on_masks_and_counts_the_waits() -> None:
    advice = assert_bounded(advised(MASK), mean_step())
    # 0.2 ms of waits, and at the most 0.1 ms beside; 0.4 of that are left in a step of 7 ms.
    assert shares(advice, mean_step()) == pytest.approx((0.2 / 9, (0.2 + 0.4 * 0.1) / 7))
    assert advice.evidence["waits_per_step"] == 2
    assert "aten::nonzero (2 waits a step)" in advice.because
    assert "torch.where" in advice.fix
    assert advice.locations[0].note == "2 waits a step"


def test_what_the_host_computes_of_fetched_tensors_the_device_can() -> None:
    own = {"name": "aten::topk", "phase": "forward", "calls": 10, "host_ns": 5 * MS}
    view = {**own, "name": "aten::view", "calls": 100, "host_ns": MS // 10}
    update = {**own, "phase": "optimizer"}
    fetched = (copied("DtoH", 80),)
    plain = shares(advised(COPY, copies=fetched), mean_step())
    advice = advised(COPY, copies=fetched, ops=(NONZERO, ADD, own, view, update))
    # 0.5 ms a step less a launch of 10 µs; 0.8 of that are left in a step of 9 ms.
    waited, around = 0.2, 0.02 + 0.5 - 0.01
    assert shares(advice, mean_step()) == pytest.approx((plain[0], (waited + 0.8 * around) / 9))
    # What is not fetched is no reason to compute elsewhere.
    assert shares(advised(MASK, ops=(NONZERO, ADD, own)), mean_step()) == shares(advised(MASK), mean_step())


def test_copies_go_by_their_direction() -> None:
    advice = assert_bounded(advised(COPY, copies=(copied("DtoH", 80),)), mean_step())
    assert "copies to the host" in advice.because
    assert shares(advice, mean_step()) == pytest.approx((0.2 / 9, (0.2 + 0.4 * 0.02) / 7))
    advice = assert_bounded(advised(COPY, copies=(copied("HtoD", 80),), stacks=False), mean_step())
    assert "small copies to the GPU" in advice.because
    assert "pin_memory" in advice.fix


def test_large_copies_to_the_device_are_left_to_their_rule() -> None:
    assert advised(COPY, copies=(copied("HtoD", 20 << 21),)) is None
    half = (copied("HtoD", 20 << 21, calls=20), copied("DtoH", 80, calls=20))
    advice = assert_bounded(advised(COPY, copies=half), mean_step())
    assert advice.evidence["waits_per_step"] == 1


def test_reads_inside_operators_count_with_their_operator() -> None:
    read = {**MASK, "op": "aten::_local_scalar_dense"}
    item = {"name": "aten::item", "phase": "forward", "user_frame": FRAME, "calls": 20, "host_ns": 1 * MS,
            "launches": 20, "within": "aten::repeat_interleave"}  # fmt: skip
    advice = assert_bounded(advised(read, ops=(item, ADD)), mean_step())
    assert "output_size" in advice.fix


def test_every_cause_has_a_fix() -> None:
    assert "sort()" in assert_bounded(advised({**MASK, "op": "aten::_unique2"}), mean_step()).fix
    assert "mylib::pick" in assert_bounded(advised({**MASK, "op": "mylib::pick"}), mean_step()).fix


def test_it_is_silent_where_others_are_to_blame_or_nothing_is_lost() -> None:
    assert advised() is None
    assert advised({**MASK, "op": None}) is None
    assert advised({**MASK, "op": None, "call": "cudaFree"}) is None
    assert advised({**MASK, "op": "c10d::barrier"}) is None
    assert advised({**MASK, "call": "cudaFree"}) is None
    assert advised(MASK, step=busy_pace(starved_ns=0.05 * MS)) is None
    assert advised(MASK, step=mean_step(device=None)) is None
    assert advised(MASK, least_share=0.5) is None
    assert advised(MASK, least_share=0.001) is not None


def test_without_stacks_it_says_how_to_see_the_lines() -> None:
    advice = assert_bounded(advised({**MASK, "user_frame": None}, stacks=False), mean_step())
    assert "with_stack=True" in advice.because


def test_picking_rows_counts_beyond_what_a_mask_takes() -> None:
    index = {"name": "aten::index", "phase": "forward", "calls": 20, "host_ns": 4 * MS, "launches": 100}
    node = "autograd::engine::evaluate_function: IndexBackward0"
    back = {"name": node, "phase": "backward", "calls": 20, "host_ns": 12 * MS, "launches": 300}
    advice = assert_bounded(advised(MASK, ops=(NONZERO, ADD, index, back)), mean_step())
    # 16 ms in all, less 20 times 12 operators of 34 µs on average.
    low = (16 - 240 * 17 / 500) / 10 - 0.2
    assert shares(advice, mean_step()) == pytest.approx(((0.2 + 0.4 * low) / 7, (0.2 + 0.8 * 1.4) / 9))


def test_a_loop_over_parts_could_be_one() -> None:
    rows = {**NONZERO, "within": None, "calls": 80}
    often = {"name": "aten::mm", "phase": "forward", "calls": 80, "host_ns": 9 * MS, "launches": 80}
    once = {"name": "aten::linear", "phase": "forward", "calls": 10, "host_ns": 9 * MS, "launches": 10}
    advice = assert_bounded(advised(MASK, ops=(rows, often, once)), mean_step())
    assert shares(advice, mean_step()) == pytest.approx((0.2 / 9, (0.2 + 0.8 * 1.0) / 9))


def test_a_loop_that_makes_all_the_waits_is_told() -> None:
    def because(repeats: int, *names: str) -> str:
        contains = ", ".join(names)
        row = {"repeats": repeats, "ops": 9, "contains": contains, "first_ops": contains, "launch_share": 0.9}
        # 160 waits in ten steps.
        return assert_bounded(advised(MASK | {"calls": 160}, loops=(row,)), mean_step()).because

    looped = because(16, "aten::eq", "aten::nonzero", "aten::sum")
    assert "They are made in a loop of 16 turns; one call for all would wait once." in looped
    assert "in a loop" not in because(16, "aten::eq", "aten::sum"), "the loop does not wait"
    assert "in a loop" not in because(32, "aten::eq", "aten::nonzero"), "it turns more often"
