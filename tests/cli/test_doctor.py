"""`stepscope doctor` on this machine: a real profile, a Python without torch, and one that hangs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.commands import obey_permissions, said, stepscope

from stepscope.doctor.asking import ask


@pytest.mark.slow
def test_a_profile_is_recorded_here(tmp_path: Path, torch: Any) -> None:
    done = stepscope("doctor", "--format", "json", cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert found["can_record"]
    assert states["Python"] == states["torch"] == states["Kineto"] == states["a test profile"] == "yes"
    assert torch.__version__ in next(check["said"] for check in found["checks"] if check["name"] == "torch")


def shadowed(folder: Path, module: str) -> Path:
    """A Python that finds this in place of torch."""
    (folder / "torch.py").write_text(module)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.slow
def test_a_python_without_torch(tmp_path: Path) -> None:
    python = shadowed(tmp_path, "raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    done = stepscope("doctor", "--python", python, cache=tmp_path / "cache")
    assert done.returncode == 1
    assert " ✗  torch " in done.stdout
    assert "libcudart.so.13" in done.stdout
    assert done.stdout.endswith("This machine cannot record a profile.\n")


@pytest.mark.slow
def test_a_torch_that_crashes(tmp_path: Path) -> None:
    found = ask(str(shadowed(tmp_path, "import os\nos.abort()\n")), "facts", 60)
    assert found.problem.startswith("crashed (-6)")
    assert found.told == {}


@pytest.mark.slow
def test_a_torch_that_hangs(tmp_path: Path) -> None:
    found = ask(str(shadowed(tmp_path, "import time\ntime.sleep(600)\n")), "facts", 1)
    assert found.problem == "no answer after 1 s"


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    done = stepscope("doctor", "--python", tmp_path / "snake", cache=tmp_path / "cache")
    assert "there is no Python" in said(done)


@pytest.mark.slow
def test_a_cache_that_is_not_ours(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    python = shadowed(tmp_path, "raise ImportError\n")
    done = stepscope("doctor", "--python", python, cache=closed / "cache", prepare=obey_permissions)
    assert " ?  cache" in done.stdout
    assert "Permission denied" in done.stdout
