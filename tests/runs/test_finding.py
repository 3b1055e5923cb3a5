"""Finding the ranks of a run in folders, patterns and buckets that anybody wrote."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.drawing import Drawing, Layout
from tests.runs.folders import rank_document
from tests.runs.folders import written as written_run

import stepscope
from stepscope.errors import StepscopeError
from stepscope.runs import Run
from stepscope.runs._peeking import rank_in_name
from stepscope.runs.choosing import choose_pass, choose_rank
from stepscope.runs.finding import find_run, is_one_profile
from stepscope.runs.summarizing import summarize
from stepscope.runs.summary import written_summary
from stepscope.store import cache

LAST = Layout("dumps", metadata="after", base="after")


def profile(
    path: Path,
    rank: int | None = None,
    world: int | None = None,
    *,
    start: int = 0,
    layout: Layout | None = None,
) -> Path:
    """A small profile, with or without a rank in its metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing = Drawing().mark(1, start, 100).kernel("gemm", start, 10)
    if rank is not None:
        told: dict[str, Any] = {"backend": "nccl", "rank": rank}
        drawing.meta(distributedInfo=told | ({"world_size": world} if world else {}))
    return drawing.write(path, layout) if layout else drawing.write(path)


def ranks(run: Run) -> dict[int, list[str]]:
    return {one.rank: [part.path.name for part in one.passes] for one in run.ranks}


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_metadata_tell_the_rank(name: str, tmp_path: Path) -> None:
    for rank in (2, 0, 1):
        profile(tmp_path / f"x{9 - rank}" / name, rank, 3)
    run = find_run([str(tmp_path)])
    assert [(one.rank, one.rank_source, one.passes[0].name) for one in run.ranks] == [
        (rank, "metadata", "profile") for rank in range(3)
    ]
    assert [one.passes[0].path.parent.name for one in run.ranks] == ["x9", "x8", "x7"]
    assert (run.world_size, run.notes, run.failed, run.name) == (3, (), (), str(tmp_path))


def test_metadata_at_the_end_of_a_plain_file(tmp_path: Path) -> None:
    profile(tmp_path / "rank7.json", 1, 2, layout=LAST)
    profile(tmp_path / "rank8.json", 0, 2, layout=LAST)
    assert ranks(find_run([str(tmp_path)])) == {0: ["rank8.json"], 1: ["rank7.json"]}


@pytest.mark.slow
def test_metadata_at_the_end_of_a_packed_file_are_in_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    files = []
    for rank in (0, 1):
        drawing = Drawing().meta(distributedInfo={"rank": rank, "world_size": 2})
        for start in range(20_000):
            drawing.kernel("gemm", start, 1)
        (tmp_path / "run").mkdir(exist_ok=True)
        files.append(drawing.write(tmp_path / "run" / f"rank{5 + rank}.json.gz", LAST))
    assert list(ranks(find_run([str(tmp_path / "run")]))) == [5, 6]
    for file in files:
        stepscope.open(file)
    run = find_run([str(tmp_path / "run")])
    assert [(one.rank, one.rank_source) for one in run.ranks] == [(0, "metadata"), (1, "metadata")]
    assert cache.root() == tmp_path / "cache"


@pytest.mark.parametrize(
    "word,rank",
    [
        ("rank3.json.gz", 3), ("trace_rank-12.json", 12), ("RANK_7.pt.trace.json", 7), ("rank=4.json", 4),
        ("worker0_step_12.1694128201545.pt.trace.json.gz", 0), ("profile_r3.json", 3), ("r11.json", 11),
        ("run/rank_2/trace.json", 2), ("s3://bucket/rank5/a.json", 5), ("rank1/rank2.json", 2),
        ("trace.json", None), ("frank7.json", None), ("local_rank3.json", None), ("node_1234.json", None),
        ("resnet50.json", None), ("worker.json", None), ("gpu_r3d.json", None),
    ],
)  # fmt: skip
def test_ranks_in_names(word: str, rank: int | None) -> None:
    assert rank_in_name(word) == rank


