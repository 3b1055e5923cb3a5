"""Where in time a finding is best seen: the instance of what it speaks of that costs most in a steady step.

Rules see finished tables, which have no times of single events. So this is worked out afterwards, of what a
finding says: the operators and functions that it names, the time that it wants to save, and for some rules
what they are about. What has no place in time (a setting, a machine) has none here either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.findings._sought import Instances, Shown
from stepscope.findings.claims import Part, Time
from stepscope.schema import DATALOADER_RANGE, OPTIMIZER_RANGE

if TYPE_CHECKING:
    from stepscope.findings import Finding
    from stepscope.store.trace import Trace

__all__ = ["Shown", "shown_of"]

_ALLOCATES = r"^aten::(zeros|ones|full|arange|empty|zero_|fill_)(_like)?$|^(cuda|hip)(Malloc|Free)"
_COMPILES = (
    r"torch/_(dynamo|inductor|functorch)/|CompiledFunction|Torch-Compiled|TorchDynamo|dynamo_timed"
    r"|^(compile|inductor|triton_bundler)"
)
_HOST = (
    "other runtime call",
    "host op",
    "Python between ops",
    "nothing recorded",
    "allocation call",
    "synchronising call",
    "host communication",
    "dataloader",
)
_LAUNCHING = ("other runtime call", "host op", "Python between ops")
_DEVICE = ("launch latency", "device scheduling", "graph latency", "waited on the device")
Look = tuple[str, *tuple[Any, ...]]
"""What is looked for: a method of `Instances` and what it is given."""

_OWN: dict[str, tuple[Look, ...]] = {
    "allocation-churn": (("named",), ("calls", _ALLOCATES)),
    "blocking-launches": (("calls", r"Launch"),),
    "buffer-broadcasts": (("calls", r"(?i)broadcast"), ("collectives", "broadcast")),
    "cache-clearing": (("calls", r"^(cuda|hip)(Free|DeviceSynchronize)|empty_cache"),),
    "collector-pauses": (("pauses",),),
    "cpu-operators": (("named",), ("host_ops",)),
    "dataloader-waits": (("calls", DATALOADER_RANGE), ("gap", ("dataloader",))),
    "device-unfilled": (("unfilled",), ("kernels",)),
    "distant-numa-node": (),
    "driver-allocations": (("calls", r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree)"),),
    "explicit-syncs": (("named",), ("calls", r"Synchronize$"), ("gap", _HOST, True)),
    "exposed-copies": (("copies", "HtoD|DtoH|Host"),),
    "failed-allocation": (("peak",),),
    "fragmented-memory": (("peak",),),
    "full-precision-matmuls": (("precision", ("fp32", "fp64")), ("precision", ("tf32",))),
    "gloo-backend": (("calls", r"^gloo:"),),
    "implicit-syncs": (("gap", _HOST, True), ("named",)),
    "launch-bound": (("gap", _LAUNCHING, False), ("gap", _HOST)),
    "layout-conversions": (("work_like", r"(?i)nchw|nhwc|transpose|layout"), ("named",), ("kernels", "copy")),
    "large-activations": (("peak",),),
    "large-optimizer-state": (("peak",),),
    "large-workspaces": (("peak",),),
    "memory-growth": (("peak",),),
    "memory-limit": (("peak",),),
    "memory-room": (("peak",),),
    "misaligned-matmuls": (("named",), ("kernels", "matmul"), ("kernels", "convolution")),
    "missed-graphs": (("gap", _LAUNCHING, False), ("gap", _HOST)),
    "needless-transfers": (("copies", "HtoD|Host"), ("named",)),
    "optimizer-share": (("calls", r"^Optimizer\.step#"), ("named",), ("kernels", "optimizer")),
    "per-tensor-optimizer": (("calls", r"^Optimizer\.step#"), ("named",)),
    "pageable-copies": (("copies", "Pageable"), ("copies", "HtoD|Host")),
    "pageable-results": (("copies", "DtoH"),),
    "python-between-ops": (("function",), ("gap", ("Python between ops",))),
    "recomputation": (("phase", "recomputation"),),
    "scalar-reads": (("calls", r"^aten::_local_scalar_dense$"), ("calls", r"^aten::item$")),
    "short-kernels": (("gap", _DEVICE),),
    "start-up": (("first_step",),),
    "step-variance": (("longest_step",),),
    "tf32-matmuls": (("precision", ("tf32",)),),
    "unpinned-loader": (("copies", "Pageable"), ("calls", DATALOADER_RANGE)),
    "warm-up": (("first_step",),),
}
_PARTS: dict[tuple[Time, Part | None], tuple[Look, ...]] = {
    (Time.STARVED, None): (("gap", _HOST),),
    (Time.STARVED, Part.ALLOCATION): (("gap", ("allocation call",)), ("calls", _ALLOCATES)),
    (Time.STARVED, Part.COMPILATION): (("calls", _COMPILES),),
    (Time.STARVED, Part.DATALOADER): (("gap", ("dataloader",)),),
    (Time.STARVED, Part.OPTIMIZER): (("calls", OPTIMIZER_RANGE),),
    (Time.STARVED, Part.PYTHON): (("gap", ("Python between ops",)),),
    (Time.STARVED, Part.SYNCS): (("gap", _HOST, True),),
    (Time.STARVED, Part.VARIANCE): (("longest_step",),),
    (Time.STARVED, Part.ITERATIONS): (("gap", _HOST),),
    (Time.WAITED, Part.COMMUNICATION): (("collectives", ""), ("calls", r"^(gloo|mpi|ucc|nccl):")),
    (Time.WAITED, Part.COPY): (("copies", ""),),
    (Time.WAITED, Part.KERNELS): (("gap", _DEVICE),),
    (Time.WAITED, Part.COMPILATION): (("calls", _COMPILES),),
    (Time.DEVICE, None): (("kernels",),),
    (Time.DEVICE, Part.COPY): (("copies", ""), ("kernels", "copy")),
    (Time.DEVICE, Part.CASTS): (("calls", r"^aten::(to|_to_copy)$"), ("kernels", "copy")),
    (Time.DEVICE, Part.FILLS): (("fills",), ("calls", _ALLOCATES)),
    (Time.DEVICE, Part.LAYOUTS): (("kernels", "copy"),),
    (Time.DEVICE, Part.LOSS): (("kernels", "loss"),),
    (Time.DEVICE, Part.OPTIMIZER): (("calls", OPTIMIZER_RANGE), ("kernels", "optimizer")),
    (Time.MEMORY, None): (("peak",),),
}


def shown_of(trace: Trace, finding: Finding) -> tuple[Shown, ...]:
    """Where a finding is seen, the best place first; empty if it has no place in time."""
    found: tuple[Shown, ...] = trace.once(("shown", finding.id), lambda: _shown(trace, finding))
    return found


def _shown(trace: Trace, finding: Finding) -> tuple[Shown, ...]:
    instances: Instances = trace.once("instances", lambda: Instances(trace))
    for look in _looks(finding):
        name, *given = look
        found: tuple[Shown, ...] = getattr(instances, name)(finding.advice, *given)
        if found:
            return found
    return ()


def _looks(finding: Finding) -> Iterator[Look]:
    """What to look for, the most telling first: what the rule is about, what it names, what it claims."""
    if finding.id in _OWN:
        yield from _OWN[finding.id]
        return
    yield ("function",)
    yield ("named",)
    claims = sorted(
        finding.advice.claims, key=lambda one: (one.time.value, one.part.value if one.part else "")
    )
    for claim in claims:
        families = (("kernels", claim.part.value),) if claim.part else ()
        yield from _PARTS.get((claim.time, claim.part), families if claim.time is Time.DEVICE else ())
    yield ("frames",)
