"""Which collectives one rank took part in, what they moved, and how fast."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._collectives import (
    COLLECTIVE_NAMES,
    COLLECTIVE_READS,
    GROUPED,
    INSIDE,
    KERNELS,
    MARKED_RANGES,
    RANGES,
    TOLD,
    first_type,
)
from stepscope.analyses._device_time import NUMBERED, STEPS, spent_by_group, step_windows
from stepscope.costs.collectives import Collective, bus_factor, collective_of
from stepscope.hardware import Link, recognised
from stepscope.records import dataclass
from stepscope.schema import COMMUNICATION_RANGE
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CollectiveKind", "collective_kinds"]


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """The collectives of one kind, process group, data type and class of size that began inside the steps."""

    rank: Annotated[int, "Rank that recorded the profile."]
    kind: Annotated[
        str,
        "all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, gather, scatter, barrier, "
        "send-receive; or unknown.",
    ]
    backend: Annotated[
        str, "device (kernels, as of NCCL and RCCL), or where the host does it: gloo, mpi, ucc."
    ]
    group: Annotated[str | None, "Name of the process group; NULL if not recorded."]
    group_size: Annotated[
        int | None, "Ranks in the group; if not recorded, all ranks, as long as they fit on one machine."
    ]
    one_machine: Annotated[bool | None, "Whether all of them are on one machine; NULL if unknown."]
    dtype: Annotated[str | None, "Data type of the elements: fp32, bf16, …"]
    least_bytes: Annotated[int | None, "Class of size: from this power of two to the next; NULL if unknown."]
    calls: Annotated[int, "How many began inside the steps."]
    bytes: Annotated[
        int | None, "Their summed size, of the larger side of each: what an all-gather receives."
    ]
    total_ns: Annotated[int, "Their summed time on this rank, with the wait for others."]
    exposed_ns: Annotated[
        int, "The part of it in which no other kernel ran on the device; for the host's, all of it."
    ]
    min_ns: Annotated[int, "Shortest."]
    median_ns: Annotated[int, "Median."]
    algorithm_gb_per_s: Annotated[float | None, "Bytes over time."]
    bus_gb_per_s: Annotated[
        float | None,
        "Bus bandwidth, as nccl-tests compute it: the same times 2(n-1)/n for all-reduce, (n-1)/n for "
        "all-gather, reduce-scatter and all-to-all, 1 for others.",
    ]
    best_bus_gb_per_s: Annotated[
        float | None, "That of the fastest: the others waited longer for late ranks, or for the link."
    ]
    link: Annotated[str | None, "What connects the devices: NVLink, xGMI, PCIe; NULL if unknown."]
    link_gb_per_s: Annotated[float | None, "Its peak in one direction, for a group of that size."]
    link_share: Annotated[float | None, "Bus bandwidth as a share of that peak."]
    kernel: Annotated[str | None, "Name of the kernel, or of the range of the host; of most of them."]
    op: Annotated[str | None, "Operator that asked for it; of most of them."]


_GROUPS = f"""
    SELECT {GROUPED} AS grouped, count(*) AS calls,
           {", ".join(f"any_value({name}) AS {name}" for name in TOLD)}
    FROM ({{sql}}) GROUP BY grouped ORDER BY grouped
"""
_FIGURES = f"""
    SELECT n.number, count(*) AS calls, sum(dur_ns)::BIGINT AS total_ns, min(dur_ns) AS min_ns,
           median(dur_ns)::BIGINT AS median_ns, sum(size)::BIGINT AS bytes,
           (sum(dur_ns) FILTER (size IS NOT NULL))::BIGINT AS sized_ns,
           max(size / nullif(dur_ns, 0)) AS best
    FROM (SELECT {GROUPED} AS grouped, dur_ns FROM ({{sql}}))
    JOIN {NUMBERED} n USING (grouped)
    JOIN (SELECT unnest($groups::VARCHAR[]) AS grouped, unnest($sizes::BIGINT[]) AS size) USING (grouped)
    GROUP BY n.number ORDER BY n.number
"""
_KERNELS = INSIDE.format(sql=KERNELS)
_HOST = INSIDE.format(sql=RANGES.format(ranges=MARKED_RANGES))
# The time in which another kernel runs beside a collective is not exposed.
_TIMES = f"""
    SELECT device_name, start_ns, dur_ns, {GROUPED} AS grouped FROM ({_KERNELS})
    UNION ALL
    SELECT device_name, start_ns, coalesce(dur_ns, 0), NULL FROM device_work
    WHERE kind = 'kernel' AND NOT communicates
