"""What is asked of NVML, on a driver drawn in code: there is none where most of these tests run."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.capture import nvml

pynvml = pytest.importorskip("pynvml")


class Driver:
    """Answers as pynvml does: a function for each question, an error for what a GPU does not know."""

    def __init__(self, **answers: Any) -> None:
        quiet = {
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
            "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle {uuid}",
            "nvmlDeviceGetName": b"NVIDIA H200",
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1755, 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda _, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetPowerUsage": 690_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTemperature": lambda _, sensor: 61 + sensor,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:3B:00.0"),
            "nvmlDeviceGetNvLinkState": lambda _, link: int(link < 12),
            "nvmlDeviceGetTopologyCommonAncestor": 30,
            "nvmlSystemGetDriverVersion": "570.86.15",
        }
        self._answers = {**quiet, **answers}

    def __getattr__(self, name: str) -> Any:
        # pynvml has all names; which of them a driver knows it learns when it calls.
        if not hasattr(pynvml, name):
            raise AttributeError(name)

        def answer(*given: Any) -> Any:
            if name not in self._answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            found = self._answers[name]
            return found(*given) if callable(found) else found

        return answer


def seen(driver: Driver, listed: str | None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    return [(one.device, one.handle) for one in nvml.gpus(driver)]


def test_everything_that_is_asked_exists() -> None:
    text = Path(nvml.__file__).read_text(encoding="utf-8")
    asked = set(re.findall(r"nvml[A-Z]\w+", text))
    assert len(asked) > 20
    assert not [name for name in asked if not hasattr(pynvml, name)]


def test_the_numbers_are_those_of_pynvml() -> None:
    assert (nvml._SM_CLOCK, nvml._MEMORY_CLOCK) == (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
    assert nvml._TEMPERATURE == pynvml.NVML_TEMPERATURE_GPU
    assert nvml._MOST_LINKS >= pynvml.NVML_NVLINK_MAX_LINKS
    words = {
        pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
        pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
        pynvml.nvmlClocksEventReasonGpuIdle: "idle",
        pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "application clocks",
    }
    assert {bit: nvml.REASONS[bit] for bit in words} == words
    levels = ("INTERNAL", "SINGLE", "MULTIPLE", "HOSTBRIDGE", "NODE", "SYSTEM")
    assert list(nvml._ANCESTORS) == [getattr(pynvml, f"NVML_TOPOLOGY_{level}") for level in levels]


def test_a_sample() -> None:
    assert nvml.Gpu(Driver(), 3, "handle").sample() == {
        "device": 3,
        "sm_clock_mhz": 1755,
        "max_sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "max_memory_clock_mhz": 3201,
        "power_mw": 690_000,
        "power_limit_mw": 700_000,
        "temperature_c": 61,
        "utilization_share": 0.97,
        "memory_utilization_share": 0.4,
        "link_generation": 5,
        "link_width": 16,
        "reasons": ["power cap"],
    }


def test_what_a_gpu_does_not_know_is_left_out() -> None:
    bare = Driver()
    bare._answers.clear()
    assert nvml.Gpu(bare, 0, "handle").sample() == {"device": 0}
    assert nvml.Gpu(bare, 0, "handle").describe() == {"device": 0, "nvlinks": 0}
    assert nvml.driver(bare) is None
    assert nvml.gpus(bare) == []


def test_older_drivers_have_another_name_for_the_reasons() -> None:
    driver = Driver(nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    del driver._answers["nvmlDeviceGetCurrentClocksEventReasons"]
    assert nvml.Gpu(driver, 0, "handle").sample()["reasons"] == ["hardware thermal slowdown"]


def test_what_it_is_and_where(tmp_path: Path) -> None:
    node = tmp_path / "sys/bus/pci/devices/0000:3b:00.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    found = nvml.Gpu(Driver(), 0, "handle").describe(tmp_path)
    assert (found["name"], found["nvlinks"], found["numa_node"]) == ("NVIDIA H200", 12, 1)
    assert not [name for name in found if "uuid" in name or "serial" in name or "bus" in name]
    node.write_text("-1\n")  # a machine of one node
    assert "numa_node" not in nvml.Gpu(Driver(), 0, "handle").describe(tmp_path)


def test_what_lies_between_two() -> None:
    first, second = nvml.Gpu(Driver(), 0, "a"), nvml.Gpu(Driver(), 1, "b")
    assert first.near(second) == "PCIe host bridge"


@pytest.mark.parametrize(
    "listed,handles",
    [
        (None, ["handle 0", "handle 1"]),
        ("1", ["handle 1"]),
        ("1, 0", ["handle 1", "handle 0"]),
        ("GPU-abc,MIG-x", ["handle GPU-abc", "handle MIG-x"]),
        ("", []),
        ("0,-1,1", ["handle 0"]),
    ],
)
def test_what_the_process_sees(
    listed: str | None, handles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen(Driver(), listed, monkeypatch) == list(enumerate(handles))


def test_a_program_that_has_not_started_cuda_uses_no_gpu() -> None:
    assert nvml.gpus(Driver(), used=True) == []
