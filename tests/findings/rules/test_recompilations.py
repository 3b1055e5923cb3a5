from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.compilations import Compilation
from stepscope.analyses.compiled_regions import CompiledRegion
from stepscope.analyses.recompile_guards import RecompileGuard
from stepscope.findings.rules.recompilations import recompilations

STEP = mean_step(steps=4, step_ns=100.0 * MS, unprofiled_ns=(98.0 * MS, 100.0 * MS), starved_ns=95.0 * MS)
RUNS = drawn(
    CompiledRegion,
    {"region": "0/1", "calls": 1, "host_self_ns": 3 * MS, "backward_host_ns": 1 * MS},
    {"region": "0/0", "calls": 3, "host_self_ns": 9 * MS},
)


def again(step: int | None, **told: Any) -> dict[str, Any]:
    return {"step": step, "kind": "recompilation", "region": "0/1", "times": 2, "total_ns": 80 * MS, **told}


def test_one_recompilation_may_be_an_exception() -> None:
    table = drawn(Compilation, again(4), again(4, kind="autotuning", times=1, total_ns=16 * MS))
    advice = assert_bounded(recompilations(STEP, table, RUNS), STEP)
    assert advice.saving.starved_ns == (0.0, 25.0 * MS)  # (80 + 16 + the first run, 4) / 4 steps
    assert advice.certainty == "likely"
    assert advice.evidence["recompilations"] == 2
    assert advice.evidence["compiling_ns"] == 96 * MS
    assert "1 of 4 recorded steps" in advice.because
    assert "(frame 0)" in advice.because


def test_recompilations_in_most_steps_are_how_the_program_runs() -> None:
    rows = [again(step, region=f"{frame}/{step}") for step in (2, 3, 4) for frame in (0, 1)]
    advice = assert_bounded(recompilations(STEP, drawn(Compilation, *rows), drawn(CompiledRegion)), STEP)
    assert advice.saving.starved_ns == (
        95.0 * MS,
        95.0 * MS,
    )  # 6 times 80 in 4 steps is more than there was idle
    assert advice.saving.waited_ns == (0.0, 5.0 * MS)  # and hardly anything else is in the steps
    assert advice.certainty == "certain"
    assert "(frames 0, 1)" in advice.because


def test_what_else_is_in_the_steps_stays() -> None:
    rows = drawn(Compilation, *(again(step) for step in (2, 3, 4)))
    advice = assert_bounded(recompilations(STEP, rows, RUNS), STEP)
    assert advice.saving.starved_ns == (60.0 * MS, 61.0 * MS)
    assert advice.saving.waited_ns == (0.0, 0.0)


def test_a_late_version_shows_that_it_happens_again_and_again() -> None:
    rows = [again(step, region=f"0/{step + 30}", total_ns=40 * MS) for step in (1, 2)]
    advice = assert_bounded(recompilations(STEP, drawn(Compilation, *rows), drawn(CompiledRegion)), STEP)
    assert advice.saving.starved_ns == (20.0 * MS, 20.0 * MS)
    assert advice.evidence["versions"] == 32
    early = [again(step, total_ns=40 * MS) for step in (1, 2)]
    advice = assert_bounded(recompilations(STEP, drawn(Compilation, *early), drawn(CompiledRegion)), STEP)
    assert advice.saving.starved_ns == (0.0, 20.0 * MS)


def test_how_often_is_a_threshold() -> None:
    rows = drawn(Compilation, *(again(step) for step in (2, 3, 4)))
    advice = assert_bounded(recompilations(STEP, rows, RUNS, often_share=0.9), STEP)
    assert advice.saving.starved_ns[0] == 0


def test_it_is_silent_outside_of_steps_and_for_first_compilations() -> None:
    assert recompilations(STEP, drawn(Compilation), RUNS) is None
    assert recompilations(STEP, drawn(Compilation, again(None)), RUNS) is None
    assert recompilations(STEP, drawn(Compilation, again(3, kind="compilation", region="0/0")), RUNS) is None


def test_it_is_silent_about_trifles() -> None:
    short = drawn(Compilation, again(4, total_ns=1 * MS))
    assert recompilations(STEP, short, drawn(CompiledRegion)) is None
    assert recompilations(STEP, short, drawn(CompiledRegion), least_share=0.001) is not None


GUARDS = drawn(
    RecompileGuard,
    {
        "function": "/app/model.py(17): forward",
        "guard": "tensor 'x' size mismatch at index 0. expected N, actual N",
        "recompilations": 3,
        "compiling_ns": 900 * MS,
        "gave_up": 1,
    },
)


def test_a_log_names_the_guard() -> None:
    table = drawn(Compilation, again(4))
    advice = assert_bounded(recompilations(STEP, table, RUNS, GUARDS), STEP)
    plain = recompilations(STEP, table, RUNS)
    assert plain is not None
    assert advice.saving == plain.saving
    assert "model.py(17): forward: tensor 'x' size mismatch" in advice.because
    assert "gave up on model.py(17): forward" in advice.because
    assert str(advice.locations[0]) == "/app/model.py:17 forward"


def test_a_log_alone_promises_nothing() -> None:
    none = mean_step(steps=0, step_ns=0.0, unprofiled_ns=(0.0, 0.0))
    advice = recompilations(none, drawn(Compilation), drawn(CompiledRegion), GUARDS)
    assert advice is not None
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert advice.evidence == {"recompilations": 3, "compiling_ns": 900 * MS, "guards": 1}
    assert recompilations(none, drawn(Compilation), drawn(CompiledRegion), drawn(RecompileGuard)) is None
