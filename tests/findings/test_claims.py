"""Which time a finding wants, and when two want the same."""

from __future__ import annotations

import pytest

from stepscope.findings.claims import Claim, Part, Time, overlap


@pytest.mark.parametrize(
    "one,other,same",
    [
        (Claim(Time.STARVED), Claim(Time.STARVED), True),
        (Claim(Time.STARVED), Claim(Time.STARVED, Part.SYNCS), True),
        (Claim(Time.STARVED, Part.SYNCS), Claim(Time.STARVED, Part.SYNCS), True),
        (Claim(Time.STARVED, Part.SYNCS), Claim(Time.STARVED, Part.PYTHON), False),
        (Claim(Time.STARVED, Part.OPTIMIZER), Claim(Time.DEVICE, Part.OPTIMIZER), False),
        (Claim(Time.DEVICE, Part.COPY), Claim(Time.DEVICE, Part.CASTS), True),
        (Claim(Time.DEVICE, Part.CASTS), Claim(Time.DEVICE, Part.LAYOUTS), False),
        (Claim(Time.DEVICE), Claim(Time.DEVICE, Part.FILLS), True),
        (Claim(Time.MEMORY), Claim(Time.RECORDING), False),
    ],
)
def test_claims_overlap_if_one_holds_the_other(one: Claim, other: Claim, *, same: bool) -> None:
    assert one.overlaps(other) is same
    assert other.overlaps(one) is same
    assert overlap({one, Claim(Time.MEMORY, Part.LOSS)}, {other}) is same


def test_no_claims_overlap_with_nothing() -> None:
    assert not overlap((), {Claim(Time.STARVED)})
