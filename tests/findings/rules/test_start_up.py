from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.start_ups import StartUp
from stepscope.findings.rules.start_up import start_up

LOADING: dict[str, Any] = {
    "step": 3,
    "kind": "code loading",
    "call": "cudaLaunchKernel",
    "op": "aten::mm",
    "user_frame": "train.py(7): forward",
    "times": 2,
    "total_ns": 40 * MS,
    "longest_ns": 33 * MS,
}
STARTING = {**LOADING, "kind": "initialisation", "call": "cuInit", "op": None, "longest_ns": 10 * MS}


def test_it_names_kinds_and_places_and_promises_nothing() -> None:
    advice = assert_bounded(start_up(mean_step(), drawn(StartUp, LOADING, STARTING)), mean_step())
    gain = mean_step().gain(advice.saving)
    assert (gain.low_ns, gain.high_ns) == (0, 0)
    assert "80 ms or 80.0 % of the recorded steps" in advice.because.replace("80.0 ms", "80 ms")
    assert "loading code and kernels 40.0 ms" in advice.because
    assert "starting the device 40.0 ms" in advice.because
    assert "cudaLaunchKernel in aten::mm, 33.0 ms" in advice.because
    assert "in 1 step of 10" in advice.because
    assert [str(place) for place in advice.locations] == ["train.py:7 forward"]
    assert "schedule(wait=5" in advice.fix
    assert advice.evidence["code_loading_ns"] == 40 * MS


def test_it_is_silent_about_little_and_about_what_is_outside() -> None:
    assert start_up(mean_step(), drawn(StartUp)) is None
    assert start_up(mean_step(), drawn(StartUp, {**LOADING, "step": None})) is None
    assert start_up(mean_step(), drawn(StartUp, {**LOADING, "total_ns": 4 * MS})) is None
    assert start_up(mean_step(), drawn(StartUp, {**LOADING, "total_ns": 4 * MS}), least_share=0.01)


def test_what_recurs_is_no_start_up() -> None:
    again = [{**LOADING, "step": step} for step in range(5)]
    assert start_up(mean_step(), drawn(StartUp, *again)) is None
    assert start_up(mean_step(), drawn(StartUp, *again[:4])) is not None
    assert start_up(mean_step(steps=2), drawn(StartUp, *again[:2])) is not None, "two steps tell nothing"
