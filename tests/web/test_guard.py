"""Who may ask a window, and who may not."""

from __future__ import annotations

import pytest
from tests.web.windows import Window

from stepscope.web.guard import POLICY

pytestmark = pytest.mark.slow


def test_a_page_is_given_to_who_has_the_token(demo: Window) -> None:
    answer = demo.ask("/findings")
    assert answer.status == 200
    assert answer.headers["content-security-policy"] == POLICY
    assert "Findings" in answer.text


@pytest.mark.parametrize(
    "path", ["/findings", "/api/state", "/script.js?of=page.js", "/style.css", "/nothing"]
)
def test_nothing_is_given_without_the_token(demo: Window, path: str) -> None:
    answer = demo.ask(path, token=False)
    assert answer.status == 403
    assert "token" in answer.text


def test_the_token_leaves_the_address(demo: Window) -> None:
    answer = demo.ask(f"/kernels?token={demo.token}&sort=calls", token=False)
    assert (answer.status, answer.headers["location"]) == (303, "/kernels?sort=calls")
    assert "HttpOnly" in answer.headers["set-cookie"]


def test_a_redirect_leads_nowhere_else(demo: Window) -> None:
    answer = demo.ask(f"//example.org/?token={demo.token}", token=False)
    assert answer.headers["location"] == "/example.org/"


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org:80", "[::2]:80", ""])
def test_a_foreign_host_is_refused(demo: Window, host: str) -> None:
    assert demo.ask("/findings", Host=host).status == 400


@pytest.mark.parametrize("origin", ["http://example.org", "null", "https://127.0.0.1"])
def test_a_foreign_origin_is_refused(demo: Window, origin: str) -> None:
    assert demo.ask("/api/state", Origin=origin).status == 403


def test_a_forwarded_port_is_no_foreign_host(demo: Window) -> None:
    assert demo.ask("/api/state", Host="localhost:9", Origin="http://localhost:9").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../opened.py",
        "/static/%2e%2e/opened.py",
        "/static//etc/passwd",
        "/script.js",
        "/script.js?of=page.js,../opened.py",
        "/script.js?of=/etc/passwd",
    ],
)
def test_no_path_leads_out_of_the_static_folder(demo: Window, path: str) -> None:
    assert demo.ask(path).status == 404
