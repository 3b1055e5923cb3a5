"""The GPU waits for operators that run on the CPU."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.cpu_pauses import CpuPause
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._copying import large, moving
from stepscope.findings._fewer_calls import run_ahead
from stepscope.findings._phrases import if_idle, often
from stepscope.findings._starvation import (
    COMPUTED_SURELY,
    around_computing,
    computed_on_host,
    partly_computed_on_host,
)
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["cpu_operators"]

_FIX = fix_of(
    "x = x.cuda(non_blocking=True)    # first move the data, then compute: these operators run on the GPU",
    line(Change.WORKERS, "loader = DataLoader(dataset, ..., num_workers=8)    # or compute it in workers"),
)


@rule(
    category=Category.HOST,
    yields_to=("python_between_ops", "dataloader_waits", "needless_transfers", "anomaly_mode"),
)
def cpu_operators(
    mean_step: MeanStep,
    step_ops: Table[StepOp],
    cpu_pauses: Table[CpuPause],
    copies: Table[Copy],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Operators compute on the CPU, one after the other, while the GPU waits for the next launch.

    Such an operator launches nothing, and has 50 µs or more of its own or in each of those that it calls: it
    computes, it does not only look at tensors. Where some of its calls launch work, as copies to the GPU do,
    the others count as far as they compute while the GPU has nothing to do.

    Gain: on the GPU, or in worker processes, this time is gone.

    - at most: the GPU's waiting for these operators, and all of a pause that has little else in it: the
      Python between them prepares the same data. Large copies from pageable memory go as well, and the time
      in which such memory is given back: workers hand over pinned memory, and what is computed on the GPU is
      copied before it becomes larger. The host then launches the next step while the GPU works on this one.
    - at least: seven tenths of that without copies, because each still has to be launched, or its result to
      be fetched.
    """
    found = computed_on_host(step_ops)
    found += partly_computed_on_host(step_ops, found, cpu_pauses, mean_step)
    starved = mean_step.per_step(sum(row.starved_ns for row in found))
    around = around_computing(cpu_pauses, found, mean_step)
    if mean_step.device is None or not found or mean_step.share(COMPUTED_SURELY * starved) < least_share:
        return None
    rows = sorted(found, key=lambda row: (-row.starved_ns, str(row.name)))
    copied = mean_step.per_step(
        sum(row.exposed_ns for row in moving(copies, "HtoD", "pageable") if large(row))
    )
    freeing = mean_step.per_step(sum(row.freeing_ns for row in cpu_pauses if row.device == mean_step.device))
    return Advice(
        title="The GPU waits for operators on the CPU",
        because=f"The GPU waits {units.duration(starved)} of a step "
        f"({units.share(mean_step.share(starved))}) for operators that compute on the CPU: "
        f"{', '.join(_told(row, mean_step) for row in rows[:3])}."
        + if_idle(around, "It waits {} for the Python between them.")
        + if_idle(copied, "Copies of data from pageable memory take {}.")
        + if_idle(freeing, "After them it waits {}: large memory of the CPU is given back."),
        saving=_saving(mean_step, starved, around, freeing, copied),
        certainty="likely",
        fix=_FIX,
        check="stepscope show step_ops: these operators launch work, or are gone.",
        evidence={
            "starved_ns": round(starved),
            "starved_share": mean_step.share(starved),
            "around_ns": round(around),
            "copied_ns": round(copied),
            "freeing_ns": round(freeing),
            "calls_per_step": sum(row.per_step for row in rows),
        },
        claims=frozenset({Claim(Time.STARVED, Part.PYTHON)}),
        locations=locations_of(
            (row.user_frame, f"the GPU waits {units.duration(mean_step.per_step(row.starved_ns))} a step")
            for row in rows
        ),
    )


def _saving(mean_step: MeanStep, starved: float, around: float, freeing: float, copied: float) -> Saving:
    """What operators, the Python around them, memory that is given back and copies take of a step."""
    computing = min(starved, mean_step.starved_ns)
    between = min(around, mean_step.starved_ns - computing)
    # Recording adds microseconds to an operator: these are too long to be stretched by it.
    saving = Saving(
        starved_ns=(COMPUTED_SURELY * between, between),
        waited_ns=(COMPUTED_SURELY * computing, computing + freeing + copied),
    )
    return run_ahead(mean_step, saving, computing + between + freeing, copied)


def _told(row: StepOp, mean_step: MeanStep) -> str:
    waits = units.duration(mean_step.per_step(row.starved_ns))
    return f"{row.name} ({waits}, {often(row.per_step, 'call')})"
