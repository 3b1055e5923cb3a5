"""For programs that tests start: torch without its compiler, which takes longer to import than they run.

An optimizer imports the compiler when it is made, only to be left alone by it, and the profiler asks for one
of its settings. This folder goes to PYTHONPATH; a program that wants more fails, and is started without.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

STANDS: dict[str, dict[str, Any]] = {
    "torch._dynamo": {
        "disable": lambda function, *_, **__: function,
        "graph_break": lambda *_, **__: None,
        "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
        "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    },
    "torch._inductor": {},
    "torch._inductor.config": {"triton": SimpleNamespace(cudagraphs=False)},
}
"""Modules of the compiler, and what of each is asked for by programs that compile nothing."""


class _Finder:
    """Finds what stands for them; of other modules inside, the import says that they are not there."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in STANDS else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(STANDS[module.__name__])


sys.meta_path.insert(0, _Finder())
