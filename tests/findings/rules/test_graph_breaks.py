from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.compiled_regions import CompiledRegion
from stepscope.analyses.graph_break_lines import GraphBreakLine
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.graph_breaks import graph_breaks

STEP = mean_step(latency_ns=0.0)
ALIKE = drawn(StepClass, {"steps": 10, "mean_ns": 10.0 * MS})
LATE = drawn(
    StarvingPhase, {"phase": "forward", "starved_ns": 20 * MS}, {"phase": "other", "starved_ns": 4 * MS},
    {"phase": "optimizer", "starved_ns": 9 * MS},
)  # fmt: skip
OUTER, INNER = "Torch-Compiled Region: 0/0", "Torch-Compiled Region: 1/0"
NESTED = drawn(
    CompiledRegion,
    {"region": "0/0", "calls": 10, "regions_inside": 10},
    {"region": "1/0", "calls": 10, "inside": "0/0"},
)
BESIDE = drawn(
    CompiledRegion, *({"region": f"{frame}/0", "frame": str(frame), "calls": 10} for frame in range(5))
)


def op(name: str, within: str | None, late_ms: int, **told: Any) -> dict[str, Any]:
    return {"name": name, "within": within, "phase": "forward", "starved_ns": late_ms * MS, **told}


OPS = drawn(
    StepOp,
    op(OUTER, None, 16, user_frame="model.py(8): forward"),
    op(INNER, OUTER, 7),
    op("CompiledFunction", OUTER, 5),
    op("CompiledFunction", INNER, 5),
    op("triton_poi_fused_0", "CompiledFunction", 4, launches=20),
    op("aten::item", OUTER, 3, launches=10, per_step=1.0, user_frame="model.py(20): check"),
    op("aten::_local_scalar_dense", "aten::item", 3, per_step=1.0),
)


def test_what_is_between_and_entering_twice_is_the_most() -> None:
    advice = assert_bounded(graph_breaks(STEP, NESTED, OPS, LATE, ALIKE), STEP)
    # 16 less 10 in compiled functions is around them; 10 less 4 in operators is Python: half is of the second
    assert advice.saving.starved_ns == pytest.approx((0.3 * MS, 0.9 * MS))
    assert advice.certainty == "likely"
    assert advice.evidence["runs_per_step"] == 2
    assert advice.evidence["reads_per_step"] == 1
    assert [str(place) for place in advice.locations] == ["model.py:20 check", "model.py:8 forward"]
    assert "torch.where" in advice.fix


def test_many_parts_side_by_side_may_be_on_purpose() -> None:
    advice = assert_bounded(graph_breaks(STEP, BESIDE, OPS, LATE, ALIKE), STEP)
    # forward and other outside of compiled functions: 24 − 10; Python in them 6, four fifths of it
    assert advice.saving.starved_ns == pytest.approx((0.0, (14 + 4.8) / 10 * MS))
    assert advice.certainty == "possible"


def test_reads_between_parts_show_that_they_are_one_function() -> None:
    one = drawn(CompiledRegion, {"region": "1/0", "calls": 40})
    ops = drawn(
        StepOp,
        op("Torch-Compiled Region: 1/0", None, 16, launches=40),
        op("## Call CompiledFxGraph f0 ##", "Torch-Compiled Region: 1/0", 12, launches=40),
        op("triton_poi_fused_0", "## Call CompiledFxGraph f0 ##", 8, launches=40),
        op("TorchDynamo Cache Lookup", None, 2),
        op("aten::item", None, 1, per_step=4.0, launches=40, user_frame="model.py(20): check"),
    )
    advice = assert_bounded(graph_breaks(STEP, one, ops, LATE, ALIKE), STEP)
    # at the least three of four times what is around the graphs, 4 + 2, and the reads;
    # at the most 24 − 12 outside of the graphs and three of four times 12 − 8 of Python in them
    assert advice.saving.starved_ns == pytest.approx(((0.75 * 6 + 1) / 10 * MS, (12 + 3) / 10 * MS))
    assert advice.certainty == "likely"


def test_a_value_is_read_in_a_part_that_another_function_calls_in_a_loop() -> None:
    one = drawn(CompiledRegion, {"region": "1/0", "calls": 40})
    ops = drawn(
        StepOp,
        op("Torch-Compiled Region: 1/0", None, 16, launches=40, user_frame="model.py(9): forward"),
        op("## Call CompiledFxGraph f0 ##", "Torch-Compiled Region: 1/0", 12, launches=40),
        op("aten::item", "Torch-Compiled Region: 1/0", 1, per_step=4.0, user_frame="model.py(3): block"),
    )
    assert_bounded(graph_breaks(STEP, one, ops, LATE, ALIKE), STEP)


@pytest.mark.parametrize("frame, reads", [("0", 0.0), ("0", 2.0), ("0", 4.0), ("1", 0.0), ("1", 2.0)])
def test_a_function_that_a_loop_calls_is_not_broken(frame: str, reads: float) -> None:
    """Four denoising steps in one step, with reads outside of the model; or layers compiled one by one."""
    one = drawn(CompiledRegion, {"region": f"{frame}/0", "frame": frame, "calls": 40})
    ops = drawn(
        StepOp, op(f"Torch-Compiled Region: {frame}/0", None, 16), op("aten::item", None, 1, per_step=reads)
    )
    assert graph_breaks(STEP, one, ops, LATE, ALIKE) is None


