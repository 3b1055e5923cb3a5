"""Where findings are seen: in the range lies what the finding speaks of."""

from __future__ import annotations

from typing import Any

import pytest
from tests.samples import DATA, open_shared, reported

from stepscope.analyses._event_details import event_details
from stepscope.findings.showing import Shown, shown_of
from stepscope.store.cutting import extent
from stepscope.store.trace import Trace

pytestmark = pytest.mark.slow
SAMPLES = sorted(path.name for path in DATA.glob("h200_*.pt.trace.json.gz"))
IDLE = ("launch-bound", "missed-graphs", "short-kernels")
NAMED = {
    "scalar-reads": ("aten::_local_scalar_dense", "aten::item"),
    "pageable-copies": ("Pageable", "HtoD"),
    "exposed-copies": ("HtoD", "DtoH", "Host"),
    "needless-transfers": ("HtoD", "Host"),
    "gloo-backend": ("gloo:",),
    "per-tensor-optimizer": ("Optimizer.step#",),
    "optimizer-share": ("Optimizer.step#",),
    "exposed-communication": ("gloo:", "nccl"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_finding_is_seen_inside_the_trace(name: str) -> None:
    trace = open_shared(DATA / name)
    first, last = extent(trace.reading(None))
    for finding in reported(DATA / name).findings:
        places = shown_of(trace, finding)
        assert places, f"{finding.id} has no place"
        for place in places:
            assert first <= place.start_ns < place.end_ns <= last, finding.id
        check(trace, finding.id, places[0])


def check(trace: Trace, id_: str, place: Shown) -> None:
    """What lies there is what the finding is about."""
    told = event_details(trace, place.event) if place.event is not None else {}
    if id_ in NAMED:
        assert any(text in told["name"] for text in NAMED[id_]), (id_, told["name"])
    if id_ in IDLE:
        assert not running(trace, told["device"], place), id_
    if id_ in ("full-precision-matmuls", "tf32-matmuls", "device-unfilled"):
        assert told["kind"] == "kernel", id_
        assert (told["start_ns"], told["dur_ns"]) == (place.start_ns, place.end_ns - place.start_ns)
    if id_ == "implicit-syncs":
        assert told["kind"] == "launch", id_
        assert told["start_ns"] == place.start_ns
    if id_ == "device-unfilled":
        assert float(told["args"]["blocks per SM"]) < 1
    if id_ == "warm-up":
        step = trace.reading(None).rows(
            "SELECT start_ns, end_ns FROM stored.steps ORDER BY start_ns LIMIT 1"
        )[0]
        assert (place.start_ns, place.end_ns) == (step["start_ns"], step["end_ns"])
    if id_ == "memory-room":
        most = trace.reading(None).rows(
            "SELECT max(allocated_bytes) AS most FROM stored.memory_events WHERE device_type != 0"
        )[0]["most"]
        assert int(told["args"]["Total Allocated"]) == most


def running(trace: Trace, device: str, place: Shown) -> list[dict[str, Any]]:
    """Work of the device while it is said to be idle."""
    return trace.reading(None).rows(
        """SELECT event FROM stored.device_work WHERE device::VARCHAR = $device
           AND start_ns < $end AND start_ns + dur_ns > $start""",
        device=device,
        start=place.start_ns,
        end=place.end_ns,
    )
