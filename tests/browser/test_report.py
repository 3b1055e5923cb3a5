"""The pages of reports and comparisons in a browser: alone, in every light, on any screen, on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browsers import chromium, give_back, look
from tests.present.drawn_comparison import comparison, empty, history
from tests.present.drawn_report import empty_report, report, tables

from stepscope.present.diff.html import html as diff
from stepscope.present.report.html import html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

PAGES = {
    "full": html(report()),
    "many steps": html(report(tables=tables(150))),
    "empty": html(empty_report()),
    "before and after": diff(comparison()),
    "history": diff(history()),
    "nothing to compare": diff(empty()),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's Chromium with a fresh profile."""
    with chromium() as started:
        yield started


@pytest.fixture(autouse=True)
def pages_given_back(browser: Browser) -> Iterator[None]:
    yield
    give_back(browser)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, page in PAGES.items():
        path = folder / f"{name.replace(' ', '_')}.html"
        path.write_text(page, encoding="utf-8")
        found[name] = path.as_uri()
    return found


@pytest.mark.parametrize("name", PAGES)
def test_it_asks_for_nothing_and_complains_of_nothing(
    browser: Browser, addresses: dict[str, str], name: str
) -> None:
    seen = look(browser, addresses[name])
    seen.page.mouse.wheel(0, 20_000)
    assert seen.requests == [addresses[name]]
    assert seen.complaints == []
    assert addresses[name].startswith("file://")


@pytest.mark.parametrize("width", [400, 800, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out(browser: Browser, addresses: dict[str, str], name: str, width: int) -> None:
    page = look(browser, addresses[name], width=width).page
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # Tables and code may scroll by themselves; everything else lies within the page.
    wide = """[...document.querySelectorAll("main *, header *")]
        .filter(one => !one.closest(".scroll, pre, svg"))
        .filter(one => one.getBoundingClientRect().right > innerWidth + 0.5)
        .map(one => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(wide) == []


def test_light_and_dark_differ(browser: Browser, addresses: dict[str, str], tmp_path: Path) -> None:
    style = "one => { const s = getComputedStyle(one); return [s.backgroundColor, s.color]; }"
    looks, pictures = [], []
    for scheme in ("light", "dark"):
        page = look(browser, addresses["full"], scheme=scheme).page
        looks.append([page.eval_on_selector(one, style) for one in ("body", ".panel", ".card h3", ".badge")])
        pictures.append(page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True))
    for light, dark in zip(*looks, strict=True):
        assert light != dark
    assert pictures[0] != pictures[1]
    assert looks[0][0] == ["rgb(245, 246, 248)", "rgb(22, 32, 46)"]


def test_it_prints_light_and_unfolded(browser: Browser, addresses: dict[str, str], tmp_path: Path) -> None:
    page = look(browser, addresses["full"], scheme="dark").page
    paper = tmp_path / "report.pdf"
    page.pdf(path=paper, format="A4")
    assert paper.read_bytes().startswith(b"%PDF-")
    assert paper.stat().st_size > 20_000
    page.emulate_media(media="print", color_scheme="dark")
    assert page.eval_on_selector(".panel", "one => getComputedStyle(one).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert page.eval_on_selector("nav", "one => getComputedStyle(one).display") == "none"
    heights = page.eval_on_selector_all("details table", "all => all.map(one => one.checkVisibility())")
    assert heights
    assert all(heights)


def test_a_button_copies_the_fix(browser: Browser, addresses: dict[str, str]) -> None:
    seen = look(browser, addresses["full"])
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = seen.page.locator("#finding-scalar-reads .copied button")
    button.click()
    seen.page.locator("#finding-scalar-reads button", has_text="Copied").wait_for()
    fix = report().findings[0].advice.fix
    assert seen.page.evaluate("navigator.clipboard.readText()") == fix
    assert seen.complaints == []


def test_it_works_without_scripts(browser: Browser, addresses: dict[str, str]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(addresses["full"])
    assert page.locator("button:visible").count() == 0
    evidence = page.locator("#finding-scalar-reads details")
    assert not evidence.locator("table").is_visible()
    evidence.locator("summary").click()
    assert evidence.locator("table").is_visible()
