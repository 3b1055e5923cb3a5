"""What the timeline of a window asks for: tracks, tiles, names and search, from the real command."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from tests.boxes import boxes_of
from tests.web.windows import Window, window

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tracks(demo: Window) -> dict[str, Any]:
    until = time.monotonic() + 60
    while (told := demo.ask("/api/tracks").json)["made"] < 1:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert all(track["done"] for track in told["tracks"])
    return dict(told)


def top(tracks: dict[str, Any]) -> tuple[int, list[int]]:
    """The highest level and its tiles, which show the whole trace."""
    level = tracks["levels"] - 1
    width = tracks["width_ns"] * tracks["tile_pixels"] * 4 ** (level - 1)
    return level, list(range(tracks["first_ns"] // width, tracks["last_ns"] // width + 1))


def test_tiles_one_by_one_and_together(demo: Window, tracks: dict[str, Any]) -> None:
    level, indices = top(tracks)
    assert len(indices) <= 2
    asked = [(track["id"], level, index) for track in tracks["tracks"] for index in indices]
    alone = []
    for track, _, index in asked:
        answer = demo.ask(f"/api/tile?track={track}&level={level}&index={index}")
        assert answer.headers["content-type"] == "application/octet-stream"
        alone.append(answer.body)
    body = demo.ask("/api/tile?tiles=" + ",".join(f"{a}:{b}:{c}" for a, b, c in asked)).body
    count, zero, *lengths = struct.unpack_from(f"<{2 + len(asked)}I", body)
    assert (count, zero) == (len(asked), 0)
    at, together = -(-(8 + 4 * count) // 8) * 8, []
    for length in lengths:
        together.append(body[at : at + length])
        at += -(-length // 8) * 8
    assert at == len(body)
    assert together == alone
    events = {track["id"]: track["events"] for track in tracks["tracks"]}
    shown = dict.fromkeys(events, 0)
    width = tracks["width_ns"] * tracks["tile_pixels"] * 4 ** (level - 1)
    for (track, _, index), tile in zip(asked, alone, strict=True):
        shown[track] += sum(box.count for box in boxes_of(tile) if box.start // width == index)
    assert shown == events


def test_names_of_boxes(demo: Window, tracks: dict[str, Any]) -> None:
    level, (index, *_) = top(tracks)
    track = tracks["tracks"][0]["id"]
    boxes = boxes_of(demo.ask(f"/api/tile?track={track}&level={level}&index={index}").body)
    ids = ",".join(str(box.name) for box in boxes)
    names = demo.ask(f"/api/names?ids={ids}").json["names"]
    assert len(names) == len(boxes)
    assert any("gemm" in name for name in names)
    assert (
        demo.ask("/api/names", data=ids.encode(), Origin=f"http://127.0.0.1:{demo.port}").json["names"]
        == names
    )
    assert demo.ask("/api/names?ids=4294967295,2147483647").json["names"] == ["", ""]


def test_search_from_one_to_the_next(demo: Window, tracks: dict[str, Any]) -> None:
    first = demo.ask("/api/find?text=GEMM&from=0").json
    assert first["names"] >= 1
    assert "gemm" in first["found"]["text"]
    seen, here = [], first["found"]
    while here:
        seen.append((here["start_ns"], here["event"]))
        here = demo.ask(f"/api/find?text=gemm&from={here['start_ns']}&event={here['event']}").json["found"]
    assert seen == sorted(set(seen))
    last = demo.ask(f"/api/find?text=g[e]mm&regex=1&back=1&from={tracks['last_ns'] + 1}").json["found"]
    assert (last["start_ns"], last["event"]) == seen[-1]
    assert demo.ask("/api/find?text=g[e]mm&from=0").json == {"found": None, "names": 0}


@pytest.mark.parametrize(
    "path",
    [
        "/api/tile?track=1&level=99&index=0",
        "/api/tile?track=1&level=1",
        "/api/tile?tiles=1:1:1,../../etc/passwd",
        "/api/tile?tiles=" + ",".join(["1:1:1"] * 300),
        "/api/tile?track=9999999999&level=1&index=0",
        "/api/names?ids=1,x",
        "/api/names?ids=",
        "/api/names?ids=" + ",".join(["1"] * 5000),
        "/api/find?text=",
        "/api/find?text=a&from=now",
        "/api/find?text=(&regex=1&from=0",
        "/api/tracks?trace=../../etc",
    ],
)
def test_what_cannot_be_asked(demo: Window, path: str) -> None:
    answer = demo.ask(path)
    assert answer.status == 400
    assert answer.json["problem"]
    assert answer.json["hint"]


def test_times_since_1970_are_told_to_the_nanosecond(tmp_path: Path) -> None:
    # Numbers of scripts are exact up to 2^53; times since 1970 are larger, and would be rounded to 256 ns.
    noon, late = 1_700_049_600_000_000_000, [1, 258, 1_000_003]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op {at}", "pid": 1, "tid": 2, "dur": 0.1, "ts": "TS"}
        for at in late
    ]
    text = json.dumps({"traceEvents": events})
    for at in late:
        text = text.replace('"TS"', f"{(noon + at) // 1000}.{(noon + at) % 1000:03}", 1)
    (tmp_path / "old.json").write_text(text, encoding="utf-8")
    with window(str(tmp_path / "old.json")) as opened:
        opened.wait()
        while (told := opened.ask("/api/tracks").json)["made"] < 1:
            time.sleep(0.05)
        base, (track,) = int(told["base"]), told["tracks"]
        index = told["first_ns"] // (told["width_ns"] * told["tile_pixels"])
        tiles = [opened.ask(f"/api/tile?track={track['id']}&level=0&index={index + more}") for more in (0, 1)]
        boxes = {box.event: box for tile in tiles for box in boxes_of(tile.body)}
        assert sorted(base + box.start - noon for box in boxes.values()) == late
        for number, box in boxes.items():
            event = opened.ask(f"/api/event?event={number}").json
            # As a script reads it: every number is a double.
            assert int(float(event["start_ns"])) == event["start_ns"] == box.start
