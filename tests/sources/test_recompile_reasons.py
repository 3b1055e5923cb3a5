"""Why something was compiled again, wherever a compile log says it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.sources.test_compile_log import STRUCTURED, drawn_log, entry, rows

import stepscope


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


BECAUSE = "SELECT region, recompiled_because FROM logged_compilations WHERE kind = 'frame' ORDER BY region"


def test_reasons_that_only_an_artifact_has(tmp_path: Path) -> None:
    """Older versions do not repeat the reason in the metrics: it is a text, or a list of several."""
    text = gzip.decompress(STRUCTURED.read_bytes()).decode()
    path = tmp_path / "older.log"
    path.write_text(text.replace('"recompile_reason":', '"another":'))
    found = rows(stepscope.open(path), BECAUSE)
    whole = rows(stepscope.open(STRUCTURED), BECAUSE)
    # The metrics add the line of the program that made the guard.
    assert found == [(region, said and said.partition("  #")[0].strip()) for region, said in whole]
    assert dict(found)["1/2"] == "1/1: tensor 'x' size mismatch at index 0. expected 8, actual 12"
    assert {row.region for row in stepscope.open(path).table("compile_units") if row.recompiled_because} == {
        *("0/1", "1/1", "1/2", "2/1", "2/2")
    }


def test_a_reason_of_what_never_ended(tmp_path: Path) -> None:
    version = {"frame_id": 3, "frame_compile_id": 1, "attempt": 0}
    reasons = json.dumps(["3/0: L['n'] == 4", "3/1: L['n'] == 5"])
    artifact = {"artifact": {"name": "recompile_reasons", "encoding": "json"}, **version, "has_payload": "x"}
    text = entry(artifact, reasons) + entry({"dynamo_start": {"stack": []}, **version})
    assert rows(stepscope.open(drawn_log(tmp_path, text)), BECAUSE) == [("3/1", "3/0: L['n'] == 4")]


def test_reasons_of_messages(tmp_path: Path) -> None:
    prefix = "V1116 16:48:30.864000 8552 torch/_dynamo/guards.py:5396] [0/1]"
    text = f"{prefix} [__recompiles] Recompiling function forward in /app/train.py:17\n"
    text += f"{prefix} [__recompiles]     triggered by the following guard failure(s):\n"
    text += f"{prefix} [__recompiles]     - 0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12\n"
    text += f"{prefix} torchdynamo start tracing forward /app/train.py:17\n"
    trace = stepscope.open(drawn_log(tmp_path, text))
    assert rows(trace, BECAUSE) == [
        ("0/1", "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12")
    ]
