from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.compiled_regions import CompiledRegion
from stepscope.analyses.graph_skips import GraphSkip
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.missed_graphs import missed_graphs
from stepscope.tables import Table

STEP = mean_step()
LIGHT = facts(stacks=False)
ALIKE = drawn(StepClass, {"steps": 10, "mean_ns": 10.0 * MS})
REGION = "Torch-Compiled Region: 0/0"


def regions(**told: Any) -> Table[CompiledRegion]:
    given = {"region": "0/0", "calls": 10, "device_events": 300, "backward_device_events": 500,
             "device_ns": 3 * MS, "backward_device_ns": 5 * MS}  # fmt: skip
    return drawn(CompiledRegion, {**given, **told})


def op(name: str, within: str | None, late_ms: int, **told: Any) -> dict[str, Any]:
    given = {"phase": "forward", "launches": 10, "host_ns": 2 * late_ms * MS, "starved_ns": late_ms * MS}
    return {"name": name, "within": within, **given, **told}


OPS = drawn(
    StepOp,
    op(REGION, None, 12, user_frame="train.py(5): step"),
    op("CompiledFunction", REGION, 11),
    op("triton_poi_fused_0", "CompiledFunction", 4),
    op("AOTDispatcher Runtime Wrapper Prologue", "CompiledFunction", 1, launches=0),
    op("CompiledFunctionBackward", "evaluate_function", 8, phase="backward"),
    op("aten::mm", "CompiledFunctionBackward", 6, phase="backward"),
    op("aten::add_", None, 9),
)


def test_graphs_save_waiting_less_replays_and_the_hosts_time_at_the_most() -> None:
    advice = assert_bounded(missed_graphs(STEP, LIGHT, regions(), OPS, ALIKE), STEP)
    # (11 + 8) / 10 steps in compiled functions, a quarter more for latency, less 0.3 for a replay
    assert advice.saving.starved_ns == pytest.approx((2.075 * MS, 4.0 * MS))
    assert advice.evidence["kernels_per_step"] == 80
    assert advice.evidence["starved_in_compiled_code_ns"] == 2 * MS
    assert 'mode="reduce-overhead"' in advice.fix
    assert [str(place) for place in advice.locations] == ["train.py:5 step"]
    assert advice.certainty == "likely"


def test_stacks_slow_generated_code_down_so_that_nothing_is_sure() -> None:
    advice = assert_bounded(missed_graphs(STEP, facts(), regions(), OPS, ALIKE), STEP)
    assert advice.saving.starved_ns == (0.0, 4.0 * MS)
    timed = mean_step(measured_ns=(7.9 * MS, 8.1 * MS))
    advice = assert_bounded(missed_graphs(timed, facts(), regions(), OPS, ALIKE), timed)
    assert advice.saving.starved_ns[0] > 2 * MS


def test_many_small_replays_may_cost_as_much_as_they_save() -> None:
    advice = assert_bounded(missed_graphs(STEP, LIGHT, regions(calls=100), OPS, ALIKE), STEP)
    assert advice.saving.starved_ns == (0.0, 4.0 * MS)


def test_what_torch_marks_as_a_graph_is_the_compilers() -> None:
    graph = "## Call CompiledFxGraph fabc ##"
    marked = drawn(StepOp, op(REGION, None, 12), op(graph, REGION, 8), op("aten::mm", graph, 5))
    advice = assert_bounded(missed_graphs(STEP, LIGHT, regions(), marked, ALIKE), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.7 * MS, 2.4 * MS))  # 0.8 and a quarter, less 0.3


def test_without_such_marks_all_of_a_region_is_the_compilers_if_it_does_not_break() -> None:
    bare = drawn(StepOp, op(REGION, None, 12), op("aten::mm", REGION, 5), op("aten::item", REGION, 2))
    advice = assert_bounded(missed_graphs(STEP, LIGHT, regions(), bare, ALIKE), STEP)
    assert advice.saving.starved_ns == pytest.approx((1.2 * MS, 2.4 * MS))
    advice = assert_bounded(missed_graphs(STEP, LIGHT, regions(regions_inside=10), bare, ALIKE), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.325 * MS, 2.4 * MS))  # only what it may have called


