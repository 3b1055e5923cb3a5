"""A real browser on a real window: what a page shows, and what it complains of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from tests.browsers import Seen

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from tests.web.windows import Window

__all__ = ["DRAWN", "Looker"]

DRAWN = "[...document.querySelectorAll('[data-block]')].every((o) => o.querySelector(':scope>:not(script)'))"
"""Whether all blocks of a page are drawn."""


class Looker:
    """Somebody who has the address of a window, with a clipboard, and notes what pages complain of."""

    def __init__(self, browser: Browser, window: Window, scheme: Literal["light", "dark"] = "light") -> None:
        self.window = window
        self.complaints: list[str] = []
        self.context = browser.new_context(
            viewport={"width": 1400, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        # The token becomes a cookie at any address; the first page may take its time.
        self.context.new_page().goto(f"http://127.0.0.1:{window.port}/static/icon.svg?token={window.token}")

    def look(self, path: str, page: Page | None = None) -> Page:
        """A page, after its blocks were drawn; to make a new one costs more than to go on with an old one."""
        if page is None:
            page = self.context.new_page()
            Seen(page, self.complaints)
        answer = page.goto(f"http://127.0.0.1:{self.window.port}{path}")
        assert answer is not None
        assert answer.status == 200, page.inner_text("main")[:500]
        # The page forbids scripts made of text, also those of a test that waits: ask again and again.
        until = time.monotonic() + 20
        while not page.evaluate(DRAWN):
            assert time.monotonic() < until, f"blocks of {path} are not drawn: {self.complaints}"
            page.wait_for_timeout(30)
        return page
