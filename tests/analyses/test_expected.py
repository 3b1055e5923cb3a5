"""Every analysis of every real profile gives the expected rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analyses.comparing import KEYS, differences, rows_of
from tests.data.make_samples import CUTS, HERE, SUFFIX, cut_text, expected_of, read_text
from tests.samples import SAMPLES, open_shared


def expected_tables(path: Path) -> dict[str, Any]:
    stem = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")
    tables: dict[str, Any] = json.loads(
        (path.parent / "expected" / f"{stem}.json").read_text(encoding="utf-8")
    )
    return tables


def check(path: Path) -> None:
    expected = expected_tables(path)
    rows = rows_of(open_shared(path))
    wrong = {name: differences(name, rows[name], expected[name]) for name in KEYS}
    assert not {name: lines for name, lines in wrong.items() if lines}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_real_profile(name: str, sample: Callable[[str], Path]) -> None:
    check(sample(name))


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_profile(name: str) -> None:
    check(HERE / (name + SUFFIX))


@pytest.mark.parametrize("name", CUTS)
def test_the_expected_tables_are_those_of_the_oracle(name: str) -> None:
    written = (HERE / "expected" / f"{name}.json").read_text(encoding="utf-8")
    assert written == expected_of(read_text(HERE / (name + SUFFIX))), "python -m tests.data.make_samples"


@pytest.mark.slow
@pytest.mark.parametrize("name", CUTS)
def test_the_cut_profiles_can_be_made_again(name: str, sample: Callable[[str], Path]) -> None:
    real = sample(name + SUFFIX)
    assert cut_text(read_text(real), CUTS[name]) == read_text(HERE / (name + SUFFIX))


def test_the_cut_profiles_stay_small() -> None:
    others = ("faults", "library", "together")  # whole recordings
    sizes = [path.stat().st_size for path in HERE.rglob("*.gz") if path.parent.name not in others]
    assert max(sizes) < 300_000
    assert sum(sizes) < 2_500_000
