"""What reports say of other people's servers: what their iterations do, and what limits them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.samples import reported

Sample = Callable[[str], Path]


@pytest.mark.slow
def test_a_decoding_step_in_a_graph_is_limited_by_memory(sample: Sample) -> None:
    report = reported(sample("verdicts/sglang_decode_mi300.json.gz"))
    assert report.verdict.word == "memory-bandwidth-bound"
    assert "decodes at most 32 tokens" in report.verdict.sentence
    (served,) = report.overview.served
    assert (served.kind, served.iterations, served.time_share) == ("decode", 1, 1.0)
    assert served.prefill_tokens_per_s == 0
    assert served.decode_tokens_per_s == pytest.approx(32 / (report.overview.step_ns / 1e9))


@pytest.mark.slow
def test_prompts_and_decoding_in_one_iteration(sample: Sample) -> None:
    report = reported(sample("verdicts/vllm_mixed_mi300.json.gz"))
    assert report.verdict.word == "device-bound", "of 8,192 rows nothing says what limits them"
    (served,) = report.overview.served
    assert served.kind == "mixed"
    seconds = report.overview.step_ns / 1e9
    assert served.prefill_tokens_per_s == pytest.approx(8155 / seconds)
    assert served.decode_tokens_per_s == pytest.approx(37 / seconds)
