"""Whose program a profile shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.findings.facts import Facts, facts_of
from stepscope.findings.program import Framework, Program, Vendor
from stepscope.store.trace import Trace


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def facts(drawing: Drawing, folder: Path) -> Facts:
    return facts_of(opened(drawing, folder))


FRAMES = {
    "vllm/v1/worker/gpu_model_runner.py(3087): execute_model": [Framework.VLLM],
    "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(10): run_batch": [Framework.SGLANG],
    "tensorrt_llm/_torch/pyexecutor/py_executor.py(5): _executor_loop": [Framework.TENSORRT_LLM],
    "transformers/trainer.py(2200): _inner_training_loop": [Framework.HF_TRAINER],
    "transformers/trainer.py(1): <module>": [],
    "transformers/models/gpt2/modeling_gpt2.py(71): forward": [Framework.TRANSFORMERS],
    "transformers/generation/utils.py(2000): generate": [Framework.TRANSFORMERS],
    "transformers/pipelines/base.py(1180): forward": [Framework.HF_PIPELINE],
    "transformers/utils/logging.py(9): info": [],
    "lightning/pytorch/loops/fit_loop.py(400): advance": [Framework.LIGHTNING],
    "/opt/venv/lib/python3.12/site-packages/pytorch_lightning/trainer/trainer.py(5): fit": [
        Framework.LIGHTNING
    ],
    "deepspeed/runtime/engine.py(1800): forward": [Framework.DEEPSPEED],
    "accelerate/accelerator.py(2100): backward": [Framework.ACCELERATE],
    "accelerate/hooks.py(160): new_forward": [],
    "diffusers/pipelines/flux/pipeline_flux.py(700): __call__": [Framework.DIFFUSERS],
    "timm/models/vision_transformer.py(90): forward": [Framework.TIMM],
    "megatron/core/pipeline_parallel/schedules.py(30): forward_step": [Framework.MEGATRON],
    "torchrec/distributed/embeddingbag.py(300): forward": [Framework.TORCHREC],
    "my_vllm/v1/tools.py(3): run": [],
    "train.py(3): main": [],
}


@pytest.mark.parametrize("name", FRAMES)
def test_frameworks_are_told_by_functions_that_only_they_run(name: str, tmp_path: Path) -> None:
    found = facts(Drawing().frame(name, 0, 50).op("aten::mm", 1, 5), tmp_path)
    assert list(found.frameworks) == FRAMES[name]


RANGES = {
    "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)": [Framework.VLLM],
    "gpu_model_runner: forward": [Framework.VLLM],
    "step[DECODE bs=32]": [Framework.SGLANG],
    "[pl][profile]run_training_batch": [Framework.LIGHTNING],
    "[Strategy]SingleDeviceStrategy.training_step": [Framework.LIGHTNING],
    "## wait_sparse_data_dist ##": [Framework.TORCHREC],
    "Optimizer.step#AdamW.step": [],
    "## forward ##": [],
}


@pytest.mark.parametrize("name", RANGES)
def test_without_stacks_ranges_tell(name: str, tmp_path: Path) -> None:
    assert list(facts(Drawing().annotation(name, 0, 50), tmp_path).frameworks) == RANGES[name]


def test_sglang_that_writes_ranges_like_vllm_is_sglang(tmp_path: Path) -> None:
    drawing = Drawing().annotation("execute_new_0_cached_8", 0, 50).annotation("step[DECODE bs=8]", 1, 40)
    assert facts(drawing, tmp_path).frameworks == (Framework.SGLANG,)


def test_who_owns_more_comes_first(tmp_path: Path) -> None:
    drawing = Drawing()
    for place, name in enumerate(reversed(FRAMES)):
        drawing.frame(name, place, 100 - 2 * place)
    assert facts(drawing, tmp_path).frameworks == tuple(Framework)
    assert Program(tuple(Framework)).server == Framework.VLLM


@pytest.mark.parametrize(
    "drawing,vendor",
    [
        (Drawing().meta(hip_runtime_version=60_443_483), Vendor.AMD),
        (Drawing().meta(deviceProperties=[{"id": 0, "name": "AMD Instinct MI300X"}]), Vendor.AMD),
        (Drawing().meta(deviceProperties=[]).launch("hipLaunchKernel", 0, 1), Vendor.AMD),
        (Drawing().meta(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}]), Vendor.NVIDIA),
        (Drawing().meta(deviceProperties=[]).launch("cudaLaunchKernel", 0, 1), Vendor.NVIDIA),
        (Drawing().meta(deviceProperties=[]).launch("cuLaunchKernel", 0, 1), Vendor.NVIDIA),
        (Drawing().meta(deviceProperties=[]).launch("urEnqueueKernelLaunch", 0, 1), Vendor.INTEL),
        (
            Drawing().meta(deviceProperties=[]).op("aten::mm", 0, 1).launch("x", 2, 1, cat="xpu_runtime"),
            Vendor.INTEL,
        ),
        (
            Drawing()
            .meta(deviceProperties=[{"id": 17, "name": "ARTEMIS"}])
            .kernel("merge", 0, 1, cat="mtia_ccp_events"),
            Vendor.MTIA,
        ),
        (Drawing().meta(deviceProperties=[]).op("aten::cumsum", 0, 1), Vendor.UNKNOWN),
    ],
)
def test_the_maker_of_the_device(drawing: Drawing, vendor: Vendor, tmp_path: Path) -> None:
    assert facts(drawing.op("aten::add", 10, 1), tmp_path).vendor == vendor


def test_names_are_asked_for_where_they_are_too_many_to_look_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = opened(Drawing().frame("timm/layers/mlp.py(3): forward", 0, 9), tmp_path)
    monkeypatch.setattr(trace._shared, "names", lambda: None)
    assert trace.may_have_name("no such name")
    assert not trace.has_name("no such name")
    assert facts_of(trace).frameworks == (Framework.TIMM,)
