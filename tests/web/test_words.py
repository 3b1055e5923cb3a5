"""Scripts write values and names with the words of the terminal."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stepscope import units
from stepscope.present._pieces import figure

STATIC = Path(units.__file__).parent / "web" / "static"
NUMBERS = [
    *(
        0,
        1,
        7,
        42,
        99,
        100,
        999,
        1000,
        1023,
        1024,
        1500,
        9_994,
        9_995,
        9_999,
        10_000,
        99_949,
        99_950,
        999_499,
    ),
    *(999_500, 999_999, 1_048_575, 1_048_576, 123_456_789, 59_949_999_999, 59_950_000_000, 3_599_499_999_999),
    *(3_600_000_000_000, 987_654_321_000_000, -1, -1500, -59_960_000_000, 2**50),
]
FRACTIONS = [
    *(
        0.0,
        0.5,
        1.125,
        2.5,
        3.5,
        0.25,
        12.25,
        12.35,
        99.95,
        999.5,
        1e-9,
        1.234e-5,
        0.00012,
        0.0123,
        0.1,
        0.9995,
    ),
    *(0.99999, 1234.5, 2345.5, 1e6, 0.0004, -0.0004, 0.0005, 0.12345, 1.5, -3.14159, 1e12 / 3),
]
ADD = "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>"
LAMBDAS = "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}"
COPY = f"at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&){LAMBDAS}"
KERNELS = {
    f"void at::native::vectorized_elementwise_kernel<4, {ADD} >(int, {ADD})": (
        "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, …>"
    ),
    f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<{COPY}>"
    "(at::TensorIteratorBase&)::{lambda(int)#1}>(int, ...)": (
        "elementwise_kernel<128, 2, gpu_kernel_impl_nocast<direct_copy_kernel_cuda>>"
    ),
    "void (anonymous namespace)::softmax_warp_forward<float, float, 7, false>(float*, float const*)": (
        "softmax_warp_forward<float, float, 7, false>"
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(cutlass_80::Params)": (
        "Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>"
    ),
    "ampere_sgemm_128x64_tn": "ampere_sgemm_128x64_tn",
    "triton_poi_fused_add_0": "triton_poi_fused_add_0",
    "Memcpy HtoD (Pageable -> Device)": "Memcpy HtoD (Pageable -> Device)",
    "aten::mm": "aten::mm",
    "autograd::engine::evaluate_function: MmBackward0": "autograd::engine::evaluate_function: MmBackward0",
    "<built-in method run_backward>": "<built-in method run_backward>",
    "/home/me/project/train.py(12): step": "project/train.py:12 step",
    "train.py(12): <lambda>": "train.py:12 <lambda>",
    "nn.Module: Linear_0": "nn.Module: Linear_0",
    "<<<<((((": "<<<<((((",
    "a<b<c<d<e<f": "a<b<c<d<e<f>>>>>",
    "x" * 10_000: "x" * 64 + "…" + "x" * 31,
}


def asked(script: str, given: Any) -> Any:
    """What a script of the window answers, run by itself."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node to run scripts with")
    code = f"import * as units from '{STATIC}/units.js'; import {{ shortName }} from '{STATIC}/names.js';"
    code += f"import {{ comparison }} from '{STATIC}/grid/model.js'; const given = {json.dumps(given)};"
    code += f"console.log(JSON.stringify({script}));"
    words = [node, "--no-warnings", "--input-type=module", "--eval", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name, unit", [("x_ns", "ns"), ("x_bytes", "bytes"), ("x_share", "share"), ("calls", "")]
)
@pytest.mark.parametrize("kind", [int, float])
def test_values_read_as_in_the_terminal(name: str, unit: str, kind: type) -> None:
    values = NUMBERS if kind is int else FRACTIONS
    script = f"given.map((value) => units.text(value, '{unit}', '{kind.__name__}'))"
    assert asked(script, values) == [figure(name, value) for value in values]


def test_rates_read_as_in_the_terminal() -> None:
    pairs = [[value, 1000 + value] for value in NUMBERS if value > 0]
    assert asked("given.map(([b, ns]) => units.rate(b, ns))", pairs) == [units.rate(*pair) for pair in pairs]


def test_ranges_read_as_in_the_terminal() -> None:
    some = [value for value in NUMBERS if value >= 0]
    pairs = [(low, high) for low in some for high in some if low <= high]
    said = [units.between(low, high) for low, high in pairs]
    assert asked("given.map(([a, b]) => units.between(a, b))", pairs) == said


def test_names_are_shortened() -> None:
    assert asked("given.map((name) => shortName(name))", list(KERNELS)) == list(KERNELS.values())


@pytest.mark.parametrize(
    "typed, unit, fits",
    [
        ("> 1 ms", "ns", [1_000_001]),
        (">= 1ms", "ns", [1_000_000, 1_000_001]),
        ("1 µs .. 1 ms", "ns", [1000, 1024, 1_000_000]),
        ("<2us", "ns", [1000, 1024]),
        ("> 5 %", "share", [0.5]),
        ("1 KiB", "bytes", [1024]),
        ("!= 1,000", "", [0.5, 1024, 1_000_000, 1_000_001]),
    ],
)
def test_comparisons_have_units(typed: str, unit: str, fits: list[float]) -> None:
    values = [0.5, 1000, 1024, 1_000_000, 1_000_001]
    given = [0.01, 0.5] if unit == "share" else [value for value in values if value >= 1 or unit == ""]
    assert asked(f"given.filter(comparison({typed!r}, {unit!r}))", given) == fits


@pytest.mark.parametrize("typed", ["> x", "1 parsec", "..", "> 1 KiB", ""])
def test_what_is_no_comparison_is_none(typed: str) -> None:
    assert asked(f"comparison({typed!r}, 'ns')", None) is None
