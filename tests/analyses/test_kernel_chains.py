from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.kernel_chains import KernelChain

MUL, SUM = "vectorized_elementwise_kernel<4, MulFunctor<float>>", "reduce_kernel<512, 1, sum_functor>"


def drawn(folder: Path, *steps: list[tuple[str, str, int]]) -> list[KernelChain]:
    """Steps of operators with one kernel each, which take so many µs, one after the other."""
    drawing, at, link = Drawing(), 0, 0
    for number, step in enumerate(steps):
        drawing.mark(number, at, 1_000)
        for place, (op, kernel, dur) in enumerate(step):
            link += 1
            start = at + 10 + 90 * place
            drawing.op(op, start, 20).launch("cudaLaunchKernel", start + 5, 3, corr=link)
            work = drawing.memcpy if kernel.startswith("Memcpy") else drawing.kernel
            work(kernel, start + 10, dur, corr=link)
        at += 1_000
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("kernel_chains"))


def test_products_end_a_chain_and_casts_and_short_kernels_do_not_count(tmp_path: Path) -> None:
    step = [
        ("aten::mul", MUL, 20),
        ("aten::copy_", "bfloat16_copy_kernel_cuda", 30),
        ("aten::mul", MUL, 2),
        ("aten::sum", SUM, 10),
        ("aten::mm", "ampere_sgemm_128x64", 50),
        ("aten::mul", MUL, 40),
        ("aten::mm", "ampere_sgemm_128x64", 50),
    ]
    # The cast of 30 µs lies between the two, that of 70 µs beside them.
    casts = [*step[:4], ("aten::copy_", "bfloat16_copy_kernel_cuda", 70), *step[4:]]
    assert drawn(tmp_path, step, casts) == [
        KernelChain("aten::mul, aten::sum", 2, 2, 60_000, 20_000, 60_000, 70_000)
    ]


def test_steps_end_a_chain_too(tmp_path: Path) -> None:
    one = [("aten::mul", MUL, 20)]
    assert drawn(tmp_path, one, one) == []


def test_what_a_compiler_fused_is_no_chain(tmp_path: Path) -> None:
    fused = [("triton_poi_fused_mul_0", "triton_poi_fused_mul_0", 20)] * 3
    assert drawn(tmp_path, fused) == []


@pytest.mark.parametrize(
    "between",
    [
        ("aten::mul", "vectorized_elementwise_kernel<2, MulFunctor<c10::complex<float>>>"),
        ("aten::_fft_r2c", "void vector_fft_symm_r2c<256u, float>(kernel_arguments_t<unsigned int>)"),
    ],
)
def test_work_on_complex_numbers_ends_a_chain(tmp_path: Path, between: tuple[str, str]) -> None:
    step = [("aten::mul", MUL, 20), (*between, 30), ("aten::mul", MUL, 20), ("aten::sum", SUM, 10)]
    assert [(row.ops, row.device_ns) for row in drawn(tmp_path, step)] == [("aten::mul, aten::sum", 30_000)]


def test_copies_from_the_host_are_in_no_chain(tmp_path: Path) -> None:
    ways = [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoD (Device -> Device)",
        "Memcpy DtoH (Device -> Pinned)",
    ]
    copies = [("aten::copy_", way, 30) for way in ways]
    rows = drawn(tmp_path, [("aten::mul", MUL, 20), *copies, ("aten::sum", SUM, 10)])
    assert [(row.copies_ns, row.beside_ns) for row in rows] == [(30_000, 0)], "of the device alone"


def test_the_most_expensive_chain_is_first_and_long_ones_are_cut_short(tmp_path: Path) -> None:
    long = [("aten::mul", MUL, 20), ("aten::mul", MUL, 20), ("aten::sum", SUM, 20)] * 3
    many = [(f"aten::f{number}", MUL, 10) for number in range(9)]
    rows = drawn(tmp_path, [("aten::sum", SUM, 10)] * 2, long, many)
    assert [(row.ops, row.kernels, row.device_ns) for row in rows] == [
        (", ".join(["aten::mul, aten::sum"] * 3), 9, 180_000),
        (", ".join(f"aten::f{number}" for number in range(8)), 9, 90_000),
        ("aten::sum", 2, 20_000),
    ]


def test_kernels_that_go_through_parts_of_a_large_tensor_are_one(tmp_path: Path) -> None:
    drawing = Drawing()
    drawing.mark(0, 0, 1_000)
    for place, op in enumerate(("aten::mul", "aten::add_")):
        start = 10 + 100 * place
        drawing.op(op, start, 90)
        for part in range(3):
            link = 1 + 3 * place + part
            drawing.launch("cudaLaunchKernel", start + 5 + 10 * part, 3, corr=link)
            drawing.kernel(MUL, start + 10 + 25 * part, 20, corr=link)
    rows = list(stepscope.open(drawing.write(tmp_path / "drawn.json")).table("kernel_chains"))
    assert rows == [KernelChain("aten::mul, aten::add_", 2, 1, 120_000, 20_000, 0, 0)]
