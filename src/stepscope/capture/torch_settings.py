"""Versions and switches of torch as the program has set them; nothing is imported and CUDA is not started."""

from __future__ import annotations

import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["compiled_graphs", "settings", "started_cuda", "variables", "versions"]

_PREFIXES = (
    "ACCELERATE_", "CUBLAS_", "CUBLASLT_", "CUDA_", "CUDNN_", "GLOO_", "GOMP_", "HIP_", "HSA_", "KMP_",
    "MIOPEN_", "MKL_", "NCCL_", "NUMEXPR_", "NVIDIA_TF32_", "OMP_", "OPENBLAS_", "PYTORCH_", "RCCL_",
    "ROCR_", "TORCH_", "TORCHDYNAMO_", "TORCHELASTIC_", "TORCHINDUCTOR_", "TRITON_", "UCC_", "UCX_",
)  # fmt: skip
_NAMES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MALLOC_ARENA_MAX", "PYTHONHASHSEED", "RANK", "WORLD_SIZE")
_SECRET = re.compile(
    r"AUTH|CERT|COOKIE|CREDENTIAL|KEY|PASS(WD|WORD|PHRASE|CODE)|PRIVATE|PWD|SECRET|SESSION|SIGNATURE|TOKEN|WEBHOOK"
)
# A harmless value under a harmless name may still hold one: a URL with a password, a key by its looks.
_SECRET_VALUE = re.compile(
    r"://[^/\s]*@|\b(sk|ghp|gho|glpat|hf|xox[abp]|AKIA)[-_A-Za-z0-9]{16,}|BEGIN [A-Z ]*PRIVATE"
)
_LONGEST_VALUE = 1000


def variables(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of the environment that change how fast torch is, by an allow-list; never a secret."""
    found = os.environ if given is None else given
    return {
        name: value[:_LONGEST_VALUE]
        for name, value in sorted(found.items())
        if (name in _NAMES or name.startswith(_PREFIXES))
        and not _SECRET.search(name.upper())
        and not _SECRET_VALUE.search(value)
    }


def started_cuda() -> Any:
    """`torch.cuda` where the program has started it; None otherwise."""
    cuda = sys.modules.get("torch.cuda")
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:  # noqa: BLE001  # a torch that is still being imported
        return None


def versions() -> dict[str, str]:
    """Versions of Python, torch and what torch was built with or has loaded."""
    found: dict[str, Any] = {"python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is None:
        return found
    asked: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch.__version__,
        "cuda": lambda: torch.version.cuda,
        "hip": lambda: getattr(torch.version, "hip", None),
    }
    if started_cuda() is not None:  # libraries that are not loaded yet stay so
        asked["cudnn"] = lambda: _dotted(torch.backends.cudnn.version())
        asked["nccl"] = lambda: _dotted(sys.modules["torch.cuda.nccl"].version())
    for name, ask in asked.items():
        value = _asked(ask)
        if value is not None:
            found[name] = str(value)
    return found


def _dotted(version: Any) -> str | None:
    if isinstance(version, int):  # 90100 is cuDNN 9.1.0, 8902 was 8.9.2
        unit = 10_000 if version >= 90_000 else 1_000
        return f"{version // unit}.{version % unit // 100}.{version % 100}"
    return ".".join(map(str, version)) if version else None


def settings() -> dict[str, Any]:
    """The switches that change what torch computes with, and how fast; what a version lacks is left out."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    asked: dict[str, Callable[[], Any]] = {
        "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "matmul_fp32_precision": lambda: torch.backends.cuda.matmul.fp32_precision,
        "matmul_allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
        "cudnn_allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
        "cudnn_enabled": lambda: torch.backends.cudnn.enabled,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "anomaly_mode": torch.is_anomaly_enabled,
        "threads": torch.get_num_threads,
        "interop_threads": torch.get_num_interop_threads,
        "compiled_graphs": compiled_graphs,
        "compiles": lambda: compiled_graphs() > 0,
        "allocator": _allocator,
    }
    found = {name: _asked(ask) for name, ask in asked.items()}
    return {name: value for name, value in found.items() if isinstance(value, str | int | bool)}


def _asked(ask: Callable[[], Any]) -> Any:
    """What torch says, or None: some switches raise or warn where old and new ways to set them are mixed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ask()
    except Exception:  # noqa: BLE001  # whatever a version of torch raises, the program goes on
        return None


def compiled_graphs() -> int:
    """How many graphs torch.compile has made."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None) or {}
    stats = counters.get("stats") or {}
    return int(stats.get("unique_graphs", 0))


def _allocator() -> str | None:
    cuda = started_cuda()
    return None if cuda is None else str(cuda.get_allocator_backend())
