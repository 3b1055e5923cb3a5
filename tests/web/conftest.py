"""What tests of the window share: the machine's browser, and a window on the small profile of the package."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browsers import chromium, free_pages, give_back
from tests.web.windows import Window, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HERE = Path(__file__).parent
OPEN = ExitStack()
"""What is started once for all tests of this folder, which one process runs one after another."""


@cache
def _browser() -> Browser:
    return OPEN.enter_context(chromium())


@cache
def _demo() -> Window:
    return OPEN.enter_context(window("--demo")).wait()


def _end() -> None:
    _browser.cache_clear()
    _demo.cache_clear()
    OPEN.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None]:
    """Ends them with the last test of this folder: a browser has an event loop, and others need their own."""
    try:
        return (yield)
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            _end()


def pytest_sessionfinish() -> None:
    """The same where tests were interrupted."""
    _end()


@pytest.fixture(scope="module")
def browser() -> Browser:
    """The machine's Chromium."""
    return _browser()


@pytest.fixture(autouse=True)
def pages_given_back() -> Iterator[None]:
    """What a test opens in the browser is gone after it: pages that nobody looks at cost time, too."""
    before = _browser().contexts if _browser.cache_info().currsize else []
    yield
    if _browser.cache_info().currsize:
        give_back(_browser())
        kept = {page.context for page in free_pages(_browser())}
        for context in _browser().contexts:
            if context not in before and context not in kept:
                context.close()


@pytest.fixture(scope="module")
def demo() -> Window:
    """A window on the small profile of the package, of which pages were asked before, perhaps."""
    return _demo()
