"""What real profiles rarely show and analysers get wrong, drawn small, with figures worked out by hand.

Tables that a trap does not name are compared with the oracle.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analyses.comparing import KEYS, differences, drawn_rows, oracle_of, rows_of
from tests.analyses.traps import devices, links, nesting, sides, steps, text
from tests.analyses.traps.rows import TRAPS, Trap
from tests.drawing import LAYOUTS, LIST_LAYOUTS, Layout

import stepscope

assert TRAPS, (devices, links, nesting, sides, steps, text)


def name_of(trap: Trap) -> str:
    return trap.__name__


@pytest.mark.parametrize("trap", TRAPS, ids=name_of)
def test_the_oracle_agrees_with_the_hand(trap: Trap) -> None:
    drawing, expected = trap()
    tables = oracle_of(drawing).tables()
    for name in expected.keys() & KEYS.keys():
        assert not differences(name, tables[name], expected[name]), name
    if "steps" in expected:
        assert tables["steps"] == expected["steps"]


@pytest.mark.parametrize("trap", TRAPS, ids=name_of)
def test_a_trap(trap: Trap, tmp_path: Path) -> None:
    drawing, expected = trap()
    rows = drawn_rows(drawing, tmp_path)
    whole = {**oracle_of(drawing).tables(), **expected}
    wrong = {name: differences(name, rows[name], whole[name]) for name in KEYS}
    assert not {name: lines for name, lines in wrong.items() if lines}


@pytest.mark.parametrize("layout", LAYOUTS + LIST_LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "trap", [links.second_device, text.names_that_need_escapes, text.exponents, text.base_time], ids=name_of
)
def test_a_trap_in_another_layout(trap: Trap, layout: Layout, tmp_path: Path) -> None:
    drawing, expected = trap()
    rows = drawn_rows(drawing, tmp_path, layout)
    wrong = {name: differences(name, rows[name], expected[name]) for name in expected.keys() & KEYS.keys()}
    assert not {name: lines for name, lines in wrong.items() if lines}


@pytest.mark.parametrize("suffix", ["json", "json.gz", "json.zst", "txt"])
def test_a_trap_in_another_file(suffix: str, tmp_path: Path) -> None:
    drawing, expected = links.second_device()
    rows = rows_of(stepscope.open(drawing.write(tmp_path / f"drawn.{suffix}"), store=tmp_path / "store"))
    for name, table in expected.items():
        assert not differences(name, rows[name], table)
