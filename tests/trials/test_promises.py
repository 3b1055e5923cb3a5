"""Promises: as people write them, and as a report makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.errors import StepscopeError
from stepscope.trials import Promise
from stepscope.trials.promises import promise_in, promise_of


@pytest.mark.parametrize("text", ["12-18", "12–18 %", "12 % - 18 %", "12..18%", "18-12", "12 to 18 %"])
def test_a_range(text: str) -> None:
    assert promise_of(text) == Promise(0.12, 0.18)


def test_one_figure() -> None:
    assert promise_of("12.5 %") == Promise(0.125, 0.125)


@pytest.mark.parametrize("text", ["", "much", "-5", "12-18 ms"])
def test_what_is_no_gain(text: str) -> None:
    with pytest.raises(StepscopeError, match="no gain in per cent"):
        promise_of(text)


def test_the_finding_of_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    gain = {"low_ns": 1, "high_ns": 2, "low_share": 0.1, "high_share": 0.2}
    path.write_text(json.dumps({"schema": "stepscope.report/1", "findings": [{"id": "a-b", "gain": gain}]}))
    assert promise_in(path, "a_b") == Promise(0.1, 0.2, "a-b")
    with pytest.raises(StepscopeError, match="no finding c") as refused:
        promise_in(path, "c")
    assert refused.value.hint == "it has: a-b"


def test_a_profile_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    assert promise_in(path, "a") is None
    assert promise_in(tmp_path, "a") is None
