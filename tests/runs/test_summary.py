"""Summaries of ranks: what is in them, that they come back as they were, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import Drawing
from tests.rank_files import BASE, opened_with, rank_document
from tests.samples import open_shared
from tests.trying import tries

import stepscope
from stepscope.errors import StepscopeError
from stepscope.runs import MeasuredStep, Pass, RankRecord
from stepscope.runs import summarizing as making
from stepscope.runs.summarizing import joined, kept_summary, summarize, summary_of
from stepscope.runs.summary import (
    SUMMARY_TABLES,
    ExposedPart,
    RankFacts,
    RankSummary,
    SummaryStep,
    WorkShape,
    is_summary,
    read_summary,
    summary_facts,
    written_summary,
)
from stepscope.store.trace import Trace
from stepscope.tables import Table, columns_of

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def drawn(steps: int = 2, *, rank: int = 3, after_us: int = 0) -> Drawing:
    drawing = Drawing(base_ns=BASE).meta(distributedInfo={"rank": rank, "world_size": 4}, host_name="node1")
    for step in range(steps):
        start = after_us + 100 * step
        drawing.mark(step, start, 100).kernel("gemm", start, 30).kernel(NCCL, start + 20, 40, stream=9)
    return drawing


def opened(drawing: Drawing, folder: Path, name: str = "a.json") -> Trace:
    folder.mkdir(exist_ok=True)
    return stepscope.open(drawing.write(folder / name), store=folder / "store")


def small(rank: int = 0, **facts: Any) -> RankSummary:
    tables: dict[str, Table[Any]] = {name: Table.of(row, []) for name, row in SUMMARY_TABLES.items()}
    tables["steps"] = Table.of(SummaryStep, [SummaryStep(1, 10, 20), SummaryStep(2, 20, 40)])
    tables["exposed"] = Table.of(ExposedPart, [ExposedPart(1, 0, 12, 3)])
    tables["work"] = Table.of(WorkShape, [WorkShape("Grüße\n", None, 3, 9), WorkShape("", "x", 1, 2)])
    return RankSummary(RankFacts(rank, **facts), tables)


def assert_same(one: RankSummary, other: RankSummary) -> None:
    assert one.facts == other.facts
    for name in SUMMARY_TABLES:
        assert one.tables[name].arrow.equals(other.tables[name].arrow), name


def test_what_a_summary_says(tmp_path: Path) -> None:
    trace = opened_with(tmp_path, drawn(), rank_document(rank=3, host="node7"))
    trace.measured = MeasuredStep(90, 90, 80, 100, 5, ())
    made = summarize(trace)
    assert made.facts == RankFacts(
        rank=3, rank_source="distributedInfo", world_size=4, host="node7", device="Drawn device",
        vendor=made.facts.vendor, torch="2.8.0", source=str(tmp_path / "a.json"), measured_ns=(80, 90, 100),
        kernel_ns=80_000, work_steps=2,
    )  # fmt: skip
    assert {name: len(table) for name, table in made.tables.items()} == {
        "steps": 2, "calls": 2, "exposed": 2, "pieces": 6, "work": 1,
    }  # fmt: skip
    assert list(made.tables["steps"]) == [
        SummaryStep(0, BASE, BASE + 100_000), SummaryStep(1, BASE + 100_000, BASE + 200_000),
    ]  # fmt: skip
    assert [one.start_ns for one in made.tables["calls"]] == [BASE + 20_000, BASE + 120_000]
    assert_same(read_summary(written_summary(made), "a"), made)


def test_metadata_are_believed_before_names(tmp_path: Path) -> None:
    record = RankRecord(5, None, (), None, host="h", rank_source="file name")
    told = summarize(opened(drawn(), tmp_path), record).facts
    assert (told.rank, told.rank_source, told.host) == (3, "distributedInfo", "h")
    assert told.notes == ("Rank 5 by its file name is rank 3 by its metadata.",)
    silent = drawn()
    del silent.metadata["distributedInfo"]
    unknown = summarize(opened(silent, tmp_path / "b"), record).facts
    assert (unknown.rank, unknown.rank_source, unknown.notes) == (5, "file name", ())


def test_a_summary_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = opened(drawn(), tmp_path)
    first = kept_summary(trace)
    monkeypatch.setattr(making, "_made", lambda trace: pytest.fail("made again"))
    assert_same(kept_summary(trace), first)
    monkeypatch.undo()
    file = trace.folder / making.KEPT
    file.write_bytes(file.read_bytes()[:-1])
    assert_same(kept_summary(trace), first)
    assert_same(read_summary(file.read_bytes(), "a"), first)


def test_a_read_only_store_is_no_obstacle(tmp_path: Path) -> None:
    trace = opened(drawn(), tmp_path)
    (trace.folder / making.KEPT).mkdir()
    assert len(kept_summary(trace).tables["steps"]) == 2


# ---------------------------------------------------------------- spans


def test_spans_become_one(tmp_path: Path) -> None:
    early = summarize(opened(drawn(2), tmp_path, "early.json"))
    late = summarize(opened(drawn(3, after_us=500), tmp_path, "late.json"))
    whole = joined([late, early])
    assert [one.start_ns - BASE for one in whole.tables["steps"]] == [0, 100_000, 500_000, 600_000, 700_000]
    calls = list(whole.tables["calls"])
    assert [one.call for one in calls] == list(range(5))
    assert [one.call for one in whole.tables["exposed"]] == list(range(5))
    assert (whole.facts.kernel_ns, whole.facts.work_steps) == (200_000, 5)
    assert list(whole.tables["work"]) == [WorkShape("gemm", None, 5, 150_000)]


def test_spans_that_overlap_are_refused(tmp_path: Path) -> None:
    one = summarize(opened(drawn(2), tmp_path, "one.json"))
    other = summarize(opened(drawn(2, after_us=150), tmp_path, "other.json"))
    with pytest.raises(StepscopeError, match=r"one\.json and .*other\.json are both of rank 3 and overlap"):
        joined([one, other])


def test_the_summary_of_a_rank_is_read_or_made(tmp_path: Path) -> None:
    trace = opened(drawn(), tmp_path)
    spans = (Pass("profile", tmp_path / "a.json"),)
    made = summary_of(RankRecord(3, None, spans, None), lambda one: trace)
    file = tmp_path / "rank3.summary"
    file.write_bytes(written_summary(replace(made, facts=replace(made.facts, host="far"))))
    read = summary_of(
        RankRecord(3, None, spans, None, summaries=(str(file),)), lambda one: pytest.fail("opened")
    )
    assert read.facts.host == "far"
    with pytest.raises(StepscopeError, match="no profile"):
        summary_of(RankRecord(3, None, (), None), lambda one: trace)


# ---------------------------------------------------------------- size


def test_only_the_steps_that_fit_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = opened(drawn(20), tmp_path)
    whole = summarize(trace)
    assert whole.facts.notes == ()
    monkeypatch.setattr(making, "MOST_CALLS", 7)
    cut = summarize(trace)
    assert cut.facts.notes == ("Of 20 steps the first 7 are looked at: more would take too much memory.",)
    rows = {name: len(table) for name, table in cut.tables.items()}
    assert rows == {"steps": 7, "calls": 7, "exposed": 7, "pieces": 21, "work": 1}
    assert cut.facts.work_steps == 20
    for name in ("steps", "calls", "exposed", "pieces"):
        assert cut.tables[name].arrow.equals(whole.tables[name].arrow[: rows[name]])
    monkeypatch.setattr(making, "MOST_CALLS", 0)
    assert {name: len(table) for name, table in summarize(trace).tables.items() if name != "work"} == {
        "steps": 0, "calls": 0, "exposed": 0, "pieces": 0,
    }  # fmt: skip


def test_short_pauses_are_added_up_before_steps_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of 2 us every 4 us beside a collective from 20 to 60: ten exposed parts, the last ends it."""
    drawing = Drawing().mark(0, 0, 100).kernel(NCCL, 20, 40, stream=9)
    for start in range(0, 100, 4):
        drawing.kernel("gemm", start, 2)
    trace = opened(drawing, tmp_path)
    whole = summarize(trace)
    assert len(whole.tables["exposed"]) == 10
    monkeypatch.setattr(making, "MOST_TABLE_BYTES", 1500)
    coarse = summarize(trace)
    assert coarse.facts.notes == ()
    assert list(coarse.tables["exposed"]) == [ExposedPart(0, 0, 40_000, 20_000)]
    assert [(one.start_ns, one.dur_ns, one.compute_ns, one.kernels) for one in coarse.tables["pieces"]] == [
        (0, 20_000, 10_000, 5), (20_000, 20_000, 20_000, 10), (60_000, 40_000, 20_000, 10),
    ]  # fmt: skip
    for name in ("steps", "calls", "work"):
        assert coarse.tables[name].arrow.equals(whole.tables[name].arrow)


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(4))
def test_real_ranks_are_small(sample: Callable[[str], Path], rank: int) -> None:
    made = summarize(open_shared(sample(f"ranks/ddp_mi300_4/rank{rank}.json.gz")))
    assert made.facts.kernel_ns == [64_471_378, 46_984_875, 49_845_198, 3_591_089][rank]
    assert (made.facts.rank, made.facts.world_size) == (rank, 4)
    content = written_summary(made)
    assert len(content) < 20_000
    assert_same(read_summary(content, "a"), made)


