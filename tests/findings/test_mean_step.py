"""How long a step takes without the profiler, and what a saving is worth in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.findings.drawn import MS, busy_pace, drawn, mean_step

from stepscope.analyses.critical_path_sides import CriticalPathSides
from stepscope.analyses.devices import Device
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.step_limits import StepLimit
from stepscope.analyses.steps import Step
from stepscope.findings import Saving
from stepscope.findings.mean_step import FasterDevice, MeanStep, mean_step_of
from stepscope.tables import Table


def limits(*left: float) -> Table[StepLimit]:
    """Steps of 12 ms that were played again; without the profiler 9 to 10.2 ms, of which a faster device
    leaves so much: at three quarters of its time, at half of it, and so on."""
    rows = [(1 - at / 4, part) for at, part in enumerate((1.0, *left))]
    return drawn(
        StepLimit,
        *(
            {
                "faster": "all work",
                "times": times,
                "measured_ns": 12 * MS,
                "simulated_ns": 12 * MS,
                "unprofiled_low_ns": round(9 * MS * part),
                "unprofiled_high_ns": round(10.2 * MS * part),
            }
            for times, part in rows
        ),
    )


def drawn_pace(*lengths_ms: int, host_ns: int = 12 * MS, played: Table[StepLimit] | None = None) -> MeanStep:
    """Two steps of 10 ms: 6 busy, 2 late in Python, 1 of latency, 1 waiting for others."""
    return mean_step_of(
        drawn(Step, *({"dur_ns": length * MS} for length in lengths_ms or (9, 11))),
        drawn(Device, {"device": "0", "busy_ns": 12 * MS}, {"device": "1", "busy_ns": 1 * MS}),
        drawn(
            IdleGap,
            {"device": "0", "side": "host", "idle_ns": 4 * MS},
            {"device": "0", "side": "launch", "idle_ns": 2 * MS},
            {"device": "0", "side": "device", "idle_ns": 1 * MS},
            {"device": "0", "side": "host", "spent_in": "host communication", "idle_ns": 1 * MS},
            {"device": "1", "side": "host", "idle_ns": 19 * MS},
        ),
        drawn(CriticalPathSides, {"path_ns": 20 * MS, "host_ns": host_ns}),
        played or limits(),
    )


def test_the_pace_is_that_of_the_busiest_device() -> None:
    step = drawn_pace()
    assert (step.steps, step.step_ns, step.device) == (2, 10 * MS, "0")
    assert (step.busy_ns, step.starved_ns, step.latency_ns, step.waiting_ns) == (
        6 * MS,
        3 * MS,
        1 * MS,
        1 * MS,
    )
    assert step.host_path_share == 0.6


def test_a_step_is_as_much_shorter_as_those_played_again_without_the_profiler() -> None:
    assert list(drawn_pace().unprofiled_ns) == pytest.approx([7.5 * MS, 8.5 * MS])


def test_a_cold_first_step_does_not_speak_for_the_others() -> None:
    assert list(drawn_pace(30, 9, 11).unprofiled_ns) == pytest.approx([7.5 * MS, 8.5 * MS])
    assert drawn_pace(9, 30, 9).unprofiled_ns[0] == pytest.approx(12 * MS)


def test_device_work_saved_alike_leaves_what_the_host_takes() -> None:
    # All of it leaves seven tenths, half of it eight tenths, two thirds of it something between.
    step = drawn_pace(host_ns=0, played=limits(0.9, 0.8, 0.75, 0.7))
    for saved, left in ((6.0, 0.7), (3.0, 0.8), (4.0, 0.8 - 0.05 * 2 / 3)):
        gain = step.gain(Saving(device_ns=(saved * MS, saved * MS)))
        assert gain.low_share == pytest.approx(1 - left)
        assert gain.low_share <= gain.high_share <= 0.3 + 1e-9


def test_the_short_and_the_long_step_have_their_own_simulations() -> None:
    given = {"faster": "all work", "measured_ns": 12 * MS, "simulated_ns": 12 * MS}
    rows = drawn(
        StepLimit,
        {**given, "times": 1.0, "unprofiled_low_ns": 8 * MS, "unprofiled_high_ns": 10 * MS},
        {**given, "times": 0.5, "unprofiled_low_ns": 6 * MS, "unprofiled_high_ns": 9 * MS},
        # By a hair longer with less work: that does not count.
        {**given, "times": 0.0, "unprofiled_low_ns": 7 * MS, "unprofiled_high_ns": 5 * MS},
    )
    assert drawn_pace(played=rows).faster_device == (
        FasterDevice(1.0, short=1.0, long=1.0),
        FasterDevice(0.5, short=0.75, long=0.9),
        FasterDevice(0.0, short=0.75, long=0.5),
    )


def test_without_devices_the_host_is_all_there_is() -> None:
    step = mean_step_of(
        drawn(Step, {"dur_ns": 10 * MS}),
        drawn(Device),
        drawn(IdleGap),
        drawn(CriticalPathSides),
        drawn(StepLimit),
    )
    assert (step.device, step.busy_ns, step.starved_ns, step.host_path_share) == (None, 0, 0, 1.0)
    assert step.unprofiled_ns == (10 * MS, 10 * MS)


def test_a_trace_without_steps_has_no_length() -> None:
    step = mean_step_of(
        drawn(Step), drawn(Device), drawn(IdleGap), drawn(CriticalPathSides), drawn(StepLimit)
    )
    assert (step.steps, step.step_ns, step.per_step(5), step.share(5)) == (0, 0.0, 0.0, 0.0)
    assert step.gain(Saving(starved_ns=(1, 2))).high_ns == 0


def test_late_time_shrinks_without_the_profiler() -> None:
    # Of 5 ms late, 2 to 4 are left in a step of 7 to 9 ms; half of that is saved at the least.
    gain = mean_step().gain(Saving(starved_ns=(2.5 * MS, 5.0 * MS)))
    assert (gain.low_ns, gain.high_ns) == (1 * MS, 4 * MS)
    assert [gain.low_share, gain.high_share] == pytest.approx([1 / 7, 4 / 9])


def test_device_time_counts_where_the_device_sets_the_pace() -> None:
    saving = Saving(device_ns=(1.0 * MS, 2.0 * MS))
    busy = busy_pace().gain(saving)
    assert (busy.low_ns, busy.high_ns) == (980_000, 1_980_000)
    late = mean_step(host_path_share=1.0).gain(saving)
    assert late.low_ns == 0
    assert late.high_ns < 2 * MS


def test_what_recording_did_not_stretch_counts_in_full() -> None:
    gain = mean_step().gain(Saving(waited_ns=(1.0 * MS, 2.0 * MS)))
    assert (gain.low_ns, gain.high_ns) == (1 * MS, 2 * MS)


def test_what_is_left_of_a_step() -> None:
    # 7 ms with 2 late or 9 ms with 4 late: without half or all of that.
    assert mean_step().left(Saving(starved_ns=(2.5 * MS, 5.0 * MS))) == (5 * MS, 7 * MS)


def test_latency_belongs_to_the_late_time_that_it_follows() -> None:
    assert mean_step().with_latency(2.0 * MS) == 2.5 * MS
    assert mean_step(starved_ns=0.0, latency_ns=0.0).with_latency(2.0 * MS) == 0


def test_a_saving_must_make_sense() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Saving(starved_ns=(2.0, 1.0))
    with pytest.raises(ValueError, match="at least 0"):
        Saving(device_ns=(-1.0, 1.0))


times = st.floats(0, 1e9, allow_nan=False)


@given(times, times, times, times, st.floats(0, 1), st.lists(times, min_size=6, max_size=6))
def test_no_gain_is_more_than_the_step(
    busy: float, late: float, waiting: float, cost: float, host: float, ends: list[float]
) -> None:
    step = busy + late + waiting
    floor = busy + waiting
    bounds = (max(floor, step - cost), max(floor, step - cost / 2))
    drawn_step = mean_step(
        step_ns=step,
        unprofiled_ns=bounds,
        busy_ns=busy,
        starved_ns=late,
        latency_ns=late / 4,
        waiting_ns=waiting,
        host_path_share=host,
    )
    pairs = [tuple(sorted(ends[at : at + 2])) for at in (0, 2, 4)]
    gain = drawn_step.gain(Saving(*pairs))  # type: ignore[arg-type]  # two each
    assert 0 <= gain.low_ns <= gain.high_ns <= bounds[1] + 1
    assert 0 <= gain.low_share <= gain.high_share <= 1 + 1e-9
    low, high = drawn_step.left(Saving(*pairs))  # type: ignore[arg-type]
    assert -1e-6 <= low <= high <= bounds[1] + 1e-6


def test_a_simulation_that_does_not_reproduce_the_steps_is_not_used() -> None:
    off = drawn(
        StepLimit,
        {
            "faster": "all work",
            "times": 1.0,
            "measured_ns": 12 * MS,
            "simulated_ns": 9 * MS,
            "unprofiled_low_ns": 5 * MS,
            "unprofiled_high_ns": 6 * MS,
        },
    )
    step = drawn_pace(played=off)
    assert list(step.unprofiled_ns) == [10 * MS, 10 * MS]
    assert (step.is_simulated, step.losses, step.faster_device) == (False, {}, ())


def test_devices_that_work_at_once_are_relieved_at_once() -> None:
    def paced(kernel_ms: float) -> MeanStep:
        return mean_step_of(
            drawn(Step, *({"dur_ns": 10 * MS, "kernel_ns": round(kernel_ms * MS)} for _ in range(2))),
            drawn(Device, {"device": "0", "busy_ns": 20 * MS}, {"device": "1", "busy_ns": 20 * MS}),
            drawn(IdleGap),
            drawn(CriticalPathSides, {"path_ns": 20 * MS, "host_ns": 0}),
            drawn(StepLimit),
        )

    saving = Saving(device_ns=(2.0 * MS, 4.0 * MS))
    together, in_turns = paced(10), paced(20)
    assert (together.at_once, in_turns.at_once) == (2.0, 1.0)
    assert together.gain(saving).high_ns == 2 * MS
    assert in_turns.gain(saving).high_ns == 4 * MS
