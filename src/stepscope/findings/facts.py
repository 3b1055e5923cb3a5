"""What a profile says about itself: devices, what was recorded, rank and world size."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from stepscope import hardware
from stepscope.findings.program import Framework, Vendor, frameworks_of, vendor_of
from stepscope.records import dataclass
from stepscope.store.meta import SourceMeta
from stepscope.store.trace import Trace

__all__ = ["DeviceFacts", "Facts", "facts_of"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device, as the profile describes it."""

    index: str
    name: str
    memory_bytes: int | None
    multiprocessors: int | None
    capability: tuple[int, int] | None
    """Compute capability; None if there is none, as on AMD."""
    peak_flops: dict[str, float]
    """Operations per second by data type, dense; empty if the GPU model is not known."""
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a profile says about itself."""

    source: str
    rank: int
    world_size: int | None
    backend: str | None
    """Of the process group: nccl, gloo, …"""
    devices: tuple[DeviceFacts, ...]
    stacks: bool
    shapes: bool
    memory: bool
    modules: bool
    device_work: bool
    host_ops: bool
    cuda: str | None
    """Version of the runtime, such as `CUDA 13.0` or `HIP 6.2`."""
    vendor: Vendor = Vendor.UNKNOWN
    """Who made the devices: tools and words follow from it."""
    kind: str = "kineto"
    """What kind of profile it is: the source that read it."""
    joined: tuple[str, ...] = ()
    """The files that were read with it, and how they were joined: `memory.pickle (snapshot, by time)`."""
    frameworks: tuple[Framework, ...] = ()
    """Who owns the loop and the model, those first that own more; empty for a program of its own."""

    def device(self, index: str | None) -> DeviceFacts | None:
        """The device with that index."""
        return next((one for one in self.devices if one.index == index), None)


def facts_of(trace: Trace) -> Facts:
    """Reads the facts of a trace."""
    told = trace.meta.metadata
    group = told.get("distributedInfo")
    group = group if isinstance(group, dict) else {}
    size, backend = group.get("world_size"), group.get("backend")
    devices = _devices(told.get("deviceProperties"))
    shapes, categories = _skeletons(trace)
    return Facts(
        source=PurePath(trace.path).name,
        rank=trace.rank,
        world_size=size if isinstance(size, int) else None,
        backend=backend if isinstance(backend, str) else None,
        devices=devices,
        stacks=trace.has("python_frames"),
        shapes=shapes,
        memory=trace.has("memory_events"),
        modules=_has_modules(trace),
        device_work=trace.has("device_work"),
        host_ops=trace.has("ops"),
        cuda=_runtime(told),
        vendor=vendor_of(trace, categories, [device.name for device in devices]),
        frameworks=frameworks_of(trace),
        kind=trace.meta.kind,
        joined=tuple(_joined(one) for one in trace.meta.sources[1:] if one.kind != "rank_file"),
    )


def _joined(one: SourceMeta) -> str:
    said = ", ".join(filter(None, (one.kind.replace("_", " "), one.joined)))
    return f"{PurePath(one.source).name} ({said})"


def _skeletons(trace: Trace) -> tuple[bool, list[str]]:
    """Whether operators have shapes, and the kinds of events."""
    rows = trace.reading({"skeletons": ("stored_in", "category", "text")}, ours=True).rows(
        "SELECT category, bool_or(stored_in = 'ops' AND contains(text, 'Input Dims')) AS shapes "
        "FROM skeletons GROUP BY category"
    )
    return any(row["shapes"] for row in rows), [row["category"] for row in rows if row["category"]]


def _has_modules(trace: Trace) -> bool:
    if not trace.has("python_frames") or not trace.may_have_name("^nn.Module: "):
        return False
    frames = trace.reading({"python_frames": ("name",)}, ours=True)
    return bool(frames.rows("SELECT 1 FROM python_frames WHERE starts_with(name, 'nn.Module: ') LIMIT 1"))


def _runtime(told: dict[str, Any]) -> str | None:
    cuda, hip = told.get("cuda_runtime_version"), told.get("hip_runtime_version")
    if isinstance(cuda, int) and cuda > 0:
        return f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    if isinstance(hip, int) and hip > 0:
        return f"HIP {hip // 10_000_000}.{hip % 10_000_000 // 100_000}"
    return None


def _devices(properties: Any) -> tuple[DeviceFacts, ...]:
    listed = properties if isinstance(properties, list) else []
    return tuple(_device(place, one) for place, one in enumerate(listed) if isinstance(one, dict))


def _device(place: int, told: dict[str, Any]) -> DeviceFacts:
    def whole(key: str) -> int | None:
        value = told.get(key)
        return value if isinstance(value, int) and value > 0 else None

    name = str(told.get("name") or "")
    memory, units = whole("totalGlobalMem"), whole("numSms")
    known, _ = hardware.recognised(name, units=units, memory_bytes=memory)
    major, minor = told.get("computeMajor"), told.get("computeMinor")
    nvidia = told.get("warpSize") == 32 and isinstance(major, int) and isinstance(minor, int)
    return DeviceFacts(
        index=str(told.get("id", place)),
        name=name,
        memory_bytes=memory,
        multiprocessors=units,
        capability=(major, minor) if nvidia else None,  # type: ignore[arg-type]  # both are whole numbers
        peak_flops=dict(known.peak_flops) if known else {},
        bytes_per_s=known.bytes_per_s if known else None,
    )
