"""Whose program a profile shows: the frameworks that own its loop and its model, and the maker of its device.

Both decide what a user can change: who serves with vLLM has flags, not a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from stepscope.records import dataclass
from stepscope.store.trace import Trace

__all__ = ["SERVERS", "Framework", "Program", "Vendor", "frameworks_of", "vendor_of"]


class Vendor(StrEnum):
    """The maker of a device."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    MTIA = "mtia"
    UNKNOWN = "unknown"


class Framework(StrEnum):
    """Who owns the loop or the model, those first that own more of the program."""

    VLLM = "vLLM"
    SGLANG = "SGLang"
    TENSORRT_LLM = "TensorRT-LLM"
    HF_TRAINER = "Hugging Face Trainer"
    LIGHTNING = "Lightning"
    MEGATRON = "Megatron"
    DEEPSPEED = "DeepSpeed"
    ACCELERATE = "accelerate"
    TORCHREC = "TorchRec"
    DIFFUSERS = "diffusers"
    HF_PIPELINE = "transformers pipeline"
    TRANSFORMERS = "transformers"
    TIMM = "timm"


SERVERS = (Framework.VLLM, Framework.SGLANG, Framework.TENSORRT_LLM)
"""They own everything: their users have flags."""


@dataclass(frozen=True, slots=True)
class Program:
    """What decides which fix fits."""

    frameworks: tuple[Framework, ...] = ()
    """Those that own more first; empty for a program of its own."""
    vendor: Vendor = Vendor.NVIDIA
    trains: bool | None = None
    """Whether it trains; None if the profile does not tell."""

    @property
    def server(self) -> Framework | None:
        """The serving engine, if it is one."""
        return next((one for one in self.frameworks if one in SERVERS), None)


# Functions that run only when a framework is at work; importing it runs none of them. Frames are named
# `package/module.py(line): function`, after a folder where that is not on Python's path.
_FRAMES = {
    Framework.VLLM: r"(^|/)vllm/(v1|worker|engine|executor)/[\w/]+\.py\(\d+\): [a-z_]",
    Framework.SGLANG: r"(^|/)sglang/srt/(managers|model_executor|layers)/[\w/]+\.py\(\d+\): [a-z_]",
    Framework.TENSORRT_LLM: r"(^|/)tensorrt_llm/(_torch|executor|runtime)/[\w/]+\.py\(\d+\): [a-z_]",
    Framework.HF_TRAINER: r"(^|/)transformers/trainer\w*\.py\(\d+\): "
    r"(train|_inner_training_loop|training_step|compute_loss|evaluation_loop|prediction_step)$",
    Framework.LIGHTNING: r"(^|/)(lightning/pytorch|pytorch_lightning)/"
    r"(trainer|loops|strategies)/[\w/]+\.py\(",
    Framework.MEGATRON: r"(^|/)megatron/(core|training)/[\w/]+\.py\(\d+\): [a-z_]",
    Framework.DEEPSPEED: r"(^|/)deepspeed/runtime/[\w/]+\.py\(\d+\): [a-z_]",
    Framework.ACCELERATE: r"(^|/)accelerate/(accelerator|optimizer|data_loader)\.py\(\d+\): [a-z_]",
    Framework.TORCHREC: r"(^|/)torchrec/(distributed|modules)/[\w/]+\.py\(\d+\): [a-z_]",
    Framework.DIFFUSERS: r"(^|/)diffusers/(pipelines|models|schedulers)/[\w/]+\.py\(\d+\): [a-z_]",
    Framework.HF_PIPELINE: r"(^|/)transformers/pipelines/\w+\.py\(\d+\): "
    r"(__call__|run_single|forward|_forward)$",
    Framework.TRANSFORMERS: r"(^|/)transformers/(models|generation)/[\w/]+\.py\(\d+\): "
    r"(forward|generate|_sample)$",
    Framework.TIMM: r"(^|/)timm/(models|layers)/\w+\.py\(\d+\): (forward\w*)$",
}
# Ranges that only these write, for profiles without stacks; operators have the engine's namespace. SGLang on
# AMD also writes ranges as vLLM does.
_RANGES = {
    Framework.SGLANG: r"^step\[[A-Z_0-9]+[ \]]",
    Framework.VLLM: r"^execute_(\d+_)?(context|new)_\d|^gpu_model_runner: |^vllm::(unified|moe_forward)",
    Framework.LIGHTNING: r"^\[(pl|Strategy|LightningModule)\]",
    Framework.TORCHREC: r"^## (wait_sparse_data_dist|sparse_data_dist|start_sparse_data_dist) ##",
}
_OWN_CALLS = {
    Vendor.AMD: r"^hip[A-Z]\w+$",
    Vendor.INTEL: r"^(ze[A-Z]\w+|ur(Enqueue|USM|Kernel)\w+)$",
    Vendor.NVIDIA: r"^cu(da)?[A-Z]\w+$",
}
_OWN_NAMES = {
    Vendor.NVIDIA: ("nvidia", "tesla", "geforce", "quadro"),
    Vendor.AMD: ("amd", "radeon", "instinct"),
    Vendor.INTEL: ("intel", "data center gpu max"),
}


def frameworks_of(trace: Trace) -> tuple[Framework, ...]:
    """The frameworks whose functions ran, from Python frames; from ranges where there are none."""
    by_frames = [one for one in Framework if one in _FRAMES and trace.has_name(_FRAMES[one])]
    found = set(by_frames)
    if not any(one in SERVERS for one in found):
        by_ranges = [one for one, pattern in _RANGES.items() if trace.has_name(pattern)]
        servers = [one for one in by_ranges if one in SERVERS]
        found |= {one for one in by_ranges if one not in servers[1:]}
    return tuple(one for one in Framework if one in found)


def vendor_of(trace: Trace, categories: Iterable[str], devices: Iterable[str]) -> Vendor:
    """The maker of the device: from the kinds of events, the header, device names, or runtime calls."""
    told = trace.meta.metadata
    for kind in categories:
        if kind.startswith("mtia"):
            return Vendor.MTIA
        if kind.startswith("xpu"):
            return Vendor.INTEL
    if _version(told, "hip_runtime_version"):
        return Vendor.AMD
    if _version(told, "cuda_runtime_version"):
        return Vendor.NVIDIA
    return next(_by_names(trace, [name.lower() for name in devices]), Vendor.UNKNOWN)


def _version(told: dict[str, Any], key: str) -> bool:
    value = told.get(key)
    return isinstance(value, int) and value > 0


def _by_names(trace: Trace, devices: list[str]) -> Iterator[Vendor]:
    for vendor, words in _OWN_NAMES.items():
        if any(word in name for name in devices for word in words):
            yield vendor
    for vendor, pattern in _OWN_CALLS.items():
        if trace.has_name(pattern):
            yield vendor
