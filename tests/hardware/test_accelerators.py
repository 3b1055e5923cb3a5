"""Figures of accelerators: each has a source, they fit together, and profiles tell which device it is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stepscope.errors import StepscopeError
from stepscope.hardware import DATA_TYPES, Accelerator, accelerators, named, recognised, with_peaks

GIB = 1 << 30
ALL = pytest.mark.parametrize("one", accelerators(), ids=lambda one: one.product)


@ALL
def test_every_figure_has_a_source(one: Accelerator) -> None:
    given = {"tflops", "gb_s", "memory_gb"} | (
        {"units"} if one.units and one.product != "NVIDIA B200" else set()
    )
    assert set(one.sources) == given | ({"link"} if one.link else set())
    assert all(source.title and re.match(r"https://\S+$", source.url) for source in one.sources.values())


@ALL
def test_peaks_of_one_device_fit_together(one: Accelerator) -> None:
    """Half the bits, twice the rate: a figure with sparsity, or with a slip of the pen, breaks this."""
    peaks = one.peak_flops
    assert set(peaks) <= set(DATA_TYPES)
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    if "tf32" in peaks:
        assert peaks["fp16"] / peaks["tf32"] == pytest.approx(2, rel=0.025)
    if "fp8" in peaks:
        assert peaks["fp8"] / peaks["fp16"] == pytest.approx(2, rel=0.025)
    if "GeForce" not in one.product:  # these halve what sums up in fp32
        assert peaks.get("int8", 0) in (0, peaks.get("fp8"), peaks["fp16"], 2 * peaks["fp16"])
        assert peaks.get("fp4", 2 * peaks.get("fp8", 0)) == pytest.approx(2 * peaks.get("fp8", 0), rel=0.001)
    if "fp64" in peaks:
        assert peaks["fp32"] / peaks["fp64"] == pytest.approx(2, rel=0.03) or "Instinct MI2" in one.product
    # Bytes a second for each FLOP a second: none is off by an order of magnitude.
    assert one.bytes_per_s
    assert 50 < peaks["fp16"] / one.bytes_per_s < 500


@pytest.mark.parametrize(
    "name,units,gib,product",
    [
        ("NVIDIA H200", 132, 139.8, "NVIDIA H200 SXM"),
        ("NVIDIA H100 80GB HBM3", 132, 79.1, "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", 114, 79.2, "NVIDIA H100 PCIe"),
        ("NVIDIA H100 NVL", 132, 93.1, "NVIDIA H100 NVL"),
        ("NVIDIA H200 NVL", 132, 139.8, "NVIDIA H200 NVL"),
        ("NVIDIA B200", 148, 178.3, "NVIDIA B200"),
        ("NVIDIA GB200", 152, 184.0, "NVIDIA GB200"),
        ("NVIDIA A100-PG509-200", 108, 39.4, "NVIDIA A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", None, None, "NVIDIA A100 80GB SXM"),
        ("NVIDIA A100-PCIE-40GB", 108, 39.4, "NVIDIA A100 40GB"),
        ("NVIDIA A100 80GB PCIe", 108, 79.2, "NVIDIA A100 80GB PCIe"),
        ("NVIDIA A10", 72, 22.1, "NVIDIA A10"),
        ("NVIDIA L4", 58, 22.0, "NVIDIA L4"),
        ("NVIDIA L40S", 142, 44.4, "NVIDIA L40S"),
        ("Tesla T4", 40, 14.6, "NVIDIA T4"),
        ("Tesla V100-SXM2-32GB", 80, 31.7, "NVIDIA V100 SXM"),
        ("Tesla V100-SXM2-16GB", 80, 15.8, "NVIDIA V100 SXM"),
        ("Tesla V100-PCIE-32GB", 80, 31.7, "NVIDIA V100 PCIe"),
        ("Tesla V100S-PCIE-32GB", 80, 31.7, "NVIDIA V100S PCIe"),
        ("NVIDIA GeForce RTX 3090", 82, 23.7, "NVIDIA GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 4090", 128, 23.6, "NVIDIA GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 5090", 170, 31.4, "NVIDIA GeForce RTX 5090"),
        ("AMD Instinct MI210", 104, 64.0, "AMD Instinct MI210"),
        ("AMD Instinct MI250X / MI250", 104, 64.0, "AMD Instinct MI250, one of two dies"),
        ("AMD Instinct MI250X / MI250", 110, 64.0, "AMD Instinct MI250X, one of two dies"),
        ("AMD Instinct MI300X", 304, 192.0, "AMD Instinct MI300X"),
        ("AMD Instinct MI300A", 228, 125.0, "AMD Instinct MI300A"),
        ("AMD Instinct MI325X", 304, 256.0, "AMD Instinct MI325X"),
        ("AMD Instinct MI350X", 256, 288.0, "AMD Instinct MI350X"),
        ("AMD Instinct MI355X", 256, 288.0, "AMD Instinct MI355X"),
    ],
)
def test_devices_as_profiles_name_them(name: str, units: Any, gib: Any, product: str) -> None:
    found, reason = recognised(name, units=units, memory_bytes=int(gib * GIB) if gib else None)
    assert found is not None, reason
    assert (found.product, reason) == (product, "")


@pytest.mark.parametrize(
    "name,units,gib,reason",
    [
        (None, 304, 192, "the profile does not name its device"),
        ("", 304, 192, "the profile does not name its device"),
        ("AMD Radeon Graphics", 104, 64, "the peaks of 'AMD Radeon Graphics' are not known"),
        ("NVIDIA GH200 480GB", 132, 95, "the peaks of 'NVIDIA GH200 480GB' are not known"),
        ("NVIDIA L40", 142, 44, "the peaks of 'NVIDIA L40' are not known"),
        ("NVIDIA A10G", 80, 22, "the peaks of 'NVIDIA A10G' are not known"),
        ("NVIDIA GeForce RTX 3090 Ti", 84, 24, "the peaks of 'NVIDIA GeForce RTX 3090 Ti' are not known"),
        (
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            76,
            16,
            "the peaks of 'NVIDIA GeForce RTX 4090 Laptop GPU' are not known",
        ),
        (
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            14,
            4.75,
            "'NVIDIA A100-SXM4-40GB MIG 1g.5gb' has 14 multiprocessors, not the 108 of NVIDIA A100 40GB",
        ),
        (
            "AMD Instinct MI300X",
            38,
            192,
            "'AMD Instinct MI300X' has 38 multiprocessors, not the 304 of AMD Instinct MI300X",
        ),
        (
            "NVIDIA H200",
            132,
            16,
            "'NVIDIA H200' has 16 GiB of memory, unlike NVIDIA H200 SXM",
        ),
        ("A100", None, None, "'A100' may be NVIDIA A100 40GB or NVIDIA A100 80GB SXM"),
    ],
)
def test_what_is_not_known_is_said(name: Any, units: Any, gib: Any, reason: str) -> None:
    assert recognised(name, units=units, memory_bytes=int(gib * GIB) if gib else None) == (None, reason)


def test_a_peak_is_that_of_the_units_that_did_the_work() -> None:
    h100, mi300x, t4 = named("H100"), named("MI300X"), named("NVIDIA T4")
    assert h100.peak("fp64", matrix=True) == 66.9e12
    assert h100.peak("fp64", matrix=False) == 33.5e12
    assert h100.peak("bf16", matrix=True) == 989.4e12
    # Beside the matrix units, bf16 is computed as fp32.
    assert h100.peak("bf16", matrix=False) == h100.peak("fp32", matrix=False) == 66.9e12
    assert mi300x.peak("tf32", matrix=True) == 653.7e12
    assert t4.peak("bf16", matrix=True) is None
    assert t4.peak(None, matrix=True) is None


def test_products_can_be_named_by_hand() -> None:
    assert named("nvidia h100 pcie").product == "NVIDIA H100 PCIe"
    assert named("MI355X").bytes_per_s == 8e12
    with pytest.raises(StepscopeError, match="unknown hardware 'TPU v5'") as error:
        named("TPU v5")
    assert error.value.exit_code == 2
    assert "NVIDIA H200 SXM" in error.value.hint


def test_given_peaks_stand_above_known_ones() -> None:
    known = named("MI300X")
    given = with_peaks(known, ("fp32=100", "bf16=1000"), 5000.0)
    assert given is not None
    assert given.peak("fp32", matrix=True) == given.peak("fp32", matrix=False) == 100e12
    assert given.peak("bf16", matrix=True) == 1000e12
    assert given.peak("fp16", matrix=True) == known.peak("fp16", matrix=True)
    assert given.bytes_per_s == 5e12
    assert given.product == "AMD Instinct MI300X, with given peaks"
    assert with_peaks(known, (), None) is known
    assert with_peaks(None, (), None) is None
    alone = with_peaks(None, (), 300.0)
    assert alone is not None
    assert (alone.product, alone.bytes_per_s, alone.peak("bf16", matrix=True)) == ("given peaks", 300e9, None)


@pytest.mark.parametrize(
    "text", ["bf16", "bf16=", "bf16=fast", "bf16=-1", "bf16=0", "bf16=inf", "bf16=nan", "half=9"]
)
def test_a_peak_that_cannot_be_read(text: str) -> None:
    with pytest.raises(StepscopeError, match="cannot read the peak") as error:
        with_peaks(None, (text,), None)
    assert "bf16=989" in error.value.hint


@pytest.mark.parametrize("gb_s", [0.0, -1.0, float("nan")])
def test_a_bandwidth_that_is_none(gb_s: float) -> None:
    with pytest.raises(StepscopeError, match="not possible"):
        with_peaks(None, (), gb_s)


@ALL
def test_a_link_is_slower_than_memory_and_faster_than_a_network(one: Accelerator) -> None:
    """Datasheets give both directions together, and sometimes all devices of a machine: this tells."""
    if one.link:
        assert one.bytes_per_s
        assert 10e9 < one.link.bytes_per_s < 0.25 * one.bytes_per_s
        assert (one.link.name == "xGMI") == ("AMD" in one.product)


def test_a_mesh_gives_a_small_group_less_than_a_switch() -> None:
    mesh, switch = named("MI300X").link, named("NVIDIA H100 SXM").link
    assert mesh
    assert switch
    assert [mesh.peak(size) for size in (2, 4, 8)] == [64e9, 192e9, 448e9]
    assert [switch.peak(size) for size in (2, 8)] == [450e9, 450e9]


def test_a_card_has_not_the_link_of_the_module() -> None:
    a100 = named("NVIDIA A100 40GB")
    assert a100.link_of("NVIDIA A100-PCIE-40GB") is None
    assert a100.link_of("NVIDIA A100-SXM4-40GB") == a100.link
    assert named("NVIDIA V100 PCIe").link_of("Tesla V100-PCIE-32GB") is not None
    assert named("NVIDIA H100 PCIe").link is None
