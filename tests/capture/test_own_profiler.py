"""`stepscope.on_trace_ready()`: programs that use torch's profiler themselves get run folders, too."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.capture.profiles import calls_in_steps, passes_of, rank_of

import stepscope

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs that have no name go to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(torch: Any, steps: int, **options: Any) -> None:
    """A program with a profiler of its own."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profiler:
        for _ in range(steps):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()


# As an error in the middle of the profiler it would crash the process.
@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_a_schedule_that_repeats(torch: Any, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    schedule = torch.profiler.schedule(skip_first=2, wait=1, warmup=1, active=3, repeat=2)
    record(torch, 20, schedule=schedule, on_trace_ready=stepscope.on_trace_ready())
    (folder,) = (place / "stepscope-runs").iterdir()
    files = {one["path"]: (one["pass"], one["steps"]) for one in rank_of(folder)["files"]}
    assert files == {
        "rank0.light.pt.trace.json.gz": ("light", [4, 6]),
        "rank0.light-2.pt.trace.json.gz": ("light", [9, 11]),
    }
    for path, (_, (first, last)) in files.items():
        events = json.loads(gzip.decompress((folder / path).read_bytes()))["traceEvents"]
        marks = {event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")}
        assert marks == {f"ProfilerStep#{number}" for number in range(first, last + 1)}
    said = f"to see what is slow: stepscope report stepscope-runs/{folder.name}\n"
    assert f"stepscope: rank0.light-2.pt.trace.json.gz is written; {said}" in capfd.readouterr().err
    assert rank_of(folder)["state"] == "finished"


def test_stacks_make_a_full_profile(torch: Any, place: Path) -> None:
    record(
        torch,
        4,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=stepscope.on_trace_ready(place / "run"),
        with_stack=True,
        record_shapes=True,
    )
    assert set(passes_of(place / "run")) == {"full"}
    assert calls_in_steps(place / "run", "full", "aten::mm") == [(1,)] * 2


def test_without_a_schedule_there_are_no_steps(torch: Any, place: Path) -> None:
    record(torch, 3, on_trace_ready=stepscope.on_trace_ready(place / "run"))
    assert "steps" not in passes_of(place / "run")["light"]


def test_a_folder_that_cannot_be_made_is_no_end(torch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    record(torch, 3, on_trace_ready=stepscope.on_trace_ready("/dev/null/run"))
    assert "stepscope: the profile could not be written: NotADirectoryError" in capfd.readouterr().err
