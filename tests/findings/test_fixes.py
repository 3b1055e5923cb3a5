"""Fixes fit the program: who owns its code, who made its device, and whether it trains."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from string import Formatter

import pytest
from tests.findings.drawn import fix_for
from tests.samples import DATA, open_shared, tiered

from stepscope.findings import Advice, Saving, build
from stepscope.findings._variants import INFERENCE_ONLY, TRAINING_ONLY, VALUES, VARIANTS
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, Fix, FixLine, fitted, fix_of, in_words_of, line, sixteen_bits
from stepscope.findings.program import SERVERS, Framework, Program, Vendor

FAULTS = sorted((DATA / "faults").glob("*.faulty.light.pt.trace.json.gz"))
QUICK = [
    path for path in FAULTS if path.name.split(".")[0] in ("launch_bound", "scalar_reads", "weight_casts")
]
RULES = Path(build.__file__).parent / "rules"


def advice(fix: str) -> Advice:
    return Advice(
        title="Compiled code does not use CUDA graphs",
        because="Nothing prevents CUDA graphs.",
        saving=Saving(),
        certainty="likely",
        fix=fix,
        check="stepscope show launches: cudaGraphLaunch.",
        evidence={"calls": 1},
        claims=frozenset({Claim(Time.STARVED)}),
    )


LOADER = line(Change.WORKERS, "loader = DataLoader(dataset, num_workers=4)", workers=4)


def test_a_program_of_its_own_gets_the_rules_own_lines() -> None:
    fix = fix_of(LOADER, "# and this")
    assert fix == "loader = DataLoader(dataset, num_workers=4)\n# and this"
    assert fix_for(advice(fix)) == fix


@pytest.mark.parametrize(
    "frameworks,typed",
    [
        ((Framework.HF_TRAINER, Framework.TRANSFORMERS), "TrainingArguments(dataloader_num_workers=4, "),
        ((Framework.LIGHTNING,), "# in train_dataloader(): DataLoader(..., num_workers=4, "),
        ((Framework.HF_PIPELINE, Framework.TRANSFORMERS), "pipe(inputs, num_workers=4)"),
        ((Framework.MEGATRON,), "--num-workers 4"),
        ((Framework.DEEPSPEED,), "loader = DataLoader(dataset, num_workers=4)"),
        ((Framework.VLLM,), "pip install -U vllm "),
    ],
)
def test_who_owns_the_loop_gets_their_flag(frameworks: tuple[Framework, ...], typed: str) -> None:
    assert fix_for(advice(fix_of(LOADER)), *frameworks).startswith(typed)


def test_who_owns_more_decides() -> None:
    fix = fix_of(*sixteen_bits("bf16", "around forward"), line(Change.ATTENTION, "F.sdpa(q, k, v)"))
    told = fix_for(
        advice(fix), Framework.HF_TRAINER, Framework.ACCELERATE, Framework.TRANSFORMERS, trains=True
    )
    assert told.splitlines()[0].startswith("TrainingArguments(bf16=True)")
    assert 'attn_implementation="sdpa"' in told
    assert "Accelerator" not in told
    assert "autocast" not in told


def test_what_a_framework_does_already_is_left_out() -> None:
    assert fix_for(advice(fix_of(line(Change.ZERO_GRAD, "zero_grad()"))), Framework.HF_TRAINER) == ""


def test_training_and_inference_have_fixes_of_their_own() -> None:
    fix = advice(fix_of(*sixteen_bits("fp16", "with GradScaler()")))
    assert "autocast" in fix_for(fix, trains=True)
    assert "model.to" not in fix_for(fix, trains=True)
    assert fix_for(fix, trains=False) == "model.to(torch.float16)    # for inference"
    assert fix_for(fix) == fix.fix
    assert fix_for(fix, Framework.VLLM, trains=False) == "vllm serve MODEL --dtype float16"
    assert not TRAINING_ONLY & INFERENCE_ONLY


def test_words_and_advice_are_those_of_the_device() -> None:
    graphs = fix_of(
        line(Change.GRAPHS, 'torch.compile(model, mode="reduce-overhead")    # CUDA graphs'),
        line(Change.AUTOTUNE, "torch.compile(model)"),
        "torch.cuda.current_stream()",
    )
    amd = fitted(advice(graphs), Program(vendor=Vendor.AMD))
    assert amd.title == "Compiled code does not use HIP graphs"
    assert amd.because == "Nothing prevents HIP graphs."
    assert "hipGraphLaunch" in amd.check
    assert "# HIP graphs" in amd.fix
    assert "torch.cuda.current_stream()" in amd.fix
    assert "PYTORCH_TUNABLEOP_ENABLED=1" in amd.fix
    xpu = fitted(advice(graphs), Program(vendor=Vendor.INTEL)).fix
    assert xpu == "torch.compile(model)\ntorch.xpu.current_stream()"
    assert "VLLM_ROCM_USE_AITER=1" in fix_for(advice(graphs), Framework.VLLM, vendor=Vendor.AMD)
    assert in_words_of(Vendor.NVIDIA, graphs) == graphs


def test_every_change_is_made_by_a_rule_and_every_variant_can_be_written() -> None:
    used = {
        name
        for path in RULES.parent.rglob("*.py")
        if path.name != "_variants.py"
        for name in re.findall(r"Change\.([A-Z_0-9]+)", path.read_text(encoding="utf-8"))
    }
    assert {change.name for change in Change} == used
    for (change, framework), text in VARIANTS.items():
        asked = {name for _, name, _, _ in Formatter().parse(text) if name}
        assert asked <= set(VALUES), (change, framework)
        assert "\n" not in text


def raw_advices(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Advice]:
    """What rules say of a profile, before it is fitted to its program."""
    monkeypatch.setattr(build, "fitted", lambda advice, _: advice)
    return [finding.advice for finding in build.build_report(open_shared(path)).findings]


# A loop, an optimizer or a loader, which neither servers nor programs that only infer have.
LOOP = re.compile(r"DataLoader\(|optimizer|\.backward\(\)|GradScaler|no_sync|zero_grad|batch_size [*/]")
TRAINS = re.compile(r"\bGradScaler|\boptimizer = |zero_grad\(|no_sync\(")
CUDA = re.compile(r"\bCUDA graph|cuDNN|\bNCCL\b|\bncu\b|\bnsys\b")


@pytest.mark.slow
@pytest.mark.parametrize("path", tiered(FAULTS, QUICK), ids=lambda path: path.name.split(".")[0])
def test_no_fix_is_for_another_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advices = raw_advices(path, monkeypatch)
    assert advices
    for told, framework, vendor, trains in product(advices, [None, *Framework], Vendor, (True, False, None)):
        program = Program((framework,) if framework else (), vendor, trains)
        fit = fitted(told, program)
        where = (told.title, program)
        assert not re.search(r"\{[a-z_]+\}", fit.fix), where
        if framework in SERVERS:
            assert fit.fix, where
            assert not LOOP.search(fit.fix), where
        if trains is False and isinstance(told.fix, Fix) and all(one.change for one in told.fix.lines):
            assert not TRAINS.search(fit.fix), where
        if vendor is Vendor.AMD:
            assert not CUDA.search(fit.title + fit.because + fit.fix + fit.check), where
        if vendor in (Vendor.INTEL, Vendor.MTIA):
            assert not re.search(r"cuda|cudnn|nccl", fit.fix, re.IGNORECASE), where


def test_a_plain_text_of_a_rule_elsewhere_stays_as_it_is() -> None:
    assert fix_for(advice("do_this()"), Framework.HF_TRAINER, trains=True) == "do_this()"
    assert fix_of("a", fix_of(FixLine(None, "b"))).lines == (FixLine(None, "a"), FixLine(None, "b"))
