"""Which steps are measured and recorded: the same ones on every rank."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from stepscope.capture.ranks import process_group
from stepscope.capture.settings import Settings

__all__ = ["Agreement", "Plan", "Span", "has_settled", "plan_for", "shared_store"]

_AT_LEAST = 5
"""No step time has settled before so many steps."""
_ALIKE = 0.10
_MOST_STEPS, _MOST_SECONDS = 50, 60.0
"""After so many steps or seconds it is taken as it is."""
_WARM_NS, _WARM_STEPS = 500_000_000, 20
"""A GPU and what drives it are warm after so long, or so many steps."""
_MEASURED_NS, _MOST_MEASURED = 500_000_000, 25
"""Unprofiled steps are measured for about this long; twice as long on a GPU, whose programs are longer."""
_LONG_NS, _VERY_LONG_NS = 2_000_000_000, 30_000_000_000
WARM_UP = 1
"""Steps before each recording in which the profiler is attached and nothing is recorded."""
_STORE_KEY = "stepscope/plan"


@dataclass(frozen=True)
class Span:
    """Some steps in a row, by how many steps had ended before the first and after the last."""

    name: str
    first: int
    end: int
    warm_up: int = 0

    @property
    def start(self) -> int:
        """Where its warm-up begins."""
        return self.first - self.warm_up


@dataclass(frozen=True)
class Plan:
    """What happens in which steps."""

    start: int
    counts: dict[str, int]
    """How many steps each pass has, in their order."""
    note: str = ""
    is_shared: bool = False
    """Whether other ranks follow it, too: then it stays as it is."""

    def extended(self, name: str, steps: int) -> Plan:
        """The same with so many more steps in one of the passes."""
        return replace(self, counts={**self.counts, name: self.counts[name] + steps})

    @cached_property
    def spans(self) -> list[Span]:
        """The passes, one after the other."""
        found, at = [], self.start
        for name, steps in self.counts.items():
            warm_up = 0 if name == "unprofiled" else WARM_UP
            found.append(Span(name, at + warm_up, at + warm_up + steps, warm_up))
            at += warm_up + steps
        return found


def has_settled(steps_ns: Sequence[int], skip: int | None, *, on_gpu: bool = False) -> bool:
    """Whether the time of a step has settled, or is waited for no longer."""
    if skip is not None:
        return len(steps_ns) >= skip
    if on_gpu and sum(steps_ns) < _WARM_NS and len(steps_ns) < _WARM_STEPS:
        return False
    return len(steps_ns) >= _AT_LEAST and (_is_steady(steps_ns) or _is_long(steps_ns))


def _is_steady(steps_ns: Sequence[int]) -> bool:
    """Whether steps no longer get shorter, as they do while code is compiled and caches fill."""
    half = max(2, min(3, len(steps_ns) // 2))
    last, before = steps_ns[-half:], steps_ns[-2 * half : -half]
    return statistics.median(last) >= (1 - _ALIKE) * statistics.median(before)


def _is_long(steps_ns: Sequence[int]) -> bool:
    return len(steps_ns) >= _MOST_STEPS or sum(steps_ns) >= _MOST_SECONDS * 1e9


def plan_for(settings: Settings, start: int, steps_ns: Sequence[int], *, on_gpu: bool = False) -> Plan:
    """How many steps each pass takes, by the length of the last steps."""
    last = sorted(steps_ns[-5:]) or [0]
    step_ns = max(1, last[len(last) // 2])
    if step_ns >= _VERY_LONG_NS:
        counts = {"unprofiled": 3, "light": 1, "full": 1}
    elif step_ns >= _LONG_NS:
        counts = {"unprofiled": 5, "light": 2, "full": 1}
    else:
        longer = 2 if on_gpu else 1
        measured = min(max(math.ceil(longer * _MEASURED_NS / step_ns), 10), longer * _MOST_MEASURED)
        counts = {"unprofiled": measured, "light": 5, "full": 2}
    if settings.steps is not None:
        counts |= {"unprofiled": settings.steps, "light": settings.steps}
    note = ""
    if settings.skip is None and not _is_steady(steps_ns):
        note = f"The time of a step had not settled after {len(steps_ns)} steps."
    return Plan(start, {name: counts[name] for name in settings.passes}, note)


class Agreement:
    """How ranks agree on a plan: rank 0 makes it, the others find it; nobody waits for anybody.

    The plan lies in the run folder, and in the store of the process group for ranks on other hosts.
    """

    def __init__(self, folder: str, number: int) -> None:
        """`number` tells the captures of a program apart; all ranks count them alike."""
        self._path = os.path.join(folder, ".plan.json")  # noqa: PTH118
        self.key = f"{_STORE_KEY}/{number}"
        self.store = shared_store()
        self.is_apart = False
        """Whether the plan came from another host, whose folder is another one."""

    @property
    def is_needed(self) -> bool:
        """Whether this process is one of several ranks."""
        return self.store is not None

    @staticmethod
    def margin(steps_ns: Sequence[int]) -> int:
        """How many steps ahead the plan starts: hosts run some steps ahead of each other."""
        step_ns = max(1, *steps_ns[-1:])
        return min(max(4, math.ceil(200_000_000 / step_ns)), 20)

    def publish(self, plan: Plan) -> None:
        """Tells the other ranks."""
        text = json.dumps(asdict(replace(plan, is_shared=True)))
        os.makedirs(os.path.dirname(self._path), exist_ok=True)  # noqa: PTH103, PTH120
        temporary = f"{self._path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
        os.replace(temporary, self._path)  # noqa: PTH105
        if _spans_hosts():
            self.store.set(self.key, text)

    def find(self) -> Plan | None:
        """The plan, if rank 0 has made one."""
        try:
            with open(self._path, encoding="utf-8") as file:  # noqa: PTH123
                return Plan(**json.load(file))
        except FileNotFoundError:
            pass
        if _spans_hosts() and self.store.check([self.key]):
            self.is_apart = True
            return Plan(**json.loads(self.store.get(self.key)))
        return None


def _spans_hosts() -> bool:
    """Whether not all ranks are on this host, as far as their launcher says."""
    return os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")


def shared_store() -> Any:
    """The store of the process group; None in a program without one, or with one rank."""
    group = process_group()
    if group is None or group.get_world_size() < 2:
        return None
    return group.distributed_c10d._get_default_store()  # noqa: SLF001  # the only way to it
