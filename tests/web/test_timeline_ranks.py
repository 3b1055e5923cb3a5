"""Ranks of a run in one timeline: their collectives belong together."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browsers import look, wait_until
from tests.web.windows import Window, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DATA = Path(__file__).parent.parent / "data"

pytestmark = pytest.mark.slow
# How many rows of pixels have something on the sheet above the boxes.
DRAWN_ROWS = """() => {
  const over = document.querySelector('.tl-overlay');
  const { data, width } = over.getContext('2d').getImageData(0, 0, over.width, over.height);
  const rows = new Set();
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 128) rows.add(Math.floor(at / 4 / width));
  }
  return rows.size;
}"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    folder = tmp_path_factory.mktemp("run")
    for rank in range(2):
        shutil.copy(DATA / f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz", folder)
    with window(str(folder), "--store", str(folder / "stores")) as opened:
        opened.wait()
        for rank in range(2):
            opened.wait(trace=f"rank{rank}")
            while opened.ask(f"/api/tracks?trace=rank{rank}").json["made"] < 1:
                time.sleep(0.05)
        yield opened


def first_all_reduce(run: Window) -> int:
    found = run.ask("/api/find?trace=rank0&text=gloo:all_reduce&from=-1").json["found"]
    return int(found["event"])


def test_a_collective_is_found_on_all_of_its_ranks(run: Window) -> None:
    event = first_all_reduce(run)
    told = run.ask(f"/api/peers?trace=rank0&event={event}&shown=rank1").json
    assert (told["kind"], told["count"]) == ("all-reduce", 2)
    first, last = told["ranks"]
    assert (first["key"], last["key"]) == ("rank0", "rank1")
    assert first["wait_ns"] > 0
    assert last["wait_ns"] == 0
    assert first["event"]["event"] == event
    # From there, the way leads back.
    other = last["event"]
    assert other["name"] == "gloo:all_reduce"
    back = run.ask(f"/api/peers?trace=rank1&event={other['event']}&shown=rank0").json
    assert [one["event"]["event"] for one in back["ranks"]] == [event, other["event"]]
    # A rank that is not shown is not opened for it.
    assert run.ask(f"/api/peers?trace=rank0&event={event}").json["ranks"][1]["event"] is None


def test_what_is_no_collective_has_no_peers(run: Window) -> None:
    found = run.ask("/api/find?trace=rank0&text=ProfilerStep&from=-1").json["found"]
    assert run.ask(f"/api/peers?trace=rank0&event={found['event']}").json["ranks"] == []
    assert run.ask("/api/peers?trace=rank0&event=x").status == 400
    assert run.ask("/api/peers?trace=rank0&event=99999999").status == 400


def test_one_leads_to_the_other_rank(run: Window, browser: Browser) -> None:
    event = first_all_reduce(run)
    address = f"http://127.0.0.1:{run.port}/timeline?token={run.token}&trace=rank0&event={event}"
    seen = look(browser, address)
    page = seen.page
    panel = page.locator(".tl-panel")
    panel.get_by_role("button", name="rank 1").click()
    page.wait_for_selector(".tl-chip")
    panel.locator("b, strong, .strong").get_by_text("rank 1").wait_for()
    assert "came last" in panel.inner_text()
    page.wait_for_url("**on=rank1**")
    # A line goes from rank to rank.
    page.wait_for_selector(".timeline[data-complete=true]")
    wait_until(page, lambda: bool(page.evaluate(DRAWN_ROWS) > 100))
    assert seen.complaints == []
