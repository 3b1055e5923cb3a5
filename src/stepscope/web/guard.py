"""Who may ask the server: the page that its address was given to, on this machine, and no other site.

A server on loopback can be reached by every page that the browser shows, and by every user of the machine.
The token in the address keeps out the users; Host and Origin keep out the pages, also those that point a name
of theirs at this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["POLICY", "Guard", "cookie_name"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""What a page may load: what this server sends, and nothing else."""
_ALWAYS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # Who opened this page gets no handle on it; a viewer that it opens may talk to it.
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "cache-control": "no-store",
}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Guard:
    """Answers those who may not ask, and lets the others through."""

    def __init__(self, app: ASGIApp, *, token: str, host: str) -> None:
        self._app = app
        self._token = token
        self._cookie = cookie_name(token)
        self._hosts = _LOOPBACK | {host.lower()}
        # An address in figures cannot be a name that another site points at this machine.
        self._any_address = host.lower() not in _LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, sealed)

    def _refusal(self, scope: Scope) -> PlainTextResponse | RedirectResponse | None:
        """What is answered to a request that goes no further."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if not self._is_own(host):
            return _no(400, "this name is not one of this server's: use localhost")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}":
            return _no(403, "this server answers its own pages only")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _no(405, "this server is asked with GET and POST only")
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if self._is_token(query.pop("token", [""])[0]):
            # It leaves the address, which people copy, and stays in a cookie, which scripts cannot see.
            rest = urlencode(query, doseq=True)
            answer = RedirectResponse(f"{_path(scope)}{f'?{rest}' if rest else ''}", status_code=303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", path="/")
            return answer
        if not self._is_token(self._cookie_of(headers)):
            return _no(403, "this address lacks its token: use the one that `stepscope open` printed")
        return None

    def _is_own(self, host: str) -> bool:
        """Whether the browser was led here by a name of this server."""
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name in self._hosts:
            return True
        try:
            return self._any_address and bool(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            return False

    def _cookie_of(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def cookie_name(token: str) -> str:
    """One for each server: cookies of one name are one cookie for all ports of a machine."""
    return f"stepscope-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def _path(scope: Scope) -> str:
    """The path as this server's own: `//elsewhere` would lead to another."""
    return "/" + str(scope["path"]).lstrip("/\\")


def _no(status: int, reason: str) -> PlainTextResponse:
    return PlainTextResponse(f"stepscope: {reason}\n", status_code=status)