def test_names_tell_the_rank(tmp_path: Path) -> None:
    for rank in (1, 0):
        profile(tmp_path / f"trace_rank-{rank}.json.gz")
    run = find_run([str(tmp_path)])
    assert ranks(run) == {0: ["trace_rank-0.json.gz"], 1: ["trace_rank-1.json.gz"]}
    assert {one.rank_source for one in run.ranks} == {"file name"}
    (note,) = run.notes
    assert note == "The profiles have no rank in the metadata: it is taken from the file names."


def test_the_only_number_that_differs_is_the_rank(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        profile(tmp_path / f"llama3_step500_{number}.json")
    assert ranks(find_run([str(tmp_path)])) == {
        2: ["llama3_step500_2.json"], 9: ["llama3_step500_9.json"], 10: ["llama3_step500_10.json"],
    }  # fmt: skip


def test_order_is_the_last_resort_and_said(tmp_path: Path) -> None:
    names = ("node2_4711.1694128201545.pt.trace.json", "node1_99.1694128201546.pt.trace.json")
    for name in names:
        profile(tmp_path / name)
    run = find_run([str(tmp_path)])
    assert ranks(run) == {0: [names[1]], 1: [names[0]]}
    assert [(one.rank_source, one.host) for one in run.ranks] == [("order", "node1"), ("order", "node2")]
    (note,) = run.notes
    assert note.startswith(
        "Neither metadata nor file name tells the rank of 2 profiles: numbered in the order"
    )
    assert f"{names[1]} is rank 0, {names[0]} is rank 1" in note


def test_some_have_metadata_and_some_do_not(tmp_path: Path) -> None:
    profile(tmp_path / "a.json", 0, 3)
    profile(tmp_path / "rank2.json")
    profile(tmp_path / "zebra.json")
    run = find_run([str(tmp_path)])
    assert [(one.rank, one.rank_source) for one in run.ranks] == [
        (0, "metadata"), (1, "order"), (2, "file name"),
    ]  # fmt: skip
    first, second = run.notes
    assert first == "1 of 3 profiles has no rank in the metadata: it is taken from the file name."
    assert second.startswith("Neither metadata nor file name tells the rank of 1 profile: numbered in the")
    assert second.endswith("(zebra.json is rank 1).")


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 3, 9):
        profile(tmp_path / f"{rank}.json", rank, 12)
    run = find_run([str(tmp_path)])
    assert run.world_size == 12
    assert run.notes == ("No profile of ranks 1–2, 4–8, 10–11 of 12 ranks.",)


def test_what_cannot_be_read_is_named_and_the_rest_stands(tmp_path: Path) -> None:
    profile(tmp_path / "rank0.json", 0, 4)
    (tmp_path / "rank1.json").write_bytes(b"")
    (tmp_path / "rank2.json.gz").write_bytes(b"\x1f\x8b\x08nonsense")
    (tmp_path / "rank3.json").write_bytes(b"<html>")
    (tmp_path / "config.json").write_text(json.dumps({"layers": 3}), encoding="utf-8")
    run = find_run([str(tmp_path)])
    assert list(ranks(run)) == [0]
    assert [(one.rank, Path(one.source).name) for one in run.failed] == [
        (1, "rank1.json"), (2, "rank2.json.gz"), (3, "rank3.json"),
    ]  # fmt: skip
    assert all(one.reason for one in run.failed)
    assert "Left out, for they are no profiles: config.json." in run.notes
    assert any("rank1.json cannot be read: it is empty." in note for note in run.notes)


def test_a_cut_profile_is_taken(tmp_path: Path) -> None:
    """It is read up to the damage."""
    whole = gzip.compress(profile(tmp_path / "rank0.json", 0, 1).read_bytes())
    (tmp_path / "rank0.json").unlink()
    (tmp_path / "rank0.json.gz").write_bytes(whole[:-20])
    assert list(ranks(find_run([str(tmp_path)]))) == [0]


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    profile(tmp_path / "rank0.json", 0, 2)
    (tmp_path / "rank1.json").symlink_to(tmp_path / "gone.json")
    (failed,) = find_run([str(tmp_path)]).failed
    assert (failed.rank, failed.reason) == (1, f"there is no file {tmp_path / 'rank1.json'}")


