"""Measure the window in a real browser: first picture, tiles, frames, what-ifs, pages, and memory.

python benchmarks/window.py                 1 GB against the budgets; exit code 3 on a miss
python benchmarks/window.py --size 18GB     60 million events, against the same budgets
python benchmarks/window.py --what-if TRACE …   only what-ifs, on these traces

Needs Chromium and Playwright (`pip install --group browser`). The trace is read before the window opens.
Reading and the first look take turns, and the best of three counts: one run beside other programs says more
about those than about us.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ingest
import traces
import what_if

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.browsers import Seen, chromium
from tests.web.looking import DRAWN
from tests.web.windows import Window, window

from stepscope.web.page import listed

LARGE_BYTES = 1_000_000_000
MIB = 1 << 20
TURNS = 3
TILES = 300
EVENTS = 40
VIEWS = 12
HOUR_MS = 3_600_000
WHAT_IF_MS = 100
"""From an input to the changed bar: what takes no longer seems to happen at once."""

# The first picture is there when the canvas has several colours. Every fourth pixel tells: to read all of
# them takes longer than a frame, and the page has the same processor.
PICTURE = """async () => {
    for (;;) {
        const canvas = document.querySelector(".tl-canvas");
        if (canvas && canvas.width) {
            const [width, height] = [Math.ceil(canvas.width / 4), Math.ceil(canvas.height / 4)];
            const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
            copy.imageSmoothingEnabled = false;
            copy.drawImage(canvas, 0, 0, width, height);
            const { data } = copy.getImageData(0, 0, width, height);
            const seen = new Set(new Uint32Array(data.buffer));
            if (seen.size > 12) return performance.timeOrigin + performance.now();
        }
        await new Promise(requestAnimationFrame);
    }
}"""
# Once there and back so that everything is here, then again with a clock.
PAN = """async () => {
    const stage = document.querySelector(".tl-stage");
    const box = stage.getBoundingClientRect();
    const pan = async (took) => {
        let last = performance.now();
        for (let at = 0; at < 120; at++) {
            stage.dispatchEvent(new WheelEvent("wheel", { bubbles: true, cancelable: true, shiftKey: true,
                clientX: box.x + box.width / 2, clientY: box.y + 100, deltaY: at < 60 ? 12 : -12 }));
            await new Promise(requestAnimationFrame);
            const now = performance.now();
            took.push(now - last);
            last = now;
        }
    };
    await pan([]);
    await new Promise((done) => setTimeout(done, 600));
    const took = [];
    await pan(took);
    return took;
}"""


def settle(page: Any) -> None:
    """Wait until everything in sight is drawn."""
    page.locator(".timeline[data-complete=true]").wait_for(timeout=HOUR_MS)
    page.wait_for_timeout(300)
    page.locator(".timeline[data-complete=true]").wait_for(timeout=HOUR_MS)


def clocked(opened: Window, path: str) -> tuple[float, Any]:
    """An answer, and how many ms it took."""
    begun = time.perf_counter()
    answer = opened.ask(path)
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {answer.text[:300]}")
    return (time.perf_counter() - begun) * 1e3, answer


@dataclass(frozen=True)
class Beginning:
    """What it takes to read a trace, and then to see its timeline, from the question for the page."""

    reading: ingest.Cost
    picture_s: float
    whole_s: float
    cpu_s: float
    """Of the server, until the timeline is whole."""


@contextmanager
def begun(browser: Any, trace: Path, stores: Path) -> Iterator[tuple[Beginning, Window, Any]]:
    """Reads the trace anew and opens its timeline; gives the window and the page."""
    shutil.rmtree(stores, ignore_errors=True)
    reading = ingest.run(ingest.stepscope("ingest", str(trace), "--store", str(stores)))
    with window(str(trace), "--store", str(stores)) as opened:
        opened.wait()
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(HOUR_MS)
        before, start = cpu_s(opened.process.pid), time.time()
        page.goto(f"http://127.0.0.1:{opened.port}/timeline?token={opened.token}")
        picture_s = page.evaluate(PICTURE) / 1000 - start
        while opened.ask("/api/tracks").json["made"] < 1:
            time.sleep(max(0.02, (time.time() - start) / 50))  # the server answers with the same processor
        whole_s = time.time() - start
        spent = cpu_s(opened.process.pid) - before
        print(f"ingest {reading.wall_s:.2f} s ({reading.cpu_s:.2f} s of CPU), ", end="")
        print(f"first picture {picture_s:.2f} s, ", end="")
        print(f"timeline {whole_s:.2f} s ({spent:.2f} s of CPU)", flush=True)
        yield Beginning(reading, picture_s, whole_s, spent), opened, page
        page.close()


def asked(opened: Window, told: dict[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """What questions take, in ms."""
    chance, first, last = random.Random(1), told["first_ns"], told["last_ns"]
    tiles: list[float] = []
    while len(tiles) < TILES:
        track, level = chance.choice(told["tracks"]), chance.randrange(told["levels"])
        span = told["width_ns"] * told["tile_pixels"] * 4 ** max(level - 1, 0)
        at = chance.randint(track["first_ns"], track["last_ns"]) // span
        tiles.append(clocked(opened, f"/api/tile?track={track['id']}&level={level}&index={at}")[0])
    yield "a tile", tiles
    numbers = sum(track["events"] for track in told["tracks"])
    chosen = [chance.randrange(numbers) for _ in range(EVENTS)]
    yield "an event", [clocked(opened, f"/api/event?event={number}")[0] for number in chosen]
    for part in (1, 0.01, 0.0001):
        wide = round((last - first) * part)
        begin = first + (last - first - wide) // 2
        span = f"from={begin}&to={begin + wide}"
        yield f"totals of {part:.2%} of the trace", [clocked(opened, f"/api/range?{span}")[0]]
        yield f"counters of {part:.2%}", [clocked(opened, f"/api/counters?{span}&pixels=1400")[0]]
        yield f"gaps of {part:.2%}", [clocked(opened, f"/api/marks?{span}&pixels=1400&parts=gaps")[0]]


def peak(pid: int) -> int:
    """The most memory that a process had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def page_memory() -> int:
    """The memory of the largest process of a page, in bytes: its own, not what it shares with others."""
    found = [0]
    for folder in Path("/proc").iterdir():
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                lines = (folder / "smaps_rollup").read_text(encoding="utf-8").splitlines()
                own = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
                found.append(sum(own) * 1024)
        except OSError:
            continue
    return max(found)


