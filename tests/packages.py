"""Packages with plug-ins, installed as any other: a folder on Python's path that names its entry points."""

from __future__ import annotations

from pathlib import Path

import pytest


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, points: dict[str, dict[str, str]]) -> None:
    """Installs a package into a folder: for each group of entry points, their names and what they are."""
    found = folder / "plugged_in-1.0.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-in\nVersion: 1.0\n")
    text = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in points.items()
    ]
    (found / "entry_points.txt").write_text("\n".join(text))
    monkeypatch.syspath_prepend(folder)
