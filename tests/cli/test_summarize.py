"""stepscope summarize: a file for each rank, which a run is read from in place of its profiles."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import stepscope
from tests.drawing import Drawing

from stepscope.runs.finding import find_run
from stepscope.runs.summary import RankSummary, read_summary

pytestmark = pytest.mark.slow
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def profile(path: Path, rank: int, world: int = 2, *, start: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing = Drawing().meta(distributedInfo={"rank": rank, "world_size": world})
    for step in range(3):
        at = start + 100 * step
        drawing.mark(step, at, 100).kernel("gemm", at, 30).kernel(NCCL, at + 20, 40 + rank, stream=9)
    return drawing.write(path)


def read(path: Path) -> RankSummary:
    return read_summary(path.read_bytes(), str(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        profile(tmp_path / "run" / f"rank{rank}.json", rank)
    return tmp_path / "run"


def typed(folder: Path, *words: object) -> tuple[int, str, str]:
    found = stepscope("summarize", *map(str, words), cache=folder.parent / "cache")
    return found.returncode, found.stdout, found.stderr


def test_one_profile_and_a_file(folder: Path, tmp_path: Path) -> None:
    code, out, err = typed(folder, folder / "rank1.json", "-o", tmp_path / "one.summary", "--host", "node9")
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path / 'one.summary'}: rank 1, 3 steps, 3 collectives, ")
    made = read(tmp_path / "one.summary")
    assert (made.facts.rank, made.facts.host, made.facts.kernel_ns) == (1, "node9", 123_000)
    assert len(made.tables["pieces"]) == 9


def test_a_run_has_a_file_for_each_rank_beside_its_profiles(folder: Path) -> None:
    for _ in range(2):  # the second time what is there is written again
        code, out, _ = typed(folder, folder)
        assert code == 0
        assert [line.split(":")[0] for line in out.splitlines()] == [
            str(folder / f"rank{rank}.summary") for rank in (0, 1)
        ]
    assert [one.summaries for one in find_run([str(folder)]).ranks] == [
        (str(folder / f"rank{rank}.summary"),) for rank in (0, 1)
    ]


def test_spans_of_a_rank_go_into_one_file(tmp_path: Path) -> None:
    for place, start in enumerate((0, 1000)):
        profile(tmp_path / "run" / f"rank0_{place}.json", 0, 1, start=start)
    code, out, err = typed(tmp_path / "run", tmp_path / "run")
    assert (code, out.count("\n")) == (0, 1)
    assert "Rank 0 has several profiles" in err
    assert [one.start_ns for one in read(tmp_path / "run" / "rank0.summary").tables["steps"]] == [
        0, 100_000, 200_000, 1_000_000, 1_100_000, 1_200_000,
    ]  # fmt: skip


def test_a_rank_that_cannot_be_read_is_told(folder: Path) -> None:
    (folder / "rank1.json").write_text('{"traceEvents": 5}', encoding="utf-8")
    code, out, err = typed(folder, folder)
    assert code == 1
    assert out.count("\n") == 1
    assert "rank 1: " in err
    assert (folder / "rank0.summary").is_file()
    (folder / "rank0.json").write_text('{"traceEvents": 5}', encoding="utf-8")
    code, out, err = typed(folder, folder)
    assert (code, out) == (1, "")
    assert "no rank could be summarised" in err


@pytest.mark.parametrize(
    "words,code,said",
    [
        (["RUN", "-o", "x.summary"], 2, "2 ranks do not fit into one file"),
        (["RUN/none"], 1, "there is no file or folder"),
        (["RUN/rank0.json", "-o", "RUN/rank0.json"], 1, "is an input"),
        (["RUN/rank0.json"], 1, "is no summary"),
    ],
)
def test_what_is_refused(words: list[str], code: int, said: str, folder: Path) -> None:
    (folder / "rank0.summary").write_text("mine", encoding="utf-8")
    found = typed(folder, *(word.replace("RUN", str(folder)) for word in words))
    assert found[:2] == (code, "")
    assert said in found[2]
    assert (folder / "rank0.summary").read_text(encoding="utf-8") == "mine"
