"""What holds for every profile: random ones against the oracle, and after changes that change nothing."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyses.comparing import KEYS, Row, differences, drawn_rows, oracle_of
from tests.analyses.drawn import HOW, WORLDS, Spec, apart, draw_worlds, drawings, us
from tests.drawing import LAYOUTS, Drawing, Layout
from tests.oracle import OP, by_thread
from tests.spans import size, union
from tests.trying import tries

FEW = settings(HOW, max_examples=tries(2, 60))
OFTEN = settings(max_examples=tries(40, 1000))
RENAMED = {1: 4_000_000_000, 2: "main", "worker": -3}


def rows_of(drawing: Drawing, layout: Layout = LAYOUTS[0]) -> dict[str, list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        return drawn_rows(drawing, Path(folder), layout)


def assert_same(rows: dict[str, list[Row]], expected: dict[str, list[Row]]) -> None:
    wrong = {name: differences(name, rows[name], expected[name]) for name in KEYS}
    assert not {name: lines for name, lines in wrong.items() if lines}


@pytest.mark.slow
@HOW
@given(drawings(worlds=WORLDS), st.sampled_from(LAYOUTS))
def test_a_random_profile_gives_what_the_oracle_gives(drawing: Drawing, layout: Layout) -> None:
    assert_same(rows_of(drawing, layout), oracle_of(drawing).tables())


@pytest.mark.slow
@FEW
@given(drawings(worlds=WORLDS))
def test_the_parts_sum_to_the_whole(drawing: Drawing) -> None:
    rows = rows_of(drawing)
    oracle = oracle_of(drawing)
    ops = by_thread(e for e in oracle.events if e.category in OP)
    assert sum(row["host_self_ns"] for row in rows["ops"]) == sum(
        size(union(e.span for e in thread)) for thread in ops.values()
    )
    for row in rows["ops"]:
        assert 0 <= row["host_self_no_runtime_ns"] <= row["host_self_ns"] <= row["host_total_ns"]
        assert row["device_self_ns"] <= row["device_total_ns"]
    for row in rows["devices"]:
        assert row["busy_ns"] + row["idle_ns"] == row["window_ns"]
        assert row["kernel_ns"] == row["compute_ns"] + row["exposed_communication_ns"]
        assert 0 <= row["exposed_communication_ns"] <= row["communication_ns"]
        assert max(row["kernel_ns"], row["memcpy_ns"], row["memset_ns"]) <= row["busy_ns"]
        assert row["busy_ns"] <= row["kernel_ns"] + row["memcpy_ns"] + row["memset_ns"]
        assert row["sm_efficiency_share"] is None or 0 <= row["sm_efficiency_share"] <= 1
    unlinked = sum(row["unlinked_ns"] for row in rows["devices"] if row["window"] == "span")
    in_ops = sum(row["device_self_ns"] for row in rows["ops"])
    assert in_ops + unlinked + oracle.device_ns_outside_any_op() == sum(work.dur for work in oracle.work)
    assert sum(row["events"] for row in rows["categories"]) == len(drawing.events)
    kernels = [row for row in rows["categories"] if row["category"] == "kernel"]
    assert sum(row["total_ns"] for row in rows["kernels"]) == sum(row["total_ns"] for row in kernels)


def changes(worlds: list[list[Spec]], shift_ns: int, seed: int) -> list[Drawing]:
    """The same profile later, with other names of threads, and in another order."""
    return [
        draw_worlds(worlds, shift_ns=shift_ns),
        draw_worlds(worlds, rename=lambda thread: RENAMED[thread]),
        draw_worlds(worlds).shuffled(seed),
    ]


@OFTEN
@given(apart(2), st.integers(0, 10**15), st.integers(0, 100))
def test_changes_that_change_nothing_for_the_oracle(
    worlds: list[list[Spec]], shift_ns: int, seed: int
) -> None:
    tables = oracle_of(draw_worlds(worlds)).tables()
    for changed in changes(worlds, shift_ns, seed):
        assert_same(oracle_of(changed).tables(), tables)


@pytest.mark.slow
@FEW
@given(apart(WORLDS), st.integers(0, 10**15), st.integers(0, 100))
def test_changes_that_change_nothing(worlds: list[list[Spec]], shift_ns: int, seed: int) -> None:
    rows = rows_of(draw_worlds(worlds))
    for changed in changes(worlds, shift_ns, seed):
        assert_same(rows_of(changed), rows)


@pytest.mark.slow
def test_a_large_profile_in_any_order(tmp_path: Path) -> None:
    """Enough events for several vectors of the database, deep nesting, and the file in no order at all."""
    drawing = Drawing()
    chance, events = random.Random(7), tries(10_000, 40_000)
    for number in range(events):
        start, thread = chance.randrange(50 * events), chance.randrange(4)
        if number % 4:
            drawing.op(
                f"op {chance.randrange(50)}", us(start), us(chance.choice([3, 40, 500, 4_000])), thread=thread
            )
        else:
            drawing.launch("cudaLaunchKernel", us(start), us(9), corr=number, thread=thread)
            drawing.kernel(f"k{number % 8}", us(start + chance.randrange(5_000)), us(30), corr=number)
    drawing.shuffled(7)
    assert_same(drawn_rows(drawing, tmp_path), oracle_of(drawing).tables())
