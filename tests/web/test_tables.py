"""Grids in a real browser: order, filters, groups, files, many rows, and names that mean harm."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.drawing import Drawing
from tests.web.looking import Looker
from tests.web.windows import window

from stepscope.opening import open_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from stepscope.tables import Table

pytestmark = pytest.mark.slow

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "=1+1",
    "back\u202ewards\x1b[31m",
)
MANY = 20_000


def drawn(path: Path) -> Path:
    """A trace with many kernels, each of another name, and some names that mean harm."""
    drawing = Drawing().op("aten::mm", 0, 5_000_000)
    names = [*HOSTILE, "L" * 10_000, *(f"kernel_{at:05d}" for at in range(MANY - len(HOSTILE) - 1))]
    for at, name in enumerate(names):
        drawing.launch("cudaLaunchKernel", 10 + at * 3, 1, corr=at + 1)
        drawing.kernel(name, 20 + at * 3, 1 + at % 3, corr=at + 1)
    file = path / "many.json.gz"
    drawing.write(file)
    return file


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace with many kernels."""
    return drawn(tmp_path_factory.mktemp("many"))


@pytest.fixture(scope="module")
def kernels(profile: Path) -> Table:  # type: ignore[type-arg]
    """Its table, as the command prints it."""
    return open_trace(str(profile)).table("op_kernels")


@pytest.fixture(scope="module")
def looker(browser: Browser, profile: Path) -> Iterator[Looker]:
    """A browser at a window on it."""
    with window(str(profile)) as opened:
        opened.wait()
        yield Looker(browser, opened)


@pytest.fixture
def page(looker: Looker) -> Iterator[Page]:
    """The page of the kernels of an operator, which complains of nothing."""
    found = looker.look("/kernels?op=aten::mm")
    yield found
    found.close()
    assert looker.complaints == []


def cells(page: Page, column: int) -> list[str]:
    """What the rows that are in the page have in a column."""
    found: list[str] = (
        page.locator("[data-grid=op_kernels]")
        .first.locator("tbody tr[data-at]")
        .evaluate_all(f"(rows) => rows.map((row) => row.cells[{column}].textContent.replace('↗', ''))")
    )
    return found


def head(page: Page, title: str) -> None:
    """Clicks the head of a column."""
    page.locator("[data-grid=op_kernels] thead button", has_text=title).first.click()


def saved(page: Page) -> list[dict[str, str]]:
    """The rows of the CSV file that the page offers."""
    with page.expect_download() as waited:
        page.locator("[data-grid=op_kernels]").first.get_by_role("button", name="CSV").click()
    text = Path(waited.value.path()).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def test_the_file_has_the_exact_values_of_all_rows(page: Page, kernels: Table) -> None:  # type: ignore[type-arg]
    rows = saved(page)
    records = kernels.records()
    assert len(rows) == len(records) == MANY
    by_name = {row["kernel"]: row for row in rows}
    for record in (*records[:50], *records[-50:]):
        name = record["kernel"]
        if name in HOSTILE:
            continue
        row = by_name[name]
        assert int(row["total_ns"]) == record["total_ns"]
        assert int(row["longest_event"]) == record["longest_event"]
        assert float(row["op_share"]) == record["op_share"]
        assert row["kind"] == record["kind"]


def test_a_spreadsheet_computes_nothing(page: Page) -> None:
    names = {row["kernel"] for row in saved(page)}
    assert "'=1+1" in names
    assert "=1+1" not in names
    assert "back\\u202ewards\\x1b[31m" in names


def test_heads_sort_both_ways_and_say_so(page: Page) -> None:
    head(page, "kernel")
    cell = page.locator("[data-grid=op_kernels] thead th", has_text="kernel").first
    assert cell.get_attribute("aria-sort") == "ascending"
    first = cells(page, 0)
    head(page, "kernel")
    assert cell.get_attribute("aria-sort") == "descending"
    assert cells(page, 0)[0] == "L" * 38 + "…" + "L" * 19
    assert cells(page, 0)[1] == f"kernel_{MANY - len(HOSTILE) - 2:05d}"
    assert first != cells(page, 0)


def test_a_head_is_sorted_by_the_keyboard(page: Page) -> None:
    page.locator("[data-grid=op_kernels] thead button", has_text="calls").first.focus()
    page.keyboard.press("Enter")
    cell = page.locator("[data-grid=op_kernels] thead th", has_text="calls").first
    assert cell.get_attribute("aria-sort") == "descending"
    assert page.evaluate("document.activeElement.textContent") == "calls"


def test_words_filter_rows(page: Page) -> None:
    page.locator("[data-grid=op_kernels] .grid-filter").first.fill("KERNEL 01234")
    assert cells(page, 0) == ["kernel_01234"]
    assert page.locator(".grid-told").first.text_content() == f"1 of {MANY:,} rows"
    page.locator("[data-grid=op_kernels] .grid-filter").first.fill("no such kernel")
    assert "No row fits" in (page.locator("[data-grid=op_kernels] tbody").first.text_content() or "")


