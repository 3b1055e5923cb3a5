"""Code was compiled again for inputs that it was not compiled for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.compiled_regions import CompiledRegion
from stepscope.analyses.recompile_guards import RecompileGuard
from stepscope.findings import Advice, Category, Location, Saving, locations_of, rule
from stepscope.findings._compile_log import guards_said
from stepscope.findings._compiling import RECURRING_STEPS, recompiled
from stepscope.findings._phrases import times as counted
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["recompilations"]

ALMOST_ALL = 0.9
_LOGS = 'TORCH_LOGS="recompiles" python train.py               # logs which guard failed'
_LAST = "DataLoader(..., drop_last=True)                       # if the last batch is smaller"
_FIX = """\
torch._dynamo.mark_dynamic(batch, 1)                  # if one dimension varies, such as the length
torch.compile(model, dynamic=True)                    # if several vary; or pad to a few fixed sizes"""


@rule(category=Category.COMPILE)
def recompilations(
    mean_step: MeanStep,
    compilations: Table[Compilation],
    compiled_regions: Table[CompiledRegion],
    recompile_guards: Table[RecompileGuard] | None = None,
    *,
    least_share: float = 0.01,
    often_share: float = 0.5,
) -> Advice | None:
    """Steps wait while code is compiled again for shapes or values that it was not compiled for.

    Gain: nothing else runs while torch compiles.

    - at most: the time of recompiling, of autotuning for it, and of the first run of the result, which loads
      its kernels. If steps hardly do anything else, no step shows what is left without it: then all of the
      step except the GPU's work in compiled code.
    - at least: nothing, because a few recompilations do not matter in a long run. If most recorded steps
      recompile (at least three, or two with many versions before), the program keeps doing so: then the
      time of compiling.

    A compile log beside the profile names the guards. Of a log alone, the gain is not known.
    """
    if not mean_step.steps:
        return _of_log(recompile_guards)
    again = recompiled(compilations)
    rows = [row for row in compilations if row.step is not None and row.region in again]
    steps = {row.step for row in rows if row.kind == "recompilation"}
    compiling = mean_step.per_step(sum(row.total_ns for row in rows))
    first_runs = [row for row in compiled_regions if row.region in again and row.calls == 1]
    loading = mean_step.per_step(sum(row.host_self_ns + row.backward_host_ns for row in first_runs))
    most = min(mean_step.starved_ns, compiling + loading)
    work = mean_step.per_step(sum(row.device_ns + row.backward_device_ns for row in compiled_regions))
    if mean_step.share(most) < least_share:
        return None
    versions = max((_version(region) for region in again), default=0)
    often = (
        len(steps) >= max(2.0, often_share * mean_step.steps) and max(len(steps), versions) >= RECURRING_STEPS
    )
    alone = often and mean_step.share(compiling) >= ALMOST_ALL
    rest = max(0.0, mean_step.step_ns - most - work) if alone else 0.0
    return Advice(
        title="Code is compiled again inside the steps",
        because=f"{units.count(len(steps))} of {units.count(mean_step.steps)} recorded steps compiled code "
        f"again ({_frames(again)}), for {units.duration(compiling * mean_step.steps)} in total. "
        + (_OFTEN.format(versions) if often else "In a long run these may be exceptions.")
        + guards_said(recompile_guards),
        saving=Saving(starved_ns=(min(most, compiling) if often else 0.0, most), waited_ns=(0.0, rest)),
        certainty="certain" if often else "likely",
        fix=fix_of(_LOGS, line(Change.LAST_BATCH, _LAST), _FIX),
        check="stepscope show compilations: no recompilation in a step.",
        evidence={
            "recompilations": sum(row.times for row in rows if row.kind == "recompilation"),
            "steps_with_recompilation": len(steps),
            "versions": versions,
            "compiling_ns": round(compiling * mean_step.steps),
            "compiling_per_step_ns": round(compiling),
        },
        claims=frozenset({Claim(Time.STARVED, Part.COMPILATION)}),
        locations=_locations(recompile_guards),
    )


_OFTEN = "Torch is at version {} of this code, so new inputs keep coming."


def _frames(regions: Iterable[str]) -> str:
    frames = sorted({region.rpartition("/")[0] for region in regions})
    return f"{'frames' if len(frames) > 1 else 'frame'} {', '.join(frames[:4])}"


def _of_log(guards: Table[RecompileGuard] | None) -> Advice | None:
    """What a log says where there is no profile."""
    rows = list(guards or ())
    if not rows:
        return None
    again = sum(row.recompilations for row in rows)
    compiling = sum(row.compiling_ns or 0 for row in rows)
    took = f", for {units.duration(compiling)} in total" if compiling else ""
    return Advice(
        title="Code is compiled again for inputs that change",
        because=f"Torch compiled functions again {counted(again, 'time')}{took}.{guards_said(rows)}",
        saving=Saving(),
        certainty="certain",
        fix=fix_of(line(Change.LAST_BATCH, _LAST), _FIX),
        check="stepscope show recompile_guards: no rows.",
        evidence={"recompilations": again, "compiling_ns": compiling, "guards": len(rows)},
        claims=frozenset({Claim(Time.STARVED, Part.COMPILATION)}),
        locations=_locations(rows),
    )


def _locations(guards: Iterable[RecompileGuard] | None) -> tuple[Location, ...]:
    return locations_of((row.function, f"compiled again: {row.guard}") for row in guards or ())


def _version(region: str) -> int:
    """How often the frame had been compiled before: torch numbers a region frame/version."""
    found = re.search(r"/(\d+)", region)
    return int(found[1]) if found else 0
