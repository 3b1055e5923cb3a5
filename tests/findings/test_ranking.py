"""The order of findings, how grave they are, and what they promise together."""

from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, busy_pace, mean_step

from stepscope.findings import Advice, Category, Gain, Saving
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.ranking import ranked, severity_of, together


def advice(*claims: Claim, risk: bool = False, certainty: Any = "certain", **saving: Any) -> Advice:
    return Advice(
        title="Something is slow",
        because="It is.",
        saving=Saving(**saving),
        certainty=certainty,
        fix="x = 1",
        check="Look.",
        evidence={"calls": 1},
        claims=frozenset(claims),
        risk=risk,
    )


@pytest.mark.parametrize(
    "low_share,certainty,severity",
    [
        (0.30, "certain", "high"),
        (0.10, "likely", "high"),
        (0.0999, "certain", "medium"),
        (0.03, "likely", "medium"),
        (0.0299, "certain", "low"),
        (0.30, "possible", "medium"),
        (0.09, "possible", "low"),
    ],
)
def test_severity_follows_the_least_gain_and_certainty(
    low_share: float, certainty: Any, severity: str
) -> None:
    assert severity_of(Gain(0, 0, low_share, 1.0), certainty) == severity


def test_a_risk_is_medium_whatever_it_gains() -> None:
    assert severity_of(Gain(0, 0, 0.0, 0.0), "certain", risk=True) == "medium"


def test_what_gains_most_comes_first() -> None:
    found = ranked(
        [
            (
                "small",
                Category.HOST,
                advice(Claim(Time.STARVED, Part.PYTHON), starved_ns=(0.1 * MS, 0.2 * MS)),
            ),
            ("leak", Category.HOST, advice(Claim(Time.MEMORY), risk=True)),
            ("large", Category.HOST, advice(Claim(Time.STARVED), starved_ns=(3.0 * MS, 5.0 * MS))),
            ("apart", Category.HOST, advice(Claim(Time.DEVICE, Part.MATMUL), device_ns=(0.0, 3.0 * MS))),
        ],
        mean_step(),
    )
    assert [one.id for one in found] == ["large", "apart", "small", "leak"]
    assert found[2].shares_time_with == ("large",)
    assert found[1].shares_time_with == ()


def test_narrower_claims_that_differ_do_not_overlap() -> None:
    found = ranked(
        [
            ("a", Category.HOST, advice(Claim(Time.STARVED, Part.PYTHON), starved_ns=(1.0 * MS, 1.0 * MS))),
            ("b", Category.HOST, advice(Claim(Time.STARVED, Part.SYNCS), starved_ns=(0.5 * MS, 0.5 * MS))),
        ],
        mean_step(),
    )
    assert found[1].shares_time_with == ()


def test_the_same_time_is_promised_once() -> None:
    findings = ranked(
        [
            ("a", Category.HOST, advice(Claim(Time.STARVED), starved_ns=(3.0 * MS, 4.0 * MS))),
            ("b", Category.HOST, advice(Claim(Time.STARVED, Part.SYNCS), starved_ns=(2.0 * MS, 3.0 * MS))),
            ("c", Category.HOST, advice(Claim(Time.DEVICE, Part.MATMUL), device_ns=(1.0 * MS, 2.0 * MS))),
        ],
        mean_step(),
    )
    saved = together(findings, mean_step())
    assert saved.starved_ns == (3.0 * MS, 5.0 * MS)  # no more than the device was late
    assert saved.device_ns == (1.0 * MS, 2.0 * MS)


def test_different_times_add_up() -> None:
    findings = ranked(
        [
            ("a", Category.HOST, advice(Claim(Time.DEVICE, Part.MATMUL), device_ns=(3.0 * MS, 4.0 * MS))),
            ("b", Category.HOST, advice(Claim(Time.DEVICE, Part.ATTENTION), device_ns=(2.0 * MS, 9.0 * MS))),
        ],
        busy_pace(),
    )
    assert together(findings, busy_pace()).device_ns == (5.0 * MS, 9.8 * MS)


def test_a_finding_that_joins_two_groups_is_counted_with_both() -> None:
    findings = ranked(
        [
            ("a", Category.HOST, advice(Claim(Time.STARVED, Part.SYNCS), starved_ns=(2.0 * MS, 2.0 * MS))),
            ("b", Category.HOST, advice(Claim(Time.STARVED, Part.PYTHON), starved_ns=(1.0 * MS, 1.0 * MS))),
            ("c", Category.HOST, advice(Claim(Time.STARVED), starved_ns=(0.5 * MS, 0.5 * MS))),
        ],
        mean_step(),
    )
    assert together(findings, mean_step()).starved_ns == (2.0 * MS, 3.5 * MS)


def test_two_kinds_of_saving_of_the_same_time_do_not_add_up() -> None:
    python = Claim(Time.STARVED, Part.PYTHON)
    loop = advice(Claim(Time.STARVED), starved_ns=(4.0 * MS, 4.5 * MS), waited_ns=(0.5 * MS, 0.6 * MS))
    findings = ranked(
        [
            ("loop", Category.HOST, loop),
            ("python", Category.HOST, advice(python, waited_ns=(3.0 * MS, 4.0 * MS))),
        ],
        mean_step(),
    )
    saved = together(findings, mean_step())
    surest = max(findings, key=lambda one: one.gain.low_ns).advice.saving
    assert (saved.starved_ns[0], saved.waited_ns[0]) == (surest.starved_ns[0], surest.waited_ns[0])
    assert saved.waited_ns[1] == pytest.approx(4.6 * MS)
