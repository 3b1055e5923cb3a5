"""Patterns that are compiled late: as good as compiled ones, and none of them is broken."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import stepscope
from stepscope.patterns import late_pattern


def test_it_answers_as_a_compiled_one_does() -> None:
    late = late_pattern(r"(a+)b?", re.IGNORECASE)
    found = late.fullmatch("AAb")
    assert found is not None
    assert found[1] == "AA"
    assert late.sub("-", "xaby") == "x-y"
    assert late.pattern == r"(a+)b?"
    assert late_pattern(rb"\d").findall(b"a1b2") == [b"1", b"2"]


def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    late = late_pattern("x")
    assert late.search("x")
    monkeypatch.setattr(re, "compile", None)
    assert late.search("x")
    assert late.findall("xx") == ["x", "x"]


def test_every_pattern_compiles() -> None:
    kind = type(late_pattern("x"))
    patterns = [
        value
        for module in pkgutil.walk_packages(stepscope.__path__, "stepscope.")
        if not module.name.startswith(("stepscope.capture", "stepscope.cluster", "stepscope._native"))
        and not module.name.endswith("__main__")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, kind)
    ]
    assert len(patterns) > 100
    for one in patterns:
        assert one.groups >= 0
