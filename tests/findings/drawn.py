"""Tables and paces drawn in code, for tests of rules: what a test does not name has a quiet default."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from stepscope.analyses.changed_steps import ChangedStep
from stepscope.findings import Advice
from stepscope.findings.facts import DeviceFacts, Facts
from stepscope.findings.fixes import fitted
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.program import Framework, Program, Vendor
from stepscope.tables import Table

Row = TypeVar("Row")
MS = 1_000_000


def drawn(row: type[Row], *rows: dict[str, Any], notes: tuple[str, ...] = ()) -> Table[Row]:
    """A table; columns that a row does not name are None where they may be, else 0, empty or False."""
    hints = get_type_hints(row)
    quiet = {field.name: _quiet(hints[field.name]) for field in dataclasses.fields(row)}  # type: ignore[arg-type]
    unknown = {name for one in rows for name in one} - set(quiet)
    assert not unknown, f"{row.__name__} has no {unknown}"
    return Table.of(row, [row(**{**quiet, **one}) for one in rows], notes)


def _quiet(hint: Any) -> Any:
    options = get_args(hint) or (hint,)
    return None if NoneType in options else options[0]()


def mean_step(**figures: Any) -> MeanStep:
    """A step of 10 ms whose host is late for half of it, recorded lightly."""
    given: dict[str, Any] = {
        "steps": 10,
        "step_ns": 10.0 * MS,
        "unprofiled_ns": (7.0 * MS, 9.0 * MS),
        "device": "0",
        "busy_ns": 5.0 * MS,
        "starved_ns": 5.0 * MS,
        "latency_ns": 1.0 * MS,
        "waiting_ns": 0.0,
        "host_path_share": 0.8,
    }
    return MeanStep(**{**given, **figures})


def busy_pace(**figures: Any) -> MeanStep:
    """A step of 10 ms that the device sets the pace of."""
    given: dict[str, Any] = {
        "unprofiled_ns": (10.0 * MS, 10.0 * MS),
        "busy_ns": 9.8 * MS,
        "starved_ns": 0.1 * MS,
        "latency_ns": 0.02 * MS,
        "waiting_ns": 0.1 * MS,
        "host_path_share": 0.02,
    }
    return mean_step(**{**given, **figures})


def changed(low: float, high: float, **figures: int) -> Table[ChangedStep]:
    """A replay under a change that gains so much of a step."""
    given = {"recorded_ns": 10 * MS, "simulated_ns": 10 * MS, "gain_low_share": low, "gain_high_share": high}
    return drawn(ChangedStep, {**given, **figures})


H200 = DeviceFacts(
    index="0",
    name="NVIDIA H200",
    memory_bytes=150_109_880_320,
    multiprocessors=132,
    capability=(9, 0),
    peak_flops={"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12, "fp8": 1979e12},
    bytes_per_s=4.8e12,
)


def facts(**told: Any) -> Facts:
    """One rank with an H200, everything recorded."""
    given: dict[str, Any] = {
        "source": "trace.json.gz",
        "rank": 0,
        "world_size": None,
        "backend": None,
        "devices": (H200,),
        "stacks": True,
        "shapes": True,
        "memory": True,
        "modules": True,
        "device_work": True,
        "host_ops": True,
        "cuda": "CUDA 13.0",
        "vendor": Vendor.NVIDIA,
    }
    return Facts(**{**given, **told})


def fix_for(advice: Advice | None, *frameworks: Framework, **told: Any) -> str:
    """The fix of an advice as these frameworks have it; `vendor` and `trains` of the program may be told."""
    assert advice is not None
    return fitted(advice, Program(frameworks, **told)).fix


def assert_bounded(advice: Advice | None, step: MeanStep) -> Advice:
    """It fired, and what it promises is no more than there is."""
    assert advice is not None
    gain = step.gain(advice.saving)
    assert 0 <= gain.low_ns <= gain.high_ns <= step.unprofiled_ns[1]
    assert 0 <= gain.low_share <= gain.high_share <= 1
    assert advice.saving.starved_ns[1] <= step.starved_ns
    assert advice.saving.device_ns[1] <= step.busy_ns
    assert len(advice.title) <= 60
    assert advice.title[-1] != "."
    assert advice.claims
    assert advice.evidence
    return advice
