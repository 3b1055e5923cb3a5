"""Reports drawn in code, for tests of the formats: one that has everything, and one that knows nothing."""

from __future__ import annotations

from typing import Any

from tests.findings.drawn import H200, MS, drawn, facts

from stepscope.analyses.allocator_curves import AllocatorPoint
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.lines import Line
from stepscope.analyses.memory_curves import MemoryPoint
from stepscope.analyses.steps import Step
from stepscope.analyses.trust import Caveat
from stepscope.findings import Advice, Category, Finding, Gain, Inside, Location, Saving
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.report import ChecklistItem, NextStep, NotRun, Overview, PhaseShare, Report, Verdict
from stepscope.tables import Table

SCRIPT = "<script>alert(1)</script>"
IMAGE = "\"><img src=x onerror='alert(2)'>"
TURNED = "a\u202etxt\x00.py"
"""A name that turns the line around, and would end a string of C."""
GEMM = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x2_nn_align8>(Params)"
GIB = 1 << 30


def report(**changed: Any) -> Report:
    """A step of 64 ms that waits for the host, with three findings and everything that a report can hold."""
    given: dict[str, Any] = {
        "facts": facts(
            source=f"run {SCRIPT}.json.gz", world_size=8, backend="nccl", modules=False, devices=(H200,) * 8
        ),
        "trust": _trust(),
        "overview": _overview(),
        "verdict": Verdict(
            "sync-bound",
            "The GPU computes for 52 % of the 64.1 ms step. Most of the rest it is idle, because the host "
            "waited for it and had no more work queued.",
            "Fixing #1 and #2 should bring the step to 26–37 ms.",
        ),
        "findings": (_reads(), _casts(), _memory()),
        "not_run": (
            NotRun("allocation-churn", "memory was not recorded", "profile_memory=True"),
            NotRun("odd-rule", f"it crashed: ValueError: {SCRIPT} (odd_rule, line 7)", ""),
        ),
        "checklist": (
            ChecklistItem("utilization", "fail", "52.4 %, bad", "above 80 %"),
            ChecklistItem("forward share", "info", "31.2 %", "35–40 % of device work"),
            ChecklistItem("fused attention", "pass", "98.0 % of its time", "flash, cuDNN or flex kernels"),
            ChecklistItem("exposed copies", "pass", "1.2 %", "below 3 % of the step"),
            ChecklistItem("memory", "not known", "record with profile_memory=True", "85–95 % of the device"),
        ),
        "next_steps": (
            NextStep("Fix #1 and nothing else, record again, and compare:", "stepscope diff BEFORE AFTER"),
            NextStep(
                "See what other threads did meanwhile, with Nsight Systems:",
                "nsys profile --trace=cuda,nvtx -o step python train.py",
            ),
            NextStep("The profile has no stacks, so it cannot name the lines that keep the GPU waiting."),
        ),
        "tables": tables(),
    }
    return Report(**{**given, **changed})


def empty_report() -> Report:
    """A trace of which nothing is known."""
    return Report(
        facts=facts(
            source="empty.json",
            devices=(),
            stacks=False,
            shapes=False,
            memory=False,
            modules=False,
            device_work=False,
            host_ops=False,
            cuda=None,
        ),
        trust=(),
        overview=Overview(
            steps=0,
            found_by="nothing",
            step_ns=0,
            steady_step_ns=0,
            unprofiled_step_ns=(0, 0),
            parts={},
            phases=(),
            pace_set_by="host",
            devices_with_work=0,
            kernels_per_step=0,
            utilization_share=None,
            starved_share=None,
            sm_efficiency_share=None,
            peak_memory_bytes=None,
            memory_bytes=None,
            mfu_share=None,
            rates={},
        ),
        verdict=Verdict("unknown", "The profile has no steps, so there is nothing to judge.", ""),
        findings=(),
        not_run=(),
        checklist=(),
        next_steps=(),
    )


def tables(steps: int = 5) -> dict[str, Table[Any]]:
    """The tables that formats ask for, with hostile names in them."""
    return {
        "steps_by_any": _steps_by_any(steps),
        "kernel_families": _families(),
        "idle_gaps": _idle(),
        "kernels": _kernels(),
        "memory_curves": _curves(),
        "allocator_curves": _snapshot_curves(),
        "lines": _lines(),
    }


