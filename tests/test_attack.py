"""A slice of `make attack`: every kind once."""

from __future__ import annotations

import pytest
from tests.attack import ATTACKS, tried

SEED = 20261115


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_is_held(name: str) -> None:
    done, failures, _ = tried(name, SEED, 60, most=1)
    assert done
    assert not failures, failures[0]
