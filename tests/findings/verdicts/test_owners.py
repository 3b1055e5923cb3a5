"""Fixes, tools and places on traces of other people's programs: servers, libraries, AMD and MTIA."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.samples import reported

from stepscope.findings.program import Framework, Vendor
from stepscope.findings.report import Report

Sample = Callable[[str], Path]
OWNERS = {
    "dlrm_graphs_a100": (Vendor.NVIDIA, (Framework.TORCHREC,)),
    "h200_compiled_graphs": (Vendor.NVIDIA, ()),
    "mtia_inference": (Vendor.MTIA, ()),
    "owlv2_h100": (Vendor.NVIDIA, (Framework.HF_PIPELINE, Framework.TRANSFORMERS)),
    "resnet_ddp_mi300": (Vendor.AMD, ()),
    "sglang_decode_mi300": (Vendor.AMD, (Framework.SGLANG,)),
    "timesformer_h100": (Vendor.NVIDIA, (Framework.HF_PIPELINE, Framework.TRANSFORMERS)),
    "torchrec_a100": (Vendor.NVIDIA, (Framework.TORCHREC,)),
    "two_v100": (Vendor.NVIDIA, ()),
    "vllm_mixed_mi300": (Vendor.AMD, (Framework.VLLM,)),
    "xdit_sd35_mi300": (Vendor.AMD, (Framework.DIFFUSERS, Framework.TRANSFORMERS)),
}


def report_on(sample: Sample, name: str) -> Report:
    return reported(sample(f"verdicts/{name}.json.gz"))


def said(report: Report) -> str:
    """All that a report tells people to think and to type."""
    advices = [finding.advice for finding in report.findings]
    texts = [text for one in advices for text in (one.title, one.because, one.fix, one.check)]
    return "\n".join([*texts, *(f"{step.text} {step.command}" for step in report.next_steps)])


@pytest.mark.slow
@pytest.mark.parametrize("name", OWNERS)
def test_owner_and_maker_are_known(name: str, sample: Sample) -> None:
    facts = report_on(sample, name).facts
    assert (facts.vendor, facts.frameworks) == OWNERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWNERS)
def test_no_profiler_replays_a_collective_or_is_of_another_maker(name: str, sample: Sample) -> None:
    report = report_on(sample, name)
    tools = [step.command for step in report.next_steps]
    assert not any(
        re.search(r"(ncu|rocprof-compute) .*(nccl|rccl|all_?reduce)", one, re.IGNORECASE) for one in tools
    )
    allowed = {Vendor.NVIDIA: {"ncu", "nsys"}, Vendor.AMD: {"rocprofv3", "rocprof-compute"}}
    others = {"ncu", "nsys", "rocprofv3", "rocprof-compute"} - allowed.get(report.facts.vendor, set())
    assert not others & {one.partition(" ")[0] for one in tools}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mtia_inference", "resnet_ddp_mi300", "vllm_mixed_mi300", "xdit_sd35_mi300"]
)
def test_words_are_not_those_of_cuda(name: str, sample: Sample) -> None:
    text = said(report_on(sample, name))
    assert not re.search(r"CUDA graph|cuDNN|\bNCCL\b(?!_)", text)
    if name == "mtia_inference":
        assert "cuda" not in text.lower()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sglang_decode_mi300", "vllm_mixed_mi300"])
def test_who_serves_has_no_loop_to_change(name: str, sample: Sample) -> None:
    text = said(report_on(sample, name))
    assert not re.search(r"DataLoader\(|optimizer|\.backward\(|batch_size|train\.py|elapsed_time", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,function",
    [
        ("owlv2_h100", "transformers/models/owlv2/modeling_owlv2.py:410 forward"),
        ("timesformer_h100", "transformers/models/timesformer/modeling_timesformer.py:200 forward"),
    ],
)
def test_vision_attention_is_not_called_causal(name: str, function: str, sample: Sample) -> None:
    report = report_on(sample, name)
    advice = next(one.advice for one in report.findings if one.id == "unfused-attention")
    assert "is_causal" not in said(report)
    assert 'pipeline(task, model=name, model_kwargs={"attn_implementation": "sdpa"})' in advice.fix
    assert [str(one).startswith(function) for place in advice.locations for one in place.inside] == [True]
    assert advice.locations[0].inside[0].module is not None
    assert not re.search(r"autocast|GradScaler|optimizer|learning rate", said(report))


@pytest.mark.slow
def test_where_a_librarys_function_makes_the_host_wait(sample: Sample) -> None:
    report = report_on(sample, "xdit_sd35_mi300")
    functions = {
        inside.function
        for finding in report.findings
        for place in finding.advice.locations
        for inside in place.inside
    }
    assert {"pt_to_numpy", "index_for_timestep"} <= functions