def test_nothing_is_left(tmp_path: Path) -> None:
    for word in (tmp_path, tmp_path / "none", f"{tmp_path}/*.json", "memory://none/"):
        with pytest.raises(StepscopeError) as error:
            find_run([str(word)])
        assert error.value.hint
    (tmp_path / "rank0.json").write_bytes(b"")
    with pytest.raises(StepscopeError, match=r"can be read: .*rank0\.json: it is empty"):
        find_run([str(tmp_path)])
    with pytest.raises(StepscopeError, match="standard input"):
        find_run(["-"])
    with pytest.raises(StepscopeError, match="no file or folder"):
        find_run(["a\0b"])


# ---------------------------------------------------------------- several profiles of a rank


def test_spans_of_a_rank_follow_one_another(tmp_path: Path) -> None:
    for time, start in ((1694128209999, 900), (1694128201111, 0)):
        profile(tmp_path / f"worker0_step_1.{time}.pt.trace.json", 0, 1, start=start)
    run = find_run([str(tmp_path)])
    (record,) = run.ranks
    assert [one.path.name.split(".")[1] for one in record.spans] == ["1694128201111", "1694128209999"]
    assert run.notes == ("Rank 0 has several profiles, which are taken one after the other.",)


def test_a_profile_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    one = profile(tmp_path / "rank0.json", 0, 1)
    (tmp_path / "copy.json.gz").write_bytes(gzip.compress(one.read_bytes()))
    with pytest.raises(
        StepscopeError, match=r"copy\.json\.gz and .*rank0\.json are the same profile of rank 0"
    ):
        find_run([str(tmp_path)])


def test_profiles_of_several_runs_are_refused(tmp_path: Path) -> None:
    profile(tmp_path / "a" / "rank0.json", 0, 2)
    profile(tmp_path / "b" / "rank1.json", 1, 8)
    with pytest.raises(
        StepscopeError, match=r"several runs \(2 ranks: .*rank0\.json; 8 ranks: .*rank1\.json\)"
    ):
        find_run([str(tmp_path)])


# ---------------------------------------------------------------- words


def test_patterns_lists_and_words(tmp_path: Path) -> None:
    files = [profile(tmp_path / "run" / f"rank{rank}.json", rank, 3) for rank in range(3)]
    for words in (
        [str(tmp_path / "run" / "rank*.json")],
        [f"{tmp_path}/**/*.json"],
        [",".join(map(str, files))],
        [str(files[0]), str(files[1]), str(files[2])],
        [str(tmp_path)],
        [str(tmp_path), str(files[1])],
    ):
        assert list(ranks(find_run(words))) == [0, 1, 2], words
    assert ranks(find_run([str(files[1])])) == {1: ["rank1.json"]}


def test_hidden_files_and_stores_are_none(tmp_path: Path) -> None:
    file = profile(tmp_path / "rank0.json", 0, 1)
    profile(tmp_path / ".rank1.json", 1, 2)
    profile(tmp_path / ".git" / "rank2.json", 2, 3)
    stepscope.open(file, store=tmp_path / "stores")
    (store,) = (tmp_path / "stores").iterdir()
    assert ranks(find_run([str(tmp_path)])) == {0: ["rank0.json"]}
    assert is_one_profile(str(store))
    assert is_one_profile(str(file))
    assert is_one_profile("-")
    assert not is_one_profile(str(tmp_path))
    assert not is_one_profile(str(tmp_path / "*.json"))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    system = fsspec.filesystem("memory")
    for rank in range(3):
        system.pipe(
            f"/bucket/run/n{rank}/rank{rank}.json", profile(tmp_path / "a.json", rank, 3).read_bytes()
        )
    system.pipe("/bucket/run/log.txt", b"text")
    yield "memory://bucket/run"
    system.rm("/bucket", recursive=True)


