"""What to do next, and with which tool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.findings.drawn import H200, changed, drawn, facts, mean_step

from stepscope.analyses.kernels import Kernel
from stepscope.findings.facts import Facts
from stepscope.findings.next_steps import next_steps_of
from stepscope.findings.program import Framework, Vendor
from stepscope.findings.report import NotRun, Verdict, Word
from stepscope.tables import Table

AMD = replace(H200, name="AMD Instinct MI300X", capability=None)
KERNELS: dict[str, Table[Any]] = {
    "kernels": drawn(Kernel, {"name": "void ns::gemm<4>(float*)", "exclusive_ns": 5, "share": 0.5})
}


def commands(known: Facts, word: Word, *not_run: NotRun) -> list[str]:
    steps = next_steps_of(mean_step(), known, Verdict(word, "", ""), (), not_run, KERNELS)
    return [step.command.partition(" ")[0] for step in steps]


@pytest.mark.parametrize(
    "known,word,tool",
    [
        (facts(), "host-bound", "nsys"),
        (facts(), "compute-bound", "ncu"),
        (facts(devices=(AMD,), vendor=Vendor.AMD), "host-bound", "rocprofv3"),
        (facts(devices=(AMD,), vendor=Vendor.AMD), "compute-bound", "rocprof-compute"),
    ],
)
def test_the_tool_is_one_for_the_device(known: Facts, word: Word, tool: str) -> None:
    assert tool in commands(known, word)


def test_only_a_change_that_gains_is_suggested() -> None:
    def tried(**gains: float) -> list[str]:
        tables: dict[str, Table[Any]] = {
            f"changed_steps_by_{name}": changed(gain, gain) for name, gain in gains.items()
        }
        found = next_steps_of(mean_step(), facts(), Verdict("host-bound", "", ""), (), (), tables)
        return [step.command for step in found if "whatif" in step.command]

    assert tried(graph=0.4, no_sync=0.1) == ["stepscope whatif TRACE --graph"]
    assert tried(graph=0.0, overlap_copies=0.1) == ["stepscope whatif TRACE --overlap-copies"]
    assert tried(graph=0.02, no_sync=0.01) == []


def test_a_collective_is_no_kernel_to_look_at_alone() -> None:
    rows = [
        {"name": "ncclDevKernel_AllReduce", "family": "communication", "exclusive_ns": 9, "share": 0.9},
        {"name": "void ns::gemm<4>(float*)", "family": "gemm", "exclusive_ns": 1, "share": 0.1},
    ]
    verdict = Verdict("device-bound", "", "")
    steps = next_steps_of(mean_step(), facts(), verdict, (), (), {"kernels": drawn(Kernel, *rows)})
    said = " ".join(step.command for step in steps)
    assert "--kernels '*gemm*' x0.5" in said
    assert "nccl" not in said


@pytest.mark.parametrize("vendor", [Vendor.INTEL, Vendor.MTIA, Vendor.UNKNOWN])
@pytest.mark.parametrize("word", ["host-bound", "compute-bound"])
def test_there_is_no_tool_of_another_maker(vendor: Vendor, word: Word) -> None:
    assert set(commands(facts(vendor=vendor), word)) <= {"stepscope"}


def test_collectives_alone_are_not_run_again() -> None:
    nccl = {"name": "ncclDevKernel_AllReduce", "family": "communication", "exclusive_ns": 9, "share": 0.9}
    tables: dict[str, Table[Any]] = {"kernels": drawn(Kernel, nccl)}
    steps = next_steps_of(mean_step(), facts(), Verdict("compute-bound", "", ""), (), (), tables)
    assert not any(step.command.startswith("ncu") for step in steps)


def test_a_server_is_profiled_as_it_is_started() -> None:
    known = facts(frameworks=(Framework.VLLM,))
    steps = next_steps_of(mean_step(), known, Verdict("compute-bound", "", ""), (), (), KERNELS)
    assert any(step.command.endswith("vllm serve MODEL") for step in steps)


def test_without_a_device_there_is_no_tool_for_one() -> None:
    known = facts(devices=(), cuda=None, device_work=False)
    assert not {"nsys", "rocprofv3"} & set(commands(known, "host-bound"))


def test_a_finding_is_read_first_and_fixed_alone() -> None:
    from tests.present.drawn_report import report

    steps = next_steps_of(mean_step(), facts(), Verdict("sync-bound", "", ""), report().findings, (), {})
    assert [step.command for step in steps[:2]] == [
        "stepscope explain scalar-reads",
        "stepscope diff BEFORE AFTER",
    ]
    assert "#1" in steps[0].text


@pytest.mark.parametrize("missing,said", [("with_stack=True", "could not judge"), ("", "lines of your code")])
def test_what_to_record_says_what_for(missing: str, said: str) -> None:
    not_run = NotRun("lines", "no stacks", missing)
    *_, last = next_steps_of(mean_step(), facts(stacks=False), Verdict("healthy", "", ""), (), (not_run,), {})
    assert said in last.text
    assert last.command == "torch.profiler.profile(with_stack=True)"
