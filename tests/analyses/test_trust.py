"""What could bend a figure: each doubt where it applies, none where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import SAMPLES, open_shared

import stepscope
from stepscope.analyses.trust import Caveat, trust

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
LAUNCH = "cudaLaunchKernel"
KNOWN = {"est. achieved occupancy %": 50, "warps per SM": 8, "blocks per SM": 1}


def plain(lengths: tuple[int, ...] = (100, 100, 100, 100)) -> Drawing:
    """Steps in which nothing is wrong, each with all that can be recorded."""
    drawing = Drawing()
    at = 0
    for number, length in enumerate(lengths):
        drawing.mark(number, at, length).frame("train.py(3): step", at, length).memory(at + 1, 512)
        drawing.op("aten::mm", at + 10, 40, args={"Input Dims": [[2, 2], [2, 2]]})
        drawing.launch(LAUNCH, at + 20, 5, corr=number).kernel("gemm", at + 30, 30, corr=number, args=KNOWN)
        at += length
    return drawing


def doubts(drawing: Drawing, folder: Path) -> dict[str, Caveat]:
    trace = stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")
    table = list(trust(trace))
    found = {doubt.what: doubt for doubt in table}
    assert len(found) == len(table), "one row for each"
    assert all((doubt.effect_ns is None) == (doubt.reason is not None) for doubt in table)
    return found


def only(what: str, drawing: Drawing, folder: Path) -> Caveat:
    """The one doubt that a drawing raises."""
    found = doubts(drawing, folder)
    assert list(found) == [what]
    return found[what]


def test_nothing_is_wrong(tmp_path: Path) -> None:
    assert doubts(plain(), tmp_path) == {}


def test_unlinked_work(tmp_path: Path) -> None:
    # 20 and 20 of work without a launch, of which 10 are at the same time: 30 of 400.
    drawing = plain().kernel("lost", 170, 20, corr=99, args=KNOWN)
    drawing.kernel("lost too", 180, 20, corr=98, stream=8, args=KNOWN)
    found = only("unlinked work", drawing, tmp_path)
    assert (found.count, found.effect_ns, found.effect_share, found.of) == (2, 30_000, 30 / 400, "step time")


def test_work_launched_before_the_profile(tmp_path: Path) -> None:
    # The device is busy until 15 with work of before: the first step starts there, not at 0.
    found = only(
        "work launched before the profile", plain().kernel("before", 2, 13, corr=99, args=KNOWN), tmp_path
    )
    assert (found.count, found.effect_ns, found.effect_share) == (1, 15_000, 15 / 385)


def test_overlapping_work(tmp_path: Path) -> None:
    # On one stream 30..60 and 50..70 overlap by 10; on another stream the same is no overlap.
    drawing = plain().launch(LAUNCH, 46, 2, corr=50).kernel("early", 50, 20, corr=50, args=KNOWN)
    drawing.launch(LAUNCH, 146, 2, corr=51).kernel("beside", 150, 20, corr=51, stream=8, args=KNOWN)
    found = only("overlapping work", drawing, tmp_path)
    assert (found.count, found.effect_ns) == (1, 10_000)


def test_impossible_times(tmp_path: Path) -> None:
    found = only("impossible times", plain().op("aten::mm", 60, -5), tmp_path)
    assert (found.count, found.effect_ns, found.effect_share) == (1, None, None)
    folder = tmp_path / "endless"
    folder.mkdir()
    # An operator of two hours, from 0 on: it covers all steps, and the host time of its thread.
    found = only("impossible times", plain().op("endless", 0, 7.2e9, thread=5), folder)
    assert (found.count, found.effect_ns, found.effect_share) == (1, 400_000, 1.0)


def test_unfinished_events(tmp_path: Path) -> None:
    # An operator is ended with the window, at 400, and so is the last mark: 100. The frame is not counted.
    end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 400}
    found = only("unfinished events", plain().op("aten::mm", 370, 30).add(end), tmp_path)
    assert (found.count, found.effect_ns) == (2, 100_000)


def test_blocking_launches(tmp_path: Path) -> None:
    # Ten launches of 9 each, every one until after its kernel: 90 of 200.
    drawing = plain((200,)).kernel("none", 190, 0, corr=0, args=KNOWN)
    for number in range(10):
        at = 70 + 10 * number
        drawing.launch(LAUNCH, at, 9, corr=100 + number).kernel("k", at + 3, 5, corr=100 + number, args=KNOWN)
    found = only("blocking launches", drawing, tmp_path)
    assert (found.count, found.effect_ns, found.effect_share) == (10, 90_000, 90 / 200)
    assert "90.9 %" in found.explanation


def test_clock_offset(tmp_path: Path) -> None:
    # Begins 2 before its launch.
    drawing = plain().launch(LAUNCH, 180, 5, corr=50).kernel("k", 178, 10, corr=50, args=KNOWN)
    found = only("clock offset", drawing, tmp_path)
    assert (found.count, found.effect_ns) == (1, 2_000)


def test_disordered_work(tmp_path: Path) -> None:
    # Launched at 65 and 68, run at 90 and 80: the second began 10 too early for one stream.
    drawing = plain().launch(LAUNCH, 65, 2, corr=50).kernel("k", 90, 5, corr=50, args=KNOWN)
    drawing.launch(LAUNCH, 68, 2, corr=51).kernel("k", 80, 5, corr=51, args=KNOWN)
    found = only("disordered work", drawing, tmp_path)
    assert (found.count, found.effect_ns) == (1, 10_000)


def test_profiler_overhead(tmp_path: Path) -> None:
    # 20 at the end of the last step, of which 10 are after it.
    place = {"pid": -1, "tid": 0, "ts": 390, "dur": 20}
    drawing = plain().add({"ph": "X", "cat": "overhead", "name": "Buffer Flush", **place})
    found = only("profiler overhead", drawing, tmp_path)
    assert (found.count, found.effect_ns, found.effect_share) == (1, 10_000, 10 / 400)


def test_what_the_profiler_does_beside_a_device_costs_nothing(tmp_path: Path) -> None:
    # From 60 to 120; a kernel runs from 70 to 110.
    place = {"pid": -1, "tid": 0, "ts": 60, "dur": 60}
    drawing = plain().add({"ph": "X", "cat": "overhead", "name": "Buffer Flush", **place})
    drawing.launch(LAUNCH, 62, 2, corr=50).kernel("k", 70, 40, corr=50, args=KNOWN)
    found = doubts(drawing, tmp_path)["profiler overhead"]
    assert (found.count, found.effect_ns) == (1, 20_000)


@pytest.mark.parametrize("lengths,effect", [((300, 100, 110, 90), 200_000), ((140, 100, 100, 100), None)])
def test_warm_up(lengths: tuple[int, ...], effect: int | None, tmp_path: Path) -> None:
    found = doubts(plain(lengths), tmp_path).get("warm-up")
    assert (found.effect_ns if found else None) == effect


def test_compilation(tmp_path: Path) -> None:
    found = doubts(plain().annotation("_compile.compile_inner (dynamo_timed)", 70, 20), tmp_path)
    assert found["compilation"].effect_ns == 20_000


def test_unknown_occupancy(tmp_path: Path) -> None:
    # 10 of 130 of kernel time, with no launch shape from which it could be worked out.
    drawing = plain().launch(LAUNCH, 65, 2, corr=50).kernel("k", 70, 10, corr=50)
    found = only("unknown occupancy", drawing, tmp_path)
    assert (found.count, found.effect_ns, found.of) == (1, 10_000, "kernel time")
    assert found.effect_share == pytest.approx(10 / 130)


def test_profiler_options(tmp_path: Path) -> None:
    found = only("profiler options", plain().meta(with_stack=1, profile_memory=1, record_shapes=0), tmp_path)
    assert (found.count, found.effect_ns) == (2, None)


def test_missing_record(tmp_path: Path) -> None:
    found = only("missing record", Drawing().mark(1, 0, 50).op("aten::mm", 0, 20), tmp_path)
    assert found.count == 3
    assert all(word in found.explanation for word in ("with_stack", "record_shapes", "profile_memory"))
    assert "activities" not in found.explanation


def test_steps_without_marks(tmp_path: Path) -> None:
    drawing = plain()
    drawing.events = [event for event in drawing.events if not event["name"].startswith("ProfilerStep")]
    found = only("steps without marks", drawing, tmp_path)
    assert found.effect_ns is None


def test_several_processes(tmp_path: Path) -> None:
    found = only("several processes", plain().op("aten::mm", 60, 5, pid=200), tmp_path)
    assert found.count == 2


def test_events_without_category(tmp_path: Path) -> None:
    event: dict[str, Any] = {"ph": "X", "name": "mystery", "pid": 100, "tid": 1, "ts": 60, "dur": 5}
    found = only("events without category", plain().add(event), tmp_path)
    assert found.count == 1


def test_unknown_rank(tmp_path: Path) -> None:
    talking = (
        plain().launch(LAUNCH, 65, 2, corr=50).kernel("ncclDevKernel_AllReduce", 70, 9, corr=50, args=KNOWN)
    )
    assert only("unknown rank", talking, tmp_path).count == 1
    folder = tmp_path / "said"
    folder.mkdir()
    assert doubts(talking.meta(distributedInfo={"rank": 3}), folder) == {}


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = plain().write(tmp_path / "whole.json")
    text = path.read_text()
    path.write_text(text[: text.rindex('"ph"') + 20])
    found = {doubt.what: doubt for doubt in trust(stepscope.open(path, store=tmp_path / "store"))}
    assert found["lost bytes"].count >= 1
    assert found["lost bytes"].effect_ns is None


def test_a_packed_file_that_is_cut_short(tmp_path: Path) -> None:
    path = plain((100,) * 50).write(tmp_path / "packed.json.gz")
    path.write_bytes(path.read_bytes()[:-200])
    found = {doubt.what: doubt for doubt in trust(stepscope.open(path, store=tmp_path / "store"))}
    assert "too early" in found["lost bytes"].explanation
    assert "odd file" not in found


def test_a_file_with_two_lists_of_events(tmp_path: Path) -> None:
    text = plain().json()
    path = tmp_path / "two.json"
    path.write_text(text.rstrip().removesuffix("}") + ', "traceEvents": []}')
    found = {doubt.what: doubt for doubt in trust(stepscope.open(path, store=tmp_path / "store"))}
    assert (found["odd file"].count, found["odd file"].effect_ns) == (1, None)
    assert "second list" in found["odd file"].explanation


def test_text_that_was_repaired(tmp_path: Path) -> None:
    path = plain().write(tmp_path / "bare.json")
    path.write_text(
        path.read_text().replace('"est. achieved occupancy %": 50', '"est. achieved occupancy %": NaN', 1)
    )
    found = {doubt.what: doubt for doubt in trust(stepscope.open(path, store=tmp_path / "store"))}
    assert found["repaired text"].count == 1
    assert "lost bytes" not in found


def test_those_with_the_largest_effect_come_first(tmp_path: Path) -> None:
    drawing = plain().kernel("lost", 170, 20, corr=99, args=KNOWN).meta(with_stack=1)
    drawing.launch(LAUNCH, 180, 5, corr=50).kernel("k", 178, 1, corr=50, stream=9, args=KNOWN)
    assert list(doubts(drawing, tmp_path)) == ["unlinked work", "clock offset", "profiler options"]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_real_profile(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = open_shared(sample(name))
    found = {doubt.what: doubt for doubt in trust(trace)}
    assert all(doubt.effect_share is None or 0 <= doubt.effect_share <= 1 for doubt in found.values())
    unlinked = trace.arrow("SELECT count(*) AS n FROM device_work WHERE launch IS NULL")["n"][0].as_py()
    counted = [
        found[what].count for what in ("unlinked work", "work launched before the profile") if what in found
    ]
    assert sum(counted) == unlinked
    assert ("steps without marks" in found) is not bool(trace.arrow("SELECT * FROM step_marks").num_rows)


@pytest.mark.parametrize(
    "name,what",
    [
        ("launch_blocking", "blocking launches"),
        ("compiled", "compilation"),
        ("two_streams", "work launched before the profile"),
    ],
)
def test_what_is_known_of_recorded_programs(name: str, what: str, tmp_path: Path) -> None:
    others = {"blocking launches", "compilation", "work launched before the profile"} - {what}
    trace = open_shared(RECORDINGS / f"{name}.pt.trace.json.gz")
    found = {doubt.what: doubt for doubt in trust(trace)}
    assert what in found
    assert not found.keys() & others


@pytest.mark.parametrize(
    "name,what",
    [
        # Its mark was ended 13 s after the window.
        ("hta_triton.json.gz", "unfinished events"),
        ("tl_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz", "work launched before the profile"),
        ("h200_rl_churn.pt.trace.json.gz", "profiler overhead"),
        ("h200_resnet50.pt.trace.json.gz", "overlapping work"),
        ("hta_amd_mi250.json.gz", "unknown occupancy"),
    ],
)
def test_what_is_known_of_real_profiles(
    name: str, what: str, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    assert what in {doubt.what for doubt in trust(open_shared(sample(name)))}
