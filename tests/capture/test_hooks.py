"""Looking for a program's modules does nothing to the program."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from stepscope.capture.hooks import Hooks, is_building

PROGRAM = Path(__file__).parent / "programs" / "building_tuples.py"


@pytest.mark.slow
def test_tuples_are_built_while_modules_are_looked_for(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "stepscope", "run", "--no-report", "--light", "--out", str(tmp_path / "run")]
    done = subprocess.run([*run, str(PROGRAM)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "built True\n"
    rank = json.loads((tmp_path / "run" / "run.json").read_text())["ranks"][0]
    assert rank["step"]["sentence"] == "A step is one call of Sequential."


class _Silent:
    """Takes no notice of anything."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.slow
def test_hooked_modules_are_copied_pickled_and_compiled_as_others_are(torch: Any) -> None:
    hooks = Hooks(_Silent())
    hooks.install()
    try:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        hooks.listen_to([model])
        handle = model.register_forward_pre_hook(print)
        assert list(copy.deepcopy(model)._forward_pre_hooks.values()) == [print]
        assert list(pickle.loads(pickle.dumps(model))._forward_pre_hooks.values()) == [print]
        assert type(copy.deepcopy(model)._forward_pre_hooks) is OrderedDict
        handle.remove()
        assert len(model._forward_pre_hooks) == 1
        torch._dynamo.reset()
        explained = torch._dynamo.explain(lambda given: model(given) * 2)(torch.ones(2, 4))
        assert explained.graph_break_count == 0
    finally:
        torch._dynamo.utils.counters.clear()
        hooks.remove()
    assert type(model._forward_pre_hooks) is OrderedDict
    assert not model._forward_pre_hooks


@pytest.mark.slow
def test_nothing_is_compiled_again_when_the_hooks_are_gone(torch: Any) -> None:
    counters = torch._dynamo.utils.counters
    heard: list[str] = []
    listener: Any = _Silent()
    listener.module_called = lambda module: heard.append(type(module).__name__)
    hooks = Hooks(listener)
    hooks.install()
    torch._dynamo.reset()
    counters.clear()
    try:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        hooks.listen_to([model])
        compiled = torch.compile(lambda given: model(given) * 2, backend="eager")
        compiled(torch.ones(2, 4))
        model(torch.ones(2, 4))
        assert heard == ["Sequential"]
        assert counters["stats"]["unique_graphs"] == 1
        hooks.remove()
        compiled(torch.ones(2, 4))
        model(torch.ones(2, 4))
        assert heard == ["Sequential"]
        assert counters["stats"]["unique_graphs"] == 1
    finally:
        counters.clear()
        hooks.remove()


@pytest.mark.slow
def test_a_module_that_is_being_made_is_not_looked_at(torch: Any) -> None:
    seen: list[bool] = []
    listener: Any = _Silent()
    listener.goes_without_gradients = lambda: seen.append(is_building())
    hooks = Hooks(listener)
    hooks.install()
    try:
        torch.nn.Linear(4, 4)  # sets its weights without gradients
        with torch.no_grad():
            assert seen
    finally:
        hooks.remove()
    assert all(seen[:-1])
    assert not seen[-1]
