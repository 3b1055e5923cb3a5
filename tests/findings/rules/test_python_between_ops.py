from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, facts, mean_step

from stepscope.analyses.host_functions import HostFunction
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.lines import Line
from stepscope.analyses.loader_starts import LoaderStart
from stepscope.analyses.python_frames import PythonFrame
from stepscope.findings import Advice, NotKnown
from stepscope.findings.rules.python_between_ops import python_between_ops

LINES = (
    {"file": "train.py", "line": 9, "function": "keep", "idle_ns": 25 * MS},
    {"file": "train.py", "line": 3, "function": "step", "idle_ns": 10 * MS, "launches": 1_000},
)
FRAMES = (
    {"name": "train.py(9): keep", "self_ns": 20 * MS},
    {"name": "json/encoder.py(8): encode", "self_ns": 4 * MS},
    {"name": "train.py(3): step", "self_ns": MS // 2},
    {"name": "torch/optim/adam.py(1): step", "self_ns": 9 * MS},
    {"name": "threading.py(1): wait", "self_ns": 90 * MS},
    {"name": "torch/profiler/profiler.py(1): step", "total_ns": 1 * MS},
    {"name": "<built-in method sort of list object>", "self_ns": 9 * MS},
)


def gap(spent_in: str, idle_ns: int, gaps: int = 100, longest_ns: int = 0) -> dict[str, Any]:
    return {"device": "0", "side": "host", "spent_in": spent_in, "idle_ns": idle_ns, "gaps": gaps,
            "longest_ns": longest_ns}  # fmt: skip


def advised(
    python_ns: int = 35 * MS,
    dispatch_ns: int = 10 * MS,
    *,
    lines: tuple[dict[str, Any], ...] = LINES,
    frames: tuple[dict[str, Any], ...] = FRAMES,
    functions: tuple[dict[str, Any], ...] = (),
    told: dict[str, Any] | None = None,
    longest_ns: int = 0,
    making_ns: int = 0,
    **thresholds: float,
) -> Advice | None:
    gaps = (gap("Python between ops", python_ns, longest_ns=longest_ns), gap("host op", dispatch_ns))
    return python_between_ops(
        mean_step(),
        facts(**(told or {})),
        drawn(IdleGap, *gaps),
        drawn(Line, *lines),
        drawn(PythonFrame, *frames),
        drawn(HostFunction, *functions),
        drawn(LoaderStart, {"making_ns": making_ns}),
        **thresholds,
    )


def test_iterators_of_loaders_have_a_finding_of_their_own() -> None:
    light = {"stacks": False}
    told = advised(told=light)
    less = advised(told=light, making_ns=10 * MS)
    assert told
    assert less
    assert mean_step().gain(less.saving).low_share < mean_step().gain(told.saving).low_share
    assert advised(told=light, making_ns=30 * MS) is None
    makes = RESIZE | {"outer": "torch/utils/data/dataloader.py(487): __iter__"}
    assert advised(functions=(makes,)) == advised()


def test_work_of_the_host_is_named_where_the_rest_of_python_is_ordinary() -> None:
    part = RESIZE | {"outer_idle_ns": 12 * MS}
    advice = assert_bounded(advised(functions=(part,), frames=()), mean_step())
    assert advice.title.startswith("The GPU waits for ")
    assert "between operators" not in advice.title
    assert advised(functions=(part | {"outer_idle_ns": 3 * MS},), frames=()) is None


def test_with_stacks_it_names_the_function() -> None:
    advice = assert_bounded(advised(), mean_step())
    # 3.5 ms of Python a step, 1 ms of operators, 0.1 ms of the profiler; the program's own time is 2.4 ms.
    assert advice.saving.starved_ns == (2.4 * MS, 2.4 * MS)
    assert [str(place) for place in advice.locations] == ["train.py:9 keep"]
    assert advice.certainty == "likely"
    advice = assert_bounded(advised(20 * MS), mean_step())
    assert advice.saving.starved_ns == (0.9 * MS, 1.85 * MS)


def test_without_stacks_it_is_possible_and_the_time_is_not_stretched() -> None:
    advice = assert_bounded(advised(told={"stacks": False}, lines=(), frames=()), mean_step())
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert advice.saving.waited_ns == (2.8 * MS, 3.45 * MS)
    assert advice.certainty == "possible"
    assert "with_stack=True" in advice.because


def test_without_stacks_ordinary_python_and_one_long_pause_are_left_out() -> None:
    plain = {"told": {"stacks": False}, "lines": (), "frames": ()}
    assert advised(10 * MS, **plain) is None  # type: ignore[arg-type]
    assert advised(longest_ns=25 * MS, **plain) is None  # type: ignore[arg-type]
    assert advised(longest_ns=25 * MS, least_share=0.01, **plain) is not None  # type: ignore[arg-type]


def test_it_is_silent_on_ordinary_programs() -> None:
    assert advised(9 * MS) is None
    assert advised(frames=()) is None
    assert advised(lines=LINES[1:]) is None
    assert advised(least_share=0.5) is None
    assert advised(told={"host_ops": False}) is None


def test_it_leaves_the_stacks_of_anomaly_detection_to_its_rule() -> None:
    assert "anomaly_mode" in python_between_ops.yields_to


def test_with_several_ranks_it_may_be_waiting_for_them() -> None:
    with pytest.raises(NotKnown) as told:
        advised(told={"stacks": False, "world_size": 2}, lines=(), frames=())
    assert told.value.record == "with_stack=True"


def function(*names: str, **figures: Any) -> dict[str, Any]:
    """A function of 3 ms a step in all of 10 steps, called by the first of the names."""
    return {
        "function": names[-1],
        "idle_ns": 25 * MS,
        "outer": names[0],
        "outer_idle_ns": 30 * MS,
        "outer_calls": 10,
        "calls": 10,
        "share": 0.3,
        "path": " → ".join(names),
        "user_frame": "train.py(3): step",
        "phase": "other",
        "recording_low_ns": 2 * MS,
        "recording_high_ns": 5 * MS,
    } | figures


RESIZE = function(
    "train.py(9): prepare", "PIL/Image.py(2): resize", part="<built-in method resize of ImagingCore>"
)


def test_functions_that_do_work_of_the_host_are_named() -> None:
    advice = assert_bounded(advised(functions=(RESIZE,)), mean_step())
    assert advice.title == "The GPU waits for resize() of PIL"
    assert "3.00 ms of a step (30.0 %) for `prepare()`, of it 2.50 ms for `resize()` of PIL" in advice.because
    assert [str(place) for place in advice.locations] == [
        "train.py:3 step",
        "train.py:9 prepare",
        "PIL/Image.py:2 resize",
    ]
    assert "num_workers" in advice.fix
    gain = mean_step().gain(advice.saving)
    # Of 3 ms, 0.2–0.5 ms are recording; without the profiler the GPU waits 2–4 ms of 7–9.
    # A long step is one that recording added little to.
    assert gain.low_share == pytest.approx(0.8 * 2.8 / 9, rel=0.01)
    # The host alone takes 7.2 of 9 ms, so without 2.8 ms the GPU sets the pace: it takes 5.
    assert gain.high_share == pytest.approx(4 / 9, rel=0.01)


def test_what_some_steps_call_loading_waiting_and_torch_itself_are_left_to_others() -> None:
    quiet: dict[str, Any] = {"lines": (), "frames": ()}
    for one in (
        function("train.py(9): keep", long_steps=1, longest_step=3, longest_step_ns=30 * MS, usual_step_ns=0),
        RESIZE | {"phase": "dataloader"},
        function("serve.py(1): next", "<built-in method acquire of _thread.lock object at 0x…>"),
        function("torch/optim/adam.py(2): step"),
        function("<built-in method view of Tensor object at 0x…>"),
        function("train.py(9): shape", outer_calls=10_000),
        function("train.py(9): keep", share=0.01),
    ):
        assert advised(functions=(one,), **quiet) is None


def test_functions_that_are_a_small_part_of_the_python_do_not_hide_the_rest() -> None:
    advice = assert_bounded(advised(functions=(RESIZE | {"outer_idle_ns": 5 * MS},)), mean_step())
    assert advice.title == "The GPU waits for Python code between operators"


@pytest.mark.parametrize(
    "names, title, fix",
    [
        (("train.py(9): log", "json/encoder.py(1): encode"), "encode() of json", "once in many steps"),
        (("train.py(9): log", "<built-in function print>"), "print()", "once in many steps"),
        (("train.py(9): end", "<built-in function collect>"), "gc.collect()", "gc.collect()    # or not"),
        (("train.py(9): keep", "copy.py(128): deepcopy"), "copy.deepcopy()", "t.clone()"),
        (("train.py(9): score", "sklearn/metrics/_ranking.py(1): auc"), "auc() of sklearn", "torchmetrics"),
        (("train.py(9): read", "requests/api.py(1): get"), "get() of requests", "before the loop"),
        (
            ("train.py(9): words", "transformers/tokenization_utils.py(1): encode"),
            "encode() of transformers",
            "map",
        ),
        (("<built-in method tensor of type object at 0x…>",), "torch.tensor()", "on the GPU"),
        (("<built-in function array>",), "numpy.array()", "on the GPU"),
        (("train.py(9): rules",), "rules()", "not in every step"),
    ],
)
def test_advice_follows_the_kind_of_function(names: tuple[str, ...], title: str, fix: str) -> None:
    advice = assert_bounded(advised(functions=(function(*names, user_frame=names[0]),)), mean_step())
    assert advice.title == f"The GPU waits for {title}"
    assert fix in advice.fix


@pytest.mark.parametrize(
    "gaps, idle_ns, longest_ns, share",
    [
        (10, 30 * MS, 3 * MS, (0.8 * 3 * MS, 3 * MS)),
        (20, 60 * MS, 22 * MS, (0.8 * 2 * 2 * MS, 6 * MS)),  # one was interrupted
        (10, 9 * MS, MS, None),  # ordinary Python
        (3, 30 * MS, 3 * MS, None),  # not in each step
    ],
)
def test_pauses_that_come_again_are_told_without_stacks(
    gaps: int, idle_ns: int, longest_ns: int, share: tuple[float, float] | None
) -> None:
    pause = gap("Python between ops", idle_ns, gaps, longest_ns) | {"drained_by": "cudaMemcpyAsync"}
    step = mean_step()
    tables = [drawn(kind) for kind in (Line, PythonFrame, HostFunction, LoaderStart)]
    told = drawn(IdleGap, pause, gap("host op", 60 * MS))
    advice = python_between_ops(step, facts(stacks=False), told, *tables)
    if share is None:
        assert advice is None
        return
    assert advice
    assert_bounded(advice, step)
    assert advice.evidence["pause_ns"] == idle_ns // gaps
    assert "cudaMemcpyAsync" in advice.because
    assert advice.saving.waited_ns[0] == pytest.approx(share[0])
    assert advice.saving.waited_ns[1] >= share[1]
    calling = gap("host op", idle_ns) | {"drained_by": "cudaMemcpyAsync"}
    told = drawn(IdleGap, pause, calling, gap("host op", 60 * MS))
    assert python_between_ops(step, facts(stacks=False), told, *tables) is None, "Python that calls operators"
    several = python_between_ops(step, facts(stacks=False, world_size=2), told, *tables)
    assert several is None, "the host may wait for other ranks"
