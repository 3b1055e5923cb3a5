"""What comes from outside: questions that no page asks, and names in a trace that would be markup."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browsers import look
from tests.hostile import hostile_trace
from tests.web.windows import Window, window

from stepscope import registry
from stepscope.web.page import listed
from stepscope.web.server import MOST_BYTES

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
ANSWERS = [name for name, _ in registry.names("web.answers")]
PAGES = [name for name, info in listed().items() if info.about == "trace"]
BAD = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)><svg onload=alert(3)>"
OPTIONS = (
    "",
    "trace=../../etc/passwd",
    "trace=t&from=-1&to=99999999999999999999999999&event=1e999&level=-5&index=x&track=NaN",
    "track=0&level=99999&index=-1",
    "track=999999999&level=1&index=999999999999",
    f"page={'a' * 5000}&file=/etc/passwd&name=%00&sort=%27;DROP",
    "page=../opened&file=../../../../etc/passwd&sql=COPY%20x%20TO%20%27/tmp/x%27",
    "q=%ff%fe&text=%F0%9F%92%A9&pattern=(((((a*)*)*)*)*)",
)
BODIES = (b"", b"\xff\xfe\x00", b"[]", b"null", b"{", b'{"sql": 5}', b"[" * 100_000, b'"' + b"x" * 100_000)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """A trace in which everything that has a name has one that would be markup."""
    path = tmp_path_factory.mktemp("traces") / '"><img src=x onerror=alert(4)>.json'
    hostile_trace(path, evil=BAD)
    with window(str(path)) as opened:
        yield opened.wait()


@pytest.mark.parametrize("name", ANSWERS)
def test_no_question_ends_the_server_or_is_a_bug(hostile: Window, name: str) -> None:
    for options in OPTIONS:
        for body in (None, BODIES[0]):
            status = hostile.ask(f"/api/{name}?{options}", data=body).status
            assert status < 500, (name, options)
    for body in BODIES:
        status = hostile.ask(f"/api/{name}", data=body).status
        assert status < 500, (name, body[:20])
    assert hostile.ask("/api/state").json["ready"]


@pytest.mark.parametrize("name", PAGES)
def test_no_option_of_a_page_is_a_bug(hostile: Window, name: str) -> None:
    for options in OPTIONS:
        assert hostile.ask(f"/{name}?{options}").status < 500, (name, options)


def test_a_long_question_is_refused(hostile: Window) -> None:
    answer = hostile.ask("/api/save?page=kernels", data=b"x" * (MOST_BYTES + 1))
    assert answer.status == 413
    assert hostile.ask("/api/save?page=kernels", data=b"x" * 1000).status == 200


def test_a_question_without_end_is_refused(hostile: Window) -> None:
    """The length that is told is not believed."""
    with socket.create_connection(("127.0.0.1", hostile.port), timeout=30) as line:
        from stepscope.web.guard import cookie_name

        head = "POST /api/save?page=kernels HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
        line.sendall(f"{head}Cookie: {cookie_name(hostile.token)}={hostile.token}\r\n\r\n".encode())
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        answer = b""
        try:
            for _ in range(64):
                line.sendall(piece)
        except OSError:
            pass
        try:
            answer = line.recv(1000)
        except OSError:
            answer = b"HTTP/1.1 413"
        assert b" 413" in answer
    assert hostile.ask("/api/state").status == 200


@pytest.mark.parametrize("name", PAGES)
def test_names_never_become_markup(browser: Browser, hostile: Window, name: str) -> None:
    seen = look(browser, f"http://127.0.0.1:{hostile.port}/{name}?token={hostile.token}")
    assert seen.complaints == []
    made = "[...document.querySelectorAll('main img, main [onerror], main script:not([type])')].length"
    assert seen.page.evaluate(made) == 0


@pytest.mark.parametrize("name", PAGES)
def test_names_never_become_markup_in_a_file(
    browser: Browser, hostile: Window, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(hostile.ask(f"/api/save?page={name}").body)
    seen = look(browser, file.as_uri())
    assert seen.complaints == []
    assert seen.page.evaluate("document.querySelectorAll('img, [onerror]').length") == 0
