"""What stepscope found out, as slices of tracks of its own: idle gaps, the critical path, findings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.analyses.critical_path import critical_path
from stepscope.analyses.idle_gaps import idle_gaps
from stepscope.errors import StepscopeError
from stepscope.findings.build import build_report
from stepscope.records import dataclass
from stepscope.sources.pftrace import OWN_CATEGORY

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["Mark", "marks_of"]

_MOST_GAPS = 5_000
_MOST_PIECES = 5_000
"""Of the path of one step."""
_MOST_STEPS = 20


@dataclass(frozen=True, slots=True)
class Mark:
    """One slice: its track, its times in ns since 1970, its name and arguments."""

    track: str
    start_ns: int
    dur_ns: int
    name: str
    args: dict[str, Any]

    def text(self) -> str:
        """The event as JSON."""
        event = {"ph": "X", "cat": OWN_CATEGORY, "name": self.name, "args": self.args}
        return json.dumps(event, ensure_ascii=False)


def marks_of(trace: Trace) -> list[Mark]:
    """Everything that can be shown on the time line; what an analysis cannot say is left out."""
    found: list[Mark] = []
    for part in (_gaps, _path, _findings):
        try:
            found += part(trace)
        except StepscopeError:  # a trace without steps, or without device work
            continue
    return found


def _gaps(trace: Trace) -> Iterator[Mark]:
    for gap in idle_gaps(trace, longest=_MOST_GAPS):
        if gap.start_ns is None:
            continue
        args = {
            "waited for": gap.side,
            "spent in": gap.spent_in,
            "drained by": gap.drained_by,
            "before": gap.before,
            "after": gap.after,
            "blame": gap.blame,
            "user frame": gap.user_frame,
        }
        told = {key: value for key, value in args.items() if value is not None}
        name = f"idle: {gap.side}, {gap.spent_in}"
        yield Mark(f"idle gaps of GPU {gap.device}", gap.start_ns, gap.longest_ns, name, told)


def _path(trace: Trace) -> Iterator[Mark]:
    steps = [row["step"] for row in trace.rows("SELECT step FROM steps ORDER BY start_ns")]
    for step in steps[:_MOST_STEPS]:
        for part in critical_path(trace, step=step, segments=_MOST_PIECES):
            if part.start_ns is None or not part.path_ns:
                continue
            args = {"kind": part.kind, "place": part.place, "step": step}
            name = f"{part.kind}: {part.name}" if part.name else part.kind
            yield Mark("critical path", part.start_ns, part.path_ns, name, args)


def _findings(trace: Trace) -> Iterator[Mark]:
    span = trace.rows("SELECT min(start_ns) AS first, max(end_ns) AS last FROM steps")[0]
    if span["first"] is None:
        return
    for place, finding in enumerate(build_report(trace).findings):
        advice = finding.advice
        args = {
            "severity": str(finding.severity),
            "because": advice.because,
            "fix": advice.fix,
            "at": [f"{one}" for one in advice.locations[:3]],
        }
        if finding.gain.is_known:
            low, high = finding.gain.low_ns, finding.gain.high_ns
            args["gain a step"] = f"{units.duration(low)} to {units.duration(high)}"
        # Each is a little shorter than the one above it, so that they are stacked in their order.
        dur = span["last"] - span["first"] - place
        yield Mark("findings", span["first"] + place, max(dur - place, 1), advice.title, args)
