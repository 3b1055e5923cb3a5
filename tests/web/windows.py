"""Real windows for tests: the command `stepscope open` as a process, asked over HTTP or by a real browser."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

from stepscope.web.guard import cookie_name

__all__ = ["Answer", "Window", "window"]

_ADDRESS = re.compile(r"http://[^/]+:(\d+)/\w*\?token=(\S+)")


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    body: bytes
    headers: Message[str, str]

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass
class Window:
    """A running `stepscope open`."""

    process: subprocess.Popen[str]
    address: str
    port: int
    token: str
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, *, data: bytes | None = None, token: bool = True, **headers: str) -> Answer:
        """One request, with the cookie that a browser would have; redirects are not followed."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            given.setdefault("Cookie", f"{cookie_name(self.token)}={self.token}")
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=given)
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            with opener.open(request, timeout=60) as answer:
                return Answer(answer.status, answer.read(), answer.headers)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), error.headers)

    def wait(self, seconds: float = 60, trace: str = "") -> Window:
        """Until the trace is open; of a run, a rank."""
        until = time.monotonic() + seconds
        while not (state := self.ask(f"/api/state?trace={trace}").json)["ready"]:
            if state["problem"]:
                raise AssertionError(state["problem"])
            if time.monotonic() > until:
                raise AssertionError(f"not open after {seconds} s: {state}")
            time.sleep(0.05)
        return self


@contextlib.contextmanager
def window(*words: str) -> Iterator[Window]:
    """`stepscope open WORDS`, ended with Ctrl-C afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "open", "--no-browser", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        found = _ADDRESS.search(line)
        if not found:
            process.kill()
            raise AssertionError(f"no address: {line}{process.communicate()[1][-2000:]}")
        yield Window(process, found[0], int(found[1]), found[2])
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