def _overview() -> Overview:
    return Overview(
        steps=5,
        found_by="marks",
        step_ns=64_100_000,
        steady_step_ns=64_100_000,
        unprofiled_step_ns=(58 * MS, 62 * MS),
        parts={
            "kernel": 33_600_000,
            "memcpy": 1_900_000,
            "memset": 200_000,
            "communication": 2_600_000,
            "runtime": 14_200_000,
            "dataloader": 700_000,
            "cpu": 6_900_000,
            "other": 4_000_000,
        },
        phases=(
            PhaseShare("dataloader", 0.011, 0.002),
            PhaseShare("forward", 0.391, 0.312),
            PhaseShare("backward", 0.402, 0.581),
            PhaseShare("optimizer", 0.151, 0.105),
            PhaseShare("other", 0.045, None),
        ),
        pace_set_by="device",
        devices_with_work=1,
        kernels_per_step=1576,
        utilization_share=0.524,
        starved_share=0.381,
        sm_efficiency_share=0.447,
        peak_memory_bytes=71 * GIB,
        memory_bytes=150_109_880_320,
        mfu_share=0.213,
        rates={"steps": 15.6, "samples": 998.4},
    )


def _trust() -> tuple[Caveat, ...]:
    rows = drawn(
        Caveat,
        {
            "what": "profiler options",
            "count": 2,
            "effect_ns": 5 * MS,
            "effect_share": 0.095,
            "of": "the steps",
            "explanation": "Stacks and shapes were recorded, which slows the host.",
            "advice": "Record once more without with_stack=True to see the real step.",
        },
        {
            "what": f"odd names {SCRIPT}",
            "count": 1,
            "explanation": "Names in the file hold markup.",
            "advice": "Nothing, if names look right.",
            "reason": "No event was lost.",
        },
    )
    return tuple(rows)


def _reads() -> Finding:
    return Finding(
        "scalar-reads",
        Category.SYNC,
        Advice(
            title="The host reads single numbers back in a loop",
            because="The host waits for 128 reads per step. The GPU is then idle for 24.4 ms of the step.",
            saving=Saving(starved_ns=(20.0 * MS, 26.0 * MS)),
            certainty="certain",
            fix="losses.append(loss.detach())  # not loss.item()\n"
            'if step % 100 == 0 and rank < 1:  # "once" & not in the loop\n'
            "    print(torch.stack(losses).mean().item())",
            check="stepscope show host_syncs: no aten::item in the training loop.",
            evidence={
                "per_step": 128.0,
                "waited_ns": 31_234_567,
                "starved_share": 0.3807,
                "copied_bytes": 512,
                "reads": 640,
                "in_loop": True,
                "call": f"cudaMemcpyAsync {IMAGE}",
                "unknown_ns": None,
            },
            claims=frozenset({Claim(Time.STARVED, Part.SYNCS)}),
            locations=(
                Location("train.py", 118, "train_step", "120 reads per step"),
                Location(
                    f"/srv/{SCRIPT}/{TURNED}",
                    7,
                    "<lambda>",
                    IMAGE,
                    inside=(Inside(f"hub/{SCRIPT}.py", 3, f"{TURNED}forward", IMAGE, 0.6),),
                ),
            ),
        ),
        Gain(18 * MS, 24 * MS, 0.31, 0.387),
        "high",
    )


def _casts() -> Finding:
    return Finding(
        "weight-casts",
        Category.PRECISION,
        Advice(
            title="Weights are cast in every forward",
            because="48 casts of weights take 4.10 ms of device time per step.",
            saving=Saving(device_ns=(1.5 * MS, 4.1 * MS), starved_ns=(1.0 * MS, 2.0 * MS)),
            certainty="likely",
            fix="model.to(torch.bfloat16)",
            check="stepscope show kernel_families: copies take less.",
            evidence={"casts": 48, "cast_ns": 4_100_000},
            claims=frozenset({Claim(Time.DEVICE, Part.COPY), Claim(Time.STARVED)}),
            locations=(
                Location(
                    "model.py", 42, "Block.forward", inside=(Inside(None, None, None, "Net.Block", 1.0),)
                ),
            ),
        ),
        Gain(2_100_000, 5_400_000, 0.036, 0.087),
        "medium",
        ("scalar-reads",),
    )


def _memory() -> Finding:
    return Finding(
        "memory-growth",
        Category.MEMORY,
        Advice(
            title="Memory grows with every step",
            because="Each step keeps 4.00 MiB more. Memory is full after 17,000 steps.",
            saving=Saving(),
            certainty="possible",
            fix="",
            check="stepscope show memory_steps: the end of a step is level.",
            evidence={"growth_bytes": 4 << 20},
            claims=frozenset({Claim(Time.MEMORY)}),
            risk=True,
        ),
        Gain(0, 0, 0.0, 0.0),
        "low",
    )


