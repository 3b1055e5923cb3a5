"""The real profiles that tests look at, each opened once in a run: their names, traces and reports."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Container, Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from unittest.mock import patch

import pytest

import stepscope
from stepscope.compare import StepChange
from stepscope.compare import build as comparing
from stepscope.findings.build import build_report
from stepscope.findings.report import Report
from stepscope.store.layout import locked
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

__all__ = ["DATA", "FEW", "KEPT", "SAMPLES", "compared", "open_shared", "reported", "stem", "tiered"]

Named = TypeVar("Named", bound=str | Path)

DATA = Path(__file__).parent / "data"
STORES = "STEPSCOPE_TEST_STORES"
"""The variable that tells the processes of a run in parallel which folder of stores they share."""


def _kept() -> Path:
    if shared := os.environ.get(STORES):
        return Path(shared)
    made = Path(tempfile.mkdtemp(prefix="stepscope-tests-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    os.environ[STORES] = str(made)
    return made


KEPT = _kept()
"""Stores of real profiles for tests that only read them: each is made once in a run."""


def stem(profile: str | Path) -> str:
    """What a profile is called: its file without folder and endings, so that twins have one name."""
    return Path(profile).name.partition(".")[0]


def tiered(every: Iterable[Named], quick: Container[Named]) -> list[Named | ParameterSet]:
    """Parameters of a test: some for every run, and the others for an exhaustive one."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.exhaustive) for one in every]


def open_shared(path: str | Path) -> Trace:
    """A trace for all tests of the process that only look at it: what one has worked out, others find."""
    return _opened(Path(path))


@lru_cache(maxsize=12)  # tests of one profile follow one another; an open database takes some memory
def _opened(path: Path) -> Trace:
    place = KEPT / f"lock-{path.name}"
    place.mkdir(exist_ok=True)
    with locked(place):  # a profile that two processes want is read by one of them
        return stepscope.open(path, store=KEPT)


@cache
def reported(path: Path) -> Report:
    """The report of a shared trace, with the tables that a comparison needs."""
    return build_report(open_shared(path), tables=comparing._TABLES)


def compared(**sides: Path) -> StepChange:
    """How the step changed between two shared traces; their reports are built once."""
    traces = {path: open_shared(path) for path in sides.values()}
    reports = {id(trace): reported(path) for path, trace in traces.items()}
    with patch.object(comparing, "build_report", lambda trace, **_: reports[id(trace)]):
        return comparing.compare([(name, [traces[path]]) for name, path in sides.items()]).whole


SAMPLES = [
    "h200_compile_default.pt.trace.json.gz",
    "h200_cuda_graph.pt.trace.json.gz",
    "h200_ddp_gloo_rank0.pt.trace.json.gz",
    "h200_ddp_gloo_rank1.pt.trace.json.gz",
    "h200_mem_timeline.pt.trace.json.gz",
    "h200_prefetch_serial.pt.trace.json.gz",
    "h200_resnet50.pt.trace.json.gz",
    "h200_rl_churn.pt.trace.json.gz",
    "h200_slow_item.pt.trace.json.gz",
    "h200_tutorial_baseline.pt.trace.json.gz",
    "hta_alexnet.json.gz",
    "hta_amd_mi250.json.gz",
    "hta_cpu_only.json.gz",
    "hta_cupti.json.gz",
    "hta_nccl_data.json.gz",
    "hta_ns_resolution.json.gz",
    "hta_sampled_rank-0.json.gz",
    "hta_sampled_rank-1.json.gz",
    "hta_simple_add.json.gz",
    "hta_triton.json.gz",
    "tl_b200_eager_trace.json.gz",
    "tl_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz",
    "tl_h100_gaunernst_bert-small-uncased.json.gz",
    "tl_mi210_gpu_only_trace_gpu_only_trace.json.gz",
    "tl_torch_compile_triton_trace.json.gz",
    "tl_vllm_decode_full_graph.json.gz",
]

FEW = [
    "hta_alexnet.json.gz",
    "hta_amd_mi250.json.gz",
    "hta_cpu_only.json.gz",
    "hta_nccl_data.json.gz",
    "hta_ns_resolution.json.gz",
    "hta_sampled_rank-0.json.gz",
    "hta_triton.json.gz",
    "tl_mi210_gpu_only_trace_gpu_only_trace.json.gz",
    "tl_torch_compile_triton_trace.json.gz",
    "tl_vllm_decode_full_graph.json.gz",
]
"""Some of every kind, for what is asked of any profile; of most others every run looks at a cut twin."""
