"""What a trace lacks: on which machine, with which versions and which settings the program ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture import nvml, processors, repository, torch_settings

__all__ = ["environment"]

_NOT_IMPORTED = "torch was not imported"


def environment(program: Path | None = None) -> dict[str, Any]:
    """Everything about machine, versions and settings, as plain values for JSON.

    Best called late, when the program has set what it sets. Each part is asked for by itself: what cannot be
    known is left out, with a reason under `unknown`. CUDA is not started. `program` is the folder of the
    program, where it is not that of the main module.
    """
    folder = program or repository.folder_of_program()
    parts: dict[str, Callable[[], Any]] = {
        "git": lambda: repository.repository(folder),
        "versions": torch_settings.versions,
        "variables": torch_settings.variables,
        "torch": torch_settings.settings,
        "cpu": processors.processors,
        "gpus": _gpus,
    }
    found: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for name, ask in parts.items():
        try:
            found[name] = ask()
        except Exception as error:  # noqa: BLE001  # nothing here may end the user's program
            unknown[name] = str(error)[:300] or type(error).__name__
    if not found.get("torch"):
        found.pop("torch", None)
        unknown.setdefault("torch", _NOT_IMPORTED)
    of_gpus = found.pop("gpus", None)
    if of_gpus:
        devices, between, driver = of_gpus
        found["gpus"], found["topology"] = devices, between
        if driver:
            found.setdefault("versions", {})["driver"] = driver
    return {**found, "unknown": unknown}


def _gpus() -> tuple[list[dict[str, Any]], list[dict[str, Any]], str | None]:
    """The GPUs, what lies between each two of them, and the driver's version."""
    with nvml.opened() as module:
        seen = nvml.gpus(module)
        if not seen:
            raise LookupError("the process sees no GPU")
        between = [
            {"devices": [one.device, other.device], "path": path}
            for place, one in enumerate(seen)
            for other in seen[place + 1 :]
            if (path := one.near(other)) is not None
        ]
        return [one.describe() for one in seen], between, nvml.driver(module)
