"""Collectives of device tensors that go through the host."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.breakdowns import Breakdown
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._communication import exposed_of, kind_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["gloo_backend"]

_FIX = """\
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")    # or "cpu:gloo,cuda:nccl" where CPU tensors are sent too"""

_MACHINE = 8
"""Ranks that are taken to be on one machine."""


@rule(category=Category.COMMUNICATION)
def gloo_backend(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    breakdowns: Table[Breakdown],
    kernel_families: Table[KernelFamily],
    annotations: Table[Annotation],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Tensors of the device are reduced on the host: the process group is gloo's.

    Gain: gloo copies tensors to the host, sends and sums them there, and copies them back. NCCL moves the
    same bytes from device to device, at the rate of those copies or faster, so it leaves no more than the
    copies' own time, there and back. At the most all host collectives go but that. At the least three
    quarters of it where all ranks are on one machine: ranks are alike, so little of it is waiting for peers.
    Between machines nothing at the least: NCCL has to use the same network.
    """
    exposed = exposed_of(breakdowns, kernel_families, mean_step)
    ranges = [row for row in annotations if row.name and row.name.startswith("gloo:")]
    if not facts.device_work or not ranges or mean_step.share(exposed.host_ns) < least_share:
        return None
    called = [row for row in step_ops if kind_of(row.name)]
    copied = mean_step.per_step(sum(row.device_ns for row in called))
    if (called and not copied) or (facts.backend != "gloo" and exposed.device_ns):
        return None  # tensors of the host, for which gloo is right
    high = max(0.0, exposed.host_ns - 2 * copied)
    calls = mean_step.per_step(sum(row.calls for row in ranges))
    return Advice(
        title="Tensors of the GPU are reduced on the host (gloo)",
        because=f"The host's collectives ran {units.duration(exposed.host_ns)} of a step "
        f"({units.share(mean_step.share(exposed.host_ns))}) while the GPU did nothing: {units.tally(calls)} of "
        f"{ranges[0].name} a step. Copying their tensors to the host took {units.duration(copied)} of it.",
        saving=Saving(waited_ns=(0.75 * high if _one_machine(facts) else 0.0, high)),
        certainty="likely",
        fix=_FIX,
        check="stepscope show kernels: kernels named nccl… in place of ranges gloo:…, and communication_ns "
        "of stepscope show steps falls.",
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
