"""Programs with a planted fault against their mended twins: the change is explained, to the nanosecond."""

from __future__ import annotations

import random
from functools import cache

import pytest
from tests.faults import IN_EVERY_RUN, PROGRAMS, recording
from tests.samples import compared, open_shared, tiered
from tests.trying import some

from stepscope.analyses.steps import steps
from stepscope.compare import StepChange, StepPart
from stepscope.compare.intervals import interval_of

FIRST = [name for name in PROGRAMS if not name.startswith("unseen_")]
PLANTED = [name for name in FIRST if PROGRAMS[name]["kind"] == "fault"]
FAIR = [name for name in FIRST if PROGRAMS[name]["kind"] == "fair"]
HEALTHY = [name for name in FIRST if PROGRAMS[name]["kind"] == "healthy"]

LATE = "late"
"""The device waits for the host: after a blocking call, for operators and Python, or for a launch."""
_LATE = ("host", "syncs", "launches")
MENDED = {
    "allocation_churn": LATE,
    "anomaly_mode": LATE,
    "blocking_launches": LATE,
    "cache_clearing": LATE,
    "cache_copies": "copy",
    "dataloader_waits": "data",
    "device_unfilled": "convolution",
    "driver_allocations": LATE,
    "eager_decode": LATE,
    "elementwise_chains": "elementwise",
    "explicit_syncs": LATE,
    "exposed_copies": "copies",
    "full_precision_matmuls": "matmul",
    "graph_breaks": LATE,
    "implicit_syncs_experts": LATE,
    "implicit_syncs_masks": "indexing",
    "launch_bound_inference": LATE,
    "launch_bound_training": LATE,
    "layout_conversions": "normalisation",
    "misaligned_matmuls": "matmul",
    "missed_graphs": LATE,
    "needless_transfers": LATE,
    "optimizer_share": "optimizer",
    "pageable_copies": "copies",
    "per_tensor_optimizer": LATE,
    "python_between_ops": "Python between ops",
    "recompilations": LATE,
    "recomputation": LATE,
    "sampling_cost": "indexing",
    "scalar_reads_layers": LATE,
    "scalar_reads_queue": LATE,
    "scatter_heavy": LATE,
    "step_variance": LATE,
    "tf32_matmuls": "matmul",
    "unfused_attention": "elementwise",
    "unfused_loss": "reduction",
    "weight_casts": "copy",
}
"""What mending each takes off the step, of what a step is divided into."""
LATER = {
    "unseen_unique_ids": {LATE},
    "unseen_manual_sgd": {LATE},
    "unseen_denoiser_fp32": {"convolution", "matmul"},
    "unseen_autoencoder_tf32": {"matmul"},
    "unseen_distilled_words": {"elementwise", "reduction"},
    "unseen_enlarging": {"copy"},
    "unseen_speech_loader": {"data"},
    "unseen_unpinned_vae": {"copies"},
}
"""The same for some programs that nobody looked at before: what the planted fault costs."""
NOT_SHORTER = ("allocation_churn", "python_between_ops", "unfused_loss")
"""Recorded, their mended twins are no faster, though they are without the profiler."""


QUICK = {
    *NOT_SHORTER,
    *{part: name for name, part in MENDED.items()}.values(),
    *[name for name, part in MENDED.items() if part == LATE][::8],
    *FAIR[:2],
    *("unfused_attention", "tf32_matmuls", "dataloader_waits", "full_precision_matmuls"),
}
"""Pairs for every run: some of each part that mending takes off, and those of which more is asked."""


@cache
def changed(name: str) -> StepChange:
    return compared(faulty=recording(name, "faulty"), mended=recording(name, "mended"))


def assert_sums(part: StepPart) -> None:
    if part.parts:
        assert sum(inner.before_ns for inner in part.parts) == part.before_ns
        assert sum(inner.after_ns for inner in part.parts) == part.after_ns
    for inner in part.parts:
        assert_sums(inner)
    if part.more_often_ns is not None:
        assert part.more_often_ns + (part.slower_ns or 0) == part.change_ns


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered([*PLANTED, *FAIR], sorted(QUICK)[::2]))
def test_the_parts_sum_to_the_change(name: str) -> None:
    change = changed(name)
    assert change.change_ns == change.after.step_ns - change.before.step_ns
    for side in (change.before, change.after):
        assert side.step_ns == side.report.overview.step_ns, "the figure that heads the report"
    for division in (change.parts, change.phases, change.ops):
        assert sum(part.change_ns for part in division) == change.change_ns
        assert sum(part.before_ns for part in division) == change.before.step_ns
        for part in division:
            assert_sums(part)


