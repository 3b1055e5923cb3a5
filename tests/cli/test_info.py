"""`stepscope info`: what a profile is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.commands import DATA, SLOW_ITEM
from tests.drawing import Drawing

from stepscope.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["info", *argv]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_a_real_profile(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    text = said(capsys, str(SLOW_ITEM))
    events = json.loads(gzip.decompress(SLOW_ITEM.read_bytes()))["traceEvents"]
    assert f"profile   {SLOW_ITEM}" in text
    assert f"events    {len(events):,}" in text
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert f"{len(kernels):>12,}  kernel" in text
    assert "1 x NVIDIA H200" in text
    assert "damage    none" in text
    assert f"store     {cache}" in text


def test_json_is_the_meta(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    found = json.loads(said(capsys, str(SLOW_ITEM), "--format", "json"))
    assert found == {"store": found["store"], **json.loads((Path(found["store"]) / "meta.json").read_text())}


def test_the_rank_and_where_it_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, str(DATA / "h200_ddp_gloo_rank1.pt.trace.json.gz"))
    assert "rank      1 (distributedInfo)" in text


def test_damage_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = SLOW_ITEM.read_bytes()
    (tmp_path / "a.json.gz").write_bytes(raw[: len(raw) // 2])
    text = said(capsys, str(tmp_path / "a.json.gz"))
    assert "damage    1 x the compressed stream ends too early" in text


KINDS = {
    "together/snapshot.pickle.gz": ("a snapshot of the caching allocator (snapshot)", "allocations"),
    "together/memory.json.gz": ("a memory timeline of torch.profiler (memory_timeline)", "changes of memory"),
    "together/torch_trace.log.gz": ("what torch.compile logged (compile_log)", "compilations"),
    "together/ncu_raw.csv.gz": ("counters of kernels from Nsight Compute (ncu)", "measured kernels"),
    "together/proton.hatchet.gz": ("a profile of Proton (proton)", "scopes"),
    "together/execution_trace.json.gz": ("an execution trace (execution_trace)", "nodes"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_has_no_timeline(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it is and what it holds, not that it has no events."""
    text = said(capsys, str(DATA / name))
    kind, held = KINDS[name]
    assert f"kind      {kind}\n" in text
    assert held in next(line for line in text.splitlines() if line.startswith("holds"))
    assert "events    0" not in text


def test_samples_and_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.folded").write_text("python;main;f 3\npython;main;g 1\n")
    text = said(capsys, str(tmp_path / "out.folded"))
    assert "kind      collapsed stacks (collapsed)\n" in text
    assert "holds     4 samples\n" in text
    (tmp_path / "stat.txt").write_text("100,,cycles,10,100.00,,\n200,,instructions,10,100.00,,\n")
    text = said(capsys, str(tmp_path / "stat.txt"))
    assert "kind      what Linux perf sampled or counted (perf)\n" in text
    assert "holds     2 CPU counters\n" in text


def test_a_profile_has_a_kind_and_events(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, str(SLOW_ITEM))
    assert "kind      a Kineto trace (kineto)\n" in text
    assert "holds" not in text


@pytest.mark.parametrize("properties", [5, "x", {"a": 1}, [5], [{"id": 0}], None, True])
def test_odd_device_properties(
    properties: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Drawing().op("a", 0, 1).meta(deviceProperties=properties).write(tmp_path / "a.json")
    assert "devices" in said(capsys, str(path))


def test_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NVIDIA H200" in said(capsys, "--demo")


@pytest.mark.parametrize("argv", [[], ["a.json", "--demo"]])
def test_a_trace_or_the_demo(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", *argv]) == 2
    assert "hint: name a profile, or use --demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name,message,hint",
    [
        ("pgae.json", "there is no file", "did you mean"),
        ("run", "there is no trace in the folder", ".json.gz"),
        ("page.json", "web page", "export_chrome_trace"),
    ],
)
def test_what_is_no_trace(
    name: str, message: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "page.json").write_text("<html>")
    assert main(["info", str(tmp_path / name)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("stepscope: ")
    assert message in printed.err
    assert hint in printed.err.partition("hint:")[2]
