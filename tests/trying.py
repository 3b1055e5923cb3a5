"""How often tests with random input try: a little in every run, much before a release."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["EXHAUSTIVE", "QUICK", "tries"]

QUICK, EXHAUSTIVE = 100, 1000
"""Examples of a test that says no number; the profiles of hypothesis are named after these."""


def tries(few: int) -> int:
    """So many in a quick run, and as many times more in an exhaustive one."""
    return few * settings().max_examples // QUICK
