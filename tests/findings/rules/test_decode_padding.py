from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice, NotKnown
from stepscope.findings.rules.decode_padding import decode_padding


def judged(name: str, requests: int, **row: Any) -> Advice | None:
    """Ten steps, replayed, of 10 ms."""
    given = {"kind": "decode", "launched_by": "graph", "dur_ns": 10 * MS, "name": name, "requests": requests}
    return decode_padding(mean_step(), drawn(Iteration, *[{**given, **row}] * 10))


def test_it_fires_with_the_part_of_the_rows_that_is_padding() -> None:
    advice = assert_bounded(judged("decode[bs=5/8 tok=5]", 5), mean_step())
    assert advice.saving.device_ns == (0.0, 0.375 * 5.0 * MS)
    assert advice.certainty == "possible"


def test_it_is_silent_for_graphs_that_fit() -> None:
    assert judged("decode[bs=7/8 tok=7]", 7) is None


def test_it_is_silent_for_prompts_eager_steps_and_training() -> None:
    assert judged("prefill[bs=5/8 tok=5]", 5, kind="prefill") is None
    assert judged("decode[bs=5/8 tok=5]", 5, launched_by="eager") is None
    assert judged("ProfilerStep#3", 0, kind=None) is None


def test_usual_sizes_tell_that_padding_is_small() -> None:
    assert judged("step[DECODE bs=32]", 32) is None
    assert judged("step[DECODE bs=30]", 30) is None
    assert judged("step[DECODE bs=2]", 2) is None


def test_it_says_what_the_profile_does_not_tell() -> None:
    with pytest.raises(NotKnown, match="SGLang"):
        judged("step[DECODE bs=17]", 17)
    with pytest.raises(NotKnown):
        judged("step", 0)


def test_the_threshold_is_a_part_of_the_rows() -> None:
    rows = drawn(
        Iteration,
        {
            "kind": "decode",
            "launched_by": "graph",
            "dur_ns": MS,
            "name": "decode[bs=7/8 tok=7]",
            "requests": 7,
        },
    )
    assert decode_padding(mean_step(), rows, least_padding=0.1) is not None
