"""Every page in a real browser: no complaints, nothing from elsewhere, nothing that axe calls serious."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.browsers import look
from tests.commands import SLOW_ITEM
from tests.web.windows import Window, window

from stepscope.cli.traces import DEMO
from stepscope.web.page import listed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
OF_ONE = [name for name, info in listed().items() if info.about == "trace"]
ABOUT_TWO = [name for name, info in listed().items() if info.about == "two"]


def address(opened: Window, page: str) -> str:
    return f"http://127.0.0.1:{opened.port}/{page}?token={opened.token}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", OF_ONE)
def test_a_page_is_whole_and_accessible(browser: Browser, demo: Window, name: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    seen = look(browser, address(demo, name), scheme=scheme)
    assert seen.complaints == []
    assert all(one.startswith(f"http://127.0.0.1:{demo.port}/") for one in seen.requests)
    assert seen.page.locator(".problem").count() == 0
    found: dict[str, Any] = Axe().run(seen.page).response
    serious = [
        (one["id"], [node["target"] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    seen.page.context.close()


@pytest.mark.parametrize("width", [420, 900])
@pytest.mark.parametrize("name", OF_ONE)
def test_nothing_sticks_out_of_a_narrow_screen(browser: Browser, demo: Window, name: str, width: int) -> None:
    page = look(browser, address(demo, name), width=width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()


@pytest.mark.parametrize("name", ABOUT_TWO)
def test_pages_about_two_traces(browser: Browser, name: str) -> None:
    with window(str(DEMO), "--against", str(SLOW_ITEM)) as opened:
        seen = look(browser, address(opened.wait(), name))
        assert seen.complaints == []
        assert seen.page.locator(".problem").count() == 0


def test_keys_jump_between_pages_and_show_help(browser: Browser, demo: Window) -> None:
    page = look(browser, address(demo, "findings")).page
    page.keyboard.press("g")
    page.keyboard.press("k")
    page.wait_for_url("**/kernels*")
    page.keyboard.press("?")
    assert "Keyboard" in page.locator("dialog[open] h2").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_the_chosen_theme_stays(browser: Browser, demo: Window) -> None:
    page = look(browser, address(demo, "findings")).page
    page.click("#theme-button")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
