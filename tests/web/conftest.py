"""What tests of the window share: the machine's browser, and a window on the small profile of the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.browsers import chromium
from tests.web.windows import Window, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's Chromium with a fresh profile."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def demo() -> Iterator[Window]:
    """A window on the small profile of the package."""
    with window("--demo") as opened:
        yield opened.wait()
