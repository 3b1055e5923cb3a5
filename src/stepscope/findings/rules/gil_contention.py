"""Threads wait for Python's lock."""

from __future__ import annotations

from collections import defaultdict

from stepscope import units
from stepscope.analyses.cpu_parts import CpuPart
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._phrases import times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.tables import Table

__all__ = ["gil_contention"]

_FIX = """\
DataLoader(..., num_workers=8)                  # work in processes of its own, not in threads
torch.set_num_interop_threads(1)                # or fewer threads that run Python
with ThreadPoolExecutor(2) as pool: ...         # a pool of many threads only passes the lock around"""


@rule(category=Category.HOST)
def gil_contention(
    cpu_parts: Table[CpuPart], *, least_share: float = 0.10, least_samples: int = 100
) -> Advice | None:
    """Threads wait for the GIL, which only one thread of a Python process holds at a time.

    Gain: not known, because samples are not placed in steps. A thread that waits for the lock does nothing
    else; whether a step waits for that thread, a profile says.
    """
    waits: defaultdict[tuple[int | None, int | None, str | None], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in cpu_parts:
        figures = waits[row.process, row.thread, row.command]
        figures[0] += row.samples if row.part == "gil" else 0
        figures[1] += row.samples
        figures[2] = max(figures[2], row.ops)
    waiting = {
        key: (gil, every, ops)
        for key, (gil, every, ops) in waits.items()
        if every >= least_samples and gil >= least_share * every
    }
    if not waiting:
        return None
    (_, thread, command), (gil, every, ops) = max(waiting.items(), key=lambda one: one[1][0])
    name = f"Thread {thread}" if thread is not None else f"{command or 'The program'}"
    main = ", which runs operators of the profile," if ops else ""
    said = f"{name}{main} waits for the GIL in {units.percent(gil / every)} of its {times(every, 'sample')}"
    others = len(waiting) - 1
    return Advice(
        title="Threads wait for Python's lock (GIL)",
        because=said + (f"; {times(others, 'other thread')} do the same." if others else "."),
        saving=Saving(),
        certainty="likely",
        fix=_FIX,
        check="stepscope show cpu_parts on new samples: the part gil is below a tenth.",
        evidence={
            "threads_waiting": len(waiting),
            "gil_samples": sum(one[0] for one in waiting.values()),
            "samples": sum(one[1] for one in waiting.values()),
        },
        claims=frozenset({Claim(Time.STARVED, Part.PYTHON)}),
    )
