"""What kinds of work the devices did."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._device_time import STEPS, Spent, spent_by_group, step_windows
from stepscope.analyses._work_families import WORK, WORK_READS, family_of_group, work_groups
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["KernelFamily", "kernel_families"]


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """All device work of one kind inside the steps."""

    family: Annotated[
        str,
        "matmul, attention, convolution, normalisation, elementwise, reduction, copy (and fills, changes of "
        "layout), indexing (gather, scatter, sort), optimizer, communication, other.",
    ]
    kernels: Annotated[int, "How many different kernels, copies and fills it has, by name."]
    calls: Annotated[int, "How often they ran inside the steps."]
    total_ns: Annotated[int, "Their summed time inside the steps, over all devices and streams."]
    exclusive_ns: Annotated[int, "The same with what ran at once on a device sharing the time."]
    share: Annotated[float | None, "Share of the time in which anything ran; all families sum to 1."]
    longest: Annotated[str | None, "The kernel with the most time in it."]


_TIMES = f"SELECT device_name, start_ns, coalesce(dur_ns, 0) AS dur_ns, grouped FROM ({WORK})"


@analysis(
    reads={
        "device_work": (*WORK_READS["device_work"], "device_name", "start_ns", "dur_ns"),
        "ops": WORK_READS["ops"],
        "steps": STEPS,
    }
)
def kernel_families(trace: Trace) -> Table[KernelFamily]:
    """Sums up device work inside the steps by kind: matmul, attention, elementwise, copies, and so on.

    The kind follows from the name of a kernel, or else from the operator that launched it.
    """
    windows = step_windows(trace)
    groups = work_groups(trace)
    numbers = {group["grouped"]: number for number, group in enumerate(groups)}
    by_family: dict[str, dict[str | None, list[Spent]]] = defaultdict(lambda: defaultdict(list))
    for group, spent in zip(groups, spent_by_group(trace, _TIMES, numbers, windows), strict=True):
        if spent.calls:
            by_family[family_of_group(group)][group["name"]].append(spent)
    busy = sum(one.exclusive_ns for names in by_family.values() for parts in names.values() for one in parts)
    rows = [_row(family, names, busy) for family, names in by_family.items()]
    notes = windows.notes
    if not groups:
        notes = ("No device work in the profile: record with ProfilerActivity.CUDA.",)
    elif not rows:
        notes = (*notes, "No device work inside the steps.")
    return Table.of(KernelFamily, sorted(rows, key=lambda row: (-row.exclusive_ns, row.family)), notes)


def _row(family: str, names: dict[str | None, list[Spent]], busy_ns: int) -> KernelFamily:
    parts = [one for spent in names.values() for one in spent]
    times = {name: sum(one.total_ns for one in spent) for name, spent in names.items()}
    exclusive = sum(one.exclusive_ns for one in parts)
    return KernelFamily(
        family=family,
        kernels=len(names),
        calls=sum(one.calls for one in parts),
        total_ns=sum(one.total_ns for one in parts),
        exclusive_ns=exclusive,
        share=exclusive / busy_ns if busy_ns else None,
        longest=max(times, key=lambda name: (times[name], name or "")),
    )
