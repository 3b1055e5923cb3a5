"""Runs the server of a window until it is interrupted, and says how to reach it."""

from __future__ import annotations

import getpass
import ipaddress
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from stepscope import interrupts
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.web.server import Told, application

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["Place", "serve"]

_AT_ONCE_S = 0.1
"""A name that is wrong is known by then: no address is printed that nobody answers."""
_SOON_S = 0.3
"""What is wrong with the input is mostly known by then: no page is opened only to say so."""
_PATIENCE_S = 5.0
"""So long a page that was opened may take to ask what went wrong."""
_ASSETS_S = 1.0
"""So long a page takes to fetch its style."""
_TIDY_S = 3.0
"""So long an interrupted opening may take to remove what it wrote."""
_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server listens, and which page it shows first."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 for any that is free."""
    page: str = ""


def serve(
    opened: Opened,
    place: Place,
    *,
    browser: bool,
    say: Callable[[str], None],
    notice: Callable[[str], None],
) -> None:
    """Opens what was named and answers until Ctrl-C; raises what went wrong with the opening."""
    with _listening(place.host, place.port) as listener:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        name = _name_of(place.host)
        address = f"http://{name}:{port}/{place.page}?token={token}"
        told = Told()
        app = application(opened, token=token, host=name, told=told)
        server = uvicorn.Server(_config(app))
        opened.start()
        if opened.ended(_AT_ONCE_S) and opened.state.problem:
            opened.wait()
        say(address)
        sys.stdout.flush()  # who reads it through a pipe waits for it
        for line in _hints(place.host, port):
            notice(line)
        watch = _Watch(opened, server, told, address if browser and _has_screen() else "", notice)
        threading.Thread(target=watch.run, name="watch", daemon=True).start()
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            opened.ended(_TIDY_S)
            raise
    if opened.state.problem and not interrupts.caught():
        opened.wait()


def _config(app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # any ASGI application
        http="h11",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )


class _Watch:
    """Opens the page, unless the input turns out wrong first; ends a server that has nothing to show."""

    def __init__(
        self,
        opened: Opened,
        server: uvicorn.Server,
        told: Told,
        address: str,
        notice: Callable[[str], None],
    ) -> None:
        self._opened = opened
        self._server = server
        self._told = told
        self._address = address
        self._notice = notice

    def run(self) -> None:
        """Until the trace is open or has failed."""
        failed = self._opened.ended(_SOON_S) and bool(self._opened.state.problem)
        if self._address and not failed and not webbrowser.open(self._address):
            self._notice("no browser could be started: open the address yourself")
        self._opened.ended()
        if not self._opened.state.problem:
            return
        if (self._address and not failed) or self._told.asked.is_set():
            # Somebody looks at the page: the server stays until that page was told, too.
            seen = self._told.problem.wait(_PATIENCE_S)
            threading.Event().wait(_ASSETS_S if seen else 0)
        self._server.should_exit = True


def _hints(host: str, port: int) -> list[str]:
    lines = []
    if not _is_loopback(host):
        lines.append(
            f"careful: it listens on {host}, not on this machine alone; everyone who reaches it and knows "
            "this address can read the profile, and what they read travels unencrypted"
        )
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) >= 3 and _is_loopback(host):
        inner = f"[{host}]" if ":" in host else "127.0.0.1"
        forward = f"ssh -N -L {port}:{inner}:{port} {_user()}{connection[2]}"
        lines.append(f"on your own machine: {forward}, then open the address there")
    return [*lines, "Ctrl-C ends the window"]


def _user() -> str:
    try:
        return f"{getpass.getuser()}@"
    except (KeyError, OSError):  # nobody that the system knows
        return ""


def _has_screen() -> bool:
    """Whether a browser could show something: without a screen, Python would start one for the terminal."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if os.environ.get("BROWSER") or sys.platform == "darwin" or "WSL_DISTRO_NAME" in os.environ:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """How this machine is called in the address: as it was told, unless it listens to all names it has."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - what was asked for
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # who has the address may ask before the server has started
    except (OSError, OverflowError, UnicodeError) as error:
        listener.close()
        raise StepscopeError(
            f"the server cannot listen on {host}, port {port}: {error}",
            hint="leave --port and --host out, and it takes a free port of this machine",
        ) from error
    return listener
