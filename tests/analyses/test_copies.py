"""Copies: directions, bytes, and the part of them that kernels hid."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import open_shared
from tests.spans import both, size, union

import stepscope
from stepscope.analyses.copies import Copy, copies

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def table(drawing: Drawing, folder: Path, **options: Any) -> list[Copy]:
    trace = stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")
    return list(copies(trace, **options))


HTOD = "Memcpy HtoD (Pageable -> Device)"
PINNED = "Memcpy HtoD (Pinned -> Device)"


def copied(
    drawing: Drawing, name: str, call: tuple[float, float], work: tuple[float, float], **more: Any
) -> Drawing:
    """A copy and the call that asked for it, both as start and duration."""
    corr = len(drawing.events) + 1
    drawing.launch("cudaMemcpyAsync", *call, corr=corr)
    return drawing.memcpy(name, *work, corr=corr, **more)


def test_a_copy_beside_kernels(tmp_path: Path) -> None:
    # 10..30: a kernel beside it 5..14, two more at once 20..24: 4 + 4 of 20 µs are hidden. The host was in
    # the call 8..25, 15 of the 20.
    drawing = copied(Drawing(), HTOD, (8, 17), (10, 20), args={"bytes": 2000})
    drawing.kernel("a", 5, 9, stream=8).kernel("b", 20, 4, stream=8).kernel("c", 20, 4, stream=9)
    (row,) = table(drawing, tmp_path)
    assert (row.direction, row.host_memory, row.calls, row.bytes) == ("HtoD", "pageable", 1, 2000)
    assert (row.total_ns, row.overlapped_ns, row.exposed_ns) == (20_000, 8_000, 12_000)
    assert row.gb_per_s == pytest.approx(0.1, rel=1e-12)
    assert (row.call, row.host_ns, row.blocked_ns) == ("cudaMemcpyAsync", 17_000, 15_000)


def test_two_copies_at_once_are_both_hidden(tmp_path: Path) -> None:
    # Durations are summed: 10 each, 4 of each beside the kernel.
    drawing = copied(Drawing(), PINNED, (0, 1), (10, 10), stream=8)
    copied(drawing, PINNED, (2, 1), (10, 10), stream=9).kernel("a", 16, 40)
    (row,) = table(drawing, tmp_path)
    assert (row.total_ns, row.overlapped_ns, row.exposed_ns) == (20_000, 8_000, 12_000)


def test_other_copies_fills_and_devices_hide_nothing(tmp_path: Path) -> None:
    drawing = copied(Drawing(), PINNED, (0, 1), (10, 10))
    copied(drawing, "Memcpy DtoH (Device -> Pinned)", (2, 1), (10, 10), stream=9)
    drawing.memset("Memset (Device)", 10, 10, stream=10).kernel("a", 10, 10, device=1)
    assert [row.overlapped_ns for row in table(drawing, tmp_path)] == [0, 0]


@pytest.mark.parametrize(
    "name,direction,memory",
    [
        (HTOD, "HtoD", "pageable"),
        (PINNED, "HtoD", "pinned"),
        ("Memcpy DtoH (Device -> Pageable)", "DtoH", "pageable"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", None),
        ("Memcpy PtoP (Device -> Device)", "PtoP", None),
        ("Memcpy HtoH (Pageable -> Pinned)", "HtoH", "pageable"),
        ("Memcpy HtoD (Host -> Device)", "HtoD", None),
        ("CopyDevice", "unknown", None),
    ],
)
def test_directions(name: str, direction: str, memory: str | None, tmp_path: Path) -> None:
    (row,) = table(Drawing().memcpy(name, 0, 5), tmp_path)
    assert (row.direction, row.host_memory) == (direction, memory)


def test_bytes_as_text_and_bytes_that_are_missing(tmp_path: Path) -> None:
    # 1,000 bytes in 10 µs; what has no size does not change the bandwidth.
    drawing = Drawing().memcpy(PINNED, 0, 10, args={"bytes": "1000"}).memcpy(PINNED, 20, 30)
    trace = stepscope.open(drawing.write(tmp_path / "drawn.json"), store=tmp_path / "store")
    answer = copies(trace)
    (row,) = answer
    assert (row.calls, row.bytes, row.total_ns) == (2, 1000, 40_000)
    assert row.gb_per_s == pytest.approx(0.1, rel=1e-12)
    assert "The profile has no size of 1 copies." in answer.notes


def test_without_any_size(tmp_path: Path) -> None:
    (row,) = table(Drawing().memcpy(PINNED, 0, 10), tmp_path)
    assert (row.bytes, row.gb_per_s) == (None, None)


def test_copies_that_began_outside_the_steps_do_not_count(tmp_path: Path) -> None:
    # The step is 10..30; the second copy begins in it and runs on, with all of its time.
    drawing = Drawing().mark(1, 10, 20)
    copied(drawing, PINNED, (1, 1), (2, 5), args={"bytes": 1})
    copied(drawing, PINNED, (40, 1), (28, 10), args={"bytes": 2})
    copied(drawing, PINNED, (42, 1), (50, 10), args={"bytes": 4})
    (row,) = table(drawing, tmp_path)
    assert (row.calls, row.bytes, row.total_ns) == (1, 2, 10_000)


def test_several_copies_of_one_call(tmp_path: Path) -> None:
    # A graph with two copies: its launch counts once.
    drawing = Drawing().launch("cudaGraphLaunch", 0, 3, corr=1)
    drawing.memcpy(PINNED, 5, 2, corr=1).memcpy(PINNED, 8, 2, corr=1)
    (row,) = table(drawing, tmp_path)
    assert (row.calls, row.call, row.host_ns, row.blocked_ns) == (2, "cudaGraphLaunch", 3_000, 0)


def places() -> Drawing:
    drawing = Drawing().frame("train.py(10): load", 0, 20).frame("train.py(30): step", 30, 20)
    drawing.op("aten::copy_", 1, 5).op("aten::_local_scalar_dense", 31, 5)
    copied(drawing, PINNED, (2, 1), (4, 3))
    copied(drawing, "Memcpy DtoH (Device -> Pinned)", (32, 1), (34, 5))
    return copied(drawing, PINNED, (40, 1), (42, 1))


def test_by_operator(tmp_path: Path) -> None:
    found = [(row.place, row.direction, row.total_ns) for row in table(places(), tmp_path, by="op")]
    assert found == [
        ("aten::_local_scalar_dense", "DtoH", 5_000),
        ("aten::copy_", "HtoD", 3_000),
        (None, "HtoD", 1_000),
    ]


def test_by_frame(tmp_path: Path) -> None:
    found = [(row.place, row.direction, row.total_ns) for row in table(places(), tmp_path, by="frame")]
    assert found == [
        ("train.py(30): step", "DtoH", 5_000),
        ("train.py(10): load", "HtoD", 3_000),
        ("train.py(30): step", "HtoD", 1_000),
    ]


def test_by_frame_without_frames(tmp_path: Path) -> None:
    trace = stepscope.open(Drawing().memcpy(PINNED, 0, 5).write(tmp_path / "a.json"), store=tmp_path / "s")
    answer = copies(trace, by="frame")
    assert [row.place for row in answer] == [None]
    assert any("with_stack=True" in note for note in answer.notes)


def test_a_profile_without_copies(tmp_path: Path) -> None:
    trace = stepscope.open(Drawing().kernel("a", 0, 5).write(tmp_path / "a.json"), store=tmp_path / "s")
    answer = copies(trace)
    assert len(answer) == 0
    assert "No copies began inside the steps." in answer.notes


def test_a_real_profile_with_two_streams(tmp_path: Path) -> None:
    # Copies and kernels are read with `json` alone. Two copies ended before the first step.
    path = RECORDINGS / "two_streams.pt.trace.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = {
        kind: [
            (e["name"], round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000), e["args"])
            for e in events
            if e.get("cat") == kind
        ]
        for kind in ("kernel", "gpu_memcpy")
    }
    running = union((low, high) for _, low, high, _ in spans["kernel"])
    trace = open_shared(path)
    base = trace.meta.base_ns
    windows = [
        (row["start_ns"] - base, row["end_ns"] - base) for row in trace.arrow("FROM steps").to_pylist()
    ]
    found = {row.direction: row for row in copies(trace)}
    assert set(found) == {"HtoD", "DtoH"}
    for direction, row in found.items():
        own = [
            one
            for one in spans["gpu_memcpy"]
            if direction in one[0] and any(start <= one[1] < end for start, end in windows)
        ]
        hidden = sum(size(both([(low, high)], running)) for _, low, high, _ in own)
        assert (row.calls, row.bytes) == (len(own), sum(args["bytes"] for *_, args in own))
        assert (row.total_ns, row.overlapped_ns) == (sum(high - low for _, low, high, _ in own), hidden)
        assert row.host_memory == "pinned"
    assert found["HtoD"].overlapped_ns > 0
