"""Kernels of two traces, matched by name, by a like name, or by their operator."""

from __future__ import annotations

from fractions import Fraction

from stepscope.compare.matching import KernelCost, matched


def kernel(name: str, op: str | None = None, time: int = 1) -> KernelCost:
    return KernelCost(name, op, Fraction(time), Fraction(1))


def told(
    before: list[KernelCost], after: list[KernelCost]
) -> set[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return {
        (match.state, tuple(one.name for one in match.before), tuple(one.name for one in match.after))
        for match in matched(before, after)
    }


def test_the_same_name_comes_first() -> None:
    found = told([kernel("a", "mm"), kernel("b", "mm")], [kernel("b", "other"), kernel("c", "mm")])
    assert found == {("both", ("b",), ("b",)), ("replaced", ("a",), ("c",))}


def test_numbers_and_chips_do_not_matter() -> None:
    before = [kernel("triton_poi_fused_add_3"), kernel("ampere_bf16_s16816gemm_64x64_nn", "aten::mm")]
    after = [kernel("triton_poi_fused_add_12"), kernel("hopper_bf16_s64gemm_128x128_nn", "aten::mm")]
    states = {state for state, *_ in told(before, after)}
    assert states == {"renamed"}


def test_another_library_is_told_by_the_operator() -> None:
    before = [kernel("ampere_sgemm_128x64_tn", "aten::addmm", 5), kernel("sgemm_old", "aten::addmm", 9)]
    after = [kernel("nvjet_tst_64x8", "aten::addmm", 4), kernel("cudnn_conv", "aten::conv2d")]
    assert told(before, after) == {
        ("replaced", ("sgemm_old", "ampere_sgemm_128x64_tn"), ("nvjet_tst_64x8",)),
        ("new", (), ("cudnn_conv",)),
    }


def test_what_no_operator_launched_is_not_guessed() -> None:
    assert told([kernel("old")], [kernel("fresh")]) == {
        ("gone", ("old",), ()),
        ("new", (), ("fresh",)),
    }


def test_each_kernel_is_in_one_match() -> None:
    before = [kernel(f"k{n}", f"op{n % 3}") for n in range(20)]
    after = [kernel(f"q{n}_x", f"op{n % 4}") for n in range(20)]
    found = matched(before, after)
    assert sorted(one.name for match in found for one in match.before) == sorted(one.name for one in before)
    assert sorted(one.name for match in found for one in match.after) == sorted(one.name for one in after)
