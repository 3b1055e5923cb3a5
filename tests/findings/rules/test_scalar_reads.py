from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, changed, drawn, mean_step

from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.python_frames import PythonFrame
from stepscope.analyses.read_checks import ReadCheck
from stepscope.analyses.read_loops import ReadLoops
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.scalar_reads import scalar_reads
from stepscope.tables import Table

# 10 steps with 4 reads each, 25 µs of the host each, 5 µs of them waiting; a sum would take 10 µs.
SYNC = {
    "call": "cudaStreamSynchronize",
    "op": "aten::_local_scalar_dense",
    "user_frame": "train.py(7): forward",
    "calls": 40,
    "waited_ns": 200_000,
    "starved_ns": 4 * MS,
}
ITEM = {"name": "aten::item", "phase": "forward", "user_frame": "train.py(7): forward", "calls": 40,
        "host_ns": 1 * MS, "launches": 40}  # fmt: skip
DENSE = {**ITEM, "name": "aten::_local_scalar_dense", "within": "aten::item"}
ADD = {"name": "aten::add", "phase": "forward", "calls": 100, "host_ns": 1 * MS, "launches": 100}
LINEAR = {"name": "aten::linear", "phase": "forward", "calls": 100, "host_ns": 5 * MS, "launches": 100}


def advised(
    *ops: dict[str, Any],
    step: MeanStep | None = None,
    syncs: tuple[dict[str, Any], ...] = (SYNC,),
    frames: tuple[str, ...] = (),
    gaps: tuple[dict[str, Any], ...] = (),
    kernels: tuple[dict[str, Any], ...] = (),
    source: str = "mark",
    replay: Table[ChangedStep] | None = None,
    loops: tuple[dict[str, Any], ...] = (),
    checks: tuple[dict[str, Any], ...] = (),
    **thresholds: float,
) -> Advice | None:
    return scalar_reads(
        step or mean_step(),
        drawn(HostSync, *syncs),
        drawn(StepOp, *(ops or (ITEM, DENSE, ADD, LINEAR))),
        drawn(IdleGap, *gaps),
        drawn(Kernel, *kernels),
        drawn(Iteration, {"source": source}),
        drawn(PythonFrame, *({"name": name} for name in frames)),
        drawn(ChangedStep) if replay is None else replay,
        drawn(ReadLoops, *loops),
        drawn(ReadCheck, *checks),
        **thresholds,
    )


def shares(advice: Advice | None, step: MeanStep) -> tuple[float, float]:
    gain = step.gain(assert_bounded(advice, step).saving)
    return gain.low_share, gain.high_share


def test_it_fires_and_counts_what_the_host_no_longer_does() -> None:
    advice = assert_bounded(advised(), mean_step())
    # Of 100 µs of reads 20 are waits, which are not stretched. Of the rest 0.4 are left in a step of 7 ms,
    # 0.8 in one of 9 ms; at the least less 4 sums of 10 µs, at the most as much again.
    assert shares(advice, mean_step()) == pytest.approx(((20 + 0.4 * 40) / 7_000, (20 + 0.8 * 160) / 9_000))
    assert advice.evidence["reads_per_step"] == 4
    assert [str(place) for place in advice.locations] == ["train.py:7 forward"]
    assert advice.locations[0].note == "4 reads a step"
    assert "total += loss.detach()" in advice.fix


def test_where_the_device_leads_the_lateness_in_reach_is_the_bound() -> None:
    long = {**SYNC, "waited_ns": 80 * MS, "starved_ns": 1 * MS}
    step = busy_pace(busy_ns=9.5 * MS, starved_ns=0.5 * MS, latency_ns=0.1 * MS, waiting_ns=0.0)
    assert shares(advised(step=step, syncs=(long,)), step) == pytest.approx((0.05, 0.05))
    loading = {"device": "0", "side": "host", "spent_in": "dataloader", "idle_ns": 3 * MS}
    assert shares(advised(step=step, syncs=(long,), gaps=(loading,)), step) == pytest.approx((0.02, 0.02))


def test_with_other_waits_about_only_what_follows_the_reads_is_sure() -> None:
    reads = {**SYNC, "waited_ns": 40 * MS, "starved_ns": 2 * MS}
    other = {"call": "cudaDeviceSynchronize", "calls": 10, "waited_ns": 9 * MS, "starved_ns": 8 * MS}
    # Right behind the reads 0.25 ms, behind the other 1 of 5 ms; 0.4 or 0.8 of that are left.
    expected = pytest.approx((0.4 * 0.25 / 7, 0.8 * 4 / 9))
    assert shares(advised(syncs=(reads, other)), mean_step()) == expected


