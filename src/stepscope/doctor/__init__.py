"""What a machine can record, and what to type for what it cannot.

torch is asked in the Python that would run the program, in processes of their own: a driver that hangs or
crashes takes nothing else with it.
"""

from __future__ import annotations

from typing import Literal

from stepscope.records import dataclass

__all__ = ["SCHEMA", "Check", "Checkup", "State"]

SCHEMA = "stepscope.doctor/1"

State = Literal["yes", "no", "unsure"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    """`no` is in the way of recording; `unsure` may be, or leaves a part out."""
    said: str
    fix: str = ""
    """What to type."""


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was looked at."""

    checks: tuple[Check, ...]
    can_record: bool
    """Whether a profile can be recorded at all."""
    can_record_devices: bool
    """Whether it has the work of a GPU in it."""

    @property
    def sentence(self) -> str:
        """What this machine can do."""
        if self.can_record_devices:
            return "This machine can record the host and the GPU."
        if self.can_record:
            return "This machine can record the host. There will be no GPU work in a profile."
        return "This machine cannot record a profile."
