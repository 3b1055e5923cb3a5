"""The timeline in a real browser: pixels, clicks, keys, search and links, against the trace's own tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests import browsers
from tests.web.windows import Window

from stepscope.cli.traces import DEMO
from stepscope.opening import open_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

    from stepscope.store.trace import Trace

pytestmark = pytest.mark.slow

COLOURS = {
    "host": (0x8A, 0x64, 0x00),
    "calls": (0xB4, 0x50, 0x1A),
    "low": (0x4A, 0x5F, 0x7D),
    "pass": (0x1C, 0x74, 0x43),
    "device": (0x25, 0x63, 0xC4),
    "communication": (0x7B, 0x3F, 0xB5),
}
"""Of the light sheet, those that must be told apart."""
LANE = 16


@pytest.fixture(scope="module")
def trace() -> Trace:
    return open_trace(str(DEMO))


@pytest.fixture
def seen(browser: Browser, demo: Window) -> Iterator[Seen]:
    found = Seen(browsers.page_of(browser), demo)
    yield found
    assert found.complaints == []


class Seen(browsers.Seen):
    """A timeline on the screen."""

    def __init__(self, page: Page, window: Window) -> None:
        super().__init__(page)
        self.window = window
        page.set_default_timeout(90_000)

    def open(self, query: str = "") -> Seen:
        self.page.goto(f"http://127.0.0.1:{self.window.port}/timeline?token={self.window.token}&{query}")
        return self.settled()

    def settled(self) -> Seen:
        self.page.locator(".timeline[data-complete=true]").wait_for()
        self.page.wait_for_timeout(400)  # the address follows when the view rests
        self.page.locator(".timeline[data-complete=true]").wait_for()
        return self

    def until(self, event: str) -> None:
        """Waits until this event is the selected one."""
        self.page.wait_for_function(
            "event => new URLSearchParams(location.search).get('event') === event", arg=event
        )

    @property
    def address(self) -> dict[str, str]:
        return {name: value[0] for name, value in parse_qs(urlsplit(self.page.url).query).items()}

    @property
    def span(self) -> tuple[int, int]:
        return int(self.address["from"]), int(self.address["to"])

    @property
    def heading(self) -> str:
        return self.page.locator(".tl-panel h2").inner_text()

    def x(self, time: float) -> float:
        """Where a time is, in pixels of the canvas."""
        first, last = self.span
        width = self.page.locator(".tl-canvas").bounding_box()["width"]  # type: ignore[index]
        return (time - first) / (last - first) * width

    def y(self, track: int, lane: int = 0) -> float:
        """The middle of a lane, in pixels of the canvas."""
        row = self.page.locator(f'[data-row="t/{track}"]').bounding_box()
        canvas = self.page.locator(".tl-canvas").bounding_box()
        assert row
        assert canvas
        return row["y"] - canvas["y"] + 2 + lane * LANE + LANE // 2

    def click(self, time: float, track: int, lane: int = 0) -> None:
        self.page.locator(".tl-canvas").click(position={"x": self.x(time), "y": self.y(track, lane)})

    def pixel(self, x: float, y: float) -> tuple[int, int, int]:
        return self.pixels([x], y)[0]

    def pixels(self, xs: list[float], y: float) -> list[tuple[int, int, int]]:
        """Pixels of one height, read from a copy that is made for it."""
        read = """([xs, y]) => {
            const canvas = document.querySelector(".tl-canvas");
            const copy = new OffscreenCanvas(canvas.width, 1).getContext("2d", { willReadFrequently: true });
            copy.drawImage(canvas, 0, -Math.floor(y));
            return xs.map(x => [...copy.getImageData(Math.floor(x), 0, 1, 1).data].slice(0, 3));
        }"""
        return [(red, green, blue) for red, green, blue in self.page.evaluate(read, [xs, y])]


def nearest(pixel: tuple[int, int, int]) -> str:
    """The colour of the sheet that a pixel is a shade of: each is mixed with up to a third of white."""

    def away(colour: tuple[int, int, int]) -> float:
        mixed = [[part + (255 - part) * pale for part in colour] for pale in (0, 0.1, 0.2, 0.3)]
        return min(sum((a - b) ** 2 for a, b in zip(pixel, one, strict=True)) for one in mixed)

    return min(COLOURS, key=lambda name: away(COLOURS[name]))


def kernel(trace: Trace) -> dict[str, Any]:
    """A kernel with its times after the base of the trace, its operator and that one's name."""
    sql = """SELECT k.event, k.name, k.thread, k.start_ns, k.dur_ns, k.op, o.name AS op_name,
                    o.thread AS op_thread
             FROM device_work k JOIN ops o ON o.event = k.op
             WHERE k.kind = 'kernel' ORDER BY k.dur_ns DESC, k.event LIMIT 1"""
    found = trace.rows(sql)[0]
    found["start_ns"] -= trace.meta.base_ns
    return found


