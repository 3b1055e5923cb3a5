"""The ledger: what was tried, one line of JSON each, so that promises can be held against results."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.trials import SCHEMA, Trial
from stepscope.writing import explained

__all__ = ["LEDGER", "add", "entries", "record_of"]

LEDGER = "tries.jsonl"


def record_of(trial: Trial) -> dict[str, Any]:
    """A trial for other programs: numbers are not rounded, unknown is null."""
    found, losses = trial.estimate, trial.losses
    promise = trial.promise
    return {
        "schema": SCHEMA,
        "date": trial.date,
        "commit": trial.commit,
        "command": list(trial.command),
        "tried": trial.tried,
        "promised": promise
        and {
            "low_share": promise.low_share,
            "high_share": promise.high_share,
            "finding": promise.finding or None,
        },
        "measured": {
            "gain_share": found.gain_share,
            "low_share": found.low_share,
            "high_share": found.high_share,
            "before_ns": trial.before_ns,
            "after_ns": trial.after_ns,
            "pairs": [
                {"before_ns": round(early.mean_ns), "after_ns": round(late.mean_ns)}
                for early, late in zip(trial.before, trial.after, strict=True)
            ],
            "steps": sum(len(run.steps_ns) for run in (*trial.before, *trial.after)),
        },
        "verdict": found.word,
        "promise_kept": trial.kept,
        "losses": {
            "verdict": losses.word,
            "compared": losses.compared,
            "difference_share": losses.most_share,
            "own_difference_share": losses.own_share,
            "sentence": losses.sentence,
        },
        "took_s": round(trial.took_s, 3),
        "notes": list(trial.notes),
    }


def add(folder: Path, record: Mapping[str, Any]) -> Path:
    """Adds a line to the ledger of a folder: in one write, so that two tries at once do not mix theirs."""
    path = folder / LEDGER
    line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    with explained(path):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # one that was cut short stays alone
                line = b"\n" + line
            os.write(handle, line)
        finally:
            os.close(handle)
    return path


def entries(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a folder's ledger, oldest first, and how many lines could not be read."""
    try:
        text = (folder / LEDGER).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return [], 0
    found, lost = [], 0
    for line in filter(str.strip, text.splitlines()):
        try:
            record = json.loads(line)
        except ValueError:
            lost += 1
            continue
        if isinstance(record, dict) and record.get("schema") == SCHEMA:
            found.append(record)
        else:
            lost += 1
    return found, lost
