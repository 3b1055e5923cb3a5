"""The agents that rocprofv3 lists beside its CSV tables: what the devices of the kernels are."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from stepscope.sources._rocm_events import device_properties

__all__ = ["gpus_of"]

_MOST_BYTES = 1 << 24


def gpus_of(tables: Iterable[Path], called: Collection[str]) -> list[dict[str, Any]]:
    """The GPUs with Kineto's keys, numbered as the tables of kernels call them; none if these are others.

    `--agent-index` chooses what they are called: by default `Agent 2` after the place among the agents that
    are visible, else after the node; `GPU 0` after the place among the GPUs; a plain number is the node's.
    """
    gpus = [row for path in tables for row in _rows(path) if row.get("agent_type", "").upper() == "GPU"]
    numbers = {int(found[0]) for one in called if (found := re.search(r"\d{1,18}$", one.strip()))}
    numberings = ["logical_node_id", "node_id", "logical_node_type_id"]
    if any(one.upper().startswith("GPU") for one in called):
        numberings.reverse()
    elif any(one.strip().isdigit() for one in called):
        numberings = ["node_id", "logical_node_id", "logical_node_type_id"]
    for numbering in numberings:
        numbered = _numbered(gpus, numbering)
        if numbers and numbers <= numbered.keys():
            return [_properties(number, row) for number, row in sorted(numbered.items())]
    return []


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a small table, by names in small letters."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            text = file.read(_MOST_BYTES)
        rows = list(csv.DictReader(text.splitlines()))
    except (OSError, csv.Error):
        return []
    return [
        {name.strip().lower(): value for name, value in row.items() if name and isinstance(value, str)}
        for row in rows
    ]


def _numbered(gpus: list[dict[str, str]], numbering: str) -> dict[int, dict[str, str]]:
    """GPUs by that number. Each process lists all of them: the first list that has a number tells."""
    found: dict[int, dict[str, str]] = {}
    by_node: dict[str, int] = {}
    for row in gpus:
        place = by_node.setdefault(row.get("node_id", ""), len(by_node))
        told = row.get(numbering, str(place) if numbering == "logical_node_type_id" else "")
        if re.fullmatch(r"\d{1,9}", told.strip()):
            found.setdefault(int(told), row)
    return found


def _properties(number: int, row: dict[str, str]) -> dict[str, Any]:
    told = {name: int(value) for name, value in row.items() if re.fullmatch(r"\d{1,18}", value.strip())}
    told["size_in_bytes"] = told.get("local_mem_size", 0)
    return device_properties(number, row.get("product_name") or row.get("name"), json.dumps(told))
