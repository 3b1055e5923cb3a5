"""What holds for every module of the capture, for it runs inside other people's programs."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

from stepscope import capture

MODULES = [
    one.name
    for one in pkgutil.iter_modules(capture.__path__, "stepscope.capture.")
    if one.name != "stepscope.capture.frameworks"
]
HEAVY = {"duckdb", "fsspec", "isal", "numpy", "pyarrow", "rich", "torch"}
LIGHT = {"stepscope.errors"}
"""What the capture may use of the rest of stepscope."""


def imported_by(statement: str) -> set[str]:
    """The modules that a fresh Python has after a statement and had not before."""
    told = "print(json.dumps([*set(sys.modules) - before]))"
    program = f"import sys, json; before = set(sys.modules); {statement}; {told}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    return set(json.loads(done.stdout))


def test_there_are_modules() -> None:
    assert {"stepscope.capture.control", "stepscope.capture.in_code"} <= set(MODULES)


@pytest.mark.parametrize(
    "statement", [f"import {name}" for name in MODULES] + ["import stepscope; stepscope.step()"]
)
def test_an_import_costs_little(statement: str) -> None:
    found = imported_by(statement)
    assert not {name.partition(".")[0] for name in found} & HEAVY
    ours = {name for name in found if name.startswith("stepscope.")}
    assert {name for name in ours if not name.startswith("stepscope.capture")} <= LIGHT


def test_a_step_that_nobody_records_imports_nothing() -> None:
    assert not [name for name in imported_by("import stepscope; stepscope.step()") if "capture" in name]


def test_names_of_the_capture_are_there_without_torch() -> None:
    found = imported_by("import stepscope; stepscope.profile; stepscope.on_trace_ready")
    assert not {name.partition(".")[0] for name in found} & HEAVY