def around(event: dict[str, Any], times: float = 1.0) -> str:
    more = int(event["dur_ns"] * times)
    return f"from={event['start_ns'] - more}&to={event['start_ns'] + event['dur_ns'] + more}"


def test_the_pixels_of_an_event_have_the_colour_of_its_kind(seen: Seen, trace: Trace) -> None:
    one = kernel(trace)
    seen.open(around(one))
    y = seen.y(one["thread"]) + 6  # below its name
    middle = seen.pixel(seen.x(one["start_ns"] + one["dur_ns"] / 2), y)
    assert nearest(middle) == "device"
    # It begins and ends where it should, to within a pixel, and nothing is drawn where the stream is idle.
    sql = "SELECT max(start_ns + dur_ns) AS t FROM device_work WHERE thread = $thread AND start_ns < $start"
    before = trace.rows(sql, thread=one["thread"], start=one["start_ns"] + trace.meta.base_ns)[0]["t"]
    start = seen.x(one["start_ns"])
    assert seen.pixel(start + 2, y) == middle
    if before - trace.meta.base_ns < one["start_ns"] - one["dur_ns"] / 10:
        assert seen.pixel(start - 2, y) == (255, 255, 255)


def asked(seen: Seen) -> dict[str, list[dict[str, Any]]]:
    """What the page asked for by path, and when, in ms."""
    found: dict[str, list[dict[str, Any]]] = seen.page.evaluate(
        """() => Object.groupBy(
            performance.getEntriesByType("resource").map((one) => one.toJSON()),
            ({ name }) => new URL(name).pathname)"""
    )
    return found


def test_idle_time_and_curves_are_asked_for_when_the_boxes_are_here(seen: Seen) -> None:
    seen.open()
    times = asked(seen)
    boxes = min(one["responseEnd"] for one in times["/api/tile"])
    for later in ("/api/marks", "/api/counters"):
        assert all(one["startTime"] > boxes for one in times[later])


def test_idle_time_and_curves_wait_for_the_last_box_of_a_large_trace(seen: Seen) -> None:
    begun: list[float] = []

    def made_in_four_seconds(route: Route) -> None:
        answer = route.fetch()
        begun.append(time.monotonic())
        half = {"made": 0.5} if begun[-1] < begun[0] + 4 else {}
        route.fulfill(response=answer, json=answer.json() | half)

    seen.page.route("**/api/tracks?*", made_in_four_seconds)
    seen.open()
    made = max(one["responseEnd"] for one in asked(seen)["/api/tracks"])
    assert made > 4000
    for later in ("/api/marks", "/api/counters"):
        assert all(one["startTime"] > made for one in asked(seen)[later])


def test_counters_of_a_device_do_not_name_it_again(seen: Seen) -> None:
    seen.open()
    labels = seen.page.locator(".tl-label").all_inner_texts()
    assert labels[0] == "GPU 0"
    assert {"busy", "multiprocessors in use"} <= set(labels)
    assert not [label for label in labels[1:] if label.startswith("GPU 0")]


def test_a_device_is_as_high_as_the_part_of_a_pixel_in_which_it_is_busy(seen: Seen) -> None:
    seen.open()
    row = seen.page.locator(".tl-label", has_text="busy").bounding_box()
    canvas = seen.page.locator(".tl-canvas").bounding_box()
    assert row
    assert canvas
    middle = row["y"] - canvas["y"] + row["height"] / 2
    found = seen.pixels([float(x) for x in range(10, int(canvas["width"]) - 60)], middle)
    higher = sum(pixel != (255, 255, 255) for pixel in found)
    assert higher < 0.2 * len(found), "the demo's device computes for a twentieth of the time"


