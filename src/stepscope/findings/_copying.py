"""What the rules about copies share: which copies count, and how fast they could be."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.findings.facts import DeviceFacts
from stepscope.records import dataclass

__all__ = [
    "LARGE_BYTES",
    "MANY_COPIES",
    "Bus",
    "Trips",
    "bus_of",
    "large",
    "moving",
    "starved_by",
    "trips_of",
]

LARGE_BYTES = 1 << 16
"""A smaller copy costs its call rather than its bytes: drivers stage it without waiting."""
_SLOW_BYTES_PER_NS = 10
_LIKE = 0.5
"""Bytes there and back match if the smaller number is at least this part of the larger."""
_EQUAL = 0.99
_STEADY_BYTES = 1 << 20
"""From this size on, a copy shows the rate of the bus and not its latency."""

# What copies from pinned memory reach on PCIe 5, 4 and 3 with 16 lanes, and half of it: the slot or the host
# may be of the generation before. By compute capability, newest first.
_RATES = (((9, 0), 25.0, 55.0), ((8, 0), 12.0, 25.0), ((0, 0), 6.0, 12.0))


@dataclass(frozen=True, slots=True)
class Bus:
    """What copies from pinned memory reach, in GB/s: at least and at most."""

    slow: float
    fast: float
    measured: bool
    """Whether it was measured in this trace."""

    def times(self, n_bytes: float) -> tuple[float, float]:
        """How long this many bytes take, in ns: at least and at most."""
        return n_bytes / self.fast, n_bytes / self.slow

    def __str__(self) -> str:
        if self.measured:
            return f"{self.fast:.0f} GB/s in this trace"
        return f"{self.slow:.0f} to {self.fast:.0f} GB/s on the bus of such a GPU"


def bus_of(copies: Iterable[Copy], device: DeviceFacts | None) -> Bus:
    """The rate of large pinned copies in the trace, or else the usual one of the GPU's generation."""
    for row in copies:
        steady = row.bytes is not None and row.calls and row.bytes / row.calls >= _STEADY_BYTES
        if row.direction == "HtoD" and row.host_memory == "pinned" and steady and row.gb_per_s:
            return Bus(0.9 * row.gb_per_s, row.gb_per_s, measured=True)
    if device is None or device.capability is None:
        return Bus(_RATES[1][1], _RATES[0][2], measured=False)
    return next(Bus(slow, fast, measured=False) for since, slow, fast in _RATES if device.capability >= since)


def moving(copies: Iterable[Copy], direction: str, host_memory: str | None = None) -> list[Copy]:
    """Copies in one direction, and, if given, of one kind of host memory."""
    return [
        row
        for row in copies
        if row.direction == direction and (host_memory is None or row.host_memory == host_memory)
    ]


MANY_COPIES = 16
"""In a step: if they are small, their calls cost more than their bytes."""


def large(row: Copy) -> bool:
    """Whether its copies cost their bytes rather than their calls; without sizes, their time decides."""
    if row.bytes is None:
        return row.total_ns >= row.calls * LARGE_BYTES / _SLOW_BYTES_PER_NS
    return row.bytes >= row.calls * LARGE_BYTES


@dataclass(frozen=True, slots=True)
class Trips:
    """Large copies to the host and matching ones back, in all steps."""

    trips: int
    out_bytes: int
    back_bytes: int
    exposed_ns: float
    """The time of both while no kernel ran."""
    sure: bool
    """Whether there are several in a step; a single one may be an input and a result of the same size."""


def trips_of(copies: Iterable[Copy], steps: int) -> Trips | None:
    """Large pageable copies out and as many bytes back; copies of pinned memory are on purpose."""
    rows = [row for row in copies if row.host_memory == "pageable" and row.bytes is not None and large(row)]
    out, back = moving(rows, "DtoH"), moving(rows, "HtoD")
    out_bytes, back_bytes = (sum(row.bytes or 0 for row in part) for part in (out, back))
    trips = min(sum(row.calls for row in part) for part in (out, back))
    if not trips or trips < steps:
        return None
    sure = trips >= 2 * steps
    if min(out_bytes, back_bytes) / max(out_bytes, back_bytes) < (_LIKE if sure else _EQUAL):
        return None
    returned = min(1.0, out_bytes / back_bytes)
    exposed = sum(row.exposed_ns for row in out) + returned * sum(row.exposed_ns for row in back)
    return Trips(trips, out_bytes, back_bytes, exposed, sure)


def starved_by(host_syncs: Iterable[HostSync]) -> int:
    """How long GPUs were idle in all steps after waits for copies, without reads of scalars."""
    return sum(row.starved_ns for row in host_syncs if row.op == "aten::copy_")
