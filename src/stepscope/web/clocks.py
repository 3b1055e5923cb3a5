"""The clocks of the ranks of a run: how the time of one becomes that of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["clocked"]


def clocked(opened: Opened, chosen: str) -> list[dict[str, Any]]:
    """All traces, and how the time of each becomes that of the chosen one: rate · time + shift."""
    if opened.many is None:
        # Two traces that are compared were recorded at different times: nothing to align.
        return [_one(chosen, 1.0, 0.0, aligned=True)]
    clocks = {f"rank{row.rank}": row for row in opened.many.table("clocks")}
    lines = {key: _line(clocks.get(key)) for key in opened.keys}
    own = lines[chosen]
    traces = []
    for key, line in lines.items():
        if key == chosen:
            traces.append(_one(key, 1.0, 0.0, aligned=True))
        elif own is None or line is None:
            traces.append(_one(key, 1.0, 0.0, aligned=False))
        else:
            traces.append(_one(key, line[0] / own[0], (line[1] - own[1]) / own[0], aligned=True))
    return traces


def _line(clock: Any) -> tuple[float, float] | None:
    """Reference time = rate · local time + shift; None where the clock is not aligned."""
    if clock is None or clock.offset_ns is None:
        return None
    drift = (clock.drift_ppm or 0.0) / 1e6
    return 1.0 + drift, clock.offset_ns - drift * (clock.since_ns or 0)


def _one(key: str, rate: float, shift: float, *, aligned: bool) -> dict[str, Any]:
    return {
        "key": key,
        "label": key.replace("rank", "rank "),
        "rate": rate,
        "shift": shift,
        "aligned": aligned,
    }
