"""One process that drives several devices."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.copies import Copy
from stepscope.analyses.devices import Device
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["data_parallel"]

# torch.nn.DataParallel marks its forward, and its autograd functions are recorded as operators.
_RANGE = "DataParallel.forward"
_FUNCTIONS = ("Broadcast", "Scatter", "Gather", "ReduceAddCoalesced")
_REPLICATE = ("Broadcast", "BroadcastBackward", "ReduceAddCoalesced")
_FIX = """\
torchrun --nproc-per-node {devices} train.py    # one process for each GPU; in train.py:
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
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
    """One process drives several GPUs with torch.nn.DataParallel.

    Gain, with one process for each of n GPUs:

    - at most: 1 − 1/n of the time the GPU waits for the host, because each host prepares the work of one GPU
      instead of n; and all exposed copies between GPUs.
    - at least: half of the exposed copies, because weights are no longer copied, but gradients are still
      summed. Nothing of the waiting, because the threads of DataParallel may overlap already.
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
        because=f"One process drives {len(busy)} GPUs. Each forward pass copies the weights to all of them"
        + (f" ({units.duration(replicating)} of host time a step). " if replicating else ". ")
        + (f"Exposed copies between GPUs take {units.duration(moved)} of a step. " if moved else "")
        + f"The busiest GPU waits {units.duration(mean_step.starved_ns)} of a step for the host.",
        saving=Saving(starved_ns=(0.0, starved), device_ns=(0.5 * moved, moved)),
        certainty="certain" if ranges else "likely",
        fix=fix_of(line(Change.PROCESSES, _FIX.format(devices=len(busy)), devices=len(busy))),
        check="stepscope show devices, for the profile of one rank: one GPU, with a higher busy share.",
        evidence={
            "devices": len(busy),
            "data_parallel_forwards_per_step": mean_step.per_step(ranges),
            "between_devices_ns": round(moved),
            "replicating_host_ns": round(replicating),
            "starved_ns": round(mean_step.starved_ns),
        },
        claims=frozenset({Claim(Time.STARVED), Claim(Time.WAITED, Part.COMMUNICATION)}),
        locations=locations_of((row.user_frame, f"{row.name}", (row.name,)) for row in functions),
    )