def test_every_kernel_is_seen_when_all_is_in_view(seen: Seen, trace: Trace) -> None:
    seen.open()
    one = kernel(trace)
    sql = "SELECT start_ns, dur_ns FROM device_work WHERE thread = $thread ORDER BY start_ns"
    y = seen.y(one["thread"]) + 6
    rows = trace.rows(sql, thread=one["thread"])
    xs = [seen.x(row["start_ns"] - trace.meta.base_ns + row["dur_ns"] / 2) for row in rows]
    assert len(xs) > 500
    beside = [seen.pixels([x + by for x in xs], y) for by in (-1, 0, 1)]
    empty = [at for at in range(len(xs)) if all(found[at] == (255, 255, 255) for found in beside)]
    assert empty == []


def test_a_click_tells_of_the_kernel_and_leads_to_its_operator_and_back(seen: Seen, trace: Trace) -> None:
    one = kernel(trace)
    seen.open(around(one))
    seen.click(one["start_ns"] + one["dur_ns"] / 2, one["thread"])
    seen.page.locator(".tl-panel h2").wait_for()
    assert seen.heading == one["name"]
    operator = seen.page.locator(f'.tl-links [data-event="{one["op"]}"]').first
    assert operator.inner_text() == one["op_name"]
    operator.click()
    seen.page.locator(".tl-panel h2", has_text=one["op_name"]).wait_for()
    seen.until(str(one["op"]))
    back = seen.page.locator(f'.tl-links [data-event="{one["event"]}"]').first
    back.click()
    seen.page.locator(".tl-panel h2", has_text=one["name"][:40]).wait_for()
    seen.until(str(one["event"]))


def test_search_goes_forth_and_back(seen: Seen, trace: Trace) -> None:
    tables = ("device_work", "ops", "launches", "python_frames", "annotations")
    union = " UNION ALL ".join(f"SELECT event, name, start_ns FROM {table}" for table in tables)
    sql = f"""SELECT event FROM ({union}) WHERE contains(lower(name), 'sgemm')
              ORDER BY start_ns, event LIMIT 3"""
    first, second, third = (str(row["event"]) for row in trace.rows(sql))
    seen.open()
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("SGEMM")
    for key, event in (("Enter", first), ("Enter", second), ("Enter", third), ("Shift+Enter", second)):
        seen.page.keyboard.press(key)
        seen.until(event)
    seen.page.keyboard.press("Escape")
    seen.page.keyboard.press("Shift+N")
    seen.until(first)
    seen.page.locator(".tl-panel h2", has_text="sgemm").wait_for()
    assert "sgemm" in seen.heading


def test_search_says_when_there_is_nothing(seen: Seen) -> None:
    seen.open()
    seen.page.get_by_label("Find events by name").fill("there is no such thing")
    seen.page.keyboard.press("Enter")
    seen.page.locator(".tl-search output", has_text="no event has this in its name").wait_for()


def test_the_address_restores_what_was_seen(seen: Seen, trace: Trace) -> None:
    one = kernel(trace)
    seen.open(f"{around(one, 4)}&event={one['event']}")
    seen.page.locator(".tl-panel h2").wait_for()
    assert seen.heading == one["name"]
    span, event = seen.span, seen.address["event"]
    seen.page.reload()
    seen.settled()
    assert (seen.span, seen.address["event"], seen.heading) == (span, event, one["name"])
    first, last = span
    assert (first, last) == (one["start_ns"] - 4 * one["dur_ns"], one["start_ns"] + 5 * one["dur_ns"])


def test_an_event_alone_in_the_address_is_shown(seen: Seen, trace: Trace) -> None:
    one = kernel(trace)
    seen.open(f"event={one['event']}")
    first, last = seen.span
    assert first < one["start_ns"] < one["start_ns"] + one["dur_ns"] < last
    assert last - first < 20 * one["dur_ns"]


def test_a_finding_leads_to_its_range(seen: Seen) -> None:
    found = [one for one in seen.window.ask("/api/marks?parts=findings").json["findings"] if one["shown"]]
    assert found
    place = found[0]["shown"][0]
    seen.open(f"finding={found[0]['id']}")
    first, last = seen.span
    assert first < place["start_ns"] < place["end_ns"] < last
    assert last - first < 4 * (place["end_ns"] - place["start_ns"]) + 100
    assert seen.heading.startswith(found[0]["title"])
    assert seen.address["finding"] == found[0]["id"]