# ---------------------------------------------------------------- bytes of others


NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = {"int": NUMBERS, "str": st.text(max_size=20)}


@st.composite
def summaries(draw: st.DrawFn) -> RankSummary:
    """Tables of any values."""
    tables = {}
    for name, row in SUMMARY_TABLES.items():
        columns = [
            st.none() | VALUES[column.type] if column.nullable else VALUES[column.type]
            for column in columns_of(row)
        ]
        tables[name] = Table.of(
            row, [row(*values) for values in draw(st.lists(st.tuples(*columns), max_size=5))]
        )
    text = st.text(max_size=20)
    facts = RankFacts(draw(st.integers(0, 1 << 61)), host=draw(text), notes=tuple(draw(st.lists(text))))
    return RankSummary(facts, tables)


@pytest.mark.slow
@settings(max_examples=tries(25, 600), deadline=None)
@given(summaries())
def test_what_is_written_is_read(summary: RankSummary) -> None:
    content = written_summary(summary)
    assert is_summary(content)
    assert_same(read_summary(content, "a"), summary)
    assert summary_facts(content[: len(content) - 3], "a") == summary.facts


def refused(content: bytes) -> str:
    with pytest.raises(StepscopeError, match="is not the summary of a rank") as error:
        read_summary(content, "some.summary")
    assert error.value.message.startswith("some.summary")
    assert error.value.hint
    assert "\n" not in error.value.message
    return error.value.message


