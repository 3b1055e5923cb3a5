"""`stepscope whatif`: how long a step would be under a change."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawing import Drawing

from stepscope.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def profile(tmp_path: Path) -> str:
    drawing = Drawing().mark(1, 0, 100).launch("cudaLaunchKernel", 0, 2, corr=1).kernel("k", 10, 40, corr=1)
    drawing.launch("cudaStreamSynchronize", 5, 50, corr=2)
    drawing.launch("cudaLaunchKernel", 60, 2, corr=3).kernel("later", 70, 10, corr=3)
    return str(drawing.write(tmp_path / "drawn.json"))


def test_a_change(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", profile, "--no-sync"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "recorded    100 µs per step, mean of 1 step",
        "simulated   100 µs unchanged: 0.0 % off, 8.0 % of it unexplained delays",
        "unprofiled  96–97 µs, without the cost of recording",
        "changed     58 µs, 40 % shorter",
    ]


def test_a_change_for_the_worse(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", profile, "--kernels", "k", "x2", "--kernels", "later", "x1"]) == 0
    assert capsys.readouterr().out.splitlines()[3] == "changed     136–137 µs, 41 % longer"


@pytest.mark.parametrize(
    "options,said",
    [
        ([], "no change given"),
        (["--kernels", "gemm", "half"], "half is not a factor"),
        (["--ranges", "a", "x-1"], "x-1 is not a factor"),
        (["--host", "x2000"], "x2000 is not a factor"),
    ],
)
def test_what_is_no_change(
    options: list[str], said: str, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", profile, *options]) == 2
    assert said in capsys.readouterr().err


def test_a_profile_without_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Drawing().write(tmp_path / "empty.json")
    assert main(["whatif", str(path), "--graph"]) == 1
    assert "no steps to simulate" in capsys.readouterr().err