def test_buckets(bucket: str) -> None:
    for word in (bucket, f"{bucket}/", f"{bucket}/*/rank*.json", f"{bucket}/n*/*"):
        run = find_run([word])
        assert [one.passes[0].url for one in run.ranks] == [
            f"memory://bucket/run/n{rank}/rank{rank}.json" for rank in range(3)
        ] or [one.passes[0].url for one in run.ranks] == [
            f"memory:///bucket/run/n{rank}/rank{rank}.json" for rank in range(3)
        ]
    word = find_run([bucket]).ranks[1].passes[0].word
    assert stepscope.open(word).rank == 1
    assert is_one_profile(word)
    assert not is_one_profile(bucket)


def test_addresses_of_files(tmp_path: Path) -> None:
    for rank in range(2):
        profile(tmp_path / f"rank{rank}.json", rank, 2)
    run = find_run([f"file://{tmp_path}"])
    assert [one.passes[0].word for one in run.ranks] == [
        f"file://{tmp_path}/rank{rank}.json" for rank in (0, 1)
    ]


def test_an_address_that_nothing_opens() -> None:
    with pytest.raises(StepscopeError, match="cannot be listed"):
        find_run(["nosuch://bucket/run"])


# ---------------------------------------------------------------- records and summaries


def test_the_folder_of_a_recorded_run(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "run", [rank_document(rank) for rank in (0, 1)])
    run = find_run([str(folder)])
    assert (run.command[0], run.name, [one.rank for one in run.ranks]) == ("python", str(folder), [0, 1])
    assert {one.rank_source for one in run.ranks} == {"run.json"}


def test_recorded_on_several_machines(tmp_path: Path) -> None:
    for rank in (0, 1):
        written_run(tmp_path / f"node{rank}", [rank_document(rank)])
    run = find_run([str(tmp_path)])
    assert [one.rank for one in run.ranks] == [0, 1]


@pytest.mark.slow
def test_a_summary_stands_for_its_profile(tmp_path: Path) -> None:
    for rank in range(3):
        file = profile(tmp_path / f"rank{rank}.json", rank, 3)
        made = written_summary(summarize(stepscope.open(file, store=tmp_path / "store")))
        (tmp_path / f"rank{rank}.summary").write_bytes(made)
    (tmp_path / "rank1.json").unlink()
    run = find_run([str(tmp_path)])
    assert [(one.rank, len(one.passes), one.summaries) for one in run.ranks] == [
        (rank, passes, (str(tmp_path / f"rank{rank}.summary"),)) for rank, passes in enumerate((1, 0, 1))
    ]
    assert [one.rank for one in run.profiled] == [0, 2]
    assert [one.rank for one in run.told] == [0, 1, 2]
    without = find_run([str(tmp_path)], summaries=False)
    assert [(one.rank, one.summaries) for one in without.ranks] == [(0, ()), (2, ())]
    summary = tmp_path / "rank0.summary"
    summary.write_bytes(summary.read_bytes()[:70])
    (failed,) = find_run([str(tmp_path)]).failed
    assert "is not the summary of a rank" in failed.reason


def test_a_profile_of_others_is_no_pass(tmp_path: Path) -> None:
    for rank in range(2):
        profile(tmp_path / f"rank{rank}.json", rank, 2)
    chosen = choose_rank(find_run([str(tmp_path)]), 1)
    assert (chosen.light, chosen.full) == (None, None)
    assert choose_pass(chosen).path == tmp_path / "rank1.json"
    with pytest.raises(StepscopeError, match=f"{tmp_path} has no rank 7"):
        choose_rank(find_run([str(tmp_path)]), 7)


# ---------------------------------------------------------------- real runs


def test_real_runs(sample: Callable[[str], Path]) -> None:
    four = find_run([str(sample("ranks/ddp_mi300_4"))])
    assert [(one.rank, one.rank_source, len(one.passes)) for one in four.ranks] == [
        (rank, "metadata", 1) for rank in range(4)
    ]
    eight = find_run([os.path.join(sample("ranks/dlrm_v100_8"), "*.gz")])  # noqa: PTH118
    assert [one.rank for one in eight.ranks] == list(range(8))
    assert (four.notes, eight.notes, eight.world_size) == ((), (), 8)
    with pytest.raises(StepscopeError, match="several runs"):
        find_run([str(sample("ranks"))])
