"""What findings on a machine mean: each kind of obstacle has its sign and something to type."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from stepscope.doctor import Checkup
from stepscope.doctor.asking import Answer
from stepscope.doctor.judging import judged
from stepscope.doctor.machine import Machine
from stepscope.present._checkup import checkup_json, checkup_text

GIB = 1 << 30
MACHINE = Machine(
    cpus=16,
    cpu_limit=None,
    memory_bytes=128 * GIB,
    memory_limit_bytes=None,
    memory_used_bytes=None,
    shared_bytes=64 * GIB,
    temporary_bytes=50 * GIB,
    here_bytes=50 * GIB,
    admin_only=False,
    owners=(),
    perf_paranoid=1,
    ptrace_scope=0,
    is_root=False,
)
FACTS: dict[str, Any] = {
    "python": "3.12.3",
    "executable": "/usr/bin/python3",
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "hip": None,
    "kineto": True,
    "activities": ["CPU", "CUDA"],
    "devices": ["NVIDIA H200"] * 8,
    "driver_cuda": 13000,
    "nvml": {"package": True, "works": True, "driver": "580.1"},
}
RECORD: dict[str, Any] = {"categories": {"cpu_op": 20, "kernel": 9, "gpu_memcpy": 1}, "devices": ["cuda"]}


def checkup(
    facts: dict[str, Any] | None = None,
    record: Answer | None = None,
    machine: Machine = MACHINE,
    cache: str = "",
) -> Checkup:
    given = record or Answer(RECORD)
    return judged(Answer({**FACTS, **(facts or {})}), given, machine, cache, "python3")


def states(found: Checkup) -> dict[str, str]:
    return {check.name: check.state for check in found.checks if check.state != "yes"}


def fix_of(found: Checkup, name: str) -> str:
    return next(check.fix for check in found.checks if check.name == name)


def test_a_machine_that_can_do_everything() -> None:
    found = checkup()
    assert states(found) == {}
    assert (found.can_record, found.can_record_devices) == (True, True)
    assert checkup_text(found, width=90, color=False) == (
        " ✓  Python           3.12.3, /usr/bin/python3\n"
        " ✓  torch            2.11.0+cu130, built for CUDA 13.0\n"
        " ✓  Kineto           the profiler is in this build; it knows CPU, CUDA\n"
        " ✓  GPU              8 × NVIDIA H200; the driver knows CUDA 13.0\n"
        " ✓  a test profile   has 30 events\n"
        " ✓  GPU work in it   10 kernels and copies\n"
        " ✓  other profilers  none is seen\n"
        " ✓  CUPTI            this user may profile the GPU\n"
        " ✓  NVML             driver 580.1: clocks, power and temperature can be sampled\n"
        " ✓  CPUs             16 CPUs\n"
        " ✓  memory           128 GiB, no limit of a container\n"
        " ✓  disk             50.0 GiB free for temporary files, 50.0 GiB free for this folder\n"
        " ✓  cache            can be written to\n"
        " ✓  perf             may sample your processes (perf_event_paranoid = 1)\n"
        "\n"
        "This machine can record the host and the GPU.\n"
    )


def test_there_is_no_python() -> None:
    found = judged(Answer(problem="no answer after 90 s"), Answer(problem="x"), MACHINE, "", "snake")
    assert states(found) == {"Python": "no"}
    assert not found.can_record


def test_there_is_no_torch() -> None:
    told: dict[str, Any] = {
        "torch": None,
        "torch_error": "ModuleNotFoundError: No module named 'torch'",
        "devices": [],
    }
    found = checkup(told, Answer(problem="there is no torch"))
    assert states(found) == {"torch": "no"}
    assert fix_of(found, "torch") == "/usr/bin/python3 -m pip install torch"
    assert not found.can_record


@pytest.mark.parametrize("version,state", [("2.3.1", "no"), ("2.4.0", None), ("3.0.0a0+git123", None)])
def test_torch_has_to_be_new_enough(version: str, state: str | None) -> None:
    assert states(checkup({"torch": version})).get("torch") == state


@pytest.mark.parametrize(
    "errors,said",
    [
        ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "not permitted"),
        ("function f failed with error CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "another program"),
        ("WARNING: cupti is not available", "cupti is not available"),
        ("", "does not say why"),
    ],
)
def test_a_profile_without_kernels(errors: str, said: str) -> None:
    record = Answer({"categories": {"cpu_op": 20}, "devices": ["cuda"]}, errors=errors)
    found = checkup(record=record)
    assert states(found) == {"GPU work in it": "no"}
    assert said in next(check.said for check in found.checks if check.name == "GPU work in it")
    assert (found.can_record, found.can_record_devices) == (True, False)


def test_a_probe_that_hangs() -> None:
    found = checkup(record=Answer(problem="no answer after 120 s"))
    assert states(found) == {"a test profile": "no"}
    assert not found.can_record
    assert found.sentence == "This machine cannot record a profile."


def test_a_gpu_that_torch_does_not_see() -> None:
    told: dict[str, Any] = {
        "devices": [],
        "device_error": "RuntimeError: Found no NVIDIA driver on your system.",
    }
    found = checkup(told, Answer({"categories": {"cpu_op": 20}, "devices": []}))
    assert states(found) == {"GPU": "no"}
    assert found.sentence.startswith("This machine can record the host.")


def test_a_build_for_the_cpu_beside_a_driver() -> None:
    found = checkup({"cuda": None, "devices": []}, Answer({"categories": {"cpu_op": 2}, "devices": []}))
    assert states(found) == {"GPU": "unsure"}
    assert fix_of(found, "GPU") == "install a build of torch for your GPU"


def test_counters_for_administrators_do_not_stop_profiles() -> None:
    found = checkup(machine=replace(MACHINE, admin_only=True))
    assert states(found) == {"CUPTI": "unsure"}
    assert "NVreg_RestrictProfilingToAdminUsers=0" in fix_of(found, "CUPTI")
    assert states(checkup(machine=replace(MACHINE, admin_only=True, is_root=True))) == {}


@pytest.mark.parametrize("kernels,state", [(9, "unsure"), (0, "no")])
def test_another_profiler(kernels: int, state: str) -> None:
    record = Answer({"categories": {"cpu_op": 20, "kernel": kernels}, "devices": ["cuda"]})
    found = checkup(record=record, machine=replace(MACHINE, owners=("DCGM (process 12, nv-hostengine)",)))
    assert states(found)["other profilers"] == state


@pytest.mark.parametrize(
    "changed,name,state",
    [
        ({"cpu_limit": 2.0}, "CPUs", "unsure"),
        ({"memory_limit_bytes": 2 * GIB, "memory_used_bytes": GIB}, "memory", "unsure"),
        ({"memory_limit_bytes": 64 * GIB, "memory_used_bytes": GIB}, "memory", None),
        ({"shared_bytes": 64 << 20}, "shared memory", "unsure"),
        ({"temporary_bytes": GIB}, "disk", "unsure"),
        ({"temporary_bytes": GIB, "here_bytes": None}, "disk", "no"),
        ({"perf_paranoid": 4}, "perf", "unsure"),
        ({"perf_paranoid": 4, "is_root": True}, "perf", None),
        ({"ptrace_scope": 1}, "ptrace", "unsure"),
    ],
)
def test_limits_and_rights(changed: dict[str, Any], name: str, state: str | None) -> None:
    found = checkup(machine=replace(MACHINE, **changed))
    assert states(found) == ({name: state} if state else {})
    assert found.can_record
    assert not state or fix_of(found, name)


def test_a_cache_that_cannot_be_written_to() -> None:
    assert states(checkup(cache="cannot be written to: Read-only file system")) == {"cache": "unsure"}


@pytest.mark.parametrize("nvml", [{"package": False, "works": True, "driver": "580"}, {"works": False}])
def test_nvml(nvml: dict[str, Any]) -> None:
    found = checkup({"nvml": nvml})
    assert states(found) == {"NVML": "unsure"}
    assert fix_of(found, "NVML")


def test_everything_has_its_place_in_the_json() -> None:
    read = json.loads(checkup_json(checkup(machine=replace(MACHINE, ptrace_scope=1))))
    assert (read["schema"], read["can_record"], read["can_record_devices"]) == (
        "stepscope.doctor/1",
        True,
        True,
    )
    assert read["checks"][-1]["name"] == "ptrace"
    assert read["checks"][-1]["state"] == "unsure"
