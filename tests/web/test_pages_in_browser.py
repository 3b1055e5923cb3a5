"""Findings, overview, ranks, compare, what if and SQL in a real browser, without an error on the console."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browsers import page_of
from tests.web.windows import Window, window

pytestmark = pytest.mark.slow


class Page:
    """A page of a window, and what its console said."""

    def __init__(self, browser: Any, opened: Window) -> None:
        self.opened = opened
        self.tab: Any = page_of(browser)
        self.tab.set_default_timeout(90_000)
        self.errors: list[str] = []
        self.tab.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.goto(opened.address)

    def go(self, path: str) -> Any:
        """Opens a page."""
        assert self.tab.goto(f"http://127.0.0.1:{self.opened.port}{path}").status == 200
        return self.tab


def test_the_page_of_explanations_has_no_errors(browser: Any, demo: Window) -> None:
    page = Page(browser, demo)
    page.go("/explain").wait_for_load_state("networkidle")
    assert page.errors == []
    assert not page.tab.locator(".problem").count()


WIDE = """[...document.querySelectorAll(".grid-scroll")].filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => one.innerText.split("\\n").slice(0, 9).join(" "))"""


@pytest.mark.parametrize("name", ["memory", "rooflines", "copies_syncs", "operators", "python", "kernels"])
def test_no_column_is_cut_in_a_small_window(browser: Any, demo: Window, name: str) -> None:
    page = Page(browser, demo)
    page.tab.set_viewport_size({"width": 1280, "height": 900})
    page.go(f"/{name}").wait_for_load_state("networkidle")
    assert page.tab.locator(".grid-scroll").count() > 1
    assert page.tab.evaluate(WIDE) == []


ROOFS = """async () => {
    const { draw } = await import("/static/blocks/scatter.js");
    const element = document.createElement("div");
    document.querySelector("main").append(element);
    const point = { kind: "memory", says: "" };
    const points = [70, 85, 90, 95].map((y, row) =>
        ({ ...point, x: 300 + row, y, size: 9 - row, name: `aten::convolution_${row}`, row }));
    const roofs = [100, 60].map((peak) => ({ name: `tf32: ${peak} TFLOP/s`, peak, slope: 10 }));
    draw(element, { points, roofs, x: "FLOPs per byte", y: "TFLOP/s", colours: {} });
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const boxes = (which) => [...element.querySelectorAll(which)].map((one) => one.getBoundingClientRect());
    const meet = (a, b) =>
        a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;
    const [over, beside] = [boxes(".roof-name"), boxes(".point-name")];
    const last = [...element.querySelectorAll("svg > *")].findLastIndex((one) => one.matches(".point"));
    const first = [...element.querySelectorAll("svg > *")].findIndex((one) => one.matches(".roof-name"));
    return [over.length, beside.length, over.some((a) => beside.some((b) => meet(a, b))), first > last];
}"""


def test_names_of_roofs_and_of_points_keep_apart(browser: Any, demo: Window) -> None:
    roofs, points, meet, on_top = Page(browser, demo).go("/trust").evaluate(ROOFS)
    assert roofs == 2
    assert points > 0
    assert not meet
    assert on_top


def test_shares_of_the_step_are_told_once(browser: Any, demo: Window) -> None:
    tab = Page(browser, demo).go("/overview")
    told = tab.locator(".slice-told")
    assert "%" not in told.inner_text()
    tab.locator(".slices-plot").hover()
    assert "%" in told.inner_text()


def test_code_in_what_is_told_is_shown_as_code(browser: Any, demo: Window) -> None:
    page = Page(browser, demo)
    told = page.go("/trust").locator(".absent dd", has_text="The profile came alone")
    assert told.locator("code").first.inner_text() == "stepscope run"
    assert "`" not in told.inner_text()
    reads = page.go("/what_if").locator(".whatif-switch", has_text="No scalar reads")
    assert reads.locator("code").inner_text() == "if t:"
    assert "`" not in reads.inner_text()


def test_what_many_have_in_common_is_said_once(browser: Any, demo: Window) -> None:
    page = Page(browser, demo)
    assert page.go("/memory").locator(".absent").inner_text().count("Snapshot: ") == 1
    heads = page.go("/rooflines").locator("section.part", has_text="By step").locator("thead th")
    heads.first.wait_for()
    assert heads.all_inner_texts()[:2] == ["step", "step time"]


def test_a_finding_is_explained_and_leads_to_the_timeline(browser: Any, demo: Window) -> None:
    page = Page(browser, demo)
    tab = page.go("/findings")
    card = tab.locator("article.card").first
    card.get_by_role("link", name="Explain").click()
    dialog = tab.locator("dialog[open]")
    assert "How to fix it" in dialog.inner_text()
    dialog.get_by_role("button", name="Close").click()
    assert not tab.locator("dialog[open]").count()
    identity = card.get_attribute("id").removeprefix("finding-")
    assert card.get_by_text("Show in timeline").get_attribute("href") == f"/timeline?finding={identity}"
    assert page.errors == []


def test_a_switch_is_answered(browser: Any, demo: Window) -> None:
    page = Page(browser, demo)
    tab = page.go("/what_if")
    tab.check("input[name=graph]")
    tab.locator(".whatif-said", has_text="shorter").wait_for()
    assert "--graph" in tab.inner_text(".whatif-answer code")
    found = demo.ask("/api/whatif", data=b'{"named": ["graph"]}').json
    assert tab.inner_text(".whatif-said") == dict(found["lines"])["changed"]
    assert page.errors == []


# As a hand does: the slider moves at every frame, faster than it can be answered.
DRAG = """async () => {
    const slider = document.querySelector(".whatif-slider input[type=range]");
    for (let at = 0; at < 30; at++) {
        slider.value = String(at / 20);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise(requestAnimationFrame);
    }
}"""


def test_a_slider_is_answered_on_its_way_and_where_it_was_left(browser: Any, demo: Window) -> None:
    page = Page(browser, demo)
    tab = page.go("/what_if")
    tab.locator(".whatif-gain:not(:empty)").first.wait_for()
    # Only what is asked from here on is counted: the end of the page's own first question can be
    # told after its answer is drawn.
    open_now: list[Any] = []
    at_once: list[int] = []
    given_up: list[str] = []

    def asked(request: Any) -> None:
        open_now.append(request)
        at_once.append(len(open_now))

    def ended(request: Any) -> None:
        if request in open_now:
            open_now.remove(request)

    def failed(request: Any) -> None:
        given_up.append(request.url)
        ended(request)

    tab.on("request", asked)
    tab.on("requestfinished", ended)
    tab.on("requestfailed", failed)
    before = int(tab.get_attribute(".block.whatif", "data-answered"))
    tab.evaluate(DRAG)
    tab.locator(".whatif-answer code", has_text="--host x1.45").wait_for()
    assert int(tab.get_attribute(".block.whatif", "data-answered")) - before >= 2
    assert max(at_once) == 1
    assert given_up == []
    assert page.errors == []


def test_a_query_gives_rows_and_a_chart(browser: Any, demo: Window) -> None:
    page = Page(browser, demo)
    tab = page.go("/sql")
    tab.fill("textarea", "SELECT step, dur_ns FROM analyses.steps ORDER BY step")
    tab.press("textarea", "Control+Enter")
    tab.wait_for_selector(".sql-result .grid")
    assert tab.locator(".chart rect.mark").count() == 10
    tab.fill("textarea", "SELECT nothing FROM ops")
    tab.click("button.primary")
    tab.wait_for_selector(".sql-result .problem")
    assert all("400" in said for said in page.errors)


def test_two_traces_are_compared(browser: Any, sample: Callable[[str], Path]) -> None:
    before = sample("h200_tutorial_baseline.pt.trace.json.gz")
    after = sample("h200_slow_item.pt.trace.json.gz")
    with window(str(after), "--against", str(before)) as opened:
        page = Page(browser, opened.wait(180))
        assert "From one to the other" in page.go("/compare").inner_text("main")
        assert page.errors == []


def test_two_runs_are_compared_rank_by_rank(
    browser: Any, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    before = sample("ranks/ddp_mi300_4")
    for rank in (0, 1, 2):
        shutil.copy(before / f"rank{rank}.json.gz", tmp_path)
    with window(str(tmp_path), "--against", str(before)) as opened:
        page = Page(browser, opened.wait(180))
        tab = page.go("/compare")
        said = tab.inner_text("main")
        assert "All 4 → 3 ranks: step of the run" in said
        assert "Not compared: rank 3, only before." in said
        rows = tab.locator("#ranks tbody tr:not(.grid-room)")
        rows.nth(2).wait_for()
        assert sorted(row.split()[0] for row in rows.all_inner_texts()) == ["0", "1", "2"]
        # The rank that is looked at is the same on both sides.
        assert opened.ask("/timeline?trace=before").status == opened.ask("/timeline").status == 200
        assert page.errors == []


def test_a_cell_of_the_map_leads_to_its_rank(browser: Any, sample: Callable[[str], Path]) -> None:
    with window(str(sample("ranks/ddp_mi300_4"))) as opened:
        page = Page(browser, opened.wait(180))
        tab = page.go("/ranks")
        tab.locator(".heat-told", has_text="At most").wait_for()
        box = tab.locator(".heat-box canvas").bounding_box()
        tab.mouse.click(box["x"] + 120, box["y"] + 70)
        tab.wait_for_url("**/timeline?trace=rank2&from=*")