def test_regions_that_replay_graphs_already_are_left_out() -> None:
    mixed = drawn(
        CompiledRegion,
        {"region": "0/0", "calls": 10, "device_events": 800, "device_ns": 8 * MS, "host_self_ns": 30 * MS},
        {"region": "1/0", "calls": 10, "graph_launches": 10, "host_self_ns": 10 * MS},
    )
    advice = assert_bounded(missed_graphs(STEP, LIGHT, mixed, OPS, ALIKE), STEP)
    assert advice.saving.starved_ns == pytest.approx((1.48125 * MS, 3.0 * MS))  # three quarters of it


def test_without_marks_the_hosts_time_is_all_that_is_known() -> None:
    unmarked = regions(region="graph f1", host_self_ns=20 * MS, backward_host_ns=10 * MS)
    advice = assert_bounded(missed_graphs(STEP, LIGHT, unmarked, drawn(StepOp), ALIKE), STEP)
    assert advice.saving.starved_ns == (0.0, 3.0 * MS)


def test_of_a_single_step_nobody_knows_whether_shapes_stay() -> None:
    one = mean_step(steps=1, starved_ns=5.0 * MS)
    advice = assert_bounded(missed_graphs(one, LIGHT, regions(), OPS, ALIKE), one)
    assert advice.certainty == "possible"


def test_it_is_silent_where_graphs_are_replayed_or_nothing_is_compiled() -> None:
    assert missed_graphs(STEP, LIGHT, regions(graph_launches=20), OPS, ALIKE) is None
    assert missed_graphs(STEP, LIGHT, regions(calls=0), OPS, ALIKE) is None
    assert missed_graphs(STEP, LIGHT, drawn(CompiledRegion), OPS, ALIKE) is None


def test_it_is_silent_where_steps_differ() -> None:
    mixed = drawn(StepClass, {"steps": 5, "mean_ns": 1.0 * MS}, {"steps": 5, "mean_ns": 2.0 * MS})
    assert missed_graphs(STEP, LIGHT, regions(), OPS, mixed) is None
    assert missed_graphs(STEP, LIGHT, regions(), OPS, drawn(StepClass)) is None


def test_a_few_kernels_are_launched_as_fast_as_a_graph() -> None:
    few = regions(device_events=20, backward_device_events=0)
    assert missed_graphs(STEP, LIGHT, few, OPS, ALIKE) is None
    assert missed_graphs(STEP, LIGHT, few, OPS, ALIKE, least_kernels=2.0) is not None


def test_it_is_silent_where_the_device_does_not_wait() -> None:
    step = busy_pace()
    assert missed_graphs(step, LIGHT, regions(), OPS, ALIKE) is None
    assert missed_graphs(step, LIGHT, regions(), OPS, ALIKE, least_share=0.001) is not None


def test_what_a_compiler_takes_is_not_the_runs() -> None:
    compiling = drawn(StepOp, *OPS.records(), op("dynamo", REGION, 5))
    advice = assert_bounded(missed_graphs(STEP, LIGHT, regions(), compiling, ALIKE), STEP)
    assert advice.evidence["starved_in_compiled_code_ns"] == 1.5 * MS


SKIPS = drawn(GraphSkip, {"reason": "mutated inputs", "place": "/app/model.py:7", "skips": 2, "regions": 1})


def test_a_log_says_why() -> None:
    advice = assert_bounded(missed_graphs(STEP, LIGHT, regions(), OPS, ALIKE, SKIPS), STEP)
    plain = missed_graphs(STEP, LIGHT, regions(), OPS, ALIKE)
    assert plain is not None
    assert advice.saving == plain.saving
    assert "why graphs were skipped: mutated inputs (model.py:7)." in advice.because


def test_a_log_alone_promises_nothing() -> None:
    none = mean_step(steps=0, step_ns=0.0, unprofiled_ns=(0.0, 0.0))
    advice = missed_graphs(none, LIGHT, regions(), OPS, ALIKE, SKIPS)
    assert advice is not None
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert missed_graphs(none, LIGHT, regions(), OPS, ALIKE, drawn(GraphSkip)) is None
