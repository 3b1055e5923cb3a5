"""What to do next, and with which tool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.findings.drawn import H200, drawn, facts

from stepscope.analyses.kernels import Kernel
from stepscope.findings.facts import Facts
from stepscope.findings.next_steps import next_steps_of
from stepscope.findings.report import NotRun, Verdict, Word
from stepscope.tables import Table

AMD = replace(H200, name="AMD Instinct MI300X", capability=None)
KERNELS: dict[str, Table[Any]] = {
    "kernels": drawn(Kernel, {"name": "void ns::gemm<4>(float*)", "exclusive_ns": 5, "share": 0.5})
}


def commands(known: Facts, word: Word, *not_run: NotRun) -> list[str]:
    steps = next_steps_of(known, Verdict(word, "", ""), (), not_run, KERNELS)
    return [step.command.partition(" ")[0] for step in steps]


@pytest.mark.parametrize(
    "known,word,tool",
    [
        (facts(), "host-bound", "nsys"),
        (facts(), "compute-bound", "ncu"),
        (facts(devices=(AMD,), cuda="HIP 6.2"), "host-bound", "rocprofv3"),
        (facts(devices=(AMD,), cuda=None), "compute-bound", "rocprof-compute"),
    ],
)
def test_the_tool_is_one_for_the_device(known: Facts, word: Word, tool: str) -> None:
    assert tool in commands(known, word)


def test_without_a_device_there_is_no_tool_for_one() -> None:
    known = facts(devices=(), cuda=None, device_work=False)
    assert not {"nsys", "rocprofv3"} & set(commands(known, "host-bound"))


def test_a_finding_is_read_first_and_fixed_alone() -> None:
    from tests.present.drawn_report import report

    steps = next_steps_of(facts(), Verdict("sync-bound", "", ""), report().findings, (), {})
    assert [step.command for step in steps[:2]] == [
        "stepscope explain scalar-reads",
        "stepscope diff BEFORE AFTER",
    ]
    assert "#1" in steps[0].text


@pytest.mark.parametrize("missing,said", [("with_stack=True", "could not judge"), ("", "lines of your code")])
def test_what_to_record_says_what_for(missing: str, said: str) -> None:
    not_run = NotRun("lines", "no stacks", missing)
    *_, last = next_steps_of(facts(stacks=False), Verdict("healthy", "", ""), (), (not_run,), {})
    assert said in last.text
    assert last.command == "torch.profiler.profile(with_stack=True)"
