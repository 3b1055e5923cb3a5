"""Changes under which steps can be simulated; those with a name are listed once, here.

`stepscope whatif` has a flag for each named change, the tables `changed_steps` and `simulated_steps` take
them as `--by`, and rules ask for `changed_steps_by_NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from math import prod
from typing import Literal

from stepscope.records import dataclass

__all__ = [
    "CHANGES",
    "PACE_SETTERS",
    "UNCHANGED",
    "Change",
    "ChangeName",
    "NamedChange",
    "PaceSetter",
    "WorkKind",
    "combined",
]


class WorkKind(StrEnum):
    """Kinds of device work that a change can make shorter."""

    COMPUTE = "compute"
    COLLECTIVES = "collectives"
    COPIES_TO_DEVICE = "copies to the device"


@dataclass(frozen=True, slots=True)
class Change:
    """What is different in a simulation."""

    no_sync: tuple[str, ...] = ()
    """Patterns of calls, and of operators: these calls, and the calls of these operators, return without
    waiting for the device. A call outside of all operators belongs to one with an empty name."""
    graph: bool = False
    """Host work of a step costs nothing after its first launch, except waiting and loading."""
    no_loader: bool = False
    """The program never waits for the data loader."""
    overlap_copies: bool = False
    """Copies to the device run beside the work of their stream, and nothing waits for them."""
    kernels: tuple[tuple[str, float], ...] = ()
    """Patterns of names of device work, and how much of its duration it takes; the last match counts."""
    no_work: tuple[WorkKind, ...] = ()
    """Kinds of device work that take no time."""
    ranges: tuple[tuple[str, float], ...] = ()
    """The same for operators, runtime calls and ranges of the host, with everything in them; the innermost
    match counts."""
    host_times: float = 1.0
    """How much of its duration host work takes; if none, loading still takes all of it."""
    spared: float = 0.0
    """How much of the recording cost of an event, on a host of speed 1, is left out: 0 is as recorded."""


UNCHANGED = Change()

_HOST_COLLECTIVES = tuple(f"{backend}:*" for backend in ("gloo", "mpi", "ucc"))

PaceSetter = Literal["device", "host", "input", "communication", "waits"]

PACE_SETTERS: Mapping[PaceSetter, Change] = {
    "device": Change(no_work=(WorkKind.COMPUTE,)),
    "host": Change(host_times=0.0, ranges=tuple((pattern, 1.0) for pattern in _HOST_COLLECTIVES)),
    "input": Change(no_loader=True, no_work=(WorkKind.COPIES_TO_DEVICE,)),
    "communication": Change(
        no_work=(WorkKind.COLLECTIVES,),
        ranges=tuple((pattern, 0.0) for pattern in _HOST_COLLECTIVES),
    ),
    "waits": Change(no_sync=("*", "")),
}
"""What can set the pace of a step, and the change that makes it infinitely fast."""


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A change that users and rules ask for by name."""

    change: Change
    help: str


ChangeName = Literal[
    "no_sync", "no_explicit_sync", "no_reads", "graph", "no_loader", "overlap_copies", "no_driver_memory"
]

_ANY_OPERATOR = ("*", "")
_DRIVER_MEMORY = tuple(
    f"{driver}*{call}*" for driver in ("cu", "hip") for call in ("Malloc", "Alloc", "Free")
)
# .item(), float(t), int(t) and `if t:` on a device.
_READS = ("aten::item", "aten::_local_scalar_dense")

CHANGES: Mapping[ChangeName, NamedChange] = {
    "no_sync": NamedChange(
        Change(no_sync=_ANY_OPERATOR), "calls that wait for the device return at once, wherever they are made"
    ),
    "no_explicit_sync": NamedChange(
        Change(no_sync=("",)), "the same, only for calls made outside of operators: torch.cuda.synchronize()"
    ),
    "no_reads": NamedChange(
        Change(no_sync=_READS, ranges=tuple((pattern, 0.0) for pattern in _READS)),
        "no scalar is read from the device: no .item(), float(t) or `if t:`",
    ),
    "graph": NamedChange(
        Change(graph=True), "the host launches each step as one graph; waiting and data loading stay"
    ),
    "no_loader": NamedChange(Change(no_loader=True), "the program never waits for the data loader"),
    "overlap_copies": NamedChange(Change(overlap_copies=True), "copies to the device run beside compute"),
    "no_driver_memory": NamedChange(
        Change(no_sync=_DRIVER_MEMORY, ranges=tuple((pattern, 0.0) for pattern in _DRIVER_MEMORY)),
        "no memory is allocated from or returned to the driver",
    ),
}


def combined(changes: Iterable[Change]) -> Change:
    """Several changes at once."""
    every = list(changes)
    return Change(
        no_sync=tuple(pattern for one in every for pattern in one.no_sync),
        graph=any(one.graph for one in every),
        no_loader=any(one.no_loader for one in every),
        overlap_copies=any(one.overlap_copies for one in every),
        kernels=tuple(scaled for one in every for scaled in one.kernels),
        no_work=tuple(kind for one in every for kind in one.no_work),
        ranges=tuple(scaled for one in every for scaled in one.ranges),
        host_times=prod(one.host_times for one in every),
        spared=max((one.spared for one in every), default=0.0),
    )
