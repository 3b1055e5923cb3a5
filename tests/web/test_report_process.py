"""The report on a huge trace, which a window has from a process of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.samples import open_shared

from stepscope.cli.traces import DEMO
from stepscope.errors import StepscopeError
from stepscope.findings.build import build_report
from stepscope.findings.report import Report
from stepscope.opening import open_trace
from stepscope.present.formats import needs_of
from stepscope.present.report.html import html
from stepscope.store.trace import Trace
from stepscope.web import opened as window
from stepscope.web import report_process
from stepscope.web.opened import Opened

pytestmark = pytest.mark.slow


def children() -> set[int]:
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the processes")
def test_a_huge_trace_has_the_same_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(window, "MANY_EVENTS", 10)
    asked: list[str] = []

    def counted(trace: Trace, *more: Any) -> Report:
        asked.append(str(trace.folder))
        return report_process.report_of_child(trace, *more)

    monkeypatch.setattr(window, "report_of_child", counted)
    shown = Opened([str(DEMO)], store=tmp_path)
    shown.start()
    shown.wait()
    before = children()
    found = shown.report()
    assert len(asked) == 1
    assert children() <= before  # it is gone
    here = build_report(shown.trace().trace, tables=needs_of(html).tables)
    assert found.verdict == here.verdict
    assert found.findings == here.findings
    assert {name: list(table) for name, table in found.tables.items()} == {
        name: list(table) for name, table in here.tables.items()
    }


def test_what_went_wrong_there_is_told(tmp_path: Path) -> None:
    trace = open_trace(str(DEMO), store=tmp_path)
    (trace.folder / "meta.json").unlink()
    with pytest.raises(StepscopeError, match=r"meta\.json is missing"):
        report_process.report_of_child(trace, None, ())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the processes")
def test_a_process_that_is_killed_is_told() -> None:
    trace = open_shared(DEMO)
    before = children()

    def kill() -> None:
        while not (fresh := children() - before):
            time.sleep(0.001)
        for one in fresh:
            os.kill(one, signal.SIGKILL)

    threading.Thread(target=kill).start()
    with pytest.raises(StepscopeError, match="was killed by signal 9"):
        report_process.report_of_child(trace, None, ())
