"""Whole numbers that sum, and the split of a kernel's change."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from tests.findings.drawn import drawn

from stepscope.analyses.phases import Phase
from stepscope.analyses.starving_ops import StarvingOp
from stepscope.analyses.step_costs import StepCost
from stepscope.compare import StepPart, walked
from stepscope.compare.attribution import ELSEWHERE, OUTSIDE, Spent, by_op, by_part, rounded
from stepscope.tables import Table


@given(st.lists(st.fractions(min_value=-1000, max_value=1000), min_size=1, max_size=20))
def test_rounded_values_sum_and_are_next_to_the_true_ones(values: list[Fraction]) -> None:
    whole = round(sum(values, Fraction()))
    found = rounded(dict(enumerate(values)), whole)
    assert sum(found.values()) == whole
    assert all(abs(found[place] - value) <= 1 for place, value in enumerate(values))


def cost(part: str, kind: str, name: str | None, ns: int, **more: object) -> StepCost:
    given: dict[str, object] = {"rank": 0, "device": "0", "op": None, "calls": 1, "share": None, **more}
    return StepCost(part=part, kind=kind, name=name, cost_ns=ns, **given)  # type: ignore[arg-type]


def spent(*costs: StepCost, steps: int = 1, late: tuple[StarvingOp, ...] = ()) -> Spent:
    return Spent(steps, Table.of(StepCost, costs), drawn(Phase), Table.of(StarvingOp, late))


def leaf(parts: tuple[StepPart, ...], name: str) -> StepPart:
    (found,) = [part for part in walked(parts) if part.name == name]
    return found


def test_more_often_and_slower() -> None:
    before = spent(cost("kernels", "matmul", "gemm", 100, calls=10))
    after = spent(cost("kernels", "matmul", "gemm", 300, calls=20))
    gemm = leaf(by_part([before], [after], (100, 300)), "gemm")
    # Ten more runs of 10 to 15 each, and each of ten to twenty runs 5 longer.
    assert (gemm.change_ns, gemm.more_often_ns, gemm.slower_ns) == (200, 125, 75)
    assert gemm.calls == (10, 20)


def test_exposed_work_is_not_called_slower() -> None:
    before = spent(cost("copies", "copy", "Memcpy HtoD", 100))
    after = spent(cost("copies", "copy", "Memcpy HtoD", 10))
    copy = leaf(by_part([before], [after], (100, 10)), "Memcpy HtoD")
    assert copy.exposed
    assert copy.slower_ns is None


def test_steps_that_do_not_divide_evenly() -> None:
    before = spent(*(cost("kernels", "matmul", f"k{n}", 100) for n in range(7)), steps=3)
    after = spent(cost("host", "host op", None, 1000), steps=7)
    parts = by_part([before], [after], (233, 143))
    assert [(part.name, part.before_ns, part.after_ns) for part in parts] == [
        ("kernels", 233, 0),
        ("host", 0, 143),
    ]
    (matmul,) = parts[0].parts
    assert sorted(one.before_ns for one in matmul.parts) == [33, 33, 33, 33, 33, 34, 34]


def test_runs_of_a_side_count_alike() -> None:
    one = spent(cost("kernels", "matmul", "gemm", 100), steps=1)
    many = spent(cost("kernels", "matmul", "gemm", 3000), steps=10)
    parts = by_part([one, many], [one], (200, 100))
    assert (parts[0].before_ns, parts[0].after_ns) == (200, 100)


def test_operators_have_their_work_and_their_lateness() -> None:
    side = spent(
        cost("kernels", "matmul", "gemm", 50, op="aten::mm"),
        cost("kernels", "other", "graphed", 5),
        cost("host", "host op", None, 30),
        cost("syncs", "host op", "cudaStreamSynchronize", 10),
        cost("launches", "launch latency", None, 5),
        late=(StarvingOp("aten::mm", 20, None, 20), StarvingOp(None, 15, None, 15)),
    )
    found = {part.name: part.after_ns for part in by_op([side], [side], (100, 100))}
    assert found == {"aten::mm": 70, OUTSIDE: 20, ELSEWHERE: 5, "launches": 5}
