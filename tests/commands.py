"""Runs the command line as a process of its own, where that matters: kills, permissions, full disks."""

from __future__ import annotations

import ctypes
import gzip
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPSCOPE = [sys.executable, "-m", "stepscope"]
DATA = Path(__file__).parent / "data"
PATIENCE_S = 600
"""After so long something hangs: no machine is as slow as that."""
SLOW_ITEM = DATA / "h200_slow_item.pt.trace.json.gz"

_CAPBSET_DROP, _DAC_OVERRIDE, _DAC_READ_SEARCH = 24, 1, 2


def environment(cache: Path, **more: str) -> dict[str, str]:
    """The environment of a child: stores go to this cache."""
    return {**os.environ, "STEPSCOPE_CACHE": str(cache), **more}


def stepscope(
    *args: object, cache: Path, prepare: Callable[[], object] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """One command to its end; `prepare` runs in the child first."""
    return subprocess.run(
        [*STEPSCOPE, *map(str, args)],
        env=environment(cache),
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=PATIENCE_S,
        preexec_fn=prepare,
        **more,
    )


def half_read(verb: str, cache: Path, **more: Any) -> subprocess.Popen[bytes]:
    """A command that has read half of its input, has all files of its store open, and waits for the rest."""
    child = subprocess.Popen([*STEPSCOPE, verb, "-"], env=environment(cache), stdin=subprocess.PIPE, **more)
    assert child.stdin is not None
    child.stdin.write(gzip.decompress(SLOW_ITEM.read_bytes())[:2_000_000])
    child.stdin.flush()
    patience = time.monotonic() + PATIENCE_S
    while not list(cache.glob(".*/other_events.parquet")) and time.monotonic() < patience:
        time.sleep(0.02)
    return child


def obey_permissions() -> None:
    """In a child: permissions hold for the administrator, too. Nothing is to be done for other users."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
            if libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "a capability could not be dropped")


def said(result: subprocess.CompletedProcess[str]) -> str:
    """What a failed command says: a message and a hint, no traceback, exit code 1."""
    assert result.returncode == 1, (result.returncode, result.stderr)
    assert result.stderr.startswith("stepscope: "), result.stderr
    assert "\n  hint: " in result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def leftovers(folder: Path) -> list[str]:
    """What a failed run left in the folder for stores."""
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