def test_a_read_in_another_function_is_between_calls_not_parts() -> None:
    one = drawn(CompiledRegion, {"region": "1/0", "frame": "1", "calls": 40})

    def judged(reader: str) -> Any:
        region = op("Torch-Compiled Region: 1/0", None, 16, user_frame="model.py(8): forward")
        read = op("aten::item", None, 1, per_step=4.0, user_frame=reader)
        return graph_breaks(STEP, one, drawn(StepOp, region, read), LATE, ALIKE)

    assert judged("scheduler.py(40): step") is None
    assert_bounded(judged("model.py(8): forward"), STEP)


def test_versions_of_one_function_are_one_part() -> None:
    rows = ({"region": f"0/{version}", "frame": "0", "calls": 10} for version in range(6))
    assert graph_breaks(STEP, drawn(CompiledRegion, *rows), OPS, LATE, ALIKE) is None


def test_it_is_silent_about_a_few_parts_side_by_side() -> None:
    few = drawn(CompiledRegion, {"region": "0/0", "calls": 10}, {"region": "1/0", "calls": 10})
    assert graph_breaks(STEP, few, OPS, LATE, ALIKE) is None
    assert graph_breaks(STEP, drawn(CompiledRegion), OPS, LATE, ALIKE) is None


def test_it_is_silent_where_the_device_does_not_wait() -> None:
    step = busy_pace(starved_ns=0.05 * MS)
    assert graph_breaks(step, NESTED, OPS, LATE, ALIKE) is None
    assert graph_breaks(step, NESTED, OPS, LATE, ALIKE, least_share=0.001) is not None


def test_a_step_that_compiles_is_not_the_measure() -> None:
    slow = mean_step(
        step_ns=1000.0 * MS, unprofiled_ns=(900.0 * MS, 1000.0 * MS), starved_ns=900.0 * MS, latency_ns=0.0
    )
    assert graph_breaks(slow, NESTED, OPS, LATE, ALIKE) is not None


def test_regions_that_compiled_in_the_steps_do_not_count() -> None:
    rows = drawn(
        CompiledRegion,
        {"region": "0/0", "calls": 9, "regions_inside": 9, "host_self_ns": 4 * MS},
        {"region": "0/1", "calls": 1, "regions_inside": 1, "host_self_ns": 90 * MS, "compiling_ns": 500 * MS},
    )
    timed = drawn(StepOp, op(OUTER, None, 16, host_ns=40 * MS))
    advice = assert_bounded(graph_breaks(STEP, rows, timed, LATE, ALIKE), STEP)
    # 4 of 40 ms on the host are warm; one of two entries is inside the other, and counts for 50 µs
    assert advice.saving.starved_ns == pytest.approx((0.05 * MS, 0.16 * MS))


def test_what_is_entered_from_inside_is_a_break() -> None:
    graph = "## Call CompiledFxGraph f0 ##"
    printed = (
        op(OUTER, None, 4), op(INNER, OUTER, 3, launches=10), op(graph, INNER, 2, launches=10),
        op("triton_poi_fused_0", graph, 2, launches=10),
    )  # fmt: skip
    often = drawn(
        CompiledRegion,
        {"region": "0/0", "calls": 30, "regions_inside": 30},
        {"region": "1/0", "calls": 30, "inside": "0/0"},
    )
    advice = assert_bounded(graph_breaks(STEP, often, drawn(StepOp, *printed), LATE, ALIKE), STEP)
    # 4 less 2 ms around the graphs in 10 steps, for 6 entries a step: 3 of them are inside of the others
    assert advice.saving.starved_ns == pytest.approx((0.1 * MS, 0.2 * MS))
    assert advice.certainty == "likely"
    # what is not compiled in between may be needed
    plain = drawn(StepOp, *printed, op("aten::mul", OUTER, 1, launches=10))
    advice = assert_bounded(graph_breaks(STEP, often, plain, LATE, ALIKE), STEP)
    assert advice.saving.starved_ns[0] == pytest.approx(0.05 * MS)


LINES = drawn(
    GraphBreakLine,
    {
        "place": "/app/model.py(20): forward",
        "reason": "Unsupported Tensor.item()",
        "breaks": 2,
        "regions": 2,
        "hint": "Use torch.where",
    },
)


def test_a_log_names_the_line() -> None:
    advice = assert_bounded(graph_breaks(STEP, NESTED, OPS, LATE, ALIKE, LINES), STEP)
    plain = graph_breaks(STEP, NESTED, OPS, LATE, ALIKE)
    assert plain is not None
    assert advice.saving == plain.saving
    assert advice.certainty == "certain"
    assert "model.py(20): forward: Unsupported Tensor.item()" in advice.because
    assert str(advice.locations[0]) == "/app/model.py:20 forward"


def test_steps_that_do_not_show_what_the_log_says_promise_nothing() -> None:
    none = drawn(CompiledRegion)
    advice = graph_breaks(STEP, none, OPS, LATE, ALIKE, LINES)
    assert advice is not None
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert "model.py(20): forward: Unsupported Tensor.item()" in advice.because
    assert graph_breaks(STEP, none, OPS, LATE, ALIKE) is None


def test_a_log_alone_promises_nothing() -> None:
    none = mean_step(steps=0, step_ns=0.0, unprofiled_ns=(0.0, 0.0))
    advice = graph_breaks(none, drawn(CompiledRegion), OPS, LATE, ALIKE, LINES)
    assert advice is not None
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert "# torch: Use torch.where" in advice.fix
    assert graph_breaks(none, drawn(CompiledRegion), OPS, LATE, ALIKE, drawn(GraphBreakLine)) is None
