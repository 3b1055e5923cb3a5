"""With which versions and settings the program ran, and what each of them means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._rank_file import NO_RANK_FILE, mapping, mappings, rank_file_of
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["RunSetting", "run_settings"]


@dataclass(frozen=True, slots=True)
class RunSetting:
    """One setting."""

    part: Annotated[str, "git, versions, variables (of the environment), torch, cpu, unknown or topology."]
    name: Annotated[str, "Its name."]
    value: Annotated[str, "Its value; what is no text is JSON."]
    meaning: Annotated[str | None, "What it means, or what it changes; NULL where we have no words for it."]


_PARTS = ("git", "versions", "variables", "torch", "cpu", "unknown")
_MEANINGS = {
    "git": {
        "commit": "Commit of the program.",
        "dirty": "Whether tracked files were changed since.",
        "changed_files": "Tracked files that were changed since.",
        "inserted_lines": "Lines added since.",
        "deleted_lines": "Lines removed since.",
    },
    "versions": {
        "torch": "Version of torch.",
        "cuda": "CUDA that torch was built for.",
        "hip": "ROCm that torch was built for.",
        "cudnn": "cuDNN that torch loaded.",
        "nccl": "NCCL that torch uses.",
        "driver": "Driver of the GPUs.",
    },
    "variables": {
        "CUDA_DEVICE_MAX_CONNECTIONS": "Queues between host and GPU; 1 keeps the order of launches.",
        "CUDA_LAUNCH_BLOCKING": "1: every launch waits for its kernel. For debugging only.",
        "CUDA_VISIBLE_DEVICES": "GPUs that the program sees.",
        "MKL_NUM_THREADS": "Threads of an operator that MKL computes on the CPU.",
        "NCCL_DEBUG": "How much NCCL prints.",
        "NCCL_P2P_DISABLE": "1: GPUs do not copy to one another directly, which is slow.",
        "OMP_NUM_THREADS": "Threads of an operator on the CPU; torchrun sets 1 if nothing else does.",
        "PYTORCH_ALLOC_CONF": "Settings of the allocator of device memory.",
        "PYTORCH_CUDA_ALLOC_CONF": "Settings of the allocator of device memory.",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1: every allocation goes to the driver, which is slow.",
        "TORCH_CUDNN_V8_API_DISABLED": "1: convolutions use the older interface of cuDNN.",
    },
    "torch": {
        "allocator": "Allocator of device memory: native caches, cudaMallocAsync is the driver's.",
        "anomaly_mode": "Looks for NaN in every backward operator, which is slow. For debugging only.",
        "compiled_graphs": "Graphs that torch.compile has made.",
        "compiles": "Whether torch.compile has compiled anything.",
        "cudnn_allow_tf32": "Whether convolutions of float32 may use TF32.",
        "cudnn_benchmark": "Whether cuDNN tries its algorithms and keeps the fastest for each shape.",
        "cudnn_deterministic": "Whether cuDNN uses reproducible algorithms alone, which can be slower.",
        "cudnn_enabled": "Whether cuDNN is used at all.",
        "default_dtype": "Data type of new tensors.",
        "deterministic_algorithms": "Whether operators must be reproducible, which can be slower.",
        "float32_matmul_precision": "highest: float32 as it is; high: TF32 or like it; medium: bfloat16.",
        "interop_threads": "Threads for operators of torch.jit that run beside one another.",
        "matmul_allow_tf32": "Whether matrix products of float32 may use TF32.",
        "matmul_fp32_precision": "How products of float32 are computed: ieee, tf32; none: not set.",
        "threads": "Threads of an operator on the CPU.",
    },
    "cpu": {
        "affinity": "CPUs that the process may use.",
        "affinity_numa_nodes": "NUMA nodes of these CPUs.",
        "available": "CPUs that it can keep busy, after affinity and limits of its container.",
        "count": "CPUs of the machine.",
        "cpu_quota": "CPUs that its container may use.",
        "memory_limit_bytes": "Memory that its container may use.",
        "numa_nodes": "NUMA nodes of the machine.",
    },
}
_WHY = "Why this part is not known."


@analysis(reads={})
def run_settings(trace: Trace) -> Table[RunSetting]:
    """Lists versions, environment variables and switches of torch that the program ran with.

    No profiler records them: `stepscope run` asks for them in the running program. Variables are those that
    matter for speed, and never secrets.
    """
    told = rank_file_of(trace)
    if told is None:
        return Table.of(RunSetting, [], [NO_RANK_FILE])
    rows = list(_rows(mapping(told.get("environment"))))
    return Table.of(RunSetting, rows, [] if rows else ["The rank file says nothing of the machine."])


def _rows(environment: dict[str, Any]) -> Iterator[RunSetting]:
    for part in _PARTS:
        meanings = _MEANINGS.get(part, {})
        for name, value in sorted(mapping(environment.get(part)).items()):
            said = value if isinstance(value, str) else json.dumps(value)
            yield RunSetting(part, name, said, _WHY if part == "unknown" else meanings.get(name))
    for one in mappings(environment.get("topology")):
        devices, path = one.get("devices"), one.get("path")
        if isinstance(devices, list) and isinstance(path, str):
            between = " to ".join(str(device) for device in devices)
            yield RunSetting("topology", f"GPU {between}", path, "What lies between these GPUs.")
