"""Compilers find nothing in their caches."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.compile_caches import CompileCache
from stepscope.analyses.compile_units import CompileUnit
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._phrases import times
from stepscope.findings.claims import Claim, Time
from stepscope.tables import Table

__all__ = ["cold_compile_caches"]

_MISSED = """\
export TORCHINDUCTOR_CACHE_DIR=/shared/inductor        # a folder that the next start still has
blob, _ = torch.compiler.save_cache_artifacts()        # or: at the end of a run, save it to a file
torch.compiler.load_cache_artifacts(blob)              # and at the start of the next run"""
_BYPASSED = "# what the reason names keeps the graph out of the cache: move it out of the compiled function"


@rule(category=Category.COMPILE)
def cold_compile_caches(
    compile_caches: Table[CompileCache],
    compile_units: Table[CompileUnit],
    *,
    least_seconds: float = 5.0,
    most_hits_share: float = 0.5,
) -> Advice | None:
    """Compilers look up their caches and find nothing, so every start compiles everything again.

    Gain: none in a step. A start that finds its work in the caches takes a fraction of the time of compiling.
    """
    rows = list(compile_caches)
    lookups = sum(row.lookups for row in rows)
    hits = sum(row.lookups for row in rows if row.result == "hit")
    bypassed = [row for row in rows if row.result == "bypass"]
    compiling = sum(row.dur_ns or 0 for row in compile_units if row.kind != "runtime")
    if not rows or compiling < least_seconds * 1e9 or hits > most_hits_share * lookups:
        return None
    misses = lookups - hits - sum(row.lookups for row in bypassed)
    said = f"Of {times(lookups, 'lookup')} in caches of compilers, {units.count(hits)} hit"
    said += f" and {units.count(misses)} missed" if misses else ""
    said += f"; compiling took {units.duration(compiling)}."
    if bypassed:
        reason = (bypassed[0].reason or "no reason given").splitlines()[0].rstrip(". ")
        said += f" {times(sum(row.lookups for row in bypassed), 'graph')} cannot be cached: {reason[:120]}."
    fix = "\n".join(filter(None, (_MISSED if misses else "", _BYPASSED if bypassed else "")))
    return Advice(
        title="Compilers find nothing in their caches",
        because=said,
        saving=Saving(),
        certainty="likely" if misses else "certain",
        fix=fix,
        check="stepscope show compile_caches: mostly hits at the second start.",
        evidence={
            "lookups": lookups,
            "hits": hits,
            "bypassed": sum(row.lookups for row in bypassed),
            "compiling_ns": compiling,
        },
        claims=frozenset({Claim(Time.RECORDING)}),
    )
