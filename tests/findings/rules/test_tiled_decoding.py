from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.python_frames import PythonFrame
from stepscope.findings import Advice
from stepscope.findings.rules.tiled_decoding import tiled_decoding

STEP = busy_pace()
# In ten steps: 6 of the 9 ms of the GPU.
TILED = {
    "name": "diffusers/models/autoencoders/autoencoder_kl.py(364): tiled_decode",
    "calls": 10,
    "total_ns": 50 * MS,
    "device_ns": 60 * MS,
}


def found(*frames: dict[str, Any]) -> Advice | None:
    return tiled_decoding(STEP, drawn(PythonFrame, *frames))


def test_what_overlaps_goes() -> None:
    advice = assert_bounded(found(TILED), STEP)
    gain = STEP.gain(advice.saving)
    assert 0 < gain.low_share < gain.high_share
    assert gain.high_share <= 0.5 * 6 / 9 + 0.1
    assert "`tiled_decode()` takes 6.00 ms" in advice.because
    assert "vae.disable_tiling()" in advice.fix
    assert [place.line for place in advice.locations] == [364]


def test_the_outermost_function_counts() -> None:
    film = TILED | {"name": "diffusers/models/x.py(9): _temporal_tiled_decode", "total_ns": 60 * MS}
    advice = assert_bounded(found(TILED, film), STEP)
    assert "_temporal_tiled_decode" in advice.because


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "diffusers/models/x.py(9): decode"},
        {"name": "painter.py(3): tiled_decode"},
        {"device_ns": MS},
    ],
)
def test_it_is_silent(changed: dict[str, Any]) -> None:
    quiet = {"total_ns": MS} if "device_ns" in changed else {}
    assert found(TILED | changed | quiet) is None
    assert found() is None