def shrunk(change: StepChange, *, fine: bool) -> dict[str, int]:
    """What each group of causes takes off the step; with `fine`, lateness by what the host did."""
    found: dict[str, int] = {}
    for part, inner in change.causes:
        name = part.name if part.name != "kernels" else inner.name
        if part.name in _LATE:
            name = inner.name if fine else LATE
        found[name] = found.get(name, 0) - inner.change_ns
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(LATER, [*LATER][::3]))
def test_what_was_mended_is_the_largest_part_of_other_programs_too(name: str) -> None:
    groups = shrunk(changed(name), fine=False)
    assert max(groups, key=lambda one: groups[one]) in LATER[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(PLANTED, QUICK))
def test_what_was_mended_is_the_largest_part(name: str) -> None:
    change = changed(name)
    groups = shrunk(change, fine=MENDED[name] == "Python between ops")
    if name == "allocation_churn":
        # The recording of its mended twin is slower throughout; only the launches of fills got fewer.
        groups = {part.name: -part.change_ns for part in change.parts}
        assert max(groups, key=lambda one: groups[one]) in _LATE
        return
    if name in NOT_SHORTER:
        groups.pop(LATE, None)
    assert max(groups, key=lambda one: groups[one]) == MENDED[name], groups


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unfused_attention", "tf32_matmuls", "dataloader_waits"])
def test_a_mended_fault_is_faster_and_resolved(name: str) -> None:
    change = changed(name)
    assert change.word == "faster"
    assert PROGRAMS[name]["finding"] in [finding.id for finding in change.resolved]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allocation_churn"])
def test_a_recording_that_points_the_other_way_says_that_it_may(name: str) -> None:
    change = changed(name)
    assert change.word == "slower"
    assert any("Profiling made these steps longer" in said for said in change.caveats)


@pytest.mark.exhaustive
def test_most_of_the_mended_are_faster_beyond_noise() -> None:
    words = {name: changed(name).word for name in PLANTED}
    assert sum(word == "faster" for word in words.values()) >= 29
    assert [name for name, word in words.items() if word == "slower"] == ["allocation_churn"]


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(FAIR, QUICK))
def test_two_recordings_of_like_programs_are_noise(name: str) -> None:
    """In the recordings themselves, and in 95 of 100 resamplings of their steps."""
    change = changed(name)
    assert change.word == "noise"
    before, after = (side.runs[0].lengths_ns for side in (change.before, change.after))
    assert noisy(before, after, seed=1) >= 95


def steps_of(name: str) -> tuple[int, ...]:
    (side,) = PROGRAMS[name]["sides"]
    return tuple(row.dur_ns for row in steps(open_shared(recording(name, side)), by="any"))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(HEALTHY, IN_EVERY_RUN))
def test_a_recording_is_noise_against_itself(name: str) -> None:
    (side,) = PROGRAMS[name]["sides"]
    change = compared(one=recording(name, side), other=recording(name, side))
    assert (change.change_ns, change.word) == (0, "noise")
    assert not [part for part in change.parts if part.change_ns]
    assert change.before.runs[0].lengths_ns == steps_of(name)


@pytest.mark.slow
@pytest.mark.parametrize("names", some([sorted(IN_EVERY_RUN & {*HEALTHY}), HEALTHY], 1), ids=["some", "all"])
def test_a_recording_resampled_is_noise_against_itself(names: list[str]) -> None:
    counts = [noisy(lengths, lengths, seed=2) for lengths in map(steps_of, names)]
    assert sum(counts) >= 95 * len(counts)


def noisy(before: tuple[int, ...], after: tuple[int, ...], seed: int) -> int:
    """How many of 100 resamplings of the steps are called noise."""
    draw = random.Random(seed)
    found = 0
    for _ in range(100):
        drawn = [[draw.choices(side, k=len(side))] for side in (before, after)]
        interval = interval_of(drawn[0], drawn[1])
        assert interval is not None
        found += interval.low_ns <= 0 <= interval.high_ns
    return found


@pytest.mark.exhaustive
def test_findings_that_were_mended_are_resolved() -> None:
    resolved = [
        name
        for name in PLANTED
        if PROGRAMS[name]["finding"] in [finding.id for finding in changed(name).resolved]
    ]
    assert len(resolved) >= 35


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full_precision_matmuls"])
def test_kernels_of_another_precision_are_matched_by_their_operator(name: str) -> None:
    change = changed(name)
    kernels = next(part for part in change.parts if part.name == "kernels")
    matmuls = next(part for part in kernels.parts if part.name == "matmul")
    replaced = [part for part in matmuls.parts if part.state == "replaced"]
    assert {part.op for part in replaced} >= {"aten::mm", "aten::addmm"}
    assert sum(part.change_ns for part in replaced) / matmuls.change_ns > 0.95
    for part in replaced:
        assert all(part.names)
        assert not set(part.names[0]) & set(part.names[1])
