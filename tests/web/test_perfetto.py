"""A trace handed to Perfetto's viewer: a page of ours in its place speaks the same protocol."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from tests.browsers import look
from tests.samples import open_shared
from tests.web.windows import Window

from stepscope.cli.traces import DEMO
from stepscope.store.cutting import extent

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.slow
VIEWER = """<!DOCTYPE html><title>viewer</title><script>
window.pings = 0;
addEventListener("message", (event) => {
  if (event.data === "PING") {
    window.pings += 1;
    if (window.pings >= 3) event.source.postMessage("PONG", event.origin);
  } else if (event.data.perfetto) window.given = event.data.perfetto;
});
</script>"""


def viewer(route: Route) -> None:
    route.fulfill(body=VIEWER, content_type="text/html")


DIGEST = """async () => {
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", given.buffer));
  return [...found].map((one) => one.toString(16).padStart(2, "0")).join("");
}"""


def handed(browser: Browser, demo: Window, page: str) -> tuple[str, str]:
    """Clicks the button of a page; the title and the checksum of the bytes that the viewer was given."""
    seen = look(browser, "", goto=False)
    context = seen.page.context
    context.route("https://ui.perfetto.dev/**", viewer)
    seen.page.goto(f"http://127.0.0.1:{demo.port}/{page}{'&' if '?' in page else '?'}token={demo.token}")
    with context.expect_page() as opened:
        seen.page.click("#perfetto-button")
    opened.value.wait_for_function("window.given !== undefined")
    title, digest = opened.value.evaluate("given.title"), opened.value.evaluate(DIGEST)
    assert seen.complaints == []
    outside = [one for one in seen.requests if not one.startswith("http://127.0.0.1")]
    assert outside == []
    context.close()
    return title, digest


def test_the_whole_trace_is_handed_over(browser: Browser, demo: Window) -> None:
    title, digest = handed(browser, demo, "findings")
    content = demo.ask("/api/pftrace").body
    assert "slow_item" in title
    assert digest == hashlib.sha256(content).hexdigest()
    assert b"stepscope" in content  # our own tracks are in it


def test_the_page_of_the_command_does_the_same(browser: Browser, demo: Window) -> None:
    content = demo.ask("/api/pftrace").body
    assert handed(browser, demo, "perfetto")[1] == hashlib.sha256(content).hexdigest()


def test_a_range_is_smaller_and_keeps_our_tracks(demo: Window) -> None:
    first, last = extent(open_shared(DEMO))
    half = (first + last) // 2
    whole, part = demo.ask("/api/pftrace").body, demo.ask(f"/api/pftrace?from={half}&to={last}").body
    assert b"stepscope" in part
    assert len(part) < 0.7 * len(whole)


@pytest.mark.parametrize("options", ["from=x", f"to={'9' * 5000}", "from=1e9", "from=5&to=4", "trace=../x"])
def test_wrong_ranges_are_told(demo: Window, options: str) -> None:
    answer = demo.ask(f"/api/pftrace?{options}")
    assert answer.status == 400
    assert answer.json["problem"]


def test_without_a_click_nothing_leaves_the_machine(browser: Browser, demo: Window) -> None:
    seen = look(browser, f"http://127.0.0.1:{demo.port}/perfetto?token={demo.token}")
    assert all(one.startswith(f"http://127.0.0.1:{demo.port}/") for one in seen.requests)
