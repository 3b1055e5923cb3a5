"""Every page in a real browser: no complaints, nothing from elsewhere, nothing that axe calls serious."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.browsers import look, wait_until
from tests.commands import SLOW_ITEM
from tests.web.windows import Window, window

from stepscope.cli.traces import DEMO
from stepscope.web.page import listed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
OF_ONE = [name for name, info in listed().items() if info.about == "trace"]
WIDTH = "document.documentElement.scrollWidth"
ABOUT_TWO = [name for name, info in listed().items() if info.about == "two"]


def address(opened: Window, page: str) -> str:
    return f"http://127.0.0.1:{opened.port}/{page}?token={opened.token}"


OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""What axe asks of colours, which is all that another scheme changes."""


def serious_violations(page: Page, **options: Any) -> list[Any]:
    from axe_playwright_python.sync_playwright import Axe

    found: dict[str, Any] = Axe().run(page, options={"resultTypes": ["violations"], **options}).response
    return [
        (one["id"], [node["target"] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", OF_ONE)
def test_a_page_is_whole_accessible_and_fits_every_screen(browser: Browser, demo: Window, name: str) -> None:
    seen = look(browser, address(demo, name))
    assert all(one.startswith(f"http://127.0.0.1:{demo.port}/") for one in seen.requests)
    assert seen.page.locator(".problem").count() == 0
    scripts = [path for one in seen.requests if (path := urlsplit(one).path).endswith(".js")]
    assert sorted(scripts) == ["/script.js", "/static/theme.js"], "all modules come at once"
    assert serious_violations(seen.page) == []
    seen.page.emulate_media(color_scheme="dark")
    assert serious_violations(seen.page, runOnly=OF_COLOURS) == []
    for width in (900, 420):
        seen.page.set_viewport_size({"width": width, "height": 900})
        wait_until(seen.page, lambda: seen.page.evaluate(WIDTH) <= width)  # noqa: B023 - called here
    assert seen.complaints == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [420, 900])
@pytest.mark.parametrize("name", OF_ONE)
def test_nothing_sticks_out_where_a_narrow_screen_comes_first(
    browser: Browser, demo: Window, name: str, width: int
) -> None:
    page = look(browser, address(demo, name), width=width, scheme="dark").page
    assert page.evaluate(WIDTH) <= width


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
