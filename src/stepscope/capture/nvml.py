"""What the driver says of the GPUs, through NVML: names, links, limits, and how they are doing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.capture.torch_settings import started_cuda

__all__ = ["REASONS", "Gpu", "NoNvml", "driver", "gpus", "opened", "reasons_of"]

REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Why a clock is below its maximum: NVML's bits in words."""
_ANCESTORS = {
    0: "same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "PCIe host bridge",
    40: "NUMA node",
    50: "between NUMA nodes",
}
_MOST_LINKS = 36
_SM_CLOCK, _MEMORY_CLOCK, _TEMPERATURE = 1, 2, 0


class NoNvml(Exception):  # noqa: N818  # no error: an answer
    """NVML cannot be used here; the text says why."""


@contextmanager
def opened() -> Iterator[Any]:
    """The module `pynvml`, ready to be asked."""
    if _version("hip"):
        raise NoNvml("NVML is for NVIDIA's GPUs, and this torch is built for AMD's.")
    try:
        import pynvml
    except Exception as error:  # it is missing, or another package of that name warns or fails
        raise NoNvml(f"nvidia-ml-py cannot be imported: {error}") from error
    try:
        pynvml.nvmlInit()
    except Exception as error:  # every error of pynvml's, and those of a broken library
        raise NoNvml(f"NVML does not start: {error}") from error
    try:
        yield pynvml
    finally:
        _told(pynvml.nvmlShutdown)


def _version(name: str) -> str | None:
    return getattr(getattr(sys.modules.get("torch"), "version", None), name, None)


def _told(ask: Callable[..., Any], *given: Any) -> Any:
    """An answer of NVML's, or None: what a GPU or a driver does not know, it raises."""
    try:
        return ask(*given)
    except Exception:  # noqa: BLE001  # NVMLError, or a function that the driver lacks
        return None


def reasons_of(bits: int) -> list[str]:
    """Why a clock is held back, in words."""
    return [word for bit, word in REASONS.items() if bits & bit]


class Gpu:
    """One GPU of this process: its index for torch, and NVML's handle."""

    def __init__(self, nvml: Any, device: int, handle: Any) -> None:
        self.device = device
        self.handle = handle
        self._nvml = nvml
        self._fixed: dict[str, int] | None = None

    def ask(self, function: str, *given: Any) -> Any:
        """An answer of a function of NVML about this GPU; None where it has none."""
        found = getattr(self._nvml, function, None)
        return None if found is None else _told(found, self.handle, *given)

    def sample(self) -> dict[str, Any]:
        """How it is doing now; about ten calls of microseconds."""
        if self._fixed is None:
            self._fixed = self._limits()
        use = self.ask("nvmlDeviceGetUtilizationRates")
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # as it was called up to driver 535
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        found = {
            "device": self.device,
            "sm_clock_mhz": self.ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
            "memory_clock_mhz": self.ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            "power_mw": self.ask("nvmlDeviceGetPowerUsage"),
            "temperature_c": self.ask("nvmlDeviceGetTemperature", _TEMPERATURE),
            "utilization_share": None if use is None else use.gpu / 100,
            "memory_utilization_share": None if use is None else use.memory / 100,
            "link_generation": self.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "link_width": self.ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "reasons": None if bits is None else reasons_of(bits),
            **self._fixed,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _limits(self) -> dict[str, int]:
        """What does not change while a program runs."""
        found = {
            "max_sm_clock_mhz": self.ask("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
            "max_memory_clock_mhz": self.ask("nvmlDeviceGetMaxClockInfo", _MEMORY_CLOCK),
            "power_limit_mw": self.ask("nvmlDeviceGetEnforcedPowerLimit"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def describe(self, root: Path = Path("/")) -> dict[str, Any]:
        """What it is and how it is connected; no number that identifies it."""
        active = [self.ask("nvmlDeviceGetNvLinkState", link) for link in range(_MOST_LINKS)]
        found = {
            "device": self.device,
            "name": _text(self.ask("nvmlDeviceGetName")),
            "link_generation": self.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "max_link_generation": self.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "link_width": self.ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "max_link_width": self.ask("nvmlDeviceGetMaxPcieLinkWidth"),
            "nvlinks": sum(one == 1 for one in active),
            "numa_node": self._numa_node(root),
            "default_power_limit_mw": self.ask("nvmlDeviceGetPowerManagementDefaultLimit"),
            "persistence_mode": self.ask("nvmlDeviceGetPersistenceMode"),
            **self._limits(),
        }
        return {name: value for name, value in found.items() if value is not None}

    def near(self, other: Gpu) -> str | None:
        """What lies between two GPUs."""
        return _ANCESTORS.get(self.ask("nvmlDeviceGetTopologyCommonAncestor", other.handle))

    def _numa_node(self, root: Path) -> int | None:
        place = self.ask("nvmlDeviceGetPciInfo")
        bus = _text(getattr(place, "busId", None))
        if not bus:
            return None
        # NVML writes eight digits of the domain, the system four.
        folder = root / "sys/bus/pci/devices" / bus.lower()[-12:]
        try:
            node = int((folder / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None


def _text(value: Any) -> str | None:
    """A text of NVML's, which some versions give as bytes."""
    plain = value.decode(errors="replace") if isinstance(value, bytes) else value
    return str(plain)[:200] if plain else None


def driver(nvml: Any) -> str | None:
    """The driver's version."""
    return _text(_told(nvml.nvmlSystemGetDriverVersion))


def gpus(nvml: Any, *, used: bool = False) -> list[Gpu]:
    """The GPUs that this process sees, in the order of torch; or those it has memory on."""
    cuda = started_cuda()
    if cuda is not None:
        devices = [*range(cuda.device_count())]
        if used:
            devices = [one for one in devices if _told(cuda.memory_reserved, one)] or [cuda.current_device()]
        found = [(device, _handle(nvml, cuda, device)) for device in devices]
    else:
        found = [] if used else list(enumerate(_visible(nvml)))
    return [Gpu(nvml, device, handle) for device, handle in found if handle is not None]


def _handle(nvml: Any, cuda: Any, device: int) -> Any:
    """NVML's handle of a device of torch's, by its UUID; NVML itself numbers all that the machine has."""
    uuid = getattr(_told(cuda.get_device_properties, device), "uuid", None)
    if uuid is not None:
        handle = _told(nvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
        if handle is not None:
            return handle
    visible = _visible(nvml)
    return visible[device] if device < len(visible) else None


def _visible(nvml: Any) -> list[Any]:
    """Handles of what CUDA_VISIBLE_DEVICES lets through, in its order; it may list numbers or UUIDs."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [
            _told(nvml.nvmlDeviceGetHandleByIndex, one) for one in range(_told(nvml.nvmlDeviceGetCount) or 0)
        ]
    found = []
    for word in filter(None, map(str.strip, listed.split(","))):
        if word.isdigit():
            found.append(_told(nvml.nvmlDeviceGetHandleByIndex, int(word)))
        elif word.startswith(("GPU-", "MIG-")):
            found.append(_told(nvml.nvmlDeviceGetHandleByUUID, word))
        else:
            break  # as CUDA does: what follows a wrong entry is not seen
    return found
