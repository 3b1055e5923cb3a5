from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.compilations import Compilation
from stepscope.analyses.iterations import Iteration
from stepscope.findings.rules.compilation_in_steps import compilation_in_steps

STEP = mean_step(steps=4, step_ns=100.0 * MS, unprofiled_ns=(98.0 * MS, 100.0 * MS), starved_ns=95.0 * MS)

STEPS = drawn(Iteration, *({"step": step} for step in range(4)))


def compiling(step: int | None, **told: Any) -> dict[str, Any]:
    return {"step": step, "kind": "compilation", "region": "0/0", "times": 1, "total_ns": 80 * MS, **told}


def test_once_it_is_a_note() -> None:
    table = drawn(Compilation, compiling(1), compiling(1, kind="autotuning", times=3))
    advice = assert_bounded(compilation_in_steps(STEP, table, STEPS), STEP)
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert advice.because.startswith(
        "Autotuning (3 times) and compilation (1 time) took 160 ms in 1 of 4 recorded steps (step 1)."
    )
    assert "schedule" in advice.fix
    assert "save_cache_artifacts" in advice.fix
    assert advice.evidence["autotuning_times"] == 3


def test_a_capture_needs_no_cache_of_compiled_code() -> None:
    advice = assert_bounded(
        compilation_in_steps(STEP, drawn(Compilation, compiling(1, kind="capture")), STEPS), STEP
    )
    assert "save_cache_artifacts" not in advice.fix


def test_in_most_steps_it_is_a_cost() -> None:
    table = drawn(Compilation, *(compiling(step, region=f"{step}/0", total_ns=40 * MS) for step in (1, 2, 3)))
    advice = assert_bounded(compilation_in_steps(STEP, table, STEPS), STEP)
    assert advice.saving.starved_ns == (30.0 * MS, 30.0 * MS)
    assert "once, before the loop" in advice.fix
    rarer = assert_bounded(compilation_in_steps(STEP, table, STEPS, often_share=0.9), STEP)
    assert rarer.saving.starved_ns == (0.0, 0.0)


def test_it_is_silent_without_any_in_the_steps() -> None:
    assert compilation_in_steps(STEP, drawn(Compilation), STEPS) is None
    assert compilation_in_steps(STEP, drawn(Compilation, compiling(None)), STEPS) is None


def test_it_leaves_recompilations_to_their_own_rule() -> None:
    table = drawn(
        Compilation,
        compiling(3, kind="recompilation", region="0/1"),
        compiling(3, kind="autotuning", region="0/1"),
    )
    assert compilation_in_steps(STEP, table, STEPS) is None


def test_it_is_silent_about_trifles() -> None:
    table = drawn(Compilation, compiling(1, total_ns=1 * MS))
    assert compilation_in_steps(STEP, table, STEPS) is None
    assert compilation_in_steps(STEP, table, STEPS, least_share=0.001) is not None


def test_it_leaves_captures_that_go_on_to_their_own_rule() -> None:
    rows = [compiling(step, kind="capture") for step in (1, 2, 3)]
    assert compilation_in_steps(STEP, drawn(Compilation, *rows), STEPS) is None
    longer = drawn(Iteration, *({"step": step} for step in range(9)))
    advice = assert_bounded(compilation_in_steps(STEP, drawn(Compilation, *rows), longer), STEP)
    assert advice.evidence["capture_times"] == 3, "warm-up, which ends"
