"""Collectives of GPU tensors that go through the host."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._communication import exposed_of, kind_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["gloo_backend"]

_FIX = """\
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")    # or "cpu:gloo,cuda:nccl" if CPU tensors are sent, too"""

_MACHINE = 8
"""Up to this many ranks are taken to be on one machine."""


@rule(category=Category.COMMUNICATION)
def gloo_backend(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    steps_by_any: Table[Step],
    kernel_families: Table[KernelFamily],
    annotations: Table[Annotation],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """GPU tensors are reduced on the host, because the process group uses gloo.

    Gain: gloo copies tensors to the host, sends and sums them there, and copies them back. NCCL moves the
    same bytes from GPU to GPU, at the rate of those copies or faster.

    - at most: the time of the host's collectives, less the time of the copies to the host and back.
    - at least: three quarters of that if all ranks are on one machine. Ranks are alike, so little of the
      time is waiting for others. Between machines nothing, because NCCL has to use the same network.
    """
    exposed = exposed_of(steps_by_any, kernel_families, mean_step)
    ranges = [row for row in annotations if row.name and row.name.startswith("gloo:")]
    if not facts.device_work or not ranges or mean_step.share(exposed.host_ns) < least_share:
        return None
    called = [row for row in step_ops if kind_of(row.name)]
    copied = mean_step.per_step(sum(row.device_ns for row in called))
    if (called and not copied) or (facts.backend != "gloo" and exposed.device_ns):
        return None  # CPU tensors, for which gloo is right
    high = max(0.0, exposed.host_ns - 2 * copied)
    calls = mean_step.per_step(sum(row.calls for row in ranges))
    return Advice(
        title="GPU tensors are reduced on the host (gloo)",
        because=f"Collectives run on the host for {units.duration(exposed.host_ns)} of a step "
        f"({units.share(mean_step.share(exposed.host_ns))}) while the GPU is idle: "
        f"{often(calls, 'collective')}, such as {ranges[0].name}."
        + (f" Copying their tensors to the host takes {units.duration(copied)} of that." if copied else ""),
        saving=Saving(waited_ns=(0.75 * high if _one_machine(facts) else 0.0, high)),
        certainty="likely",
        fix=fix_of(line(Change.BACKEND, _FIX)),
        check="stepscope show kernels: kernels named nccl…, and no ranges gloo:… in show annotations; in "
        "stepscope show steps communication_ns falls.",
        evidence={
            "host_collectives_ns": round(exposed.host_ns),
            "host_collectives_share": mean_step.share(exposed.host_ns),
            "copied_out_ns": round(copied),
            "collectives_per_step": calls,
            "backend": facts.backend,
            "world_size": facts.world_size,
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
    )


def _one_machine(facts: Facts) -> bool:
    return facts.world_size is not None and facts.world_size <= _MACHINE