def test_where_no_step_follows_no_lead_is_carried_over() -> None:
    long = {**SYNC, "waited_ns": 30 * MS, "starved_ns": 4 * MS}
    assert shares(advised(syncs=(long,), source="trace"), mean_step()) == pytest.approx(
        (0.4 * 0.5 / 7, 0.8 * 0.5 / 9)
    )


LONG = {**SYNC, "waited_ns": 30 * MS}
"""3 ms of waits a step: a lead as large as what is late."""


def test_a_replay_without_reads_says_what_they_cost() -> None:
    # Less a sum of 10 µs for each of 4 reads: of 40 µs 0.8 are left in a step of 9 ms, at the most.
    low, high = shares(advised(syncs=(LONG,), replay=changed(0.1, 0.2)), mean_step())
    assert low == pytest.approx(0.85 * 0.1 - 0.8 * 0.04 / 9)
    # A single step has no lead from one before it: the most is what the lead allows.
    assert high == pytest.approx(shares(advised(syncs=(LONG,)), mean_step())[1])


def test_all_steps_but_the_first_have_a_lead() -> None:
    whole = {**ITEM, "host_ns": 32 * MS}
    ops = (whole, {**DENSE, "host_ns": 32 * MS}, ADD, LINEAR)
    low, high = shares(advised(*ops, syncs=(LONG,), replay=changed(0.1, 0.1, steps=3)), mean_step())
    # What computed the scalars goes, too: 4 mean operators of 30 µs, of which 0.8 are left.
    assert high == pytest.approx(1.2 * 0.1 * 3 / 2 + 0.8 * 0.12 / 9)
    assert low == pytest.approx(0.85 * 0.1 - 0.8 * 0.04 / 9)


def test_a_replay_promises_no_more_than_the_lead() -> None:
    lead = shares(advised(), mean_step())[1]
    assert shares(advised(replay=changed(0.5, 0.6, steps=4)), mean_step()) == pytest.approx((lead, lead))


def test_of_a_replay_only_the_reads_of_the_program_count() -> None:
    inside = {**ITEM, "within": "aten::repeat_interleave"}
    ops = (ITEM, inside, DENSE, ADD, LINEAR)
    # Half of the reads are another operator's.
    low, _ = shares(advised(*ops, syncs=(LONG,), replay=changed(0.2, 0.2)), mean_step())
    assert low == pytest.approx(0.5 * 0.85 * 0.2 - 0.8 * 0.02 / 9)


def test_where_a_replay_gains_nothing_it_is_silent() -> None:
    assert advised(replay=changed(0.0, 0.0, steps=4), least_share=0.02) is None


def test_it_is_silent_where_nothing_is_lost() -> None:
    assert advised(syncs=()) is None
    assert advised(step=mean_step(device=None)) is None
    assert advised(step=busy_pace(starved_ns=0.05 * MS)) is None
    assert advised(least_share=0.5) is None
    assert advised(least_share=0.001) is not None


def test_reads_of_host_memory_do_not_count() -> None:
    of_host = {**ITEM, "launches": 0, "phase": "optimizer"}
    assert advised(of_host, ADD, syncs=()) is None


def test_reads_inside_other_operators_are_left_to_their_rule() -> None:
    inside = {**ITEM, "within": "aten::repeat_interleave"}
    assert advised(inside, DENSE, ADD) is None
    node = "autograd::engine::evaluate_function: MulBackward0"
    checks = [{**ITEM, "name": name, "within": node} for name in ("aten::isnan", "aten::item")]
    assert advised(*checks, DENSE, ADD) is None


def test_the_fix_follows_from_what_reads() -> None:
    branch = {**ITEM, "within": "aten::is_nonzero", "phase": "optimizer"}
    scaler = {**ADD, "name": "aten::_amp_foreach_non_finite_check_and_unscale_", "calls": 40, "launches": 40}
    advice = assert_bounded(advised(ITEM, DENSE, ADD, scaler), mean_step())
    assert "GradScaler" in advice.fix
    assert "loss.detach" not in advice.fix
    frames = (
        "torch/nn/utils/clip_grad.py(9): clip",
        "torch/distributions/x.py(1): f",
        "torch/_tensor_str.py(1): g",
    )
    advice = assert_bounded(advised(branch, DENSE, ADD, frames=frames), mean_step())
    assert "torch.where" in advice.fix
    assert "error_if_nonfinite=False" in advice.fix
    assert "validate_args" in advice.fix
    assert "print(tensor)" in advice.fix


