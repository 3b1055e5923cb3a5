from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, fix_for, mean_step

from stepscope.analyses.attention import Attention
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.loops import Loop
from stepscope.analyses.read_loops import ReadLoops
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.program import Framework
from stepscope.findings.rules.eager_decode import eager_decode

GAPS = drawn(
    IdleGap,
    {"device": "0", "side": "host", "spent_in": "host op", "idle_ns": 24 * MS},
    {"device": "0", "side": "host", "spent_in": "Python between ops", "idle_ns": 20 * MS},
    {"device": "0", "side": "launch", "spent_in": "launch latency", "idle_ns": 6 * MS},
    {"device": "0", "side": "device", "spent_in": "device scheduling", "idle_ns": 9 * MS},
    {"device": "1", "side": "host", "spent_in": "host op", "idle_ns": 90 * MS},
)
EAGER = {"kind": "decode", "launched_by": "eager", "kernels": 500, "dur_ns": 10 * MS, "idle_ns": 5 * MS}


def judged(
    rows: list[dict[str, Any]], *, training: bool = False, query: int | None = None,
    ops: tuple[dict[str, Any], ...] = (), reads: tuple[dict[str, Any], ...] = (),
    loops: tuple[dict[str, Any], ...] = (), **thresholds: Any,
) -> Advice | None:  # fmt: skip
    """Steps of 10 ms that wait 5 ms for the host."""
    return eager_decode(
        mean_step(steps=len(rows)),
        drawn(Iteration, *rows),
        GAPS,
        drawn(StepClass, {"backward_passes": int(training)}),
        drawn(Attention, {"forward_calls": 40, "query_length": query, "key_length": query and 100}),
        drawn(StepOp, *ops),
        drawn(ReadLoops, *reads),
        drawn(Loop, *loops),
        **thresholds,
    )


def test_it_fires_with_the_waiting_less_the_latency_in_a_graph() -> None:
    advice = assert_bounded(judged([EAGER] * 10), mean_step())
    # Of 5 ms, operators and launches are 0.6; 500 kernels of a graph need 0.5 ms.
    assert advice.saving.starved_ns == (2.5 * MS, 5.0 * MS)
    assert "StaticCache" in advice.fix


def test_no_graph_replaces_a_loop_that_reads_numbers() -> None:
    loop = {"loops": 10, "reads": 300, "ops": 3000, "launches": 1000, "host_ns": 40 * MS, "device_ns": MS}
    advice = assert_bounded(judged([EAGER] * 10, reads=(loop,)), mean_step())
    # Such loops take 4 of 10 ms: of the 5 ms that the GPU waits, 3 are left for a graph.
    assert advice.saving.starved_ns == pytest.approx((1.3 * MS, 3.0 * MS))


def test_only_decoding_counts() -> None:
    prefill = {**EAGER, "kind": "prefill"}
    advice = assert_bounded(judged([EAGER] * 5 + [prefill] * 5), mean_step())
    assert advice.saving.starved_ns[1] == 2.5 * MS
    assert judged([prefill] * 10) is None


def test_a_step_that_reads_a_prompt_and_writes_text_decodes() -> None:
    mixed = [{**EAGER, "kind": "mixed"}] * 10
    one, eight = (
        tuple({"name": name, "per_step": tokens} for name in ("aten::argmax", "aten::embedding"))
        for tokens in (1.0, 8.0)
    )
    advice = assert_bounded(judged(mixed, ops=eight), mean_step())
    assert advice.evidence["eager_decode_steps"] == 10
    assert judged(mixed, ops=one) is None, "an engine that chunks prompts makes one token of each text"


def test_a_loop_without_an_engine_is_told_by_its_attention() -> None:
    plain = [{**EAGER, "kind": None}] * 10
    assert judged(plain, query=1) is not None
    assert judged(plain, query=7) is None
    assert judged(plain) is None
    written = {"name": "aten::index_copy_", "calls": 80}
    assert judged(plain, ops=(written,)) is not None
    assert judged(plain, ops=(written,), training=True) is None


def test_an_encoder_in_each_turn_of_a_loop_is_no_decoding() -> None:
    """It looks up words and chooses the place of the last one, but not the words of the next turn."""
    plain = [{**EAGER, "kind": None}] * 10
    words = tuple({"name": name, "per_step": 16.0} for name in ("aten::argmax", "aten::embedding"))
    assert judged(plain, ops=words) is not None
    assert judged(plain, ops=words, loops=({"lookup": "chosen", "host_share": 0.9},)) is not None
    assert judged(plain, ops=words, loops=({"lookup": "given", "host_share": 0.1},)) is not None
    assert judged(plain, ops=words, loops=({"lookup": "given", "host_share": 0.9},)) is None


def test_a_cache_is_written_in_many_ways() -> None:
    plain = [{**EAGER, "kind": None}] * 10

    def written(name: str, calls: int, *more: dict[str, Any]) -> bool:
        return judged(plain, ops=({"name": f"aten::{name}", "calls": calls}, *more)) is not None

    # 40 calls of attention: keys and values apart, or together and every second call to another text
    assert [written("index_copy_", calls) for calls in (10, 20, 40, 80, 100)] == [False, *[True] * 3, False]
    # what others use, too, has to come in pairs
    for name in ("copy_", "index_put_", "slice_scatter", "cat"):
        assert [written(name, calls) for calls in (20, 40, 80)] == [False, False, True]
    # or with words that are chosen and looked up
    words = ({"name": "aten::argmax", "per_step": 1.0}, {"name": "aten::embedding", "per_step": 2.0})
    assert written("copy_", 20, *words)
    assert not written("copy_", 10, *words)
    # what an operator calls itself is no write of the program's
    inside = {"name": "aten::copy_", "calls": 80, "within": "aten::_to_copy"}
    assert judged(plain, ops=(inside,)) is None


def test_words_that_are_made_one_from_another() -> None:
    plain = [{**EAGER, "kind": None}] * 10

    def made(chosen: float, looked_up: float) -> bool:
        words = (
            {"name": "aten::multinomial", "per_step": chosen},
            {"name": "aten::embedding", "per_step": looked_up},
        )
        return judged(plain, ops=words) is not None

    assert made(6, 6)
    assert made(6, 12)  # of words and of places
    assert not made(6, 9)
    assert not made(6, 1)
    assert not made(2, 2)  # begin and end of an answer, which a reader finds
    assert not made(0, 8)


def test_rotary_embeddings_are_no_cache() -> None:
    joined, negated = {"name": "aten::cat", "calls": 80}, {"name": "aten::neg", "calls": 80}
    plain = [{**EAGER, "kind": None}] * 10
    assert judged(plain, ops=(joined,)) is not None
    assert judged(plain, ops=(joined, negated)) is None


def test_the_fix_follows_the_engine() -> None:
    advice = judged([{**EAGER, "requests": 8}] * 3)
    assert "--cuda-graph-max-bs 8" in fix_for(advice, Framework.SGLANG)
    assert "--enforce-eager" in fix_for(advice, Framework.VLLM)
    assert 'cache_implementation="static"' in fix_for(advice, Framework.TRANSFORMERS)


def test_it_is_silent_for_graphs_and_busy_devices() -> None:
    assert judged([{**EAGER, "launched_by": "graph"}] * 10) is None
    assert judged([EAGER] * 10, least_share=0.5) is None
    assert judged([{**EAGER, "kernels": 6_000}] * 10) is None
    assert judged([{**EAGER, "idle_ns": 0}] * 10) is None
