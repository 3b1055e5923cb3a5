from __future__ import annotations

from typing import Any

from tests.findings.drawn import assert_bounded, drawn, mean_step

from stepscope.analyses.cpu_parts import CpuPart
from stepscope.findings.rules.gil_contention import gil_contention


def samples(part: str, count: int, **told: Any) -> dict[str, Any]:
    return {"process": 1, "thread": 7, "part": part, "samples": count, **told}


def test_a_thread_that_waits() -> None:
    table = drawn(CpuPart, samples("gil", 50, ops=9), samples("interpreter", 150, ops=9))
    advice = assert_bounded(gil_contention(table), mean_step())
    assert "Thread 7, which runs operators of the profile, waits for the GIL in 25 %" in advice.because
    assert advice.evidence == {"threads_waiting": 1, "gil_samples": 50, "samples": 200}
    assert advice.saving.starved_ns == (0.0, 0.0)


def test_several_threads() -> None:
    rows = [samples("gil", 90, thread=thread) for thread in (7, 8, 9)]
    rows += [samples("python", 90, thread=thread) for thread in (7, 8, 9)]
    advice = assert_bounded(gil_contention(drawn(CpuPart, *rows)), mean_step())
    assert "2 other threads do the same" in advice.because


def test_it_is_silent_about_little_waiting_and_few_samples() -> None:
    assert gil_contention(drawn(CpuPart)) is None
    assert gil_contention(drawn(CpuPart, samples("gil", 5), samples("python", 195))) is None
    assert gil_contention(drawn(CpuPart, samples("gil", 40), samples("python", 50))) is None
    few = drawn(CpuPart, samples("gil", 40), samples("python", 50))
    assert gil_contention(few, least_samples=50) is not None
