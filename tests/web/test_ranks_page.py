"""The map of ranks and steps: every cell has its place, and 1,024 ranks can be read and walked through."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.runs.drawn import Fault, Plan, draw
from tests.runs.programs import data_parallel
from tests.runs.scaled import many_times
from tests.samples import DATA
from tests.web.looking import Looker
from tests.web.windows import window

from stepscope.runs.many import ManyRanks
from stepscope.runs.summary import SUMMARY_ENDING, written_summary
from stepscope.web.answers import rank_steps

LATE = 3


def answered(run: ManyRanks, figure: str = "own_ns") -> dict[str, Any]:
    return rank_steps._heat_map(run.table("rank_steps").arrow, figure, run)


def drawn(ranks: int, steps: int, **more: Any) -> ManyRanks:
    faults = (Fault(LATE, "input", 5_000_000),) if ranks > LATE else ()
    return draw(Plan(data_parallel(ranks, layers=2), ranks=ranks, steps=steps, faults=faults, **more)).run


def test_a_cell_that_nobody_recorded_is_empty() -> None:
    run = drawn(3, 5, begins={2: 2}, ends={0: 4})
    found = answered(run)
    assert (found["columns"], found["every"], found["steps"]) == (5, 1, None)
    own = {(row.rank, row.step): row.own_ns for row in run.table("rank_steps")}
    cells = [own.get((rank, step)) for rank in found["ranks"] for step in found["first_steps"]]
    assert found["values"] == cells
    assert cells.count(None) == 3


def test_of_steps_that_share_a_column_the_longest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_steps, "_MOST_COLUMNS", 3)
    run = drawn(2, 7, noise=0.2)
    found = answered(run, "step_ns")
    assert (found["columns"], found["every"], found["first_steps"]) == (3, 3, [0, 3, 6])
    lengths = {(row.rank, row.step): row.step_ns for row in run.table("rank_steps")}
    for place, (value, step) in enumerate(zip(found["values"], found["steps"], strict=True)):
        rank, column = divmod(place, 3)
        some = {lengths[rank, one]: one for one in range(column * 3, min(7, column * 3 + 3))}
        assert (value, step) == (max(some), some[max(some)])


# ---------------------------------------------------------------- in a browser


def summaries(run: ManyRanks, folder: Path) -> Path:
    """The run as summaries of its ranks."""
    for one in run.summaries:
        (folder / f"rank{one.facts.rank:04}{SUMMARY_ENDING}").write_bytes(written_summary(one))
    return folder


def written(run: ManyRanks, folder: Path) -> Path:
    """The run as summaries of its ranks, with the profile of one rank to look at."""
    summaries(run, folder)
    profile = next(DATA.glob("h200_ddp_gloo_rank0*.json.gz"))
    told = json.loads(gzip.decompress(profile.read_bytes()))
    told["distributedInfo"] |= {"rank": 0, "world_size": len(run.summaries)}
    (folder / "rank0000.json").write_text(json.dumps(told), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_run_of_summaries_alone_can_be_looked_at(browser: Any, tmp_path: Path) -> None:
    with window(str(summaries(drawn(8, 6), tmp_path))) as opened:
        looker = Looker(browser, opened.wait(600))
        page: Any = looker.look("/")
        shown = page.locator("nav.side a").all_inner_texts()
        assert shown == ["Findings", "Ranks", "Explain"]
        assert (
            page.locator("main a[href*='timeline'], main a[href*='what_if'], #perfetto-button").count() == 0
        )
        page = looker.look("/ranks")
        page.locator(".heat-told", has_text="At most").wait_for()
        assert page.locator("main a[href*='timeline'], main a[href*='rank_step']").count() == 0
        page.locator(".heat-box canvas").click(position={"x": 200, "y": 30})
        page = looker.look("/ranks?collective=1")
        assert page.locator("main a[href*='rank_step']").count() == 0
        assert looker.complaints == []
        assert opened.ask("/api/save?page=ranks").status == 200
        for path in ("/timeline", "/what_if", "/api/tracks", "/api/whatif", "/api/rank_step?rank=1&step=1"):
            answer = opened.ask(path)
            assert (answer.status, "no rank of this run has a profile here" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "times", [pytest.param(4, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.exhaustive)]
)
def test_every_rank_of_the_map_can_be_reached(browser: Any, tmp_path: Path, times: int) -> None:
    ranks = 8 * times
    with window(str(written(many_times(drawn(8, 6), times), tmp_path))) as opened:
        looker = Looker(browser, opened.wait(600))
        page: Any = looker.look("/ranks")
        page.locator(".heat-told", has_text="At most").wait_for(timeout=300_000)
        box, canvas = page.locator(".heat-box"), page.locator(".heat-box canvas")
        # What is drawn is as high as what is seen, however many ranks there are.
        assert canvas.bounding_box()["height"] <= box.bounding_box()["height"] <= 0.7 * 900 + 1
        order = "select[aria-label='Order of the ranks']"
        assert page.input_value(order) == ("rank" if times == 4 else "most")
        page.select_option(order, "rank")
        box.evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
        page.wait_for_timeout(100)
        place = canvas.bounding_box()
        canvas.hover(position={"x": place["width"] - 5, "y": place["height"] - 1})
        assert page.inner_text(".heat-told").startswith(f"rank {ranks - 1} on node{times - 1}, step 5: ")
        page.select_option(order, "most")
        box.evaluate("(box) => { box.scrollTop = 0; }")
        page.wait_for_timeout(100)
        canvas.hover(position={"x": place["width"] - 5, "y": 22})
        assert page.inner_text(".heat-told").startswith(f"rank {LATE} on node0, step 5: ")
        canvas.focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        assert page.inner_text(".heat-told").startswith(f"rank {LATE + 8} on node1, step 1: ")
        assert looker.complaints == []
