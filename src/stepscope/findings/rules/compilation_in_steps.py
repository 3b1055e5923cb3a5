"""The recorded steps contain compilation, autotuning or graph capture."""

from __future__ import annotations

from collections import Counter

from stepscope import units
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._compiling import RECURRING_STEPS, keeps_capturing, recompiled
from stepscope.findings._phrases import times as counted
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["compilation_in_steps"]

_ONCE = "schedule=torch.profiler.schedule(wait=5, warmup=3, active=5)   # record after everything is compiled"
_CACHE = """
blob, _ = torch.compiler.save_cache_artifacts()                # at the end of a run: save it to a file
torch.compiler.load_cache_artifacts(blob)                      # at the start of the next run"""
_ALWAYS = """\
run = torch.compile(step)        # once, before the loop; not inside a function that the loop calls
graph = torch.cuda.CUDAGraph()   # capture once, before the loop; in the loop: graph.replay()"""


@rule(category=Category.COMPILE)
def compilation_in_steps(
    mean_step: MeanStep,
    compilations: Table[Compilation],
    iterations: Table[Iteration],
    *,
    least_share: float = 0.01,
    often_share: float = 0.5,
) -> Advice | None:
    """Code is compiled, kernels are tuned or CUDA graphs are captured in the recorded steps.

    Gain:

    - if most steps do it, at most and at least: all of that time, because nothing else runs meanwhile.
    - otherwise: nothing. It happens once in a run, and the finding says that these steps are not typical.

    Recompilations, and graphs that are captured again and again, have rules of their own.
    """
    again, left_out = recompiled(compilations), keeps_capturing(compilations, iterations)
    rows = [
        row
        for row in compilations
        if row.step is not None
        and row.region not in again
        and not (row.kind == "capture" and row.step in left_out)
    ]
    total = sum(row.total_ns for row in rows)
    if not rows or mean_step.share(mean_step.per_step(total)) < least_share:
        return None
    steps = sorted({row.step for row in rows if row.step is not None})
    often = len(steps) >= max(RECURRING_STEPS, often_share * mean_step.steps)
    spent = min(mean_step.starved_ns, mean_step.per_step(total)) if often else 0.0
    times = Counter[str]()
    for row in rows:
        times[row.kind] += row.times
    kinds = " and ".join(f"{kind} ({counted(n, 'time')})" for kind, n in sorted(times.items()))
    numbers = ", ".join(map(str, steps[:5])) + (" …" if len(steps) > 5 else "")
    return Advice(
        title="Most steps compile or capture again" if often else "The recording contains compilation",
        because=f"{kinds[0].upper()}{kinds[1:]} took {units.duration(total)} in {units.count(len(steps))} of "
        f"{counted(mean_step.steps, 'recorded step')} (step{'s' if len(steps) > 1 else ''} {numbers}). "
        + ("Most steps do it: it is not only warm-up." if often else "Such steps are not typical."),
        saving=Saving(starved_ns=(spent, spent)),
        certainty="likely" if often else "certain",
        fix=_ALWAYS if often else _ONCE + (_CACHE if times.keys() - {"capture"} else ""),
        check="stepscope show compilations: no row inside a step.",
        evidence={
            "compiling_ns": total,
            "steps_with_compilation": len(steps),
            **{f"{kind}_times": n for kind, n in sorted(times.items())},
        },
        claims=frozenset({Claim(Time.STARVED, Part.COMPILATION)}),
    )