def measured(raw_bytes: int, stores: Path) -> list[ingest.Budget]:
    """Reads a trace, opens a window on it, and looks around in it."""
    trace = traces.cached(traces.Recipe(raw_bytes))
    print(f"\n{raw_bytes / 1e9:.2f} GB of JSON", flush=True)
    with chromium() as browser:
        turns = []
        for _ in range(TURNS - 1):
            with begun(browser, trace, stores) as (one, _, _):
                turns.append(one)
        with begun(browser, trace, stores) as (one, opened, page):
            turns.append(one)
            return [*of_beginnings(turns), *looked_around(browser, opened, page)]


def of_beginnings(turns: list[Beginning]) -> Iterator[ingest.Budget]:
    """The best of each: a whole timeline against a whole ingest, by the clock and by the processor."""
    reading_s, whole_s = min(one.reading.wall_s for one in turns), min(one.whole_s for one in turns)
    cpu = min(one.cpu_s for one in turns) / min(one.reading.cpu_s for one in turns)
    print(f"CPU until the timeline is whole, against that of ingest: {cpu:.2f} x")
    yield ingest.Budget("first picture", min(one.picture_s for one in turns), 1.0, "s")
    yield ingest.Budget("timeline made, against ingest", whole_s / reading_s, 0.3, "x")


