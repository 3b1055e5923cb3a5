"""Real ranks over gloo with a planted fault: rank, cause and line are named, and all are played together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.runs.planting import planted
from tests.trying import some

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Planted:
    """What was planted, and what has to be found."""

    ranks: int
    late: int
    fault: str
    ms: float
    cause: str
    rule: str
    function: str


CASES = [
    Planted(2, 1, "input", 60, "input", "input-imbalance", "read_slowly"),
    Planted(2, 0, "collector", 60, "collector", "unsynchronised-collector", "collect_garbage"),
    Planted(4, 2, "host", 120, "host", "host-bound-rank", "prepare_metrics"),
    Planted(4, 3, "work", 150, "more work", "straggling-rank", "more_work"),
]


@cache
def recorded(base: Path, case: Planted) -> Path:
    folder = base / f"{case.fault}{case.ranks}"
    return planted(folder, ranks=case.ranks, late=case.late, fault=case.fault, ms=case.ms)


def asked(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.mark.parametrize("case", some(CASES, 1), ids=lambda case: f"{case.fault}-{case.ranks}")
def test_rank_cause_and_line_are_named(base: Path, case: Planted) -> None:
    run = recorded(base, case)
    report: dict[str, Any] = json.loads(asked("report", str(run), "--format", "json"))
    worst = report["run"]["stragglers"][0]
    assert (worst["rank"], worst["cause"]) == (case.late, case.cause)
    assert worst["place"].endswith(case.function)
    assert f"ank {case.late}" in report["verdict"]["sentence"]
    (found,) = [one for one in report["findings"] if one["id"] == case.rule]
    assert found["evidence"]["rank"] == case.late
    assert found["severity"] == "high"
    assert case.function in [place["function"] for place in found["locations"]]


def shorter(said: str) -> tuple[int, ...]:
    """By how many percent a step gets shorter: one number, or the two ends of a range."""
    (found,) = re.findall(r"([\d–]+) % shorter", said)
    return tuple(int(end) for end in found.split("–"))


@pytest.mark.parametrize("case", CASES[:1], ids=lambda case: case.fault)
def test_its_ranks_are_played_together(base: Path, case: Planted) -> None:
    run = str(recorded(base, case))
    said = asked("whatif", run, "--rank", str(case.late), "--no-loader")
    lines = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert lines["simulated"].endswith("as recorded") or lines["simulated"].endswith("% off")
    assert lines["changed"].endswith("shorter")
    assert lines["pace"].startswith(f"rank {case.late} ")
    other = asked("whatif", run, "--rank", str(1 - case.late), "--no-loader")
    assert max(shorter(other)) < min(shorter(said)), "on a busy machine the other rank may wait for data, too"
