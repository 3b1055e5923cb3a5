from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.attention import Attention
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.loops import Loop
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.cache_copies import cache_copies

JOIN = {"name": "aten::cat", "calls": 320, "per_step": 32.0, "device_ns": 30 * MS}


def judged(
    *rows: dict[str, Any], kind: str | None = None, training: bool = False,
    lengths: tuple[int, int] | None = None, calls: int = 160, **thresholds: Any,
) -> Advice | None:  # fmt: skip
    """Ten steps of 10 ms with 16 calls of attention in each."""
    query, key = lengths or (None, None)
    return cache_copies(
        busy_pace(),
        drawn(Iteration, *[{"kind": kind}] * 10),
        drawn(StepClass, {"backward_passes": int(training)}),
        drawn(Attention, {"forward_calls": calls, "query_length": query, "key_length": key}),
        drawn(StepOp, *rows),
        drawn(Loop),
        **thresholds,
    )


def test_it_fires_with_the_copies_less_writing_in_place() -> None:
    advice = assert_bounded(judged({**JOIN, "user_frame": "gen.py(3): word"}), busy_pace())
    assert advice.saving.device_ns == (3.0 * MS - 32 * 5_000, 3.0 * MS)
    assert str(advice.locations[0]) == "gen.py:3 word"


def test_rotary_embeddings_join_too() -> None:
    negated = {"name": "aten::neg", "calls": 320, "device_ns": 5 * MS}
    assert judged(JOIN, negated) is None
    both = {**JOIN, "calls": 640, "device_ns": 40 * MS}
    advice = judged(both, negated)
    assert advice is not None
    assert advice.saving.device_ns[1] == 3.0 * MS


def test_it_is_silent_where_nothing_is_decoded() -> None:
    assert judged(JOIN, training=True) is None
    assert judged(JOIN, lengths=(559, 559)) is None
    assert judged(JOIN, kind="prefill") is None
    assert judged(JOIN, calls=0) is None


def test_shapes_or_names_tell_decoding() -> None:
    assert judged(JOIN, lengths=(1, 559)) is not None
    assert judged(JOIN, kind="decode") is not None


def test_it_is_silent_for_other_joins() -> None:
    assert judged({**JOIN, "calls": 160}, kind="decode") is None
    assert judged({**JOIN, "calls": 480}) is None


def test_it_is_silent_where_they_are_cheap() -> None:
    assert judged({**JOIN, "device_ns": 3 * MS}) is None
    assert judged({**JOIN, "device_ns": 3 * MS}, least_share=0.02) is not None