def looked_around(browser: Any, opened: Window, page: Any) -> Iterator[ingest.Budget]:
    """Questions, views that move, every page and what-ifs; then the memory that all of that took."""
    told = opened.ask("/api/tracks").json
    print(f"{sum(track['events'] for track in told['tracks']):,} boxes", flush=True)
    settle(page)
    tiles: list[float] = []
    for label, took in asked(opened, told):
        tiles = tiles or took
        print(f"{label}: median {statistics.median(took):.0f} ms, most {max(took):.0f} ms", flush=True)
    frames = list(looked_at(page, opened, told))
    complaints = visited(browser, opened)
    page.goto(f"http://127.0.0.1:{opened.port}/what_if?token={opened.token}")
    answer_ms = what_if.print_answers(page)
    memory, server = page_memory(), peak(opened.process.pid)
    slowest = sorted(frame for view in frames for frame in view)
    print(f"frames of {len(frames)} views: median {statistics.median(slowest):.1f} ms, ", end="")
    print(f"p95 {slowest[len(slowest) * 95 // 100]:.1f} ms")
    yield ingest.Budget("a tile, p95", sorted(tiles)[len(tiles) * 95 // 100], 50, "ms")
    yield ingest.Budget("a frame, median", statistics.median(slowest), 17, "ms")
    yield ingest.Budget("a what-if, median", answer_ms, WHAT_IF_MS, "ms")
    yield ingest.Budget("complaints of all pages", len(complaints), 0, "")
    yield ingest.Budget("memory of the page", memory / MIB, 500, "MiB")
    yield ingest.Budget("memory of the server", server / MIB, 1024, "MiB")


def looked_at(page: Any, opened: Window, told: dict[str, Any]) -> Iterator[list[float]]:
    """The times of frames, in ms, while views of all widths move."""
    chance, first, last = random.Random(2), told["first_ns"], told["last_ns"]
    for at in range(VIEWS):
        wide = max(20_000, round((last - first) / 8**at))
        begin = chance.randint(first, last - wide) if at else first
        query = f"from={begin}&to={begin + wide}"
        page.goto(f"http://127.0.0.1:{opened.port}/timeline?token={opened.token}&{query}")
        settle(page)
        took: list[float] = page.evaluate(PAN)
        print(f"  {wide / 1e6:,.2f} ms wide: frames of {statistics.median(took):.1f} ms", flush=True)
        yield took


def visited(browser: Any, opened: Window) -> list[str]:
    """Looks at every page about a trace, twice: the second time nothing has to be worked out any more."""
    seen = Seen(browser.new_page(viewport={"width": 1400, "height": 900}))
    seen.page.set_default_timeout(HOUR_MS)
    for name, info in listed().items():
        if info.about != "trace":
            continue
        took = []
        for _ in range(2):
            begun = time.perf_counter()
            answer = seen.page.goto(f"http://127.0.0.1:{opened.port}/{name}?token={opened.token}")
            while not seen.page.evaluate(DRAWN):
                seen.page.wait_for_timeout(20)
            took.append(time.perf_counter() - begun)
            if answer is None or answer.status != 200 or seen.page.locator("main .problem").count():
                seen.complaints.append(f"{name}: {seen.page.inner_text('main')[:300]}")
        print(f"page {name}: {took[0]:.2f} s, again {took[1]:.2f} s", flush=True)
    for complaint in seen.complaints:
        print(f"  complaint: {complaint}")
    return seen.complaints


def what_ifs(words: list[str], stores: Path) -> Iterator[ingest.Budget]:
    """Opens one trace after the other on the page of what-ifs, and moves everything there is on it."""
    for word in words:
        with window(word, "--store", str(stores)) as opened, chromium() as browser:
            opened.wait(600)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.set_default_timeout(HOUR_MS)
            page.goto(f"http://127.0.0.1:{opened.port}/what_if?token={opened.token}")
            print(f"\n{word}", flush=True)
            before = cpu_s(opened.process.pid)
            took = what_if.print_answers(page)
            print(f"the server took {cpu_s(opened.process.pid) - before:.2f} s of CPU")
        yield ingest.Budget(f"a what-if, median, {Path(word).name.partition('.')[0]}", took, WHAT_IF_MS, "ms")


def cpu_s(pid: int) -> float:
    """The processor time of a process so far, in s."""
    spent = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=traces.parse_size, default=LARGE_BYTES, help="size of the JSON text")
    parser.add_argument("--what-if", nargs="+", metavar="TRACE", help="only what-ifs, on these traces")
    options = parser.parse_args(arguments)
    print(f"{os.cpu_count()} x {traces.cpu_name()}, load before: {os.getloadavg()[0]:.1f}")
    ingest.compile_package()
    with ingest.store_folder(None) as stores:
        if options.what_if:
            budgets = list(what_ifs(options.what_if, stores / "window"))
        else:
            budgets = measured(options.size, stores / "window")
    ingest.print_budgets(budgets)
    return 0 if all(budget.kept for budget in budgets) else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
