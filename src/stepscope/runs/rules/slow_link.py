"""Transfers that are far slower than the link between their devices."""

from __future__ import annotations

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.runs.analyses.collectives import Collective
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._late import WAITING
from stepscope.runs.simulation import RankChange
from stepscope.tables import Table

__all__ = ["slow_link"]

_LARGE = 4 << 20
"""Of smaller messages latency is most of the time."""
_REACHED = 0.6
"""What NCCL reaches of a link at least for large messages: 60 to 90 %."""
_FIX = """\
NCCL_DEBUG=INFO torchrun … train.py 2>&1 | grep ' via '    # P2P and NET/IB are right; SHM and Socket are slow
nvidia-smi topo -m    # NV… between all GPUs of a machine, not PIX, PHB or SYS
NCCL_SOCKET_IFNAME=… NCCL_IB_HCA=…    # between machines: the fast network; all_reduce_perf measures it"""


@rule(category=Category.COMMUNICATION)
def slow_link(
    run_step: RunMeanStep,
    collectives_by_size: Table[Collective],
    *,
    most_link_share: float = 0.3,
    far_slower: float = 3.0,
    least_share: float = 0.03,
) -> Advice | None:
    """Large transfers use a small part of what the link can do, though all ranks have arrived.

    The peak is known for NVLink, xGMI and PCIe within one machine. Else a group whose transfers are
    `far_slower` than those of another group with the same kind and size is told.

    Gain: all ranks are played together with faster transfers.

    - at most: as fast as the whole link, or as the fastest such group.
    - at least: nothing. Whether another path exists, the machine has to say.
    """
    sized = [
        row
        for row in collectives_by_size
        if row.bytes and row.bytes / row.calls >= _LARGE and row.transfer_ns
    ]
    found = max(
        (one for row in sized if (one := _slow(row, sized, most_link_share, far_slower))),
        key=lambda one: one[0].transfer_ns * (1 - one[1]),
        default=None,
    )
    if found is None:
        return None
    row, left, against = found
    part = row.transfer_ns / max(1, sum(one.transfer_ns for one in collectives_by_size))
    whole = run_step.saving([RankChange(None, "transfer", left)]).waited_ns[1]
    most = min(whole, run_step.per_step(row.transfer_ns * (1 - left))) * min(1.0, 1.2 * part)
    if run_step.share(most) < least_share:
        return None
    return Advice(
        title=f"{_capital(row.kind or 'collective')}s are far slower than the link",
        because=f"{units.counted(row.calls, row.kind or 'collective')} of "
        f"{units.size((row.bytes or 0) / row.calls)} in {row.group or 'a group'} take "
        f"{units.duration(row.transfer_ns / row.calls)} each after the last rank has arrived"
        + (f": {units.rate(row.bus_gb_per_s * 1e9, 1e9)} bus bandwidth, " if row.bus_gb_per_s else ": ")
        + f"{against}.",
        saving=Saving(waited_ns=(0.0, most)),
        certainty="likely",
        fix=fix_of(line(Change.LINKS, _FIX)),
        check="stepscope show collectives RUN --by size: bus_gb_per_s rises to half of the link's or more.",
        evidence={
            "collective": row.kind,
            "group": row.group,
            "group_ranks": row.group_ranks,
            "collective_bytes": (row.bytes or 0) / row.calls,
            "transfer_ns": row.transfer_ns / row.calls,
            "bus_gb_per_s": row.bus_gb_per_s,
            "link_share": row.link_share,
        },
        claims=WAITING,
    )


def _slow(
    row: Collective, others: list[Collective], most_share: float, far_slower: float
) -> tuple[Collective, float, str] | None:
    """A row with what is left of its time on a good link, and what it is compared with."""
    if row.link_share is not None:
        if row.link_share > most_share:
            return None
        return row, row.link_share, f"{units.share(row.link_share)} of what the link can do"
    like = [
        one
        for one in others
        if one.kind == row.kind
        and one.bus_gb_per_s
        and row.bus_gb_per_s
        and one.ranks == row.ranks
        and (one.bytes or 0) / one.calls <= 2 * (row.bytes or 0) / row.calls
    ]
    best = max(like, key=lambda one: one.bus_gb_per_s or 0.0, default=None)
    if best is None or not best.bus_gb_per_s or not row.bus_gb_per_s:
        return None
    if best.bus_gb_per_s < far_slower * row.bus_gb_per_s:
        return None
    said = f"where {best.group or 'another group'} reaches {units.rate(best.bus_gb_per_s * 1e9, 1e9)}"
    return row, row.bus_gb_per_s / best.bus_gb_per_s, said


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
