from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

import stepscope
from stepscope.analyses.compilations import Compilation, compilations
from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice
from stepscope.findings.fixes import fitted
from stepscope.findings.program import Framework, Program
from stepscope.findings.rules.graph_captures import graph_captures

STEP = mean_step(steps=6, step_ns=20.0 * MS, unprofiled_ns=(18.0 * MS, 20.0 * MS), starved_ns=15.0 * MS)


def capture(step: int | None, **told: Any) -> dict[str, Any]:
    return {"step": step, "kind": "capture", "times": 1, "total_ns": 8 * MS, **told}


def found(*rows: dict[str, Any], longer: int = 0, **told: Any) -> Advice | None:
    """Six steps of 20 ms; those that capture may be longer than others."""
    slow = {row["step"] for row in rows}
    steps = [{"step": n, "dur_ns": (20 + longer * (n in slow)) * MS} for n in range(6)]
    return graph_captures(STEP, drawn(Compilation, *rows), drawn(Iteration, *steps), **told)


def test_every_step_captures() -> None:
    advice = assert_bounded(found(*(capture(step) for step in range(6))), STEP)
    assert advice.saving.starved_ns == (8.0 * MS, 15.0 * MS)
    assert advice.because.startswith("6 of 6 recorded steps capture graphs, 6 times in all")
    assert "takes 8.00 ms" in advice.because
    assert "graph.replay()" in advice.fix


def test_some_steps_capture() -> None:
    advice = assert_bounded(found(*(capture(step) for step in (0, 3, 5)), longer=10, often_share=0.6), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.0, 5.0 * MS))
    assert advice.certainty == "likely"


def test_fixes_follow_who_captures() -> None:
    rows = [capture(step, region="0/0") for step in range(6)]
    assert "TORCH_LOGS" in assert_bounded(found(*rows), STEP).fix
    served = fitted(assert_bounded(found(*rows), STEP), Program((Framework.VLLM,)))
    assert served.fix.startswith("vllm serve MODEL --cudagraph-capture-sizes 1 2 4 8")
    assert "torch" not in served.fix


def test_warm_up_ends() -> None:
    assert found(*(capture(step) for step in (0, 1, 2, 3))) is None
    assert found(capture(0), capture(5)) is None, "twice may be chance"
    assert found(*(capture(None) for _ in range(6))) is None
    assert found(*(capture(step, kind="compilation") for step in range(6))) is None
    assert found(*(capture(step, total_ns=MS // 10) for step in range(6))) is None


@pytest.mark.parametrize("api", ["cuda", "hip"])
def test_a_capture_lasts_until_its_graph_is_ready(tmp_path: Path, api: str) -> None:
    drawing = Drawing()
    for step in range(2):
        at = 1000 * step
        drawing.mark(step, at, 900).launch(f"{api}StreamBeginCapture", at + 10, 5)
        drawing.launch(f"{api}StreamEndCapture", at + 110, 10).launch(f"{api}GraphInstantiate", at + 125, 75)
        drawing.launch(f"{api}GraphLaunch", at + 300, 20, corr=step + 1)
        drawing.kernel("gemm", at + 330, 50, corr=step + 1)
    drawing.mark(2, 2000, 900).launch(f"{api}StreamBeginCapture", 2010, 5)
    drawing.launch(f"{api}StreamEndCapture", 2110, 10).launch(f"{api}GraphInstantiate", 5000, 75)
    trace = stepscope.open(drawing.write(tmp_path / "drawn.json"), store=tmp_path / "store")
    rows = [(row.step, row.kind, row.times, row.total_ns) for row in compilations(trace)]
    assert rows == [(0, "capture", 1, 190_000), (1, "capture", 1, 190_000), (2, "capture", 1, 110_000)]
