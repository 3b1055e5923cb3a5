"""The stored trees and links, event by event, against the oracle."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from tests.analyses.comparing import oracle_of
from tests.analyses.drawn import HOW, WORLDS, drawings
from tests.data.make_samples import CUTS, HERE, SUFFIX
from tests.drawing import Drawing
from tests.oracle import OP, Event, Oracle, is_host

import stepscope


@dataclass(frozen=True, slots=True)
class Node:
    """One event of a tree."""

    event: Annotated[int, "place in the file"]
    parent: Annotated[int | None, "event around it"]
    depth: Annotated[int, "how many are around it"]
    self_ns: Annotated[int, "time as the innermost"]


@dataclass(frozen=True, slots=True)
class Link:
    """One event and what it belongs to."""

    event: Annotated[int, "place in the file"]
    to: Annotated[int | None, "event it belongs to"]


def place(event: Event | None) -> int | None:
    return event.index if event else None


def trees_of(oracle: Oracle) -> dict[str, set[tuple[Any, ...]]]:
    ops = [e for e in oracle.events if e.phase == "X" and e.category in OP]
    host = [e for e in oracle.events if is_host(e)]
    calls = {work.launch.index: work.launch for work in oracle.work if work.launch}
    return {
        "ops": {(e.index, place(e.op_parent), e.op_depth, e.op_self) for e in ops},
        "host_tree": {(e.index, place(e.host_parent), e.host_depth, e.host_self) for e in host},
        "device_work": {(work.index, place(work.launch)) for work in oracle.work},
        "launches": {
            (call.index, call.open_ops[-1].index if call.open_ops else None) for call in calls.values()
        },
    }


def stored_trees(path: Path, store: Path) -> dict[str, set[tuple[Any, ...]]]:
    trace = stepscope.open(path, store=store)
    found: dict[str, set[tuple[Any, ...]]] = {}
    for name in ("ops", "host_tree"):
        nodes = trace.query(Node, f"SELECT event, parent, depth, self_ns FROM {name}")
        found[name] = {(node.event, node.parent, node.depth, node.self_ns) for node in nodes}
    work = trace.query(Link, 'SELECT event, launch AS "to" FROM device_work')
    # Calls that launched nothing have no op to be right or wrong about.
    calls = trace.query(Link, 'SELECT event, op AS "to" FROM launches WHERE work_events > 0')
    found["device_work"] = {(link.event, link.to) for link in work}
    found["launches"] = {(link.event, link.to) for link in calls}
    return found


@pytest.mark.slow
@HOW
@given(drawings(marks=True, worlds=WORLDS))
def test_trees_of_a_random_profile(drawing: Drawing) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = drawing.write(Path(folder) / "drawn.json")
        assert stored_trees(path, Path(folder) / "store") == trees_of(oracle_of(drawing))


@pytest.mark.parametrize("name", CUTS)
def test_trees_of_a_real_profile(name: str, tmp_path: Path) -> None:
    path = HERE / (name + SUFFIX)
    stored, expected = stored_trees(path, tmp_path / "store"), trees_of(Oracle.of(path))
    for tree, nodes in expected.items():
        assert not stored[tree] ^ nodes, tree
