"""The server of a window: pages, their parts, tables and timeline tiles, of what was opened at its start."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from stepscope import interrupts, registry
from stepscope.errors import StepscopeError
from stepscope.memory import release_freed
from stepscope.present._markup import Markup, el
from stepscope.web.api import ANSWERS, answered
from stepscope.web.bundle import bundled
from stepscope.web.drawing import drawn
from stepscope.web.frame import framed, message
from stepscope.web.guard import Guard
from stepscope.web.page import PAGES
from stepscope.web.style import sheet

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stepscope.web.opened import Opened

__all__ = ["Told", "application"]

STATIC = Path(__file__).parent / "static"
MOST_BYTES = 256 << 10
"""No question of a page is longer."""
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_LOG = logging.getLogger("stepscope.web")
# Pages may take long; the answers to what is on screen do not wait for them. Always the same few threads, for
# a trace keeps a cursor for each.
_PAGES = ThreadPoolExecutor(3, "pages")
_ANSWERS = ThreadPoolExecutor(4, "answers")


class Told:
    """What the pages have heard so far."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        """Whether a page waits for the opening."""
        self.problem = threading.Event()
        """Whether one was told why it failed."""


def application(opened: Opened, *, token: str, host: str, told: Told | None = None) -> ASGIApp:
    """The server's answers, behind its guard."""
    heard = told or Told()
    routes = [
        Route("/", lambda http: RedirectResponse(f"/findings{_query(http)}")),
        Route("/style.css", _given(Response(sheet(), media_type="text/css"))),
        Route("/script.js", _script()),
        Route("/api/state", _state(opened)),
        Route("/api/{name}", _asked(opened), methods=["GET", "POST"]),
        Route("/perfetto", lambda _: HTMLResponse(_perfetto(opened))),
        Route("/static/{name:path}", _static()),
        Route("/{page}", _page(opened, heard)),
    ]
    return Guard(Starlette(routes=routes), token=token, host=host)


def _query(http: HttpRequest) -> str:
    return f"?{http.url.query}" if http.url.query else ""


def _given(response: Response) -> Callable[[HttpRequest], object]:
    async def answer(_: HttpRequest) -> Response:
        return response

    return answer


def _script() -> Callable[[HttpRequest], object]:
    """Modules of ours with all that they import; no path that a page names is opened."""
    known = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js")}

    async def answer(http: HttpRequest) -> Response:
        names = http.query_params.get("of", "").split(",")
        if not known.issuperset(names):
            return Response("there is no such script", status_code=404)
        return Response(bundled(*names), media_type=_TYPES[".js"])

    return answer


def _static() -> Callable[[HttpRequest], object]:
    """Our own files, read once: no path that a page names is opened."""
    known = {
        path.relative_to(STATIC).as_posix(): Response(path.read_bytes(), media_type=_TYPES[path.suffix])
        for path in STATIC.rglob("*")
        if path.suffix in _TYPES
    }

    async def answer(http: HttpRequest) -> Response:
        return known.get(http.path_params["name"]) or Response("there is no such file", status_code=404)

    return answer


def _state(opened: Opened) -> Callable[[HttpRequest], object]:
    async def answer(http: HttpRequest) -> Response:
        try:
            state = opened.state_of(http.query_params.get("trace"))
        except StepscopeError as error:
            return _problem_json(400, error.message, error.hint)
        return JSONResponse(dataclasses.asdict(state))

    return answer


def _page(opened: Opened, told: Told) -> Callable[[HttpRequest], object]:
    async def answer(http: HttpRequest) -> Response:
        name = http.path_params["page"]
        if name not in dict(registry.names(PAGES)):
            return HTMLResponse(message("There is no such page", _home()), status_code=404)
        options = dict(http.query_params)
        try:
            state = opened.state_of(options.get("trace"))
        except StepscopeError as error:
            return HTMLResponse(_failed(error.message, error.hint), status_code=400)
        if state.problem:
            told.problem.set()
            return HTMLResponse(message("This could not be opened", *_problem(state.problem, state.hint)))
        if not state.ready:
            told.asked.set()
            return HTMLResponse(_waiting(opened.name, state.doing))
        return await _in(_PAGES, lambda: _answer(opened, name, options))

    return answer


