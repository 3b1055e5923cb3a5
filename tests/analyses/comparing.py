"""Runs analyses through the public path, and compares their rows with expected ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tests.drawing import KINETO, Drawing, Layout
from tests.oracle import Oracle, parse

import stepscope
from stepscope import registry
from stepscope.store.trace import Trace

Row = dict[str, Any]

KEYS = {
    "categories": ("category", "phase"),
    "kernels": ("name",),
    "runtime_calls": ("name",),
    "ops": ("name",),
    "devices": ("device", "window"),
    "steps": ("step", "name"),
}


def rows_of(trace: Trace) -> dict[str, list[Row]]:
    """The rows of all compared analyses of a trace."""
    return {name: registry.load("analyses", name)(trace).records() for name in KEYS}


def drawn_rows(drawing: Drawing, folder: Path, layout: Layout = KINETO) -> dict[str, list[Row]]:
    """The rows of all compared analyses of a drawn profile."""
    path = drawing.write(folder / "drawn.json", layout)
    return rows_of(stepscope.open(path, store=folder / "store"))


def oracle_of(drawing: Drawing, layout: Layout = KINETO) -> Oracle:
    return Oracle(*parse(drawing.json(layout)))


def differences(analysis: str, rows: list[Row], expected: list[Row]) -> list[str]:
    """What differs in the required columns; both must have the very same rows, in any order."""
    got = keyed(analysis, rows)
    wanted = keyed(analysis, expected)
    found = [f"row {key} is missing" for key in wanted.keys() - got.keys()]
    found += [f"row {key} is too much" for key in got.keys() - wanted.keys()]
    for key in wanted.keys() & got.keys():
        for column, value in wanted[key].items():
            if column not in got[key]:
                found.append(f"{key} has no column {column}")
            elif not is_same(got[key][column], value):
                found.append(f"{key} {column}: {got[key][column]!r} instead of {value!r}")
    return sorted(found)


def keyed(analysis: str, rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    table = {tuple(row[column] for column in KEYS[analysis]): row for row in rows}
    assert len(table) == len(rows), f"{analysis} has two rows of one key"
    return table


def is_same(value: Any, expected: Any) -> bool:
    """Counts and times are exact; shares and means may differ in their last bits."""
    if isinstance(expected, float) and isinstance(value, int | float):
        return math.isclose(value, expected, rel_tol=1e-12, abs_tol=1e-12)
    return bool(value == expected)
