"""The answers of the what-if page are those of the command, to the last digit."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from tests.web.windows import Window

from stepscope.cli.main import main

pytestmark = pytest.mark.slow


WISHES: list[dict[str, Any]] = [
    {"named": ["no_sync"]},
    {"named": ["graph", "no_reads"], "host": "x0.5"},
    {"kernels": [["*gemm*", "x0.4"], ["*elementwise*", "x0"]]},
    {"ranges": [["Optimizer.step*", "x0.1"]], "host": "x1.35"},
]


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_the_page_says_what_the_command_says(
    demo: Window, wish: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = demo.ask("/api/whatif", data=json.dumps(wish).encode()).json
    command = shlex.split(found["command"])
    assert command[:3] == ["stepscope", "whatif", "--demo"]
    assert main(command[1:]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{label:<12}{text}" for label, text in found["lines"]]


def test_nothing_changed_is_the_step_as_it_is(demo: Window) -> None:
    found = demo.ask("/api/whatif", data=b"{}").json
    assert (found["changed_ns"], found["command"]) == (None, "")
    assert "changed" not in [label for label, _ in found["lines"]]


def test_each_change_tells_what_it_gains_alone(demo: Window) -> None:
    each = demo.ask("/api/whatif?each=1").json["gains"]
    alone = demo.ask("/api/whatif", data=b'{"named": ["graph"]}').json
    assert each["graph"] == alone["gains"]


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"host": "x-1"}', b'{"kernels": [["a"]]}', b'{"kernels": [["*", "x9999"]]}']
)
def test_what_is_no_change_is_refused(demo: Window, body: bytes) -> None:
    answer = demo.ask("/api/whatif", data=body)
    assert answer.status == 400
    assert answer.json["problem"]