def test_conditions_compare_with_units(page: Page, kernels: Table) -> None:  # type: ignore[type-arg]
    page.get_by_role("button", name="Conditions on columns").first.click()
    field = page.get_by_label("Condition on total").first
    field.fill("> 2.5 µs")
    wanted = sum(row["total_ns"] > 2500 for row in kernels.records())
    assert 0 < wanted < MANY
    assert page.locator(".grid-told").first.text_content() == f"{wanted:,} of {MANY:,} rows"
    field.fill("> many")
    assert field.get_attribute("aria-invalid") == "true"


def test_groups_have_sums(page: Page, kernels: Table) -> None:  # type: ignore[type-arg]
    kinds = {row["kind"] for row in kernels.records()}
    found = page.evaluate(
        """async () => {
          const { Model } = await import("/static/grid/model.js");
          const source = document.querySelector("[data-grid=op_kernels] script[type='application/json']");
          const model = new Model({ ...JSON.parse(source.textContent), group: "kind" });
          const place = model.place("total_ns");
          return model.items.map((item) => [item.key, item.rows.length, model.total(item, place)]);
        }"""
    )
    records = kernels.records()
    wanted = {
        kind: [
            sum(row["kind"] == kind for row in records),
            sum(row["total_ns"] for row in records if row["kind"] == kind),
        ]
        for kind in kinds
    }
    assert {key: [rows, total] for key, rows, total in found} == wanted


def test_selected_rows_are_copied_as_they_are(page: Page, kernels: Table) -> None:  # type: ignore[type-arg]
    page.locator("[data-grid=op_kernels] .grid-filter").first.fill("kernel_0001")
    lines = page.locator("[data-grid=op_kernels] tbody tr[data-at]")
    lines.nth(0).click()
    lines.nth(2).click(modifiers=["Shift"])
    page.keyboard.press("Control+c")
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied[0].split("\t")[:2] == ["kernel", "total_ns"]
    exact = {row["kernel"]: row["total_ns"] for row in kernels.records()}
    assert [line.split("\t")[:2] for line in copied[1:]] == [
        [name, str(exact[name])] for name in (line.split("\t")[0] for line in copied[1:])
    ]
    assert len(copied) == 4


def test_many_rows_scroll_with_few_in_the_page(page: Page) -> None:
    took = page.evaluate(
        """async () => {
          const scroller = document.querySelector("[data-grid=op_kernels] .grid-scroll");
          const frame = () => new Promise((done) => requestAnimationFrame(done));
          let worst = 0, most = 0;
          for (let at = 0; at < 40; at++) {
            scroller.scrollTop = at * scroller.scrollHeight / 40;
            scroller.dispatchEvent(new Event("scroll"));
            const before = performance.now();
            await frame();
            worst = Math.max(worst, performance.now() - before);
            most = Math.max(most, scroller.querySelectorAll("tr").length);
          }
          scroller.scrollTop = scroller.scrollHeight;
          await frame(); await frame(); await frame();
          return { worst, most, last: [...scroller.querySelectorAll("tr[data-at]")].at(-1).dataset.at,
                   height: scroller.scrollHeight };
        }"""
    )
    assert took["last"] == str(MANY - 1)
    assert took["most"] < 120
    assert took["height"] > MANY * 27
    assert took["worst"] < 250, "a frame took too long"


def test_names_stay_text_and_the_full_one_is_at_hand(page: Page) -> None:
    page.locator("[data-grid=op_kernels] .grid-filter").first.fill("onerror")
    page.locator("[data-grid=op_kernels] tbody tr[data-at]").first.click()
    assert page.locator(".grid-detail-name").text_content() == HOSTILE[0]
    assert page.locator("main img").count() == 0
    page.locator("[data-grid=op_kernels] .grid-filter").first.fill("LLLL")
    page.locator("[data-grid=op_kernels] tbody tr[data-at]").first.click()
    assert page.locator(".grid-detail-name").text_content() == "L" * 10_000
    page.keyboard.press("Escape")
    assert page.locator(".grid-detail").count() == 0


def test_columns_are_switched(page: Page) -> None:
    grid = page.locator("[data-grid=op_kernels]").first
    grid.locator(".grid-menu summary").click()
    grid.get_by_label("kernel share", exact=True).check()
    assert grid.locator("thead button", has_text="kernel share").count() == 1
    grid.get_by_label("calls", exact=True).uncheck()
    assert grid.locator("thead button", has_text="calls").count() == 0


def test_rows_lead_to_other_pages(page: Page, looker: Looker) -> None:
    page.locator("[data-grid=op_kernels] .grid-filter").first.fill("kernel_00017")
    page.locator("[data-grid=op_kernels] tbody tr[data-at]").first.click()
    among_all = page.get_by_role("link", name="The kernel among all").get_attribute("href")
    assert among_all == "/kernels?kernel=kernel_00017"
    href = page.get_by_role("link", name="Show in the timeline").last.get_attribute("href") or ""
    assert href.startswith("/timeline?event=")
    other = looker.look("/operators?kernel=kernel_00017")
    first = other.locator("[data-grid=op_kernels] tbody tr[data-at] td").first
    assert (first.text_content() or "").startswith("aten::mm")
