from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.matrix_decompositions import matrix_decompositions

NORM = {"name": "aten::linalg_matrix_norm", "per_step": 3.0, "device_ns": 60 * MS, "host_ns": 70 * MS}
VALUES = {
    "name": "aten::linalg_svdvals",
    "within": "aten::linalg_matrix_norm",
    "per_step": 3.0,
    "device_ns": 50 * MS,
    "host_ns": 60 * MS,
    "user_frame": "critic.py(12): norm",
}
INSIDE = VALUES | {"name": "aten::_linalg_svd", "within": "aten::linalg_svdvals"}
INVERSE = {"name": "aten::linalg_inv", "per_step": 1.0, "device_ns": 50 * MS, "host_ns": 50 * MS}


def test_a_decomposition_counts_once_and_may_be_needed() -> None:
    advice = assert_bounded(
        matrix_decompositions(busy_pace(), drawn(StepOp, NORM, VALUES, INSIDE)), busy_pace()
    )
    assert "torch.linalg.svdvals: 3 calls a step, 5.00 ms" in advice.because
    assert advice.evidence["calls_per_step"] == pytest.approx(3)
    assert advice.certainty == "possible"
    assert busy_pace().gain(advice.saving).low_share == 0
    assert "power iteration" in advice.fix
    assert [place.line for place in advice.locations] == [12]


def test_an_inverse_is_replaced_by_a_solution() -> None:
    within = INVERSE | {"name": "aten::linalg_inv_ex", "within": "aten::linalg_inv"}
    advice = assert_bounded(matrix_decompositions(busy_pace(), drawn(StepOp, INVERSE, within)), busy_pace())
    assert "torch.linalg.solve" in advice.fix
    assert busy_pace().gain(advice.saving).low_share > 0.1


def test_what_solves_is_fine() -> None:
    for name in ("aten::linalg_solve", "aten::linalg_cholesky", "aten::linalg_solve_triangular"):
        assert matrix_decompositions(busy_pace(), drawn(StepOp, INVERSE | {"name": name})) is None
    little = INVERSE | {"device_ns": 1 * MS, "host_ns": 1 * MS}
    rest = {"name": "aten::mm", "device_ns": 90 * MS, "host_ns": 90 * MS}
    assert matrix_decompositions(busy_pace(), drawn(StepOp, little, rest)) is None


DETERMINANT = {"name": "aten::linalg_slogdet", "per_step": 1.0, "device_ns": 30 * MS, "host_ns": 30 * MS}


def test_a_determinant_beside_an_inverse_needs_no_factor_of_its_own() -> None:
    inside = DETERMINANT | {"name": "aten::_linalg_slogdet", "within": "aten::linalg_slogdet"}
    step = busy_pace()
    alone = assert_bounded(matrix_decompositions(step, drawn(StepOp, INVERSE)), step)
    both = assert_bounded(matrix_decompositions(step, drawn(StepOp, INVERSE, DETERMINANT, inside)), step)
    assert "torch.linalg.inv and torch.linalg.slogdet: 2 calls a step, 8.00 ms" in both.because
    assert "cholesky" in both.fix
    assert "slogdet" in both.fix
    # All of the determinant goes, and half of the inverse.
    assert step.gain(both.saving).low_share > step.gain(alone.saving).low_share + 0.15
    assert step.gain(both.saving).high_share > step.gain(alone.saving).high_share


def test_determinants_of_other_matrices_do_not_count() -> None:
    assert matrix_decompositions(busy_pace(), drawn(StepOp, DETERMINANT)) is None
    more = DETERMINANT | {"per_step": 2.0}
    advice = assert_bounded(matrix_decompositions(busy_pace(), drawn(StepOp, INVERSE, more)), busy_pace())
    assert advice.evidence["calls_per_step"] == pytest.approx(1)
    assert "slogdet" not in advice.because


def test_gradients_of_inverse_and_determinant_count() -> None:
    node = {"name": "autograd::engine::evaluate_function: LinalgSlogdetBackward0", "device_ns": 20 * MS}
    ops = drawn(StepOp, INVERSE, DETERMINANT, node)
    assert assert_bounded(matrix_decompositions(busy_pace(), ops), busy_pace()).evidence[
        "device_ns"
    ] == pytest.approx(10 * MS)
    ops = drawn(StepOp, INVERSE, node)
    assert assert_bounded(matrix_decompositions(busy_pace(), ops), busy_pace()).evidence[
        "device_ns"
    ] == pytest.approx(5 * MS)
