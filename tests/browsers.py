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

__all__ = ["Seen", "chromium", "free_pages", "give_back", "look", "page_of", "wait_until"]

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
    # All pages are ours: a process of its own for each costs more than to draw it.
    "--process-per-site",
    "--disable-site-isolation-trials",
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


_LENT: dict[Browser, list[Page]] = {}
_FREE: dict[Browser, list[Page]] = {}
_HEARD: dict[Page, list[tuple[Any, Callable[..., None]]]] = {}


def page_of(browser: Browser, *, width: int = 1400, scheme: Any = "light") -> Page:
    """A page as in a fresh browser: one that was given back costs less than half of a new one."""
    free = _FREE.setdefault(browser, [])
    page = free.pop() if free else browser.new_context().new_page()
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(media="null", color_scheme=scheme)
    page.set_default_timeout(PATIENCE_MS)
    _LENT.setdefault(browser, []).append(page)
    return page


def give_back(browser: Browser) -> None:
    """Takes all pages from who looked at them; nothing of what they did is left."""
    for page in _LENT.pop(browser, []):
        for event, heard in _HEARD.pop(page, []):
            page.remove_listener(event, heard)
        if page.is_closed():
            continue
        page.evaluate("() => { try { localStorage.clear(); sessionStorage.clear(); } catch {} }")
        for other in page.context.pages:
            if other is not page:
                other.close()
        page.context.clear_cookies()
        page.context.clear_permissions()
        page.goto("about:blank")
        _FREE.setdefault(browser, []).append(page)


def free_pages(browser: Browser) -> list[Page]:
    """Those that were given back."""
    return _FREE.get(browser, [])


class Seen:
    """A page with what it asked the network for and what it complained about."""

    def __init__(self, page: Page, complaints: list[str] | None = None) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints = [] if complaints is None else complaints
        page.set_default_timeout(PATIENCE_MS)
        self._hear("request", lambda request: self.requests.append(request.url))
        self._hear("console", lambda message: self.complaints.append(message.text))
        self._hear("pageerror", lambda error: self.complaints.append(str(error)))
        self._hear("dialog", self._dialog)

    def _hear(self, event: Any, told: Callable[..., None]) -> None:
        self.page.on(event, told)
        _HEARD.setdefault(self.page, []).append((event, told))

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def look(
    browser: Browser, address: str, *, width: int = 1400, scheme: Any = "light", goto: bool = True
) -> Seen:
    """A page that nobody else looks at."""
    seen = Seen(page_of(browser, width=width, scheme=scheme))
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
