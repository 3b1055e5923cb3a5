"""The real profiles that tests look for in `$STEPSCOPE_SAMPLES`."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

__all__ = ["KEPT", "SAMPLES"]

KEPT = Path(tempfile.mkdtemp(prefix="stepscope-tests-"))
"""Stores of real profiles for tests that only read them: each is made once in a run."""
atexit.register(shutil.rmtree, KEPT, ignore_errors=True)

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