def test_without_stacks_it_says_how_to_see_the_lines() -> None:
    advice = assert_bounded(advised(syncs=({**SYNC, "user_frame": None},)), mean_step())
    assert advice.locations == ()
    assert "with_stack=True" in advice.because


def test_without_the_profiler_the_host_waits_longer_for_long_kernels() -> None:
    short = {"calls": 5_000, "mean_ns": 2_000.0, "total_ns": 10 * MS}
    long = {"calls": 10, "mean_ns": 4.0 * MS, "total_ns": 40 * MS}
    # One kernel of 4 ms a step; but the step is longer by no more than recording cost, 3 ms.
    expected = (20 + 0.4 * 160 + 3_000) / (7_000 + 3_000)
    assert shares(advised(kernels=(short, long)), mean_step())[1] == pytest.approx(expected)
    # Where the device works a fifth of that, so do the kernels.
    brief = mean_step(busy_ns=1.0 * MS, starved_ns=9.0 * MS)
    ahead = 0.2 * (4_000 - 30 * 0.7) - 20
    expected = (20 + 6 / 9 * 160 + ahead) / (7_000 + ahead)
    assert shares(advised(step=brief, kernels=(short, long)), brief)[1] == pytest.approx(expected)
    assert shares(advised(kernels=(short,)), mean_step()) == shares(advised(), mean_step())


def test_a_loop_over_numbers_can_be_a_few_operators() -> None:
    step = mean_step(starved_ns=8.0 * MS, busy_ns=1.0 * MS, latency_ns=1.0 * MS, host_path_share=1.0)
    loop = {"loops": 10, "reads": 300, "ops": 3000, "launches": 1000, "host_ns": 60 * MS, "device_ns": 2 * MS}
    plain, looped = (shares(advised(step=step, loops=loops), step) for loops in ((), (loop,)))
    assert looped[0] == pytest.approx(plain[0]), "whether it can is not known"
    assert looped[1] == pytest.approx(0.6, abs=0.02)
    advice = assert_bounded(advised(step=step, loops=(loop,)), step)
    assert "make 30 reads a step of them, and take 6.00 ms" in advice.because
    assert "not one by one in a loop" in advice.fix


# 4 reads in each of 10 steps, with two operators before each: 2 ms of a step of 10 ms, 0.1 of them in reads.
CHECK = {"finite": True, "reads": 40, "ops": 120, "most_often": "aten::all, aten::isfinite",
         "host_ns": 20 * MS, "read_ns": 1 * MS, "device_ns": 10 * MS}  # fmt: skip


def test_what_only_computes_a_number_goes_with_its_read() -> None:
    plain_low, plain_high = shares(advised(), mean_step())
    advice = advised(checks=(CHECK,))
    low, high = shares(advice, mean_step())
    assert low > 0.1 > plain_low
    assert high > 0.3 > plain_high
    assert advice is not None
    assert "Numbers that are read take 8 operators a step to compute" in advice.because
    assert "isfinite(loss" in advice.fix
    assert Claim(Time.DEVICE, Part.ELEMENTWISE) in advice.claims


def test_one_check_of_a_step_may_have_to_stay() -> None:
    plain_low, plain_high = shares(advised(), mean_step())
    low, high = shares(advised(checks=({**CHECK, "reads": 10},)), mean_step())
    assert low == pytest.approx(plain_low)
    assert high > plain_high


def test_what_may_be_wanted_goes_at_most() -> None:
    plain_low, plain_high = shares(advised(), mean_step())
    advice = advised(checks=({**CHECK, "finite": False},))
    low, high = shares(advice, mean_step())
    assert low == pytest.approx(plain_low)
    assert high > plain_high
    assert advice is not None
    assert "isfinite" not in advice.fix


def test_small_checks_add_little_to_what_the_reads_save() -> None:
    small = {**CHECK, "finite": False, "host_ns": MS + 10_000, "device_ns": 1_000}
    _, plain_high = shares(advised(), mean_step())
    _, high = shares(advised(checks=(small,)), mean_step())
    assert plain_high <= high < plain_high + 0.001


def test_checks_of_reads_that_cost_nothing_are_told_if_sure() -> None:
    cheap = {**SYNC, "waited_ns": 0, "starved_ns": 0}
    item = {**ITEM, "host_ns": 40}
    assert advised(item, ADD, syncs=(cheap,), checks=({**CHECK, "finite": False},)) is None
    low, _ = shares(advised(item, ADD, syncs=(cheap,), checks=(CHECK,)), mean_step())
    assert low > 0.1
