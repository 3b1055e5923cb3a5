"""Start-up is nobody's gain."""

from __future__ import annotations

from tests.findings.drawn import MS, mean_step
from tests.findings.test_ranking import advice

from stepscope.findings.claims import Claim, Time
from stepscope.findings.start_up_time import without_start_up


def test_what_is_start_up_is_not_promised() -> None:
    told = advice(Claim(Time.STARVED), starved_ns=(2.0 * MS, 5.0 * MS))
    assert without_start_up(told, mean_step(), 4.0 * MS).saving.starved_ns == (0.0, 1.0 * MS)
    assert without_start_up(told, mean_step(), 0.0) == told
