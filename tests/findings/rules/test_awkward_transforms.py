from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.awkward_transforms import awkward_transforms

STEP = busy_pace()
BLUESTEIN = "void multi_bluestein_fft<256u, EPT<16u>, 16u, 0u, (padding_t)14, (twiddle_t)0>"


def found(name: str = BLUESTEIN, exclusive_ns: int = 30 * MS) -> Advice | None:
    kernel: dict[str, Any] = {"name": name, "family": "other", "calls": 60, "exclusive_ns": exclusive_ns}
    family = {"family": "other", "exclusive_ns": exclusive_ns}
    transform = {
        "name": "aten::fft_rfft",
        "user_frame": "waves.py(9): convolved",
        "calls": 20,
        "per_step": 2.0,
    }
    return awkward_transforms(
        STEP, drawn(Kernel, kernel), drawn(KernelFamily, family), drawn(StepOp, transform)
    )


def test_most_of_the_algorithm_goes() -> None:
    advice = assert_bounded(found(), STEP)
    assert advice.saving.device_ns == pytest.approx((0.6 * 3 * MS, 1.1 * 3 * MS))
    assert "6 kernels a step of Bluestein's algorithm take 3.00 ms" in advice.because
    assert "next_fast_len" in advice.fix
    assert [place.line for place in advice.locations] == [9]


def test_it_is_silent() -> None:
    assert found("void vector_fft<5632u, EPT<44u>, 1u, 0u>") is None
    assert found(exclusive_ns=2 * MS) is None
