from __future__ import annotations

import dataclasses

import pytest
from tests.findings.drawn import H200, MS, assert_bounded, busy_pace, drawn, facts

from stepscope.analyses.kernels import Kernel
from stepscope.analyses.steps import Step
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.rules.wave_tails import wave_tails

STEPS = drawn(Step, *[{"kernel_ns": 8 * MS}] * 10)


def gemm(blocks: int, total_ns: float = 80 * MS, **shape: object) -> dict[str, object]:
    """A kernel of which one block fits a multiprocessor, by its shared memory."""
    told = {"family": "matmul", "block": "[384,1,1]", "registers": 168, "shared_bytes": 200_000, **shape}
    return {"name": "gemm", "grid": f"[{blocks},1,1]", "total_ns": total_ns, "exclusive_ns": total_ns, **told}


def test_it_fires_where_a_few_blocks_need_a_wave_of_their_own() -> None:
    step = busy_pace()
    advice = assert_bounded(wave_tails(step, facts(), STEPS, drawn(Kernel, gemm(165))), step)
    assert advice.saving.device_ns == pytest.approx((0.0, 8.0 * MS * 0.75 / 2))
    assert advice.certainty == "possible"
    assert advice.evidence["longest_waves"] == 1.25
    assert "165 blocks: 1.25 waves on 132 multiprocessors" in advice.because
    assert "batch_size * 0.8" in advice.fix
    assert advice.claims == {Claim(Time.DEVICE, Part.MATMUL)}


def test_registers_and_threads_bound_what_fits_at_once() -> None:
    step = busy_pace()
    # 255 registers for each of 128 threads: two blocks on a multiprocessor; 264 at once.
    two = gemm(330, block="[128,1,1]", registers=255, shared_bytes=33_792)
    advice = assert_bounded(wave_tails(step, facts(), STEPS, drawn(Kernel, two)), step)
    assert advice.evidence["longest_waves"] == 1.25
    # 1024 threads without registers or shared memory to speak of: two again.
    threads = gemm(330, block="[1024,1,1]", registers=0, shared_bytes=0)
    advice = assert_bounded(wave_tails(step, facts(), STEPS, drawn(Kernel, threads)), step)
    assert advice.evidence["longest_waves"] == 1.25


@pytest.mark.parametrize("blocks", [100, 132, 250, 264, 132 * 9 + 1])
def test_it_is_silent_where_the_last_wave_is_full_or_one_of_many(blocks: int) -> None:
    assert wave_tails(busy_pace(), facts(), STEPS, drawn(Kernel, gemm(blocks))) is None


def test_thresholds() -> None:
    many = drawn(Kernel, gemm(132 * 9 + 1))
    assert wave_tails(busy_pace(), facts(), STEPS, many, most_waves=10, least_share=0.01) is not None
    little = drawn(Kernel, gemm(165, 8 * MS), gemm(132, 72 * MS))
    assert wave_tails(busy_pace(), facts(), STEPS, little) is None
    assert wave_tails(busy_pace(), facts(), STEPS, little, least_share=0.01) is not None


def test_it_is_silent_where_the_shape_or_the_device_is_not_known() -> None:
    for unknown in ({"grid": None}, {"block": None}, {"registers": None}, {"family": "elementwise"}):
        assert wave_tails(busy_pace(), facts(), STEPS, drawn(Kernel, gemm(165) | unknown)) is None
    for device in (
        dataclasses.replace(H200, capability=None),
        dataclasses.replace(H200, multiprocessors=None),
    ):
        assert wave_tails(busy_pace(), facts(devices=(device,)), STEPS, drawn(Kernel, gemm(165))) is None
    assert wave_tails(busy_pace(), facts(devices=()), STEPS, drawn(Kernel, gemm(165))) is None
