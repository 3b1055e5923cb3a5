"""Starts the capture in a process of the program, once the program has imported torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stepscope.capture.settings import VARIABLE, Settings

__all__ = ["prepare"]


def prepare() -> None:
    """Waits for the import of torch; a process that never imports it is left alone."""
    settings = Settings.read(os.environ[VARIABLE])
    # The profiler's own lines about its start and end would stand between those of the program.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    sys.meta_path.insert(0, _TorchFinder(settings))


class _TorchFinder(MetaPathFinder):
    """Finds torch as Python would, and starts the capture after its import."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch with a loader that starts the capture; nothing else is found here."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _AfterImport(spec.loader, self._settings)
                return spec
        return None


class _AfterImport(Loader):
    """A loader that does something after the module was executed."""

    def __init__(self, loader: Loader, settings: Settings) -> None:
        self._loader = loader
        self._settings = settings

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the loader itself would."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Executes the module, then starts the capture."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            from stepscope.capture.control import begin

            begin(self._settings)
        except Exception as error:  # noqa: BLE001  # the program goes on without us
            sys.stderr.write(f"stepscope: this process is not recorded: {type(error).__name__}: {error}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