def test_a_range_gives_its_totals(seen: Seen, trace: Trace) -> None:
    one = kernel(trace)
    seen.open(around(one, 3))
    y = seen.y(one["thread"])
    box = seen.page.locator(".tl-canvas").bounding_box()
    assert box
    seen.page.keyboard.down("Shift")
    seen.page.mouse.move(box["x"] + seen.x(one["start_ns"] - one["dur_ns"]), box["y"] + y)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + seen.x(one["start_ns"] + 2 * one["dur_ns"]), box["y"] + y, steps=4)
    seen.page.mouse.up()
    seen.page.keyboard.up("Shift")
    seen.page.locator(".tl-panel h2", has_text="selected").wait_for()
    low, high = map(int, seen.settled().address["range"].split(","))
    assert high - low == pytest.approx(3 * one["dur_ns"], rel=0.02)
    told = seen.window.ask(f"/api/range?from={low}&to={high}").json
    panel = seen.page.locator(".tl-panel").inner_text()
    assert "GPU 0" in panel
    assert f"{told['devices'][0]['busy_ns'] / 1000:.2f} µs" in panel


def test_groups_and_tracks_fold(seen: Seen, trace: Trace) -> None:
    one = kernel(trace)
    seen.open()
    track = seen.page.locator(f'[data-row="t/{one["op_thread"]}"]')
    tall = track.bounding_box()
    track.click()
    assert track.get_attribute("aria-expanded") == "false"
    low = track.bounding_box()
    assert tall
    assert low
    assert low["height"] == LANE + 5 < tall["height"]
    device = seen.page.locator(".tl-row.tl-group", has_text="GPU 0")
    device.click()
    assert device.get_attribute("aria-expanded") == "false"
    assert seen.page.locator(f'[data-row="t/{one["thread"]}"]').count() == 0
    device.press("Enter")  # it still has the focus
    assert seen.page.locator(f'[data-row="t/{one["thread"]}"]').count() == 1


def test_keys_zoom_move_and_fit(seen: Seen, trace: Trace) -> None:
    one = kernel(trace)
    seen.open()
    whole = seen.span
    seen.page.locator(".tl-canvas").focus()
    seen.page.keyboard.press("w", delay=120)
    near = seen.settled().span
    assert near[1] - near[0] < (whole[1] - whole[0]) * 0.9
    seen.page.keyboard.press("d", delay=60)
    right = seen.settled().span
    assert right[0] > near[0]
    assert right[1] - right[0] == pytest.approx(near[1] - near[0], abs=4)
    seen.page.keyboard.press("ArrowLeft", delay=60)
    assert seen.settled().span[0] < right[0]
    seen.page.keyboard.press("0")
    assert seen.settled().span == whole
    seen.page.keyboard.press("Enter")
    seen.page.locator(".tl-panel h2").wait_for()
    seen.page.keyboard.press("f")
    fitted = seen.settled().span
    assert fitted[1] - fitted[0] < (whole[1] - whole[0]) / 100
    seen.page.keyboard.press("Escape")
    assert not seen.page.locator(".tl-panel").is_visible()
    assert one


def test_the_wheel_zooms_with_ctrl_at_the_mouse(seen: Seen, trace: Trace) -> None:
    one = kernel(trace)
    seen.open()
    box = seen.page.locator(".tl-canvas").bounding_box()
    assert box
    x = round(seen.x(one["start_ns"]))  # a mouse is on a whole pixel
    before = seen.span
    time = before[0] + x / box["width"] * (before[1] - before[0])
    seen.page.mouse.move(box["x"] + x, box["y"] + 60)
    seen.page.keyboard.down("Control")
    for _ in range(6):
        seen.page.mouse.wheel(0, -120)
    seen.page.keyboard.up("Control")
    after = seen.settled().span
    assert after[1] - after[0] < (before[1] - before[0]) / 4
    assert seen.x(time) == pytest.approx(x, abs=2)


