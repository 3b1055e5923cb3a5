"""What a timeline asks of a real window."""

from __future__ import annotations

import pytest
from tests.web.windows import Window

pytestmark = pytest.mark.slow


def test_from_a_finding_to_its_event_and_range(demo: Window) -> None:
    found = demo.ask("/api/marks?parts=findings").json["findings"]
    place = next(one for one in found if one["id"] == "scalar-reads")["shown"][0]
    event = demo.ask(f"/api/event?event={place['event']}").json
    assert event["name"] == "aten::_local_scalar_dense"
    assert (event["start_ns"], event["track"]) == (place["start_ns"], place["track"])
    there = demo.ask(f"/api/range?from={place['start_ns']}&to={place['end_ns']}").json
    assert there["range_ns"] == place["end_ns"] - place["start_ns"]
    names = {name["name"] for thread in there["threads"] for name in thread["names"]}
    assert "aten::_local_scalar_dense" in names


def test_marks_and_counters_of_the_whole_trace(demo: Window) -> None:
    marks = demo.ask("/api/marks?pixels=500").json
    assert [step["warm_up"] for step in marks["steps"]].count(True) <= 1
    assert {"forward", "backward"} <= {phase["phase"] for phase in marks["phases"]}
    assert set(marks["gaps"]) == {"0"}
    counters = demo.ask("/api/counters?pixels=500").json
    assert {"busy:0", "sm:0", "queue:0", "allocated:0", "reserved:0"} <= {
        one["id"] for one in counters["series"]
    }
    for one in counters["series"]:
        assert len(one["start"]) == len(one["min"]) == len(one["mean"]) == len(one["max"]) <= 500
        triples = zip(one["min"], one["mean"], one["max"], strict=True)
        assert all(low <= mean * (1 + 1e-9) and mean <= high * (1 + 1e-9) for low, mean, high in triples)


@pytest.mark.parametrize(
    "asked",
    [
        "event",
        "event?event=x",
        "event?event=99999999",
        "event?event=1%20OR%201",
        "event?event=" + "9" * 30,
        "range",
        "range?from=5&to=5",
        "range?from=5&to=1",
        "range?from=0&to=10&tracks=1;2",
        "marks?parts=secrets",
        "marks?pixels=0",
        "counters?from=9&to=3",
        "counters?pixels=-5",
        "event?event=1&trace=../x",
    ],
)
def test_nonsense_is_refused_with_a_line(demo: Window, asked: str) -> None:
    answer = demo.ask(f"/api/{asked}")
    assert answer.status == 400
    assert answer.json["problem"]
    assert answer.json["hint"]
