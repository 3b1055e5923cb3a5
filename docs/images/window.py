# ruff: noqa: INP001 - a script that is run by hand
"""Takes docs/images/window-PAGE.png: every page of the window on a profile, in the machine's Chromium.

`python docs/images/window.py [TRACE [PAGE…]]`; without a trace it is the demo profile, and for pages that
have nothing to show on it a profile of the tests. It needs the group `browser` of pyproject.toml.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.browsers import chromium
from tests.samples import DATA
from tests.web.windows import Window, window

from stepscope.cli.traces import DEMO
from stepscope.web.page import listed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TARGET = Path(__file__).parent
WIDTH, HEIGHT = 1280, 800
ELSEWHERE = {
    "compile": [str(DATA / "h200_compile_default.pt.trace.json.gz")],
    "ranks": [str(DATA / f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz") for rank in (0, 1)],
    "compare": [
        str(DATA / "faults" / "dataloader_waits.mended.light.pt.trace.json.gz"),
        "--against",
        str(DATA / "faults" / "dataloader_waits.faulty.light.pt.trace.json.gz"),
    ],
}
"""Pages that the demo profile leaves empty, and what they are shown on."""


def _query(page: Page) -> None:
    page.press("textarea", "Control+Enter")
    page.locator(".sql-result .grid-scroll").wait_for()


def _switch(page: Page) -> None:
    page.check("input[name=no_reads]")
    page.locator(".whatif-said", has_text="shorter").wait_for()


USED: dict[str, Callable[[Page], None]] = {"sql": _query, "what_if": _switch}
"""What somebody does on a page before its picture is taken."""


def main(words: list[str]) -> None:
    """Takes the pictures."""
    pages = words[1:] or [name for name, info in listed().items() if info.about == "trace"]
    with chromium() as browser:
        if words:
            _take(browser, words[:1], pages)
            return
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            shutil.copy(DEMO, folder)  # so that commands in the pictures have no path of this machine
            _take(browser, [DEMO.name], [name for name in pages if name not in ELSEWHERE])
        for name, about in ELSEWHERE.items():
            _take(browser, about, [name])


def _take(browser: Browser, about: Sequence[str], pages: Sequence[str]) -> None:
    with window(*about) as opened:
        opened.wait(600)
        page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        page.set_default_timeout(120_000)
        page.goto(opened.address)
        for name in pages:
            if name == "timeline":
                _wait_for_boxes(opened)
            page.goto(f"http://127.0.0.1:{opened.port}/{name}")
            page.wait_for_load_state("networkidle")
            if name in USED:
                USED[name](page)
            page.wait_for_timeout(500)
            taken = TARGET / f"window-{name}.png"
            page.screenshot(path=taken)
            if squeeze := shutil.which("pngquant"):
                subprocess.run([squeeze, "--force", "--output", taken, "128", taken], check=False)  # noqa: S603


def _wait_for_boxes(opened: Window) -> None:
    """Until the whole timeline is made: before that its end is not known."""
    while opened.ask("/api/tracks").json["made"] < 1:
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1:])
