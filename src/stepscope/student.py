"""Student's t: how far a mean of a few values may be off."""

from __future__ import annotations

import math

__all__ = ["t_quantile"]

_CONFIDENCE = 0.975


def t_quantile(degrees: float) -> float:
    """What Student's t exceeds, on either side, once in twenty times."""
    low, high = 1.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        if _t_cdf(middle, degrees) < _CONFIDENCE:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _t_cdf(t: float, degrees: float) -> float:
    return 1 - _beta(degrees / (degrees + t * t), degrees / 2, 0.5) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 200):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            c, d = 1 + step / c, 1 / (1 + step * d)
            found *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * found / a
