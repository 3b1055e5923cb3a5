"""Start-up is nobody's gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.drawing import Drawing
from tests.findings.drawn import MS, drawn, mean_step
from tests.findings.test_ranking import advice

import stepscope
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.start_ups import StartUp
from stepscope.findings.build import build_report
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.start_up_time import start_up_ns, without_start_up


def test_what_is_start_up_is_not_promised() -> None:
    told = advice(Claim(Time.STARVED), starved_ns=(2.0 * MS, 5.0 * MS))
    assert without_start_up(told, mean_step(), 4.0 * MS).saving.starved_ns == (0.0, 1.0 * MS)
    assert without_start_up(told, mean_step(), 0.0) == told


def test_a_host_that_computes_may_start_up_and_a_loader_does_not() -> None:
    step = mean_step()
    saved: dict[str, Any] = {"starved_ns": (1.0 * MS, 2.0 * MS), "waited_ns": (5.0 * MS, step.step_ns)}
    computing = without_start_up(advice(Claim(Time.STARVED), **saved), step, 3.0 * MS).saving
    starved = min(2.0 * MS, step.starved_ns - 3.0 * MS)
    assert computing.starved_ns == (0.0, starved)
    assert computing.waited_ns == (2.0 * MS, step.step_ns - starved - 3.0 * MS)
    assert computing.starved_ns[1] + computing.waited_ns[1] <= step.step_ns - 3.0 * MS
    loading = without_start_up(advice(Claim(Time.WAITED), **saved), step, 3.0 * MS).saving
    assert loading.waited_ns == saved["waited_ns"]


def test_a_graph_is_captured_once_and_what_compiles_promises_that_itself() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1, "kind": "capture", "total_ns": 30 * MS},
        {"step": 1, "kind": "recompilation", "total_ns": 20 * MS},
        {"step": None, "kind": "capture", "total_ns": 10 * MS},
    ]
    once = start_up_ns(mean_step(), drawn(StartUp), drawn(Compilation, *rows))
    assert once == 3.0 * MS  # of ten steps
    told = advice(Claim(Time.STARVED, Part.COMPILATION), starved_ns=(2.0 * MS, 5.0 * MS))
    assert without_start_up(told, mean_step(), once) == told


def test_steps_that_mostly_start_the_program_tell_no_limit(tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 900_000).launch("cudaFree", 5, 800_000)
    for number in range(10):
        at = 900_000 + 1000 * number
        drawing.mark(1 + number, at, 1000) if number < 3 else None
        drawing.op("aten::mm", at + 5, 100).launch("cudaLaunchKernel", at + 10, 5, corr=1 + number)
        drawing.kernel("gemm", at + 20, 50, corr=1 + number)
    report = build_report(stepscope.open(drawing.write(tmp_path / "drawn.json"), store=tmp_path / "store"))
    assert (report.verdict.word, report.verdict.promise) == ("unknown", "")
    assert "is what a run does once, when it starts" in report.verdict.sentence
    commands = [step.command for step in report.next_steps]
    assert commands[0] == "stepscope cut TRACE --steps 1: -o steady.json.gz && stepscope steady.json.gz"
    assert not any("whatif" in command for command in commands)
