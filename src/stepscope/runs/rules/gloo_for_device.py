"""Tensors of devices that go through the host, though their own library could send them."""

from __future__ import annotations

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._phrases import often
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.runs.analyses.collective_ranks import CollectiveRank
from stepscope.runs.analyses.collectives import Collective
from stepscope.runs.mean_step import RunFacts, RunMeanStep
from stepscope.runs.rules._exposed import exposed_kinds
from stepscope.runs.rules._late import WAITING
from stepscope.runs.simulation import RankChange
from stepscope.tables import Table

__all__ = ["gloo_for_device"]

_FIX = """\
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")    # or "cpu:gloo,cuda:nccl" if CPU tensors are sent, too"""
_LEAST_BYTES = 64 << 10
"""Smaller ones are counters and flags, for which the host is right."""


@rule(category=Category.COMMUNICATION)
def gloo_for_device(
    run_step: RunMeanStep,
    run_facts: RunFacts,
    collective_ranks: Table[CollectiveRank],
    collectives: Table[Collective],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """The ranks have accelerators, but gloo on the host carries their collectives.

    Gain: all ranks are played together.

    - at most: gloo's transfers take no time, and no more than what is exposed of them.
    - at least: three quarters of that on one machine, for NCCL is many times faster there. Nothing between
      machines, where NCCL has to use the same network, or if the size is not known.
    """
    if not run_facts.devices:
        return None
    kinds = [one for one in exposed_kinds(run_step, collective_ranks, collectives) if one.backend == "gloo"]
    kinds = [one for one in kinds if one.bytes is None or one.bytes >= _LEAST_BYTES]
    exposed = sum(one.exposed_ns for one in kinds)
    if run_step.share(exposed) < least_share:
        return None
    main = kinds[0]
    most = run_step.saving([RankChange(None, "transfer")], exposed).waited_ns[1]
    sure = len(run_facts.hosts) == 1 and main.bytes is not None
    return Advice(
        title="Tensors of GPUs are sent through the host (gloo)",
        because=f"{often(main.calls, main.kind)} of gloo: after the last rank has arrived, a rank does "
        f"nothing but transfer for {units.duration(exposed)} of a step "
        f"({units.share(run_step.share(exposed))}). The ranks have {run_facts.devices[0]}, "
        "between which NCCL sends directly.",
        saving=Saving(waited_ns=(0.75 * most if sure else 0.0, most)),
        certainty="likely",
        fix=fix_of(line(Change.BACKEND, _FIX)),
        check="stepscope show collectives RUN --by kind: backend is device.",
        evidence={
            "collective": main.kind,
            "collectives_per_step": main.calls,
            "collective_bytes": main.bytes,
            "exposed_transfer_ns": round(exposed),
            "hosts": len(run_facts.hosts),
        },
        claims=WAITING,
    )
