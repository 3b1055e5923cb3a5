"""One process that drives several devices."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.copies import Copy
from stepscope.analyses.devices import Device
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["data_parallel"]

# torch.nn.DataParallel marks its forward, and its autograd functions are recorded as operators.
_RANGE = "DataParallel.forward"
_FUNCTIONS = ("Broadcast", "Scatter", "Gather", "ReduceAddCoalesced")
_REPLICATE = ("Broadcast", "BroadcastBackward", "ReduceAddCoalesced")
_FIX = """\
torchrun --nproc-per-node {devices} train.py
dist.init_process_group("nccl")
model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
loader = DataLoader(dataset, sampler=DistributedSampler(dataset), batch_size=batch_size // {devices})"""


@rule(category=Category.COMMUNICATION)
def data_parallel(
    mean_step: MeanStep,
    devices: Table[Device],
    annotations: Table[Annotation],
    step_ops: Table[StepOp],
    copies: Table[Copy],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """One process drives several GPUs by torch.nn.DataParallel.

    Gain: with a process for each of n devices every host prepares one device's work in place of n, so at the
    most the part 1 − 1/n of the device's waiting for the host goes; at the least nothing of it, since the
    threads of DataParallel may overlap. Weights are no longer copied to all devices in every forward pass,
    but gradients are still summed: half of the exposed copies between devices goes at the least, all at most.
    """
    busy = sorted({row.device for row in devices if row.busy_ns > 0})
    ranges = sum(row.calls for row in annotations if row.name == _RANGE)
    functions = [row for row in step_ops if row.name in _FUNCTIONS]
    if len(busy) < 2 or not (ranges or len({row.name for row in functions}) > 1):
        return None
    peers = sum(row.exposed_ns for row in copies if row.direction == "PtoP") / len(busy)
    exposed = max(row.exposed_communication_ns for row in devices)
    moved = min(mean_step.per_step(peers + exposed), mean_step.busy_ns)
    starved = mean_step.starved_ns * (1 - 1 / len(busy))
    if mean_step.share(starved + moved) < least_share:
        return None
    replicating = mean_step.per_step(sum(row.host_ns for row in step_ops if row.name in _REPLICATE))
    return Advice(
        title=f"One process drives {len(busy)} GPUs (nn.DataParallel)",
        because=f"{len(busy)} GPUs work for one process. In each forward pass it copied the weights "
        f"to all ({units.duration(replicating)} of the host a step, {units.duration(moved)} of a GPU), "
        f"and the GPU with most work waited {units.duration(mean_step.starved_ns)} of a step for the host.",
        saving=Saving(starved_ns=(0.0, starved), device_ns=(0.5 * moved, moved)),
        certainty="certain" if ranges else "likely",
        fix=_FIX.format(devices=len(busy)),
        check="stepscope show devices on the profile of one rank: one device, and more of it busy.",
        evidence={
            "devices": len(busy),
            "data_parallel_forwards_per_step": mean_step.per_step(ranges),
            "between_devices_ns": round(moved),
            "replicating_host_ns": round(replicating),
            "starved_ns": round(mean_step.starved_ns),
        },
        claims=frozenset({Claim(Time.STARVED), Claim(Time.WAITED, Part.COMMUNICATION)}),
        locations=locations_of((row.user_frame, f"{row.name}") for row in functions),
    )
