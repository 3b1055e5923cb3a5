from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.sparse_products import sparse_products

STEP = busy_pace()


def product(
    phase: str = "forward", device_ns: int = 20 * MS, sorting_ns: int = 5 * MS
) -> list[dict[str, Any]]:
    """Products in ten steps as torch calls them, with what the conversion takes."""
    place = {"phase": phase, "user_frame": "graph.py(7): propagate", "calls": 30, "per_step": 3.0}
    return [
        place | {"name": "aten::_sparse_addmm", "within": "aten::_sparse_mm", "device_ns": device_ns},
        place | {"name": "aten::addmm", "within": "aten::_sparse_addmm", "device_ns": device_ns},
        place | {"name": "aten::coalesce", "within": "aten::addmm", "device_ns": sorting_ns},
    ]


def found(*rows: dict[str, Any]) -> Advice | None:
    return sparse_products(STEP, drawn(StepOp, *rows))


def test_sorting_goes_and_much_of_the_rest() -> None:
    advice = assert_bounded(found(*product()), STEP)
    assert advice.saving.device_ns == pytest.approx((0.5 * MS + 0.6 * 1.5 * MS, 0.5 * MS + 0.9 * 1.5 * MS))
    assert advice.title == "A sparse matrix is sorted for each product"
    assert "3 products a step with a sparse matrix take 2.00 ms" in advice.because
    assert "500 µs sort its entries" in advice.because
    assert "coalesce().to_sparse_csr()" in advice.fix
    assert "autograd.Function" not in advice.fix
    assert [place.line for place in advice.locations] == [7]


def test_a_gradient_turns_the_matrix_around() -> None:
    advice = assert_bounded(found(*product(), *product("backward")), STEP)
    assert advice.saving.device_ns[0] == pytest.approx(1.0 * MS + (0.6 + 0.3) * 1.5 * MS)
    assert "torch.autograd.Function" in advice.fix


def test_a_coalesced_matrix_is_only_converted() -> None:
    advice = assert_bounded(found(*product(sorting_ns=0)), STEP)
    assert advice.title == "A sparse matrix in COO form is converted for each product"
    assert "sort" not in advice.because
    assert "adjacency.coalesce()    #" not in advice.fix


@pytest.mark.parametrize(
    "rows",
    [
        product(device_ns=2 * MS, sorting_ns=0),
        product()[:2],  # CSR: nothing is coalesced
        [{"name": "aten::coalesce", "within": "Optimizer.step#SparseAdam.step", "device_ns": 50 * MS}],
        [{"name": "aten::addmm", "within": "aten::linear", "device_ns": 50 * MS}],
    ],
)
def test_it_is_silent(rows: list[dict[str, Any]]) -> None:
    assert found(*rows) is None