def _steps_by_any(steps: int) -> Table[Step]:
    def one(step: int) -> dict[str, Any]:
        parts = {
            "kernel_ns": 33_000_000 + 100_000 * (step % 7),
            "memcpy_ns": 1_900_000,
            "communication_ns": 2_600_000,
            "runtime_ns": 14_000_000 + (30 * MS if step == 4 else 0),
            "cpu_ns": 6_900_000,
            "other_ns": 4_000_000,
        }
        return {"step": step, "start_ns": step * 100 * MS, "dur_ns": sum(parts.values()), **parts}

    return drawn(Step, *(one(step) for step in range(2, 2 + steps)))


def _families() -> Table[KernelFamily]:
    names = {"matmul": 0.61, "elementwise": 0.17, "communication": 0.09, "copy": 0.08, "other": 0.05}
    rows = [
        {
            "family": family,
            "kernels": 3,
            "calls": 900,
            "total_ns": round(share * 168 * MS),
            "exclusive_ns": round(share * 168 * MS),
            "share": share,
            "longest": GEMM,
        }
        for family, share in names.items()
    ]
    return drawn(KernelFamily, *rows)


def _idle() -> Table[IdleGap]:
    shared = {"device": "0", "window": "steps"}
    rows: list[dict[str, Any]] = [
        {
            "side": "host",
            "spent_in": "runtime wait",
            "drained_by": "cudaStreamSynchronize",
            "gaps": 640,
            "idle_ns": 98 * MS,
            "share": 0.803,
            "user_frame": f"train.py(118): {SCRIPT}",
        },
        {"side": "launch", "spent_in": "launch latency", "gaps": 900, "idle_ns": 14 * MS, "share": 0.115},
        {"side": "device", "spent_in": "device scheduling", "gaps": 4100, "idle_ns": 8 * MS, "share": 0.066},
        {"side": "unknown", "spent_in": "no work followed", "gaps": 1, "idle_ns": 2 * MS, "share": 0.016},
    ]
    more = {
        "device": "1",
        "window": "steps",
        "side": "host",
        "spent_in": "nothing recorded",
        "idle_ns": 900 * MS,
    }
    return drawn(IdleGap, *({**shared, **row} for row in rows), more)


def _kernels() -> Table[Kernel]:
    def one(name: str | None, share: float, calls: int, family: str = "matmul") -> dict[str, Any]:
        total = round(share * 168 * MS)
        return {
            "name": name,
            "calls": calls,
            "total_ns": total,
            "mean_ns": total / calls,
            "share": share,
            "exclusive_ns": total,
            "family": family,
        }

    return drawn(
        Kernel,
        one(GEMM, 0.412, 480),
        one(f"triton_poi_fused_{SCRIPT}_0", 0.2, 960, "elementwise"),
        one(f"ncclDevKernel_AllReduce{IMAGE}", 0.09, 60, "communication"),
        one(None, 0.0002, 1, "other"),
        *(one(f"small_{n}", 0.004, 20, "elementwise") for n in range(12)),
        notes=("2 kernels are of launches that are not in the profile.",),
    )


def _curves() -> Table[MemoryPoint]:
    rows = [
        {
            "device": device,
            "start_ns": 1_700_000_000_000_000_000 + n * MS,
            "allocated_bytes": (20 + 5 * (n % 8)) * scale,
            "reserved_bytes": 71 * scale if device == "0" else None,
        }
        for device, scale in (("0", GIB), ("cpu", GIB >> 10))
        for n in range(40)
    ]
    return drawn(MemoryPoint, *rows)


def _snapshot_curves() -> Table[AllocatorPoint]:
    rows = [
        {
            "device": 0,
            "nth": n - 1,
            "active_bytes": (10 + 3 * (n % 8)) * GIB,
            "allocated_bytes": (10 + 3 * (n % 8)) * GIB,
            "reserved_bytes": 40 * GIB,
        }
        for n in range(30)
    ]
    return drawn(AllocatorPoint, *rows)


def _lines() -> Table[Line]:
    return drawn(
        Line,
        {
            "file": "train.py",
            "line": 118,
            "function": "train_step",
            "host_ns": 190 * MS,
            "host_share": 0.7,
            "idle_ns": 98 * MS,
            "device_ns": 20 * MS,
            "device_share": 0.119,
            "launches": 1200,
        },
        {
            "file": f"/srv/{SCRIPT}/{TURNED}",
            "line": 7,
            "function": IMAGE,
            "host_ns": 60 * MS,
            "idle_ns": 9 * MS,
            "device_ns": 148 * MS,
            "device_share": 0.881,
            "launches": 6680,
        },
        {"host_ns": 2 * MS},
    )
