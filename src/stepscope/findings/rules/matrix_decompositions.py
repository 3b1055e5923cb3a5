"""Inverses and decompositions of matrices take much of the step."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._fewer_calls import fewer_calls, host_part
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["matrix_decompositions"]

# Those that something cheaper often replaces. To solve a system, or Cholesky, is the cheap way already.
_VALUES = late_pattern(
    r"aten::(_?linalg_(svd|svdvals|eigh?|eigvalsh?|pinv|matrix_exp)|svd|pinverse|matrix_exp)"
)
_INVERSES = late_pattern(r"aten::(linalg_inv(_ex)?|inverse)")
_DETERMINANTS = late_pattern(r"aten::(_?linalg_(slogdet|det)|slogdet|logdet|det)")
_AROUND = late_pattern(f"({_VALUES.pattern})|({_INVERSES.pattern})|({_DETERMINANTS.pattern})")
_NODE = "autograd::engine::evaluate_function: "
_BACKWARD = late_pattern(_NODE + r"Linalg(Svd|Eigh?|InvEx|Inv|MatrixExp)Backward\d+")
_OF_DETERMINANTS = late_pattern(_NODE + r"Linalg(Slogdet|Det)Backward\d+")
_HALF = 0.5
"""What an inverse takes beyond a solution: as many right sides as rows, and the product with the inverse."""
_FIX_VALUES = fix_of(
    "largest = torch.dot(u, weight @ v)    # a norm: one power iteration a step, u and v are kept",
    "u, s, v = torch.svd_lowrank(a, q=8)    # for the first few singular values: no full decomposition",
    "decomposed = torch.linalg.eigh(a) if step % 100 == 0 else decomposed    # or not in every step",
)
_FIX_DETERMINANTS = fix_of(
    "factor = torch.linalg.cholesky(a)    # a is symmetric and positive definite: one factor for both",
    "x = torch.cholesky_solve(b, factor)    # instead of torch.linalg.inv(a) @ b",
    "logdet = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)    # instead of slogdet(a)",
)
_FIX_INVERSES = fix_of(
    "x = torch.linalg.solve(a, b)    # instead of torch.linalg.inv(a) @ b",
    "x = torch.cholesky_solve(b, torch.linalg.cholesky(a))    # if a is symmetric and positive definite",
)


@rule(category=Category.DEVICE)
def matrix_decompositions(
    mean_step: MeanStep, step_ops: Table[StepOp], *, least_share: float = 0.08
) -> Advice | None:
    """Inverses, singular values or eigenvalues of matrices are computed in every step.

    These algorithms go over a matrix column by column in many small kernels, and some make the host wait.

    Gain:

    - at most: all their time, on the host and on the GPU, and that of determinants beside inverses.
    - at least: for inverses half of it, which solving saves. For decompositions nothing: they may be needed.
      A determinant beside an inverse goes: one factor serves both, and the second one is for nothing.
    """
    ops = list(step_ops)
    values = _called(ops, _VALUES)
    inverses = _called(ops, _INVERSES)
    calls = [*values, *inverses]
    if not calls:
        return None
    backward = [op for op in ops if op.within is None and _BACKWARD.fullmatch(op.name or "")]
    if determinants := [] if values else _determinants(ops, inverses):
        backward += [op for op in ops if op.within is None and _OF_DETERMINANTS.fullmatch(op.name or "")]
    sure = _HALF if inverses and not values else 0.0
    ns, second_ns = (
        mean_step.per_step(sum(op.device_ns for op in some)) for some in ((*calls, *backward), determinants)
    )
    part, second = host_part((*calls, *backward), ops), host_part(determinants, ops)
    hosts, devices = (sure * part + second, part + second), (sure * ns + second_ns, ns + second_ns)
    saving = fewer_calls(mean_step, hosts, devices, waits_go=True)
    if mean_step.gain(saving).high_share < least_share:
        return None
    calls += determinants
    ns += second_ns
    host = mean_step.per_step(sum(op.host_ns for op in (*calls, *backward)))
    names = " and ".join(sorted({_name(op) for op in calls}))
    number = sum(op.per_step for op in calls)
    return Advice(
        title="Matrices are inverted or decomposed in every step",
        because=f"{names}: {often(number, 'call')}, {units.duration(ns)} of a step on the GPU and "
        f"{units.duration(host)} on the host, with the backward pass. Such an algorithm goes over a matrix "
        "column by column, in many small kernels.",
        saving=saving,
        certainty="possible" if values else "likely",
        fix=_FIX_VALUES if values else _FIX_DETERMINANTS if determinants else _FIX_INVERSES,
        check="stepscope show step_ops: the time of these operators falls.",
        evidence={
            "device_ns": round(ns),
            "host_ns": round(host),
            "busy_share": ns / mean_step.busy_ns if mean_step.busy_ns else 0.0,
            "calls_per_step": number,
        },
        claims=frozenset({Claim(Time.DEVICE), Claim(Time.STARVED), Claim(Time.WAITED)}),
        locations=locations_of(
            (op.user_frame, f"{_name(op)}, {often(op.per_step, 'call')}", (op.name,))
            for op in sorted(calls, key=lambda op: -op.host_ns)
        ),
    )


def _determinants(ops: list[StepOp], inverses: list[StepOp]) -> list[StepOp]:
    """Determinants beside inverses. If there are more of them, some are of other matrices: then none."""
    found = _called(ops, _DETERMINANTS)
    return found if sum(op.per_step for op in found) <= sum(op.per_step for op in inverses) else []


def _called(ops: list[StepOp], name: re.Pattern[str]) -> list[StepOp]:
    """Those of these names, each once: some call others of them."""
    return [op for op in ops if name.fullmatch(op.name or "") and not _AROUND.fullmatch(op.within or "")]


def _name(op: StepOp) -> str:
    """As a program calls it: torch.linalg.svd."""
    short = (op.name or "").removeprefix("aten::").removeprefix("_")
    return f"torch.linalg.{short.removeprefix('linalg_')}" if "linalg_" in short else f"torch.{short}"
