from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.devices import Device
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.findings import NotKnown, Saving
from stepscope.findings.rules.memory_room import memory_room
from stepscope.tables import Table

GIB = 1 << 30
NO_LOADER = drawn(StarvingPhase, {"phase": "forward", "starved_ns": 40 * MS})
FULL = drawn(Device, {"device": "0", "window": "steps", "window_ns": 100, "busy_ns": 50})


def memory(**told: Any) -> Table[DeviceMemory]:
    row = {"device": "0", "peak_bytes": 8 * GIB, "reserved_peak_bytes": 10 * GIB}
    return drawn(DeviceMemory, {"device": "cpu", "peak_bytes": 900 * GIB}, {**row, **told})


def test_a_sample_gains_half_of_the_waiting_at_the_most() -> None:
    step = mean_step()
    advice = assert_bounded(memory_room(step, facts(), memory(), FULL, NO_LOADER), step)
    assert advice.saving == Saving()
    assert advice.evidence["sample_gain_share"] == pytest.approx(0.25)
    assert advice.certainty == "possible"
    assert advice.evidence["reserved_peak_bytes"] == 10 * GIB
    assert "a step gets no shorter" in advice.because


def test_loading_does_not_get_shorter() -> None:
    step = mean_step()
    loads = drawn(StarvingPhase, {"phase": "dataloader", "starved_ns": 30 * MS})
    advice = assert_bounded(memory_room(step, facts(), memory(), FULL, loads), step)
    assert advice.evidence["sample_gain_share"] == pytest.approx(0.10)


def test_a_device_that_is_busy_but_half_empty_gains_too() -> None:
    step = busy_pace()
    half = drawn(
        Device,
        {"device": "0", "window": "span", "window_ns": 100, "busy_ns": 98, "sm_efficiency_share": 0.9},
        {"device": "0", "window": "steps", "window_ns": 100, "busy_ns": 98, "sm_efficiency_share": 0.49},
    )
    advice = assert_bounded(memory_room(step, facts(), memory(), half, drawn(StarvingPhase)), step)
    assert advice.evidence["sample_gain_share"] == pytest.approx(0.25, abs=0.01)


def test_it_is_silent_where_the_device_is_busy_and_full() -> None:
    assert memory_room(busy_pace(), facts(), memory(), FULL, NO_LOADER) is None


def test_it_is_silent_where_memory_is_used() -> None:
    used = memory(reserved_peak_bytes=80 * GIB)
    assert memory_room(mean_step(), facts(), used, FULL, NO_LOADER) is None
    assert memory_room(mean_step(), facts(), used, FULL, NO_LOADER, room_share=0.9) is not None


def test_it_does_not_know_without_memory_events_or_the_size_of_the_device() -> None:
    with pytest.raises(NotKnown) as found:
        memory_room(mean_step(), facts(memory=False), drawn(DeviceMemory), FULL, NO_LOADER)
    assert found.value.record == "profile_memory=True"
    with pytest.raises(NotKnown):
        memory_room(mean_step(), facts(devices=()), memory(), FULL, NO_LOADER)


def test_it_does_not_concern_a_program_without_devices() -> None:
    assert memory_room(mean_step(), facts(device_work=False), memory(), FULL, NO_LOADER) is None
