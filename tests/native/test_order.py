"""The rows of a batch are sorted by thread and time, in whatever order events come."""

from __future__ import annotations

import json
import random

import pytest

from stepscope.sources._reading import new_reader

Span = tuple[int, int, int]
"""Thread, start, duration."""


def nested(chance: random.Random, thread: int, start: int, end: int, spans: list[Span]) -> None:
    """Slices within slices, each after those inside it."""
    at = start
    while at < end:
        length = chance.choice((0, 1, 3, 20, end - at))
        stop = min(end, at + length)
        if stop - at > 3:
            nested(chance, thread, at + chance.randrange(2), stop - chance.randrange(2), spans)
        spans.append((thread, at, stop - at))
        at = stop + chance.randrange(1, 4)


def stored(spans: list[Span]) -> list[tuple[int, int, int, int]]:
    events = [
        {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": thread, "ts": start, "dur": dur}
        for thread, start, dur in spans
    ]
    reader = new_reader()
    reader.feed(json.dumps({"traceEvents": events}).encode())
    reader.finish(False)
    (batch,) = reader.take_batches()
    columns, runs = batch.take()
    event, thread, _, start, dur = (list(values) for values, _ in columns[:5])
    assert [first for _, first, _, _ in runs] == [
        0,
        *(at for at in range(1, len(thread)) if thread[at] != thread[at - 1]),
    ]
    return list(zip(thread, start, (-one for one in dur), event, strict=True))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("order", ["as they end", "as they begin", "two that cross", "any"])
def test_rows_are_sorted(order: str, seed: int) -> None:
    chance = random.Random(seed)
    spans: list[Span] = []
    nested(chance, 1, 0, 3000, spans)
    nested(chance, 2, 0, 900, spans)
    chance.shuffle(threads := [1, 2] * (len(spans) // 2))
    spans = [(thread, start, dur) for thread, (_, start, dur) in zip(threads, spans, strict=False)]
    if order == "as they begin":
        spans.sort(key=lambda span: (span[1], -span[2]))
    elif order == "two that cross":
        spans.insert(len(spans) // 2, (1, 5, 2500))
    elif order == "any":
        chance.shuffle(spans)
    assert sum(1 for thread, *_ in spans if thread == 1) > 256
    found = stored(spans)
    by_thread = {thread: [row for row in found if row[0] == thread] for thread, *_ in found}
    assert all(rows == sorted(rows) for rows in by_thread.values())
    assert sorted(event for *_, event in found) == list(range(len(spans)))
