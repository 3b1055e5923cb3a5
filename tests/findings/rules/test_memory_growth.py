from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import assert_bounded, drawn, facts, mean_step

from stepscope.analyses.allocations import Allocation
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.memory_peaks import PeakMemory
from stepscope.analyses.memory_steps import MemoryStep
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.findings import NotKnown
from stepscope.findings.rules.memory_growth import memory_growth
from stepscope.tables import LateTable, Table

MIB = 1 << 20
TRAINING = drawn(StarvingPhase, {"phase": "backward", "launches": 9})
KEPT = drawn(
    PeakMemory,
    {"device": "0", "phase": "before", "freed_in": "kept", "op": None, "bytes": 900 * MIB},
    {"device": "0", "phase": "forward", "freed_in": "backward", "op": "aten::mm", "bytes": 90 * MIB},
    {"device": "0", "phase": "forward", "freed_in": "kept", "op": "aten::mul", "bytes": 16 * MIB},
)
ASKED = drawn(
    Allocation,
    {"device": "0", "op": "aten::mul", "user_frame": "train.py(9): step", "allocated_bytes": 12 * MIB},
    {"device": "0", "op": "aten::mul", "user_frame": "model.py(3): forward", "allocated_bytes": 1},
    {"device": "0", "op": "aten::mm", "user_frame": "model.py(3): forward", "allocated_bytes": 99 * MIB},
)


def steps(*ends: int, **told: Any) -> Table[MemoryStep]:
    """Steps that end with so many MiB, the first beginning with 100."""
    rows = [
        {"device": "0", "step": n, "start_bytes": start * MIB, "end_bytes": end * MIB,
         "growth_bytes": (end - start) * MIB, **told}
        for n, (start, end) in enumerate(zip((100, *ends), ends, strict=False))
    ]  # fmt: skip
    return drawn(MemoryStep, *rows)


def held(steps: Table[MemoryStep]) -> Table[DeviceMemory]:
    """What the table of memory says of such steps."""
    rows = list(steps)
    growth = rows[-1].end_bytes - rows[0].end_bytes if len(rows) > 1 else None
    told = {"device": rows[0].device if rows else "0", "steps": len(rows), "growth_bytes": growth}
    return drawn(DeviceMemory, told)


def test_it_says_how_fast_where_and_how_long_it_lasts() -> None:
    growing = steps(104, 108, 112, 116)
    advice = assert_bounded(
        memory_growth(facts(), held(growing), growing, KEPT, ASKED, TRAINING), mean_step()
    )
    assert advice.risk
    assert advice.certainty == "likely"
    assert advice.evidence["growth_per_step_bytes"] == 4 * MIB
    assert advice.evidence["steps_until_full"] == (150_109_880_320 - 116 * MIB) // (4 * MIB)
    assert "aten::mul" in advice.because
    assert [str(place) for place in advice.locations] == ["train.py:9 step"]


def test_without_the_size_of_the_device_it_does_not_say_how_long() -> None:
    told = facts(devices=())
    advice = assert_bounded(
        memory_growth(told, held(steps(104, 108, 112)), steps(104, 108, 112), KEPT, ASKED, TRAINING),
        mean_step(),
    )
    assert advice.evidence["steps_until_full"] is None


def test_in_inference_it_may_be_a_cache() -> None:
    nothing = drawn(StarvingPhase, {"phase": "forward", "launches": 9})
    advice = assert_bounded(
        memory_growth(facts(), held(steps(104, 108, 112)), steps(104, 108, 112), KEPT, ASKED, nothing),
        mean_step(),
    )
    assert not advice.risk
    assert advice.certainty == "possible"
    assert "by design" in advice.because


def test_it_is_silent_where_memory_does_not_grow_steadily() -> None:
    for ends in ((104, 108), (104, 104, 108), (104, 110, 108), (100, 100, 100), ()):
        assert memory_growth(facts(), held(steps(*ends)), steps(*ends), KEPT, ASKED, TRAINING) is None


def test_steps_are_not_looked_at_where_memory_is_as_before() -> None:
    def look() -> Table[MemoryStep]:
        raise AssertionError("it looked")

    unseen: Table[MemoryStep] = LateTable(look)
    for ends in ((104, 110, 104), (104, 108), ()):
        assert memory_growth(facts(), held(steps(*ends)), unseen, KEPT, ASKED, TRAINING) is None


def test_host_memory_is_not_its_matter() -> None:
    on_host = steps(104, 108, 112, device="cpu")
    assert memory_growth(facts(), held(on_host), on_host, KEPT, ASKED, TRAINING) is None


def test_a_little_is_no_leak() -> None:
    growing = steps(104, 108, 112)
    assert memory_growth(facts(), held(growing), growing, KEPT, ASKED, TRAINING, least_bytes=5 * MIB) is None


def test_it_does_not_know_without_memory_events() -> None:
    with pytest.raises(NotKnown) as found:
        memory_growth(facts(memory=False), held(steps()), steps(), KEPT, ASKED, TRAINING)
    assert found.value.record == "profile_memory=True"
    assert (
        memory_growth(facts(memory=False, device_work=False), held(steps()), steps(), KEPT, ASKED, TRAINING)
        is None
    )
