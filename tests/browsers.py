"""The machine's own Chromium, and what its pages ask for and complain of."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["Seen", "chromium", "look", "wait_until"]

PATIENCE_MS = 120_000
"""A machine that others use, too, may stand still for half a minute."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a fresh profile."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("playwright is missing: pip install --group browser")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail("no Chromium: apt-get install chromium, or put one of that name on the PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=[*FLAGS], headless=True)
        yield started
        started.close()


class Seen:
    """A page with what it asked the network for and what it complained about."""

    def __init__(self, page: Page, complaints: list[str] | None = None) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints = [] if complaints is None else complaints
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dialog)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def look(
    browser: Browser, address: str, *, width: int = 1400, scheme: Any = "light", goto: bool = True
) -> Seen:
    """A page in a context of its own."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen = Seen(context.new_page())
    if goto:
        seen.page.goto(address)
        seen.page.wait_for_load_state("networkidle")
    return seen


def wait_until(page: Page, reached: Callable[[], bool]) -> None:
    """As `wait_for_function`, which the policy of our pages forbids."""
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        page.wait_for_timeout(100)
    page.wait_for_timeout(300)
