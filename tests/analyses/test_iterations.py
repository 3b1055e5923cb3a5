"""Iterations: what serving engines say of them, and what follows where they say nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope.analyses._serving import Load, load_of, together
from stepscope.analyses.iterations import iterations


def rows_of(drawing: Drawing, folder: Path) -> list[dict[str, Any]]:
    return iterations(stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")).records()


@pytest.mark.parametrize(
    "name, load",
    [
        ("execute_context_1(888)_generation_0(0)", Load("prefill", 1, 1, 888, 888)),
        ("execute_context_1(888_788544)_generation_0(0)", Load("prefill", 1, 1, 888, 888)),
        ("execute_context_0(0)_generation_32(32)", Load("decode", 32, 0, 32, 0)),
        ("execute_context_2(100)_generation_3(3)", Load("mixed", 5, 2, 103, 100)),
        ("execute_context_0(0)_generation_0(0)", Load("idle", 0, 0, 0, 0)),
        (
            "execute_1025_context_1(sq1024sk2048sqsq9sqsk9)_generation_1(sq1sk77sqsq1sqsk77)",
            Load("mixed", 2, 1, 1025, 1024, 2125),
        ),
        ("execute_new_3_cached_0", Load("prefill", 3)),
        ("execute_new_3_cached_2", Load("mixed", 5)),
        ("execute_new_0_cached_5", Load(None, 5)),  # they decode, or go on with their prompts
        ("step[EXTEND bs=2 toks=14721]", Load("prefill", 2, 2, 14721, 14721)),
        ("step[DECODE bs=64]", Load("decode", 64, 0, 64, 0)),
        (
            "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=9 g_sk=131072]",
            Load("decode", 64, 0, 128, 0, 131072),
        ),
        ("step[TARGET_VERIFY bs=4]", Load("decode", 4, 0, None, 0)),
        ("step[MIXED bs=2]", Load("mixed", 2)),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 g_sq=1 g_sk=12]", Load("mixed", 2, 1, 6, 5, 20)),
        ("step[DRAFT_EXTEND_V2 bs=3]", Load("draft", 3)),
        ("step[IDLE bs=0]", Load("idle", 0, 0, 0, 0, 0)),
        ("step[NEVER_SEEN bs=3]", Load(None, 3)),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", Load("prefill", 2, 2, 14721, 14721, 14721)),
        ("prefill[bs=1 tok=100 ctx=300]", Load("prefill", 1, 1, 100, 100, 300)),
        ("prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]", Load("prefill", 6, 6, 17408, 17408)),
        ("decode[bs=117/128 tok=117 d=117]", Load("decode", 117, 0, 117, 0)),
        ("eager_decode[bs=3 tok=3 ctx=[1, 2, 3]]", Load("decode", 3, 0, 3, 0)),
        ("decode[bs=128 tok=384 p=2 d=126 sk=258048]", Load("mixed", 128, 2, 384, None, 258048)),
    ],
)
def test_names_of_iterations(name: str, load: Load) -> None:
    assert load_of(name) == load


@pytest.mark.parametrize("name", [None, "", "iteration 3", "step 3", "execute_context", "ProfilerStep#3"])
def test_other_names(name: str | None) -> None:
    assert load_of(name) is None


def test_loads_together() -> None:
    prefill, decode = Load("prefill", 1, 1, 10, 10, 10), Load("decode", 4, 0, 4, 0, None)
    assert together([prefill, decode]) == Load("mixed", 5, 1, 14, 10, None)
    assert together([decode, Load("draft", 4), Load("idle", 0, 0, 0, 0, 0)]).kind == "decode"
    assert together([Load("draft", 4), Load("draft", 4)]).kind == "draft"
    assert together([decode, Load(None, 3)]).kind is None


def serving() -> Drawing:
    """A prefill, eager, and two decodes of a replayed graph, the host 5 apart; then an eager sampler."""
    drawing = Drawing().annotation("step[EXTEND bs=2 toks=100]", 0, 20)
    drawing.launch("cudaLaunchKernel", 2, 1, corr=1).kernel("gemm", 10, 20, corr=1)
    for number, at in enumerate((25, 50)):
        drawing.annotation("step[DECODE bs=2]", at, 20)
        drawing.launch("cudaGraphLaunch", at + 2, 1, corr=10 + number)
        drawing.kernel("a", at + 10, 5, corr=10 + number).kernel("b", at + 12, 6, corr=10 + number, stream=8)
        drawing.launch("cudaLaunchKernel", at + 12, 1, corr=20 + number)
        drawing.kernel("sample", at + 20, 1 + number, corr=20 + number)
    return drawing


def test_serving_by_hand(tmp_path: Path) -> None:
    # The prefill lasts from 0 to the end of its kernel, 30, and the next one starts there although its mark
    # began at 25. Graph kernels 35-40 and 37-43, sampler 45-46: busy 9 of 16 (30-46); 11 of 12 µs of kernels
    # are the graph's. Then 60-65, 62-68, 70-72: busy 10 of 22 (50-72), 11 of 13 µs: less than 9/10.
    rows = rows_of(serving(), tmp_path)
    columns = ("step", "source", "kind", "kind_basis", "requests", "tokens", "start_ns", "dur_ns")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        (0, "annotation", "prefill", "annotation", 2, 100, 0, 30_000),
        (1, "annotation", "decode", "annotation", 2, 2, 30_000, 16_000),
        (2, "annotation", "decode", "annotation", 2, 2, 50_000, 22_000),
    ]
    figures = ("host_gap_ns", "busy_ns", "idle_ns", "launched_by", "graph_share", "kernels")
    assert [tuple(row[column] for column in figures) for row in rows] == [
        (None, 20_000, 10_000, "eager", 0.0, 1),
        (5_000, 9_000, 7_000, "graph", 11 / 12, 3),
        (5_000, 10_000, 12_000, "mixed", 11 / 13, 3),
    ]


def test_iterations_inside_marks(tmp_path: Path) -> None:
    # An engine that steps the profiler: the mark is the step, the name inside it tells the load.
    drawing = Drawing().mark(7, 0, 100).mark(8, 100, 100).mark(9, 200, 100)
    drawing.annotation("execute_context_1(50)_generation_0(0)", 10, 50)
    drawing.annotation("execute_context_0(0)_generation_4(4)", 110, 20)
    drawing.annotation("execute_context_0(0)_generation_3(3)", 150, 20)
    rows = rows_of(drawing, tmp_path)
    assert [(row["source"], row["kind"], row["requests"], row["tokens"]) for row in rows] == [
        ("mark", "prefill", 1, 50),
        ("mark", "decode", 7, 7),
        ("mark", None, None, None),
    ]


def generate(*, query: tuple[int, int], decode_only: bool = False) -> Drawing:
    """A loop of generation: attention over a prompt of so many tokens, then of one token each, batch of 3."""
    drawing = Drawing()
    lengths = [(1, query[1] + number) for number in range(1, 4)]
    for number, (queries, keys) in enumerate(lengths if decode_only else [query, *lengths]):
        drawing.mark(number, number * 10, 10)
        dims = [[3, 8, queries, 64], [3, 8, keys, 64], [3, 8, keys, 64]]
        args = {"Input Dims": dims, "Input type": ["c10::Half"] * 3}
        drawing.op("aten::scaled_dot_product_attention", number * 10 + 1, 5, args=args)
    return drawing


def test_shapes_of_attention_tell_prefill_from_decode(tmp_path: Path) -> None:
    rows = rows_of(generate(query=(20, 20)), tmp_path)
    columns = ("kind", "kind_basis", "requests", "tokens", "context_tokens")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("prefill", "shapes", 3, 60, 60),
        ("decode", "shapes", 3, 3, 63),
        ("decode", "shapes", 3, 3, 66),
        ("decode", "shapes", 3, 3, 69),
    ]


def test_long_queries_alone_tell_nothing(tmp_path: Path) -> None:
    drawing = generate(query=(20, 20))
    drawing.events = drawing.events[:2]
    assert [row["kind"] for row in rows_of(drawing, tmp_path)] == [None]


def test_kernels_that_only_decode(tmp_path: Path) -> None:
    drawing = Drawing()
    for number, name in enumerate(["BatchPrefillWithPagedKV", "paged_attention_v2_kernel", "gemm"]):
        drawing.mark(number, number * 10, 10).launch("cudaLaunchKernel", number * 10 + 1, 1, corr=number)
        drawing.kernel(name, number * 10 + 3, 2, corr=number)
    rows = rows_of(drawing, tmp_path)
    assert [(row["kind"], row["kind_basis"]) for row in rows] == [
        ("prefill", "kernels"),
        ("decode", "kernels"),
        (None, None),
    ]


def test_a_sample_of_vllm(sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = sample("tl_vllm_decode_full_graph.json.gz")
    row = iterations(open_shared(path)).records()[0]
    said = (
        "source",
        "kind",
        "requests",
        "prefill_requests",
        "tokens",
        "context_tokens",
        "launched_by",
        "kernels",
    )
    assert tuple(row[column] for column in said) == ("annotation", "decode", 32, 0, 32, 55086, "graph", 425)


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_sample(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    """One row a step, whose parts sum; where there are marks, the windows of the expected tables."""
    path = sample(name)
    rows = iterations(open_shared(path)).records()
    assert rows
    for row in rows:
        assert row["busy_ns"] + row["idle_ns"] == row["dur_ns"]
        assert 0 <= row["busy_ns"] <= row["dur_ns"]
        assert (row["launched_by"] is None) == (row["graph_share"] is None)
    stem = name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")
    expected = json.loads((path.parent / "expected" / f"{stem}.json").read_text(encoding="utf-8"))["steps"]
    marked = [(row["step"], row["start_ns"], row["dur_ns"]) for row in rows if row["source"] == "mark"]
    assert marked == [(row["step"], row["start_ns"], row["dur_ns"]) for row in expected]
    kernels = sum(row["kernels"] for row in rows)
    assert kernels > 0 or "cpu_only" in name or "cupti" in name
