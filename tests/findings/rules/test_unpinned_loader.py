from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts

from stepscope.analyses.copies import Copy
from stepscope.analyses.data_loaders import DataLoader
from stepscope.analyses.host_syncs import HostSync
from stepscope.findings import Advice
from stepscope.findings.rules.pageable_copies import pageable_copies
from stepscope.findings.rules.unpinned_loader import unpinned_loader

LOADER = {"dataset": "data.Images", "pin_memory": False, "batches_per_step": 1.0, "num_workers": 4}
PAGEABLE = {
    "direction": "HtoD",
    "host_memory": "pageable",
    "calls": 10,
    "bytes": 110_000_000,
    "total_ns": 20 * MS,
    "exposed_ns": 20 * MS,
    "host_ns": 21 * MS,
    "blocked_ns": 20 * MS,
    "place": "train.py(7): load",
}


def judged(
    *loaders: dict[str, Any], copies: tuple[dict[str, Any], ...] = (PAGEABLE,), **thresholds: float
) -> Advice | None:
    table = drawn(Copy, *copies)
    found = drawn(DataLoader, *loaders)
    return unpinned_loader(busy_pace(), facts(), table, table, drawn(HostSync), found, **thresholds)


def test_it_gains_what_pinning_gains_and_names_the_loader() -> None:
    advice = assert_bounded(judged(LOADER), busy_pace())
    table = drawn(Copy, PAGEABLE)
    plain = assert_bounded(pageable_copies(busy_pace(), facts(), table, table, drawn(HostSync)), busy_pace())
    assert advice.saving == plain.saving
    assert advice.because.startswith("The DataLoader of data.Images has pin_memory=False. In a step ")
    assert [str(one) for one in advice.locations] == ["train.py:7 load"]
    assert (advice.certainty, plain.certainty) == ("likely", "certain")


def test_the_loader_with_most_batches_is_named() -> None:
    advice = assert_bounded(judged(LOADER, {**LOADER, "dataset": None, "batches_per_step": 4.0}), busy_pace())
    assert advice.because.startswith("A DataLoader of the program")
    assert advice.evidence["unpinned_loaders"] == 2


def test_it_is_silent_where_loaders_pin_or_nothing_is_pageable() -> None:
    assert judged() is None
    assert judged({**LOADER, "pin_memory": True}) is None
    assert judged({**LOADER, "pin_memory": None}) is None
    assert judged({**LOADER, "batches_per_step": 0.0}) is None
    assert judged(LOADER, copies=({**PAGEABLE, "host_memory": "pinned"},)) is None
    assert judged(LOADER, copies=()) is None
    assert judged(LOADER, least_share=0.5) is None


def test_it_takes_the_place_of_the_plain_finding() -> None:
    assert pageable_copies.yields_to == ("unpinned_loader",)
