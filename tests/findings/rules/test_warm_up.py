from __future__ import annotations

from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses._caveats import Caveat
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.start_ups import StartUp
from stepscope.analyses.steps import Step
from stepscope.findings.rules.warm_up import warm_up

FOUND = {"what": "warm-up", "count": 1, "effect_ns": 8 * MS, "explanation": "The first took 10 ms."}
STEPS = drawn(Step, {"step": 3, "dur_ns": 10 * MS}, {"step": 4, "dur_ns": 2 * MS}, {"step": 5})


def test_it_fires_and_promises_nothing() -> None:
    advice = assert_bounded(
        warm_up(drawn(Caveat, FOUND), STEPS, drawn(Compilation), drawn(StartUp)), mean_step()
    )
    gain = mean_step().gain(advice.saving)
    assert (gain.low_ns, gain.high_ns) == (0, 0)
    assert advice.evidence["excess_ns"] == 8 * MS
    assert not advice.risk


def test_compiling_in_the_first_step_is_told_elsewhere() -> None:
    compiling = drawn(Compilation, {"step": 3, "total_ns": 5 * MS})
    assert warm_up(drawn(Caveat, FOUND), STEPS, compiling, drawn(StartUp)) is None
    assert warm_up(drawn(Caveat, FOUND), STEPS, compiling, drawn(StartUp), compiling_share=0.7) is not None
    later = drawn(Compilation, {"step": 4, "total_ns": 5 * MS}, {"total_ns": 90 * MS})
    assert warm_up(drawn(Caveat, FOUND), STEPS, later, drawn(StartUp)) is not None


def test_it_is_silent_without_the_doubt() -> None:
    assert (
        warm_up(drawn(Caveat, {**FOUND, "what": "clock offset"}), STEPS, drawn(Compilation), drawn(StartUp))
        is None
    )
    assert warm_up(drawn(Caveat), STEPS, drawn(Compilation), drawn(StartUp)) is None
    assert warm_up(drawn(Caveat, FOUND), drawn(Step), drawn(Compilation), drawn(StartUp)) is None


def test_start_up_in_the_first_step_is_told_elsewhere() -> None:
    starting = drawn(StartUp, {"step": 3, "total_ns": 5 * MS})
    assert warm_up(drawn(Caveat, FOUND), STEPS, drawn(Compilation), starting) is None
    later = drawn(StartUp, {"step": 4, "total_ns": 5 * MS}, {"total_ns": 90 * MS})
    assert warm_up(drawn(Caveat, FOUND), STEPS, drawn(Compilation), later) is not None