def _answer(opened: Opened, name: str, options: dict[str, str]) -> Response:
    """A page, or what went wrong with it."""
    try:
        request, content = drawn(opened, name, options)
        if request.looked_at is None or not request.trace.trace.is_small:
            release_freed()
        return HTMLResponse(framed(opened, name, request.key, content))
    except StepscopeError as error:
        return HTMLResponse(_failed(error.message, error.hint), status_code=400)
    except Exception as error:  # noqa: BLE001 - one page that fails must not end the window
        interrupts.pass_on()
        _LOG.exception("the page %s failed", name)
        told = f"{type(error).__name__}: {error}"
        return HTMLResponse(_failed(told, "please report this, with the profile if you may"), status_code=500)


async def _in(threads: ThreadPoolExecutor, work: Callable[[], Response]) -> Response:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _asked(opened: Opened) -> Callable[[HttpRequest], object]:
    async def asked(http: HttpRequest) -> Response:
        name = http.path_params["name"]
        if name not in dict(registry.names(ANSWERS)):
            return _problem_json(404, f"there is no answer {name[:99]!r}")
        given = dict(http.query_params)
        try:
            state = opened.state_of(given.get("trace"))
        except StepscopeError as error:
            return _problem_json(400, error.message, error.hint)
        if not state.ready:
            return _problem_json(503, state.problem or "still opening", state.hint or "ask again in a moment")
        if http.method == "POST":
            body = await _body(http)
            if body is None:
                return _problem_json(413, "this question is too long", f"at most {MOST_BYTES >> 10} KiB")
            given["body"] = body.decode("utf-8", "replace")
        return await _in(_ANSWERS, lambda: answered(name, opened, given))

    return asked


async def _body(http: HttpRequest) -> bytes | None:
    """What a question brings; None where it brings too much."""
    pieces = bytearray()
    async for piece in http.stream():
        pieces += piece
        if len(pieces) > MOST_BYTES:
            return None
    return bytes(pieces)


def _problem_json(status: int, problem: str, hint: str = "") -> JSONResponse:
    return JSONResponse({"problem": problem, "hint": hint}, status_code=status)


def _waiting(name: str, doing: str) -> str:
    return message(
        "Opening",
        el("p", name, class_="muted"),
        el("p", doing, id="doing", aria_live="polite"),
        el("progress", id="progress", max=1, aria_label="How far it is"),
        el("noscript", el("p", "Reload this page in a while: scripts are off.")),
        scripts=("waiting.js",),
    )


def _perfetto(opened: Opened) -> str:
    """The page of `stepscope open --perfetto`: one button, for a browser opens windows only for a click."""
    return message(
        "Open in Perfetto",
        el("p", opened.name, class_="muted"),
        el(
            "p",
            "Your browser loads the viewer from ui.perfetto.dev, and this page hands the trace to it, inside "
            "your browser. The trace is not uploaded.",
        ),
        el("p", el("button", "Open in Perfetto", type="button", id="perfetto-button", class_="main")),
        el("p", id="perfetto-state", role="status"),
        el("p", el("a", "The findings of stepscope", href="/findings")),
        scripts=("perfetto_page.js",),
    )


def _failed(problem: str, hint: str) -> str:
    return message("This page could not be drawn", *_problem(problem, hint), _home())


def _problem(problem: str, hint: str) -> list[Markup]:
    told = [el("p", problem, class_="problem", role="alert")]
    return [*told, el("p", "Try: ", el("code", hint))] if hint else told


def _home() -> Markup:
    return el("p", el("a", "To the findings", href="/findings"))
