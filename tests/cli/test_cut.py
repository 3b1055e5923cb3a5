"""`stepscope cut`: the part stands on its own, and says of its steps what the whole says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.oracle import Oracle
from tests.samples import tiered

import stepscope
from stepscope.cli.commands.cut import _nanoseconds
from stepscope.cli.main import main
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace
from stepscope.streams import open_stream

DATA = Path(__file__).parent.parent / "data"
STEPPED = [
    "h200_cuda_graph",
    "h200_ddp_gloo_rank0",
    "h200_prefetch_serial",
    "h200_slow_item",
    "h200_tutorial_baseline",
]


def read(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(b"".join(map(bytes, open_stream(str(path)))))
    return trace


def names(path: Path) -> list[str]:
    return [event["name"] for event in read(path)["traceEvents"] if event["ph"] != "M"]


def cut(source: Path, window: str, tmp_path: Path) -> Path:
    out = tmp_path / "cut.json.gz"
    assert main(["cut", str(source), *window.split(), "-o", str(out), "--force"]) == 0
    return out


def rows(trace: Trace, sql: str, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.arrow(sql, **params).to_pylist()
    return found


LINKS = """
    SELECT w.name, w.start_ns, w.dur_ns, w.stream, w.correlation, l.name AS launch, l.start_ns AS launched,
           l.work_events
    FROM device_work w LEFT JOIN launches l ON l.event = w.launch ORDER BY ALL
"""
OF_STEP = """
    SELECT k.name, count(*) AS calls, sum(k.dur_ns)::BIGINT AS total_ns, min(k.dur_ns) AS least,
           max(k.dur_ns) AS most
    FROM kernels k JOIN launches l ON l.event = k.launch
    JOIN step_marks s ON l.start_ns >= s.start_ns AND l.start_ns < s.start_ns + s.dur_ns
    WHERE s.step = $step GROUP BY k.name ORDER BY ALL
"""
OPS_OF_STEP = """
    SELECT o.name, o.start_ns, o.dur_ns, o.tid, o.depth, o.self_ns, o.device_self_ns, o.device_once_ns
    FROM ops o
    JOIN step_marks s ON o.start_ns >= s.start_ns AND o.start_ns + o.dur_ns <= s.start_ns + s.dur_ns
    WHERE s.step = $step ORDER BY ALL