def test_a_drag_moves_what_is_below_the_mouse(seen: Seen, trace: Trace) -> None:
    seen.open()
    seen.page.focus(".tl-canvas")
    for _ in range(4):
        seen.page.keyboard.press("w")
    first = seen.settled().span
    box = seen.page.locator(".tl-canvas").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 100
    seen.page.mouse.move(x, y)
    seen.page.mouse.down()
    seen.page.mouse.move(x - 100, y, steps=5)
    seen.page.mouse.up()
    then = seen.settled().span
    pixel = (first[1] - first[0]) / box["width"]
    assert then[0] - first[0] == pytest.approx(100 * pixel, abs=2 * pixel)
    assert then[1] - then[0] == pytest.approx(first[1] - first[0], abs=2)
    assert seen.page.locator(".tl-panel").is_hidden()  # it was no click


def test_two_fingers_zoom_and_keep_what_is_between_them(browser: Browser, demo: Window) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, has_touch=True)
    seen = Seen(context.new_page(), demo).open()
    box = seen.page.locator(".tl-canvas").bounding_box()
    assert box is not None
    first, middle = seen.span, box["x"] + box["width"] / 2
    touch = context.new_cdp_session(seen.page)

    def fingers(kind: str, apart: float) -> None:
        points = [
            {"x": middle + side * apart, "y": box["y"] + 100, "id": number}
            for number, side in enumerate((-1, 1))
        ]
        sent = {"type": kind, "touchPoints": [] if kind == "touchEnd" else points}
        touch.send("Input.dispatchTouchEvent", sent)

    fingers("touchStart", 50)
    for apart in range(60, 201, 10):
        fingers("touchMove", apart)
    fingers("touchEnd", 200)
    then = seen.settled().span
    assert then[1] - then[0] == pytest.approx((first[1] - first[0]) / 4, rel=0.1)
    pixel = (first[1] - first[0]) / box["width"]
    assert sum(then) / 2 == pytest.approx(sum(first) / 2, abs=12 * pixel)
    assert seen.complaints == []
    context.close()


def test_dark_is_drawn_dark(seen: Seen) -> None:
    seen.open()
    light = seen.pixel(3, 3)
    seen.page.locator("#theme-button").click()
    seen.settled()
    assert sum(seen.pixel(3, 3)) < sum(light) / 4


def test_panning_a_warm_view_draws_within_a_frame(seen: Seen) -> None:
    seen.open()
    script = """async () => {
        const took = [];
        const frame = requestAnimationFrame;
        window.requestAnimationFrame = (draw) => frame((time) => {
            const begun = performance.now();
            draw(time);
            took.push(performance.now() - begun);
        });
        const stage = document.querySelector(".tl-stage");
        const wheel = (given) => stage.dispatchEvent(new WheelEvent("wheel",
            { bubbles: true, cancelable: true, clientX: 800, clientY: 300, ...given }));
        for (let at = 0; at < 6; at++) wheel({ ctrlKey: true, deltaY: -120 });
        const pan = async () => {
            for (let at = 0; at < 60; at++) {
                wheel({ shiftKey: true, deltaY: at < 30 ? 20 : -20 });
                await new Promise((done) => frame(done));
            }
        };
        await pan();
        await new Promise((done) => setTimeout(done, 500));
        took.length = 0;
        await pan();
        took.sort((a, b) => a - b);
        window.requestAnimationFrame = frame;
        return [took.length, took[took.length >> 1]];
    }"""
    frames, median = seen.page.evaluate(script)
    assert frames >= 30
    assert median < 16.6


def test_who_sees_all_sees_all_when_there_is_more(seen: Seen) -> None:
    seen.open()
    missed = """async () => {
        const { View } = await import("/static/timeline/view.js");
        let missed = 0;
        for (let at = 1; at <= 2000; at++) {
            const view = new View();
            view.bound(at * 1e5 / 7, at * 1e8 / 3);
            view.showAll();
            missed += !view.seesAll;
            view.zoom(1.01);
            missed += view.seesAll;
        }
        return missed;
    }"""
    assert seen.page.evaluate(missed) == 0


def test_a_thread_of_autograd_has_room_for_its_name(seen: Seen) -> None:
    seen.open()
    wide = """() => {
        const label = document.querySelector(".tl-track .tl-label");
        label.textContent = "thread 4711 (pt_autograd_0)";
        return label.scrollWidth - label.clientWidth;
    }"""
    assert seen.page.evaluate(wide) == 0


def test_a_narrow_screen_holds_it(seen: Seen) -> None:
    seen.page.set_viewport_size({"width": 420, "height": 800})
    seen.open()
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 420
