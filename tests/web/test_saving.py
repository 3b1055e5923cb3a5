"""Pages saved as one file: alone, without a network, as lively as in the window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from tests.browsers import look, wait_until
from tests.commands import said, stepscope
from tests.web.windows import Window

from stepscope import open as stepscope_open
from stepscope.cli.traces import DEMO
from stepscope.store.timeline import timeline_of
from stepscope.web import timeline_in_file
from stepscope.web.page import listed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
SAVED = [name for name, info in listed().items() if info.about == "trace" and not info.asks]


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_page_needs_nothing_but_itself(
    browser: Browser, demo: Window, name: str, tmp_path: Path
) -> None:
    answer = demo.ask(f"/api/save?page={name}")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="stepscope-{name}.html"'
    file = tmp_path / "page.html"
    file.write_bytes(answer.body)
    seen = look(browser, file.as_uri())
    assert seen.complaints == []
    assert seen.requests == [file.as_uri()]
    # As many rows and headings as in the window.
    there = look(browser, f"http://127.0.0.1:{demo.port}/{name}?token={demo.token}")
    counted = "['main h1', 'main h2', 'main table', 'main tr', 'main svg'].map("
    counted += "one => document.querySelectorAll(one).length)"
    assert seen.page.evaluate(counted) == there.page.evaluate(counted)


def test_the_command_writes_what_the_button_gives(demo: Window, tmp_path: Path) -> None:
    file = tmp_path / "kernels.html"
    done = stepscope("open", "--demo", "--save", file, "--page", "kernels", cache=tmp_path / "cache")
    assert (done.returncode, done.stdout) == (0, f"saved: {file}\n")
    assert file.read_bytes() == demo.ask("/api/save?page=kernels").body


def test_a_link_of_a_saved_page_leads_nowhere(browser: Browser, demo: Window, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    text = demo.ask("/api/save?page=kernels").text
    file.write_text(text.replace("<h1>Kernels</h1>", '<h1><a id="x" href="/findings">x</a></h1>'))
    seen = look(browser, file.as_uri())
    seen.page.click("#x")
    assert seen.page.url == file.as_uri()
    assert "stepscope open" in seen.page.locator("#saved-note").inner_text()
    assert seen.complaints == []


# ------------------------------------------------ pages that ask while one looks at them

SIZE = "(one => [one.width, one.height])(document.querySelector('.tl-canvas'))"

# The rows of boxes: curves above them are finer in a file, which has to do with one answer for every zoom.
BOXES = """() => {
  const names = [...document.querySelectorAll('.tl-names *')];
  const first = names.find(one => one.innerText?.trim().startsWith('stream'));
  const picture = document.querySelector('.tl-canvas');
  const above = Math.round(first.getBoundingClientRect().top - picture.getBoundingClientRect().top);
  const { data } = picture.getContext('2d').getImageData(0, above, picture.width, picture.height - above);
  const hash = data.reduce((found, one) => (found * 31 + one) | 0, 7);
  return [above, hash, data.filter(one => one < 200).length > 10000];
}"""


def save(demo: Window, tmp_path: Path, page: str, **options: str) -> Path:
    answer = demo.ask(f"/api/save?{urlencode({'page': page, **options})}")
    assert answer.status == 200, answer.text
    file = tmp_path / f"{page}.html"
    file.write_bytes(answer.body)
    return file


def test_a_saved_timeline_is_drawn_as_in_the_window(browser: Browser, demo: Window, tmp_path: Path) -> None:
    file = save(demo, tmp_path, "timeline")
    there = look(browser, f"http://127.0.0.1:{demo.port}/timeline?token={demo.token}").page
    seen = look(browser, file.as_uri())
    here = seen.page
    # Without the navigation there is more room: first as wide, then as high.
    width, height = there.evaluate(SIZE)
    wide = 1400 + width - here.evaluate(SIZE)[0]
    here.set_viewport_size({"width": wide, "height": 900})
    wait_until(here, lambda: here.evaluate(SIZE)[0] == width)
    here.set_viewport_size({"width": wide, "height": 900 + height - here.evaluate(SIZE)[1]})
    wait_until(here, lambda: here.evaluate(SIZE) == [width, height])
    for page in (there, here):
        page.wait_for_selector(".timeline[data-complete=true]")
    wait_until(here, lambda: bool(there.evaluate(BOXES) == here.evaluate(BOXES)))
    assert there.evaluate(BOXES)[2]  # much of it is not empty
    assert seen.complaints == []
    assert seen.requests == [file.as_uri()]
    assert here.locator(".tl-search").count() == 0


def test_a_saved_timeline_tells_what_its_boxes_know(browser: Browser, demo: Window, tmp_path: Path) -> None:
    seen = look(browser, save(demo, tmp_path, "timeline").as_uri())
    page = seen.page
    page.wait_for_selector(".timeline[data-complete=true]")
    page.focus(".tl-canvas")
    for _ in range(12):
        page.keyboard.press("w")
    page.wait_for_selector(".timeline[data-complete=true]")
    page.keyboard.press("Enter")
    panel = page.locator(".tl-panel")
    panel.get_by_text("duration").wait_for()
    assert "stepscope open" in panel.inner_text()
    assert seen.complaints == []


def test_a_saved_range_ends_where_it_ended(browser: Browser, demo: Window, tmp_path: Path) -> None:
    told = demo.ask("/api/tracks").json
    middle = (told["first_ns"] + told["last_ns"]) // 2
    options = {"from": str(middle), "to": str(middle + 2_000_000), "range": f"{middle},{middle + 1_000_000}"}
    file = save(demo, tmp_path, "timeline", **options)
    seen = look(browser, file.as_uri())
    seen.page.wait_for_selector(".timeline[data-complete=true]")
    assert seen.page.locator(".tl-panel h2").first.inner_text() == "1.00 ms selected"
    seen.page.focus(".tl-canvas")
    seen.page.keyboard.press("0")
    wait_until(seen.page, lambda: "2.08 ms in view" in seen.page.locator(".tl-span").inner_text())
    assert seen.complaints == []


def test_a_large_range_is_saved_as_finely_as_a_file_can_hold() -> None:
    timeline = timeline_of(stepscope_open(DEMO))
    since, until = timeline.span_ns
    finest, everything = timeline_in_file._tiles(timeline, since, until, 1 << 30)
    assert finest == 0
    whole = sum(map(len, everything.values()))
    finest, some = timeline_in_file._tiles(timeline, since, until, whole // 2)
    assert finest > 0
    assert {place: everything[place] for place in some} == some
    assert {int(place.split(":")[1]) for place in some} == set(
        range(finest, 1 + max(int(place.split(":")[1]) for place in everything))
    )
    # However little a file may hold, the range is seen.
    coarse, least = timeline_in_file._tiles(timeline, since, until, 1)
    assert least
    assert {int(place.split(":")[1]) for place in least} == {coarse}


def test_a_saved_query_has_its_rows(browser: Browser, demo: Window, tmp_path: Path) -> None:
    file = save(demo, tmp_path, "sql", q="SELECT 6 * 7 AS answer, 'a</script>b' AS words")
    seen = look(browser, file.as_uri())
    seen.page.wait_for_selector(".sql-result td, .sql-result [role=gridcell]")
    assert "42" in seen.page.locator(".sql-result").inner_text()
    assert "a</script>b" in seen.page.locator(".sql-result").inner_text()
    assert seen.complaints == []
    assert seen.requests == [file.as_uri()]


def test_a_saved_what_if_answers_changes_with_a_name(browser: Browser, demo: Window, tmp_path: Path) -> None:
    answers = []
    there = f"http://127.0.0.1:{demo.port}/what_if?token={demo.token}"
    for address in (there, save(demo, tmp_path, "what_if").as_uri()):
        seen = look(browser, address)
        page = seen.page
        page.wait_for_selector(".whatif[data-answered='1']")
        page.click("input[name=no_sync]")
        page.wait_for_selector(".whatif[data-answered='2']")
        page.click("input[name=graph]")
        page.wait_for_selector(".whatif[data-answered='3']")
        answers.append(page.locator(".whatif-bars").inner_text())
        assert seen.complaints == []
    assert answers[0] == answers[1]


def test_an_unknown_page_is_refused(tmp_path: Path) -> None:
    done = stepscope("open", "--demo", "--save", tmp_path / "x", "--page", "kernel", cache=tmp_path / "cache")
    assert done.returncode == 2
    assert "kernels" in done.stderr


def test_a_wrong_trace_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "x.html"
    assert "no file" in said(stepscope("open", tmp_path / "no.json", "--save", file, cache=tmp_path / "c"))
    assert not file.exists()
