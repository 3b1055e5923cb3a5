"""Comparisons drawn in code, for tests of formats: with everything, of several sides, and of nothing."""

from __future__ import annotations

import dataclasses

from tests.findings.drawn import MS, facts
from tests.present.drawn_report import GEMM, IMAGE, SCRIPT, TURNED, empty_report, report

from stepscope.compare import Comparison, Interval, Run, Side, StepChange, StepPart
from stepscope.findings.report import Report

NVJET = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"


def side(name: str, step_ns: int, *, runs: int = 1, told: Report | None = None) -> Side:
    shown = told or report(facts=facts(source=f"{name}.json"))
    lengths = (step_ns - MS, step_ns, step_ns + MS) if step_ns else ()
    return Side(
        name=name,
        runs=(Run(shown, lengths),) * runs,
        step_ns=step_ns,
        unprofiled_step_ns=(step_ns * 8 // 10, step_ns * 9 // 10),
        rates={"steps": 1e9 / step_ns, "samples": 32e9 / step_ns} if step_ns else {},
        per_step={"samples": 32.0} if step_ns else {},
    )


def parts() -> tuple[StepPart, ...]:
    """From 64 ms to 48 ms."""
    gemm = StepPart(
        GEMM, 20 * MS, 12 * MS, "replaced", (24.0, 23.5), -500_000, ((GEMM, "b"), (NVJET,)), "aten::mm"
    )
    twice = StepPart(f"triton_{SCRIPT}", 4 * MS, 9 * MS, "both", (10.0, 20.0), 6 * MS)
    fresh = StepPart(IMAGE, 0, 2 * MS, "new", (0.0, 4.0), op=TURNED)
    copy = StepPart("Memcpy HtoD (Pageable -> Device)", 5 * MS, 1 * MS, "both", (2.0, 2.0), exposed=True)
    return (
        StepPart(
            "kernels",
            24 * MS,
            23 * MS,
            parts=(
                StepPart("matmul", 20 * MS, 12 * MS, parts=(gemm,)),
                StepPart("elementwise", 4 * MS, 11 * MS, parts=(twice, fresh)),
            ),
        ),
        StepPart("copies", 5 * MS, 1 * MS, parts=(StepPart("copy", 5 * MS, 1 * MS, parts=(copy,)),)),
        StepPart(
            "syncs",
            20 * MS,
            6 * MS,
            parts=(
                StepPart(
                    "host op", 12 * MS, 4 * MS, parts=(StepPart("cudaStreamSynchronize", 12 * MS, 4 * MS),)
                ),
                StepPart("Python between ops", 8 * MS, 2 * MS),
            ),
        ),
        StepPart("host", 14 * MS, 17 * MS, parts=(StepPart("host op", 14 * MS, 17 * MS),)),
        StepPart("launches", 1 * MS, 1 * MS),
    )


def change(before: Side, after: Side) -> StepChange:
    first, second, third = report().findings
    return StepChange(
        before=before,
        after=after,
        interval=Interval(-18 * MS, -14 * MS, "From 3 and 3 steps of one run each; 3 % is assumed.", 0.03),
        parts=parts(),
        phases=(StepPart("forward", 30 * MS, 20 * MS), StepPart("backward", 34 * MS, 28 * MS)),
        ops=(
            StepPart("aten::mm", 34 * MS, 30 * MS),
            StepPart(f"custom::{SCRIPT}", 20 * MS, 9 * MS),
            StepPart("outside operators", 10 * MS, 9 * MS),
        ),
        resolved=(first,),
        appeared=(second,),
        kept=((third, third),),
        caveats=(f"The devices differ (A100 → {SCRIPT}): kernels have other names and other times.",),
    )


def comparison() -> Comparison:
    sides = (side(f"before {SCRIPT}", 64 * MS), side("after", 48 * MS, runs=2))
    return Comparison(sides, (change(*sides),))


def history() -> Comparison:
    sides = (side("first", 64 * MS), side("second", 63 * MS), side("third", 48 * MS))
    small = dataclasses.replace(
        change(sides[0], sides[1]),
        interval=Interval(-3 * MS, 1 * MS, "From 3 and 3 steps.", 0.03),
        parts=(StepPart("kernels", 64 * MS, 63 * MS),),
        resolved=(),
        appeared=(),
    )
    return Comparison(sides, (small, change(sides[1], sides[2])), change(sides[0], sides[2]))


def empty() -> Comparison:
    """One side has no steps."""
    sides = (side("nothing", 0, told=empty_report()), side("after", 48 * MS))
    nothing = StepChange(sides[0], sides[1], None, (), (), (), (), (), (), ("nothing has no steps.",))
    return Comparison(sides, (nothing,))
