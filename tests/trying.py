"""How often tests with random input try: a little in every run, much before a release."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["EXHAUSTIVE", "QUICK", "some", "tries"]

QUICK, EXHAUSTIVE = 100, 1000
"""Examples of a test that says no number; the profiles of hypothesis are named after these."""


def tries(few: int, many: int | None = None) -> int:
    """So many in a quick run, and as many times more in an exhaustive one, or `many`."""
    asked = settings().max_examples
    return many if many is not None and asked > QUICK else few * asked // QUICK


def some(cases: Iterable[Any], few: int) -> list[Any]:
    """The cases of a test, of which a quick run takes the first few; those of several values are tuples."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.exhaustive] if place >= few else [],
        )
        for place, case in enumerate(cases)
    ]
