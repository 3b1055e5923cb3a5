"""Logs of Triton's compiler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.errors import StepscopeError

Find = Callable[[str], Path]


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def compiled(name: str) -> str:
    stack = [
        {"line": 3, "name": "f", "filename": "/app/a.py", "loc": "add[grid](x)"},
        {"line": 9, "name": "run", "filename": "/site/triton/runtime/jit.py", "loc": "..."},
    ]
    told: dict[str, Any] = {"event_type": "compilation", "pid": 5, "stack": stack}
    return json.dumps({**told, "payload": {"metadata": {"name": name}}}) + "\n"


def test_kernels_have_the_line_that_calls_them(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text(
        compiled("add") + compiled("add") + '{"event_type": "launch"}\n' + compiled("mul") + "{cut"
    )
    trace = stepscope.open(path)
    found = [(row.name, row.lines, row.code) for row in trace.table("generated_kernels")]
    assert found == [("add", "/app/a.py:3", "add[grid](x)"), ("mul", "/app/a.py:3", "add[grid](x)")]
    assert [one.count for one in trace.meta.damage] == [1]


def test_one_of_tritonparse(sample: Find) -> None:
    (row,) = stepscope.open(sample("compile_logs/tritonparse_small.ndjson.gz")).table("generated_kernels")
    assert (row.name, row.code) == ("add_kernel", "add_kernel[grid](a, b, c, n_elements, BLOCK_SIZE)")


def test_one_without_kernels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text('{"event_type": "launch"}\n')
    with pytest.raises(StepscopeError, match="no compilation of a kernel"):
        stepscope.open(path)
