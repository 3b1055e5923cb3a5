"""Fixtures for all tests: real profiles, and torch."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
TORCH_PYTHON = (3, 11)
"""The one Python that the tests install torch on; see the dependency group in pyproject.toml."""


@dataclass
class SampleChecks:
    """Which tests had their real profile and which had none."""

    ran: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


CHECKS = pytest.StashKey[SampleChecks]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CHECKS] = SampleChecks()


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real profiles: $STEPSCOPE_SAMPLES, or `shared/data` beside the repository."""
    return Path(os.environ.get("STEPSCOPE_SAMPLES") or ROOT.parent / "shared" / "data")


@pytest.fixture
def sample(samples: Path, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Finds a real profile by its name; a test whose file is not there is skipped, and counted."""
    checks = request.config.stash[CHECKS]

    def find(name: str) -> Path:
        path = samples / name
        if not path.exists():
            checks.ran.discard(request.node.nodeid)
            checks.missing.add(request.node.nodeid)
            pytest.skip(f"no sample {name}")
        checks.ran.add(request.node.nodeid)
        return path

    return find


@pytest.fixture(scope="session")
def torch() -> Any:
    """The module torch. Without it a test fails where it should be there, and is skipped elsewhere."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("torch")
    except ImportError as error:
        if sys.version_info[:2] == TORCH_PYTHON:
            pytest.fail(f"this test needs torch, and {error}: run `make test`, or pip install --group torch")
        pytest.skip("torch is installed on Python {}.{} only".format(*TORCH_PYTHON))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds up what the processes of a run in parallel found; each tells it when it ends."""
    checks = node.config.stash[CHECKS]
    told = getattr(node, "workeroutput", {})  # a process that crashed has told nothing
    checks.ran |= set(told.get("ran", ()))
    checks.missing |= set(told.get("missing", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    checks = session.config.stash[CHECKS]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput |= {"ran": sorted(checks.ran), "missing": sorted(checks.missing)}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    checks = config.stash[CHECKS]
    terminalreporter.write_line(
        f"samples: {len(checks.ran)} checks ran, {len(checks.missing)} had no file",
        yellow=bool(checks.missing),
    )