def test_no_byte_can_be_taken_away_or_changed() -> None:
    content = written_summary(small())
    for size in range(len(content)):
        refused(content[:size])
    refused(content + b"x")
    for place in range(len(content)):
        for flip in (1, 0x80):
            changed = bytearray(content)
            changed[place] ^= flip
            refused(bytes(changed))


def rewritten(change: Callable[[dict[str, Any]], None]) -> bytes:
    """A summary with another header and the right checksum."""
    from stepscope.runs.summary import _MAGIC, _checksum

    content = written_summary(small())
    line, _, tables = content[len(_MAGIC) + 9 :].partition(b"\n")
    header = json.loads(line)
    change(header)
    rest = json.dumps(header).encode() + b"\n" + tables
    return b"".join((_MAGIC, _checksum(rest), b"\n", rest))


@pytest.mark.parametrize("where", ["rows", "plain", "packed"])
@pytest.mark.parametrize("value", [-1, 1 << 40, 1 << 24, 1.5, "7", None, [], True])
def test_sizes_that_cannot_be(where: str, value: object) -> None:
    def change(table: str, header: dict[str, Any]) -> None:
        header["tables"][table][where] = value

    for table in SUMMARY_TABLES:
        refused(rewritten(partial(change, table)))


@pytest.mark.parametrize(
    "facts",
    [
        [], None, {}, {"rank": -1}, {"rank": "0"}, {"rank": 1.0}, {"rank": True}, {"rank": 1 << 80},
        {"rank": 0, "host": 5}, {"rank": 0, "notes": [1]}, {"rank": 0, "notes": 5},
        {"rank": 0, "measured_ns": [1, 2]}, {"rank": 0, "measured_ns": [1, 2, "x"]},
        {"rank": 0, "world_size": -4}, {"rank": 0, "kernel_ns": None},
    ],
)  # fmt: skip
def test_facts_that_cannot_be(facts: object) -> None:
    refused(rewritten(lambda header: header.__setitem__("facts", facts)))


def test_what_a_later_version_adds_is_passed_over() -> None:
    content = rewritten(lambda header: header["facts"].__setitem__("color", "green"))
    assert read_summary(content, "a").facts == RankFacts(0)


def test_other_bytes() -> None:
    for content in (b"", b"{}", b"stepscope.summary/3\n", b"stepscope.summary/2\n" + b"0" * 100, b"\x1f\x8b"):
        refused(content)
    dice = random.Random(7)
    for _ in range(200):
        refused(b"stepscope.summary/2\n" + dice.randbytes(dice.randrange(200)))
