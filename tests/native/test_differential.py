"""Event by event, the native reader says what Python's json says: every sample, many layouts, both paths."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.native.rebuilt import Event, Reading, loads, nanoseconds, read
from tests.samples import FEW, SAMPLES, tiered

CUT_DOWN = sorted(path.name for path in (Path(__file__).parent.parent / "data").glob("*.json.gz"))
MANY = 700
"""How many events are written anew in each layout."""
PIECES = (7, 4096, 1 << 20, None)


def shuffled(value: Any, dice: random.Random) -> Any:
    """The same with the keys of every object in another order."""
    if isinstance(value, dict):
        pairs = [(key, shuffled(inner, dice)) for key, inner in value.items()]
        dice.shuffle(pairs)
        return dict(pairs)
    return [shuffled(inner, dice) for inner in value] if isinstance(value, list) else value


LAYOUTS: dict[str, Callable[[Any], str]] = {
    "dumps": json.dumps,
    "compact": lambda trace: json.dumps(trace, separators=(",", ":")),
    "indented": lambda trace: json.dumps(trace, indent=1, ensure_ascii=False),
    "shuffled": lambda trace: json.dumps(shuffled(trace, random.Random(5))),
    "list": lambda trace: json.dumps(trace["traceEvents"]),
    "ascending": lambda trace: json.dumps(trace, sort_keys=True, separators=(", ", ":")),
}


def parts(trace: Any) -> tuple[list[Event], dict[str, Any]]:
    if isinstance(trace, list):
        return trace, {}
    return trace["traceEvents"], {key: value for key, value in trace.items() if key != "traceEvents"}


def check_times(reading: Reading, exact: list[Event]) -> None:
    for row, event in zip(reading.rows, exact, strict=True):
        for column, key in (("start_ns", "ts"), ("dur_ns", "dur")):
            expected = nanoseconds(event.get(key))
            if key == "dur" and expected is not None:
                expected = max(expected, 0)
            assert row[column] == expected, (column, event)


def check_same(raw: bytes, piece: int | None, *, exact: bool = True, **options: int) -> Reading:
    """Reads with and without templates, and compares both with json."""
    fast = read(raw, piece, check_every=16, **options)
    slow = read(raw, piece, templates=False, **options)
    assert fast.without_templates() == slow.without_templates()
    assert fast.template_mismatches == slow.template_hits == 0
    events, metadata = parts(loads(raw))
    for at, (rebuilt, event) in enumerate(zip(fast.events(), events, strict=True)):
        assert rebuilt == event, at
        assert list(rebuilt) == list(event)
    assert fast.metadata == metadata
    assert not fast.refusal
    if exact:
        check_times(fast, parts(loads(raw, exact=True))[0])
    return fast


def some(trace: Any) -> Any:
    """The trace with its first events and a spread of the others, so that every kind is in."""
    events, metadata = parts(trace)
    spread = events[:200] + events[200 :: max(1, (len(events) - 200) // (MANY - 200))]
    return {**dict(list(metadata.items())[:3]), "traceEvents": spread, **dict(list(metadata.items())[3:])}


def check_layouts(raw: bytes) -> None:
    trace = some(loads(raw))
    for name, written in LAYOUTS.items():
        text = written(trace).encode()
        readings = [read(text, piece) for piece in (7, 4096)]
        whole = check_same(text, None, exact=name == "compact")
        assert all(reading.without_templates() == whole.without_templates() for reading in readings), name


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_a_sample_is_read_as_json_reads_it(name: str, sample: Callable[[str], Path]) -> None:
    raw = gzip.decompress(sample(name).read_bytes())
    whole = check_same(raw, 1 << 20)
    assert whole.template_hits > len(whole.rows) * 0.7 - 200, "templates do not fit"
    pieces = PIECES if len(raw) < 2 << 20 else (4096,) if len(raw) < 20 << 20 else ()
    for piece in pieces:
        assert read(raw, piece).without_templates() == whole.without_templates()


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(SAMPLES, SAMPLES[::4]))
def test_a_sample_may_be_laid_out_in_any_way(name: str, sample: Callable[[str], Path]) -> None:
    check_layouts(gzip.decompress(sample(name).read_bytes()))


@pytest.mark.parametrize("name", CUT_DOWN)
def test_a_stored_sample_is_read_as_json_reads_it(name: str) -> None:
    raw = gzip.decompress((Path(__file__).parent.parent / "data" / name).read_bytes())
    check_same(raw, None)


@pytest.mark.parametrize("name", CUT_DOWN[:3])
def test_a_stored_sample_may_be_laid_out_in_any_way(name: str) -> None:
    check_layouts(gzip.decompress((Path(__file__).parent.parent / "data" / name).read_bytes()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_may_come_one_by_one(layout: str) -> None:
    raw = gzip.decompress((Path(__file__).parent.parent / "data" / CUT_DOWN[1]).read_bytes())
    trace = loads(raw)
    trace["traceEvents"] = trace["traceEvents"][:: len(trace["traceEvents"]) // 60]
    text = LAYOUTS[layout](trace).encode()
    assert read(text, 1).without_templates() == check_same(text, None).without_templates()
