"""Rank files drawn in code: what `stepscope run` writes beside the profiles of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.drawing import Drawing

import stepscope
from stepscope.store.trace import Trace

BASE = 1_700_000_000_000_000_000
US = 1_000


def sample(at_us: int, *reasons: str, **told: Any) -> dict[str, Any]:
    """A sample of a busy H200; `at_us` counts from the base time of the drawings."""
    quiet = {
        "device": 0,
        "sm_clock_mhz": 1980,
        "max_sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "max_memory_clock_mhz": 3201,
        "power_mw": 500_000,
        "power_limit_mw": 700_000,
        "temperature_c": 55,
        "utilization_share": 0.98,
        "memory_utilization_share": 0.4,
        "link_generation": 5,
        "link_width": 16,
    }
    return {"epoch_ns": BASE + at_us * US, **quiet, "reasons": list(reasons), **told}


def pause(at_us: int, dur_us: int, generation: int = 2, collected: int = 10) -> dict[str, int]:
    """A pause of the collector."""
    return {
        "epoch_ns": BASE + at_us * US,
        "dur_ns": dur_us * US,
        "generation": generation,
        "collected": collected,
    }


GPU = {
    "device": 0,
    "name": "NVIDIA H200",
    "link_generation": 5,
    "max_link_generation": 5,
    "link_width": 16,
    "max_link_width": 16,
    "nvlinks": 18,
    "numa_node": 1,
    "default_power_limit_mw": 700_000,
    "power_limit_mw": 700_000,
    "max_sm_clock_mhz": 1980,
}
CPU = {
    "model": "Drawn CPU",
    "count": 16,
    "affinity": "0-7",
    "available": 8,
    "numa_nodes": 2,
    "affinity_numa_nodes": [1],
}
LOADER = {
    "loader": "torch.utils.data.dataloader.DataLoader",
    "dataset": "data.Images",
    "sampler": "torch.utils.data.sampler.RandomSampler",
    "batch_size": 32,
    "num_workers": 4,
    "pin_memory": False,
    "prefetch_factor": 2,
    "persistent_workers": False,
    "drop_last": True,
    "collate": "torch.utils.data._utils.collate.default_collate",
    "batches": 40,
    "waited_ns": 80_000_000,
    "batches_per_step": 1.0,
    "waited_ns_per_step": 2_000_000,
}


def rank_document(**told: Any) -> dict[str, Any]:
    """A whole rank file."""
    whole = {
        "schema": "stepscope.rank/1",
        "rank": 0,
        "world_size": 1,
        "pid": 100,
        "command": ["python", "train.py"],
        "environment": {
            "git": {"commit": "0" * 40, "dirty": True, "inserted_lines": 3},
            "versions": {"python": "3.11.7", "torch": "2.8.0", "cuda": "12.8", "driver": "570.86"},
            "variables": {"OMP_NUM_THREADS": "8", "NCCL_DEBUG": "WARN"},
            "torch": {"cudnn_benchmark": False, "default_dtype": "float32", "threads": 8},
            "cpu": CPU,
            "gpus": [GPU],
            "unknown": {},
        },
        "gpu_samples": [sample(10), sample(60)],
        "collector_pauses": [pause(20, 5)],
        "loaders": [LOADER],
        "notes": [],
    }
    return {**whole, **told}


def opened_with(folder: Path, drawing: Drawing, document: dict[str, Any] | None, name: str = "a") -> Trace:
    """A drawn trace with a rank file added, or without one."""
    file = drawing.write(folder / f"{name}.json")
    if document is None:
        return stepscope.open(file, store=folder / f"{name}.store")
    (folder / f"{name}.rank.json").write_text(json.dumps(document))
    return stepscope.open(file, also=[folder / f"{name}.rank.json"], store=folder / f"{name}.store")
