"""The recorded steps hold work of compilers."""

from __future__ import annotations

from collections import Counter

from stepscope import units
from stepscope.analyses.compilations import Compilation
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._compiling import RECURRING_STEPS, recompiled
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["compilation_in_steps"]

_ONCE = (
    "schedule=torch.profiler.schedule(wait=5, warmup=3, active=5)   # record when all is compiled or captured"
)
_CACHE = """
blob, _ = torch.compiler.save_cache_artifacts()                # at the end of a run: keep it in a file
torch.compiler.load_cache_artifacts(blob)                      # at the start of the next: compiles nothing"""
_ALWAYS = """\
run = torch.compile(step)        # once, before the loop; never inside a function that the loop calls
graph = torch.cuda.CUDAGraph()   # captured once, before the loop; inside it: graph.replay()"""


@rule(category=Category.COMPILE)
def compilation_in_steps(
    mean_step: MeanStep,
    compilations: Table[Compilation],
    *,
    least_share: float = 0.01,
    often_share: float = 0.5,
) -> Advice | None:
    """Code is compiled, kernels are tuned or graphs captured while steps are recorded.

    Gain: none for a run that is longer than the profile, if it happens once: then this is a note that the
    figures of these steps are not those of others. If most steps do it, the program does it always, and all
    of the time goes, for nothing else runs meanwhile. Recompilations are a matter of their own.
    """
    again = recompiled(compilations)
    rows = [row for row in compilations if row.step is not None and row.region not in again]
    total = sum(row.total_ns for row in rows)
    if not rows or mean_step.share(mean_step.per_step(total)) < least_share:
        return None
    steps = sorted({row.step for row in rows if row.step is not None})
    often = len(steps) >= max(RECURRING_STEPS, often_share * mean_step.steps)
    spent = min(mean_step.starved_ns, mean_step.per_step(total)) if often else 0.0
    times = Counter[str]()
    for row in rows:
        times[row.kind] += row.times
    kinds = ", ".join(f"{kind} ({units.count(n)})" for kind, n in sorted(times.items()))
    numbers = ", ".join(map(str, steps[:5])) + (" …" if len(steps) > 5 else "")
    return Advice(
        title="Steps compile or capture, again and again" if often else "The recording holds compilation",
        because=f"{kinds} took {units.duration(total)} in {units.count(len(steps))} of "
        f"{units.count(mean_step.steps)} recorded steps ({numbers}). "
        + ("So the program does it all the time." if often else "The figures of these are not steady ones."),
        saving=Saving(starved_ns=(spent, spent)),
        certainty="likely" if often else "certain",
        fix=_ALWAYS if often else _ONCE + (_CACHE if times.keys() - {"capture"} else ""),
        check="stepscope show compilations: nothing in the steps.",
        evidence={
            "compiling_ns": total,
            "steps_with_compilation": len(steps),
            **{f"{kind}_times": n for kind, n in sorted(times.items())},
        },
        claims=frozenset({Claim(Time.STARVED, Part.COMPILATION)}),
    )
