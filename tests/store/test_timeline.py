"""The timeline of stored traces: every event is there once, at every level; damage is repaired."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.boxes import Box, apart, boxes_of, merged, whole
from tests.commands import SLOW_ITEM, environment, obey_permissions
from tests.drawing import Drawing
from tests.samples import DATA, open_shared

from stepscope.errors import StepscopeError
from stepscope.opening import open_trace
from stepscope.schema import COMMUNICATION_KERNEL
from stepscope.store import timeline_sweeps
from stepscope.store.timeline import KINDS, WIDTH_NS, Timeline, Track, timeline_of
from stepscope.store.trace import Trace

SMALL = ["h200_slow_item", "h200_cuda_graph", "h200_ddp_gloo_rank0", "h200_rl_churn"]
REAL = ["hta_nccl_data.json.gz", "hta_amd_mi250.json.gz"]
FILES = ("timeline.boxes", "timeline.index", "timeline.sums.txt")
KIND = """CASE t.stored_in WHEN 'python_frames' THEN 'python_frame' WHEN 'ops' THEN 'op'
          WHEN 'launches' THEN 'launch'
          WHEN 'annotations' THEN 'annotation'
          WHEN 'device_work' THEN CASE WHEN s.category ILIKE '%memcpy' THEN 'copy'
            WHEN s.category ILIKE '%memset' THEN 'fill'
            WHEN regexp_matches(n.text, $talks, 'i') THEN 'communication' ELSE 'kernel' END
          ELSE 'other' END"""


def stored(trace: Trace) -> dict[int, tuple[int, int, int, int, str]]:
    """Every event that has a duration: its track, start, duration, name and kind."""
    tables = (
        "python_frames",
        "ops",
        "launches",
        "annotations",
        "device_work",
        "other_events",
        "collector_pauses",
    )
    every = " UNION ALL ".join(
        f"SELECT event, thread, start_ns, dur_ns, name, skeleton, '{name}' AS stored_in FROM stored.{name}"
        for name in tables
    )
    rows = trace.reading(None).rows(
        f"""SELECT event, thread, start_ns, dur_ns, coalesce(t.name, {2**32 - 1}) AS name, {KIND} AS kind
            FROM ({every}) t JOIN stored.skeletons s ON s.id = t.skeleton
            LEFT JOIN stored.names n ON n.id = t.name
            WHERE s.phase = 'X' AND start_ns IS NOT NULL AND dur_ns IS NOT NULL""",
        talks=COMMUNICATION_KERNEL,
    )
    return {
        row["event"]: (row["thread"], row["start_ns"], row["dur_ns"], row["name"], row["kind"])
        for row in rows
    }


def level(timeline: Timeline, track: Track, number: int) -> list[Box]:
    def tile(level: int, index: int) -> bytes:
        return timeline.tile(track.id, level, index)

    return whole(tile, number, (track.first_ns, track.last_ns), WIDTH_NS)


def check(trace: Trace) -> None:
    timeline, expected = timeline_of(trace), stored(trace)
    order = {
        event: place for place, event in enumerate(sorted(expected, key=lambda one: _order(expected, one)))
    }
    found: dict[int, tuple[int, int, int, int, str]] = {}
    for track in timeline.tracks():
        own = level(timeline, track, 0)
        assert len(own) == track.events == len({box.event for box in own})
        assert (min(box.start for box in own), max(box.end for box in own)) == (track.first_ns, track.last_ns)
        assert {box.lane for box in own} == set(range(track.lanes))
        assert apart(own)
        found |= {box.event: (track.id, box.start, box.dur, box.name, KINDS[box.kind]) for box in own}
        in_order = sorted(own, key=lambda box: order[box.event])
        for number in range(1, timeline.levels):
            boxes = level(timeline, track, number)
            assert sum(box.count for box in boxes) == track.events
            assert sum(box.busy for box in boxes) == sum(box.dur for box in own)
            assert boxes == merged(in_order, number, WIDTH_NS)
    assert found == expected
    first, last = timeline.span_ns
    assert last - first <= WIDTH_NS * 1024 * 4 ** (timeline.levels - 2)


def _order(events: dict[int, tuple[int, int, int, int, str]], number: int) -> tuple[int, int, int]:
    _, start, dur, _, _ = events[number]
    return start, -dur, number


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_profiles(name: str) -> None:
    check(open_shared(DATA / f"{name}.pt.trace.json.gz"))


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_profiles(name: str, sample: Callable[[str], Path]) -> None:
    check(open_shared(sample(name)))


def drawn(tmp_path: Path, drawing: Drawing) -> Trace:
    return open_trace(drawing.write(tmp_path / "drawn.json"), store=tmp_path / "stores")


def test_tracks_and_lanes(tmp_path: Path) -> None:
    drawing = (
        Drawing().frame("a.py(1): f", 0, 100).op("aten::mm", 10, 50).launch("cudaLaunchKernel", 20, 5, corr=1)
    )
    drawing.op("crossing", 30, 200).kernel("gemm", 40, 30, corr=1).kernel("ncclAllReduce", 50, 30)
    drawing.annotation("range", 40, 45, cat="gpu_user_annotation", pid=0, thread=7)
    trace = drawn(tmp_path, drawing)
    timeline = timeline_of(trace)
    device, host = timeline.tracks()
    assert (device.side, device.group, device.label, host.side, host.label) == (
        "device",
        "GPU 0",
        "stream 7",
        "host",
        "thread 1",
    )
    names = {row["id"]: row["text"] for row in trace.reading(None).rows("SELECT id, text FROM stored.names")}
    lanes = {names[box.name]: (box.lane, KINDS[box.kind]) for box in level(timeline, host, 0)}
    assert lanes == {
        "a.py(1): f": (0, "python_frame"),
        "aten::mm": (1, "op"),
        "cudaLaunchKernel": (2, "launch"),
        "crossing": (2, "op"),
    }
    work = {names[box.name]: (box.lane, KINDS[box.kind]) for box in level(timeline, device, 0)}
    assert work == {"gemm": (0, "kernel"), "ncclAllReduce": (1, "communication"), "range": (2, "annotation")}


def test_a_thread_that_is_named_twice(tmp_path: Path) -> None:
    drawing = Drawing().op("a", 0, 5).op("b", 0, 5, thread=2).op("c", 0, 5, thread=3).op("d", 0, 5, thread=4)
    drawing.add({"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python3"}})
    drawing.named_thread("thread 1 (pt_autograd_0)").named_thread("thread 1 (python3)")
    drawing.named_thread("Thread 2", thread=2).named_thread("loader", thread=2)
    drawing.named_thread("thread 3", thread=3).named_thread("thread 3 (python3)", thread=3)
    drawing.named_thread("pt_main_thread", thread=4).named_thread("pt_autograd_1", thread=4)
    tracks = timeline_of(drawn(tmp_path, drawing)).tracks()
    assert {track.group for track in tracks} == {"python3 (pid 100)"}
    told = ["loader", "pt_autograd_1", "thread 1 (pt_autograd_0)", "thread 3 (python3)"]
    assert sorted(track.label for track in tracks) == told


def test_a_timeline_opens_no_database(tmp_path: Path) -> None:
    """It would take longer than the first picture may."""
    trace = drawn(tmp_path, Drawing().op("a", 0, 5).kernel("b", 1, 5).named_thread("main"))
    program = (
        "import sys; from pathlib import Path; from stepscope.store.timeline import timeline_of; "
        "from stepscope.store.trace import Trace; tracks = timeline_of(Trace(Path(sys.argv[1]))).tracks(); "
        "print([track.label for track in tracks], 'duckdb' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(trace.folder)], capture_output=True, text=True, check=True
    )
    assert told.stdout == "['stream 7', 'main'] False\n"


def test_nothing_to_draw(tmp_path: Path) -> None:
    timeline = timeline_of(drawn(tmp_path, Drawing().memory(1, 5)))
    assert (timeline.tracks(), timeline.span_ns, timeline.levels, timeline.made) == ([], (0, 0), 2, 1.0)
    assert timeline.find([0, 1], 0) is None
    assert boxes_of(timeline.tile(0, 0, 0)) == []


def test_search(tmp_path: Path) -> None:
    timeline = timeline_of(drawn(tmp_path, Drawing().op("a", 1, 5).op("b", 2, 1).op("a", 9, 1)))
    (track,) = timeline.tracks()
    names = defaultdict(list)
    for box in level(timeline, track, 0):
        names[box.name].append(box)
    a = next(name for name, some in names.items() if len(some) == 2)
    first = timeline.find([a], 0)
    assert first is not None
    assert (first.start_ns, first.dur_ns, first.lane, KINDS[first.kind]) == (1000, 5000, 0, "op")
    second = timeline.find([a], first.start_ns, event=first.event)
    assert second is not None
    assert second.start_ns == 9000
    assert timeline.find([a], second.start_ns) is None
    assert timeline.find([a], second.start_ns, back=True) == first


def test_no_such_tile(tmp_path: Path) -> None:
    timeline = timeline_of(drawn(tmp_path, Drawing().op("a", 1, 5)))
    for asked in ((0, 21, 0), (0, -1, 0), (-1, 0, 0), (2**31, 0, 0), (0, 0, 2**62)):
        with pytest.raises(StepscopeError, match="there is no tile"):
            timeline.tile(*asked)


# ------------------------------------------------ kept


def every(timeline: Timeline) -> list[list[Box]]:
    return [
        level(timeline, track, number) for track in timeline.tracks() for number in range(timeline.levels)
    ]


def again(trace: Trace) -> Timeline:
    return timeline_of(Trace(trace.folder))


def test_it_is_made_once(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    boxes = every(timeline_of(trace))
    made = {name: (trace.folder / name).stat().st_mtime_ns for name in FILES}
    assert every(again(trace)) == boxes
    assert {name: (trace.folder / name).stat().st_mtime_ns for name in FILES} == made
    assert not [file.name for file in trace.folder.iterdir() if file.name.endswith(".partial")]


@pytest.mark.parametrize("most", [0, 3])
def test_tracks_that_are_swept_alone(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few row groups are held at a time where that is all there is room for."""
    trace = open_trace(DATA / "h200_ddp_gloo_rank0.pt.trace.json.gz", store=tmp_path)
    boxes = every(timeline_of(trace))
    (trace.folder / "timeline.sums.txt").unlink()
    monkeypatch.setattr(timeline_sweeps, "_OPEN_GROUPS", most)
    assert every(again(trace)) == boxes


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "cut", "longer", "changed", "empty"])
def test_damage(name: str, damage: str, tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    boxes = every(timeline_of(trace))
    file = trace.folder / name
    was = file.read_bytes()
    file.unlink()
    middle = len(was) // 2
    changed = {
        "cut": was[:-9],
        "longer": was + b"more",
        # Not one byte: nobody reads boxes for pixels that are wider than the trace.
        "changed": was[:middle] + bytes(one ^ 1 for one in was[middle:]),
        "empty": b"",
    }
    if damage in changed:
        file.write_bytes(changed[damage])
    assert every(again(trace)) == boxes
    assert file.read_bytes() == was


def test_one_of_an_older_version_is_made_again_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    boxes = every(timeline_of(trace))
    file = trace.folder / "timeline.index"
    was = file.read_bytes()
    head, line, rest = was.partition(b"\n")
    file.chmod(0o644)
    file.write_bytes(b"stepscope timeline 1" + line + rest)
    assert every(again(trace)) == boxes
    assert file.read_bytes() == was
    assert caplog.text == ""
    file.chmod(0o644)
    file.write_bytes(head + b"0" + line + rest)
    assert every(again(trace)) == boxes
    assert "is damaged: it is made again" in caplog.text


def test_damage_while_it_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    timeline = timeline_of(trace)
    boxes = every(timeline)
    file = trace.folder / "timeline.boxes"
    file.chmod(0o644)
    with file.open("r+b") as open_file:
        open_file.truncate(100)
    assert every(timeline) == boxes
    assert "is damaged: it is made again" in caplog.text


def test_of_another_store(tmp_path: Path) -> None:
    one = open_trace(SLOW_ITEM, store=tmp_path / "one")
    other = drawn(tmp_path, Drawing().op("a", 1, 5))
    timeline_of(one), timeline_of(other)
    for name in FILES:
        (one.folder / name).chmod(0o644)
        (one.folder / name).write_bytes((other.folder / name).read_bytes())
    assert len(again(one).tracks()) > 1


CODE = """
import json, sys
from pathlib import Path
from stepscope.errors import StepscopeError
from stepscope.store.timeline import timeline_of
from stepscope.store.trace import Trace
if len(sys.argv) > 2:
    import tempfile; tempfile.tempdir = sys.argv[2]
try:
    timeline = timeline_of(Trace(Path(sys.argv[1])))
    tracks = timeline.tracks()
    first = tracks[0]
    tile = timeline.tile(first.id, timeline.levels - 1, 0)
    print(json.dumps([sum(one.events for one in tracks), len(tile)]))
except StepscopeError as error:
    print(json.dumps([error.message, error.hint]))
"""


def in_a_child(folder: Path, place: Path, *more: str) -> list[object]:
    folder.chmod(0o555)
    child = subprocess.run(
        [sys.executable, "-c", CODE, str(folder), *more],
        env=environment(place, TMPDIR=str(place)),
        preexec_fn=obey_permissions,
        capture_output=True,
        check=False,
    )
    folder.chmod(0o755)
    assert child.returncode == 0, child.stderr
    found: list[object] = json.loads(child.stdout)
    return found


@pytest.mark.slow
def test_beside_a_store_that_may_not_be_written(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path / "stores")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (events, _) = in_a_child(trace.folder, temporary)
    assert events == len(stored(trace))
    assert not list(temporary.iterdir())
    assert not (trace.folder / "timeline.boxes").exists()


@pytest.mark.slow
def test_no_place_at_all(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path / "stores")
    message, hint = in_a_child(trace.folder, tmp_path, "/nowhere")
    assert "no place for the timeline" in str(message)
    assert "TMPDIR" in str(hint)


def test_seen_while_it_is_made(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    timeline = Timeline(trace)
    early = timeline.tracks()  # waits until it has begun, no longer
    assert {track.id for track in timeline.wait().tracks()} <= {track.id for track in early}
    assert timeline.made == 1.0
    assert all(track.done for track in timeline.tracks())


def test_a_damaged_store_is_told(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    file = trace.folder / "ops.parquet"
    was = bytearray(file.read_bytes())
    file.unlink()
    was[len(was) // 2] ^= 1
    file.write_bytes(was)
    with pytest.raises(StepscopeError, match=r"is damaged: ops\.parquet"):
        timeline_of(Trace(trace.folder))