"""


@pytest.mark.parametrize("name", tiered(STEPPED, STEPPED[:4:2]))
class TestSteps:
    def test_each_step_alone_says_what_the_whole_says(self, name: str, tmp_path: Path) -> None:
        source = DATA / f"{name}.pt.trace.json.gz"
        whole = stepscope.open(source)
        links = [tuple(row.values()) for row in rows(whole, LINKS)]
        for step in (row["step"] for row in rows(whole, "SELECT DISTINCT step FROM step_marks")):
            part = stepscope.open(cut(source, f"--steps {step}", tmp_path))
            assert [row["step"] for row in rows(part, "SELECT step FROM step_marks")] == [step]
            assert rows(part, OF_STEP, step=step) == rows(whole, OF_STEP, step=step)
            assert rows(part, OPS_OF_STEP, step=step) == rows(whole, OPS_OF_STEP, step=step)
            assert rows(whole, OPS_OF_STEP, step=step)
            assert {tuple(row.values()) for row in rows(part, LINKS)} <= set(links)

    def test_each_step_has_the_same_parts(self, name: str, tmp_path: Path) -> None:
        source = DATA / f"{name}.pt.trace.json.gz"
        for row in Oracle.of(source).steps():
            assert Oracle.of(cut(source, f"--steps {row['step']}", tmp_path)).steps() == [row]

    def test_events_and_head_are_those_of_the_profile(self, name: str, tmp_path: Path) -> None:
        source = DATA / f"{name}.pt.trace.json.gz"
        whole, part = read(source), read(cut(source, f"--steps {self.last(source)}", tmp_path))
        events = [json.dumps(event) for event in whole.pop("traceEvents")]
        kept = [json.dumps(event) for event in part.pop("traceEvents")]
        assert part == whole
        rest = iter(events)
        assert all(event in rest for event in kept), "not in the order of the profile"
        metadata = [event for event in events if '"ph": "M"' in event]
        assert [event for event in kept if '"ph": "M"' in event] == metadata

    def last(self, source: Path) -> str:
        return str(rows(stepscope.open(source), "SELECT max(step) AS step FROM step_marks")[0]["step"])

    def test_all_steps(self, name: str, tmp_path: Path) -> None:
        source = DATA / f"{name}.pt.trace.json.gz"
        whole = stepscope.open(source)
        numbers = [row["step"] for row in rows(whole, "SELECT step FROM step_marks ORDER BY step")]
        part = stepscope.open(cut(source, f"--steps {numbers[0]}:", tmp_path))
        assert [row["step"] for row in rows(part, "SELECT step FROM step_marks ORDER BY step")] == numbers
        assert rows(part, OF_STEP, step=numbers[-1]) == rows(whole, OF_STEP, step=numbers[-1])


def stepped() -> Drawing:
    """Three steps of 100 µs; the device runs behind the host by half a step."""
    drawing = Drawing().named_thread("main").frame("train.py(1): main", 0, 400)
    for step in (3, 4, 5):
        at = (step - 3) * 100
        drawing.mark(step, at, 100).op(f"op {step}", at + 10, 50)
        drawing.launch("cudaLaunchKernel", at + 20, 5, corr=step).flow("s", step, at + 20)
        drawing.kernel(f"kernel {step}", at + 70, 100, corr=step, pid=0, tid=7).flow(
            "f", step, at + 70, pid=0, tid=7
        )
        for phase, after in (("s", 11), ("f", 111)):
            arrow = {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": step, "pid": 100, "tid": 1}
            drawing.add({**arrow, "ts": at + after})
    return drawing


class TestDrawn:
    @pytest.fixture
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        # A store remembers where its profile lay: this one is not that of another test.
        monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
        path = tmp_path / "drawn.json"
        path.write_text(stepped().json(), encoding="utf-8")
        return path

    def kept(self, source: Path, window: str, tmp_path: Path) -> list[str]:
        found = names(cut(source, window, tmp_path))
        return sorted(name for name in found if name not in ("ac2g", "fwdbwd"))

    def test_a_step_ends_when_its_device_work_ends(self, source: Path, tmp_path: Path) -> None:
        # Kernel 3 still runs when step 4 begins; while kernel 4 runs, the host works on step 5.
        assert self.kept(source, "--steps 4", tmp_path) == [
            "ProfilerStep#4", *["cudaLaunchKernel"] * 3, "kernel 3", "kernel 4", "kernel 5", "op 4", "op 5",
            "train.py(1): main",
        ]  # fmt: skip

    def test_frames_stay_whole(self, source: Path, tmp_path: Path) -> None:
        events = read(cut(source, "--steps 4", tmp_path))["traceEvents"]
        (frame,) = (event for event in events if event.get("cat") == "python_function")
        assert (frame["ts"], frame["dur"]) == (0, 400)

    def test_arrows_go_with_what_they_join(self, source: Path, tmp_path: Path) -> None:
        def arrows(window: str) -> list[tuple[str, str, int]]:
            events = read(cut(source, window, tmp_path))["traceEvents"]
            return sorted((event["cat"], event["ph"], event["id"]) for event in events if "id" in event)

        whole = [("fwdbwd", "f", 4), ("fwdbwd", "s", 4)]
        assert arrows("--steps 4") == [("ac2g", end, step) for end in "fs" for step in (3, 4, 5)] + whole

    @pytest.mark.parametrize(
        "window,expected",
        [
            ("--time 300us:320us", ["cudaLaunchKernel", "kernel 5", "train.py(1): main"]),
            ("--time :10us", ["ProfilerStep#3", "train.py(1): main"]),
            ("--time 0.399999ms:", ["train.py(1): main"]),
            ("--time 21us:22us", [
                "ProfilerStep#3", "cudaLaunchKernel", "kernel 3", "op 3", "train.py(1): main"
            ]),
        ],
    )  # fmt: skip
    def test_a_stretch_of_time(self, window: str, expected: list[str], source: Path, tmp_path: Path) -> None:
        assert self.kept(source, window, tmp_path) == expected

    def test_everything(self, source: Path, tmp_path: Path) -> None:
        assert read(cut(source, "--time :", tmp_path)) == read(source)

    def test_says_what_was_kept(
        self, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = cut(source, "--steps 3:4", tmp_path)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "of 26 events, steps 3 to 4, both included (270 µs): " in printed.err
        assert str(out) in printed.err

    def test_standard_output(self, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["cut", str(source), "--steps", ":", "-o", "-"]) == 2
        assert main(["cut", str(source), "--steps", "3:", "-o", "-"]) == 0
        assert json.loads(capfd.readouterr().out)["schemaVersion"] == 1

    @pytest.mark.parametrize(
        "window,code,message",
        [
            ("", 2, "either --steps or --time"),
            ("--steps 3 --time 1s:2s", 2, "either --steps or --time"),
            ("--steps x", 2, "--steps x names no steps"),
            ("--steps 5:3", 2, "5 is after 3\n  hint: --steps 3:5"),
            ("--steps 3:9", 1, "the trace has no step 9\n  hint: it has steps 3 to 5"),
            ("--time 3us", 2, "not a time range"),
            ("--time 3:4", 2, "'3' is not a time"),
            ("--time 3us:2us", 2, "ends before it begins"),
            ("--time 1s:", 1, "begins after the end of the trace, which is 400 µs long"),
        ],
    )
    def test_a_window_that_is_none(
        self, window: str, code: int, message: str, source: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = source.with_name("out.json")
        assert main(["cut", str(source), *window.split(), "-o", str(out)]) == code
        assert message in capsys.readouterr().err
        assert not out.exists()

    def test_what_is_there_is_not_replaced(
        self, source: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        out = cut(source, "--steps 3", tmp_path)
        assert main(["cut", str(source), "--steps", "3", "-o", str(out)]) == 1
        assert "--force" in capsys.readouterr().err
        assert main(["cut", str(source), "--steps", "3", "-o", str(source), "--force"]) == 1
        assert "is an input of this command" in capsys.readouterr().err
        store = stepscope.open(source).folder
        assert main(["cut", str(store), "--steps", "3", "-o", str(source), "--force"]) == 1
        assert "is an input of this command" in capsys.readouterr().err
        assert main(["cut", str(source), "--steps", "3", "-o", str(tmp_path)]) == 1
        assert "is a folder" in capsys.readouterr().err
        assert main(["cut", str(source), "--steps", "3", "-o", str(tmp_path / "no" / "where")]) == 1
        assert "does not exist" in capsys.readouterr().err


def write(drawing: Drawing, tmp_path: Path) -> Path:
    path = tmp_path / "drawn.json"
    path.write_text(drawing.json(), encoding="utf-8")
    return path


def test_no_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(Drawing().op("a", 0, 1), tmp_path)
    assert main(["cut", str(source), "--steps", "1", "-o", str(tmp_path / "out.json")]) == 1
    assert "has no step marks" in capsys.readouterr().err


def test_a_window_between_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(Drawing().named_thread("main").op("a", 0, 1).op("b", 10, 1), tmp_path)
    assert main(["cut", str(source), "--time", "5us:6us", "-o", str(tmp_path / "out.json")]) == 1
    assert "the trace has no event in the window" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_one_launch_keeps_all_of_its_work(tmp_path: Path) -> None:
    drawing = Drawing().launch("cudaGraphLaunch", 0, 5, corr=1)
    for at in (10, 20, 30):
        drawing.kernel(f"k{at}", at, 5, corr=1)
    source = write(drawing, tmp_path)
    assert names(cut(source, "--time 21us:22us", tmp_path)) == ["cudaGraphLaunch", "k10", "k20", "k30"]


def test_unlinked_work_stays_unlinked(tmp_path: Path) -> None:
    """Two calls of its correlation came too late; one of them alone would be taken for its launch."""
    drawing = Drawing().kernel("early", 0, 5, corr=1).launch("a", 10, 1, corr=1).launch("b", 50, 1, corr=1)
    part = cut(write(drawing, tmp_path), "--time :20us", tmp_path)
    assert rows(stepscope.open(part), "SELECT launch FROM device_work") == [{"launch": None}]


@pytest.mark.parametrize(
    "text,ns",
    [("1.2s", 1_200_000_000), (" 3 us ", 3000), ("3µs", 3000), (".5ms", 500_000), ("7ns", 7), ("1.s", 10**9)],
)
def test_times_are_exact(text: str, ns: int) -> None:
    assert _nanoseconds(text) == ns


@pytest.mark.parametrize("text", ["", "1", "-1s", "1m", "1e3s", "s", "1.2.3s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(StepscopeError, match="is not a time"):
        _nanoseconds(text)
