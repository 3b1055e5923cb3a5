"""XPlane files (xplane.pb): what the profilers of JAX and TensorFlow write, for GPUs and TPUs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._protobuf import leading_fields
from stepscope.sources._reading import begins_a_trace, new_reader, store_events
from stepscope.sources.kineto import rank_of

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["xplane"]

_PLANE = re.compile(rb"/(host|device|platform)?[:\w]|Task Environment")
_DEVICE = re.compile(r"/device:(\w+):(\d+)")
_NO_OPERATORS = (
    "An XPlane file has no operators of PyTorch: ranges of the host are annotations, and kernels name the "
    "operation of XLA that they belong to."
)
_RECORD = "record one with jax.profiler.trace('log'), and name the file log/plugins/profile/*/*.xplane.pb"


def _looks_like_planes(given: Input) -> bool:
    """Whether it begins with a plane: a number, then a name with a slash."""
    plane = leading_fields(given.first_bytes, 1)
    if plane is None:
        return False
    names = [value for number, value in plane if number == 2]
    known = all(0 < number < 64 for number, _ in plane)  # new versions may have more than the six of today
    return known and bool(names) and isinstance(names[0], bytes) and _PLANE.match(names[0]) is not None


@source(sniff=_looks_like_planes)
def xplane(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads an XPlane file (xplane.pb): what the profilers of JAX and TensorFlow write."""
    begins_a_trace(given, writer, "an XPlane file")
    path, reader = str(given.as_file()), new_reader()
    planes = _native.XplaneReader(reader)

    def refuse() -> None:
        if not reader.events:
            found = ", ".join(_text(name) for name, _ in planes.planes[:6]) or "none"
            raise StepscopeError(f"{given.name} has no events (its planes: {found})", hint=_RECORD)

    store_events(writer, reader, lambda take: planes.read(path, take), refuse)
    return _meta(given, reader, planes)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _meta(given: Input, reader: _native.Reader, planes: _native.XplaneReader) -> SourceMeta:
    damage = [Damage(reason, count, lost, tuple(at)) for reason, count, lost, at in planes.damage]
    # What the reader of events says is about texts that were written for it: their places mean nothing here.
    damage += [Damage(reason, count) for reason, count, _, _ in reader.damage]
    rank, rank_source = rank_of({}, given.name)
    metadata: dict[str, Any] = {}
    if devices := [one for one in map(_device, planes.planes) if one]:
        metadata["deviceProperties"] = devices
    if planes.host:
        metadata["host_name"] = _text(planes.host)
    return SourceMeta(
        base_ns=planes.base_ns,
        rank=rank,
        rank_source=rank_source,
        damage=tuple(damage),
        metadata=metadata,
        notes=(_note(planes),),
        counters={"derived_events": planes.derived, "asynchronous_ops": planes.asynchronous},
    )


def _device(plane: tuple[bytes, list[tuple[bytes, bytes]]]) -> dict[str, Any] | None:
    """A device as a Kineto header describes it, of what its plane says."""
    name, stats = plane
    found = _DEVICE.match(_text(name))
    if not found:
        return None
    told = {_text(key): json.loads(value) for key, value in stats}
    model = (
        told.get("device_type_string")
        or told.get("device_name")
        or f"{told.get('device_vendor', '')} {found[1]}"
    )
    keys = {
        "totalGlobalMem": "memory_size",
        "numSms": "core_count",
        "computeMajor": "compute_cap_major",
        "computeMinor": "compute_cap_minor",
    }
    sizes = {to: told[key] for to, key in keys.items() if isinstance(told.get(key), int)}
    if told.get("device_vendor") == "AMD":  # what it calls so is no compute capability
        sizes = {key: value for key, value in sizes.items() if not key.startswith("compute")}
    return {"id": int(found[2]), "name": str(model).strip(), **sizes}


def _note(planes: _native.XplaneReader) -> str:
    said = [_NO_OPERATORS]
    if planes.derived:
        said.append("Lines that XLA derives from others, such as its operations on a GPU, are left out.")
    if planes.asynchronous:
        said.append("Asynchronous operations of a TPU run beside its others and are no device work here.")
    if not planes.steps:
        said.append(
            "It has no steps: mark them with jax.profiler.StepTraceAnnotation('train', step_num=step)."
        )
    return " ".join(said)