"""


@analysis(reads={**COLLECTIVE_READS, "steps": STEPS})
def collective_kinds(trace: Trace) -> Table[CollectiveKind]:
    """Sums up the collectives of one rank by kind, group, data type and size: bytes, time, bus bandwidth.

    The time on one rank includes the wait for others, so that its rates are those of the link at least.
    """
    windows = step_windows(trace)
    found: list[CollectiveKind] = []
    if trace.has("device_work") and trace.may_have_name(COLLECTIVE_NAMES):
        found = _of(trace, _KERNELS)
    if trace.may_have_name(COMMUNICATION_RANGE):
        found += _of(trace, _HOST)
    notes = list(windows.notes)
    if not found:
        notes.append("No collectives began inside the steps.")
    if any(row.bytes is None for row in found):
        notes.append(
            "The sizes of some collectives are unknown: newer versions of torch record them, older ones with "
            "record_shapes=True, and none for what a graph replays."
        )
    return Table.of(CollectiveKind, sorted(found, key=_order), notes)


def _order(row: CollectiveKind) -> tuple[Any, ...]:
    return -row.total_ns, row.kind, str(row.group), str(row.dtype), row.least_bytes or 0


def _of(trace: Trace, sql: str) -> list[CollectiveKind]:
    machine = _Machine.of(trace)
    by_row: dict[tuple[Any, ...], list[tuple[dict[str, Any], Collective]]] = defaultdict(list)
    for told in trace.rows(_GROUPS.format(sql=sql)):
        seen = {**told, "group": told["group_name"], "type": first_type(told["types"])}
        if seen["group_size"] is None:
            seen["group_size"] = machine.all_ranks
        one = collective_of(seen)
        key = (one.kind, told["backend"], one.group, one.group_size, one.ranks, one.dtype, _class(one.bytes))
        by_row[key].append((told, one))
    numbers = {told["grouped"]: place for place, parts in enumerate(by_row.values()) for told, _ in parts}
    sizes = [one.bytes for parts in by_row.values() for _, one in parts]
    params = {"groups": list(numbers), "numbers": list(numbers.values()), "sizes": sizes}
    figures = trace.rows(_FIGURES.format(sql=sql), **params)
    exposed = [row["total_ns"] for row in figures]
    if sql is _KERNELS:
        spent = spent_by_group(trace, _TIMES, numbers, step_windows(trace))
        exposed = [max(0, one.total_ns - one.covered_ns) for one in spent]
    return [
        _row(trace.rank, parts, figure, exposed_ns, machine)
        for parts, figure, exposed_ns in zip(by_row.values(), figures, exposed, strict=True)
    ]


def _row(
    rank: int,
    parts: list[tuple[dict[str, Any], Collective]],
    figures: dict[str, Any],
    exposed_ns: int,
    machine: _Machine,
) -> CollectiveKind:
    most, one = max(parts, key=lambda part: part[0]["calls"])
    together = machine.holds(one)
    link = machine.link if together and one.group_size and most["backend"] == "device" else None
    peak = link.peak(one.group_size) / 1e9 if link and one.group_size else None
    factor = bus_factor(one.kind, one.group_size)
    rate = figures["bytes"] / figures["sized_ns"] if figures["sized_ns"] else None
    bus = rate * factor if rate is not None and factor is not None else None
    best = figures["best"]
    return CollectiveKind(
        rank=rank,
        kind=one.kind,
        backend=most["backend"],
        group=one.group,
        group_size=one.group_size,
        one_machine=together,
        dtype=one.dtype,
        least_bytes=_class(one.bytes),
        calls=figures["calls"],
        bytes=figures["bytes"],
        total_ns=figures["total_ns"],
        exposed_ns=exposed_ns,
        min_ns=figures["min_ns"],
        median_ns=figures["median_ns"],
        algorithm_gb_per_s=rate,
        bus_gb_per_s=bus,
        best_bus_gb_per_s=best * factor if best is not None and factor is not None else None,
        link=link.name if link else None,
        link_gb_per_s=peak,
        link_share=bus / peak if bus is not None and peak else None,
        kernel=most["kernel"],
        op=most["op"],
    )


def _class(n_bytes: int | None) -> int | None:
    return 1 << (n_bytes.bit_length() - 1) if n_bytes else None


@dataclass(frozen=True, slots=True)
class _Machine:
    """What a profile says about the machine of its rank, and about the other ranks."""

    devices: int
    """How many the process sees; 1 may be a choice (CUDA_VISIBLE_DEVICES)."""
    world_size: int | None
    link: Link | None

    @classmethod
    def of(cls, trace: Trace) -> _Machine:
        told = trace.meta.metadata
        listed = told.get("deviceProperties")
        devices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        group = told.get("distributedInfo")
        world = group.get("world_size") if isinstance(group, dict) else None
        links = [_link(one) for one in devices]
        alike = links[0] if links and all(link == links[0] for link in links) else None
        return cls(len(devices), world if isinstance(world, int) and world > 0 else None, alike)

    @property
    def all_ranks(self) -> int | None:
        """The number of all ranks, if they fit on this machine: then hardly any group is another."""
        fits = self.world_size is not None and self.world_size <= max(self.devices, 1)
        return self.world_size if fits else None

    def holds(self, one: Collective) -> bool | None:
        """Whether all ranks of a group are on one machine, if launchers number them machine by machine."""
        if self.devices < 2 or one.group_size is None:
            return None
        if one.ranks and len(one.ranks) == one.group_size:
            return len({rank // self.devices for rank in one.ranks}) == 1
        if one.group_size > self.devices:
            return False
        return True if self.world_size is not None and self.world_size <= self.devices else None


def _link(device: dict[str, Any]) -> Link | None:
    name = str(device.get("name") or "")
    units, memory = device.get("numSms"), device.get("totalGlobalMem")
    known, _ = recognised(
        name,
        units=units if isinstance(units, int) else None,
        memory_bytes=memory if isinstance(memory, int) and memory > 0 else None,
    )
    return known.link_of(name) if known else None
