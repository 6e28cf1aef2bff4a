"""Access control: a request needs the token, and has to come from the page itself.

A page on the loopback can be reached by every user of the machine, and by every web site that is
open in the same browser. So each request needs:

- the token that ``diel gui`` has printed: in the address once, from then on in a cookie;
- a ``Host`` that the page is served under, and nothing else in it: a foreign name that was made to
  lead here is refused;
- no ``Origin`` but the page's own: other sites cannot send requests or open websockets.

A request that is refused is logged, and does not reach the application.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from html import escape
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG: Final = logging.getLogger("diel.gui")
MAX_BODY_BYTES: Final = 8 * 2**20
_MAX_TARGET_BYTES: Final = 16 * 1024
_LONGEST_SHOWN: Final = 200
# Nothing else than a name or an address and a port: what follows a bracket, a user before an @ or a
# zone behind a % would be read in another way elsewhere.
_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-f]*:[0-9a-f:.]{1,44})\]|(?P<name>[a-z0-9_.-]{1,255}))(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_LARGEST_PORT: Final = 65_535
_POLICY_VIOLATION: Final = 1008  # the close code of a websocket that is refused
# The page's framework compiles templates in the browser and styles elements in place, so scripts
# and styles cannot be limited further than to what this server itself has sent.
_CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = tuple(
    (name.encode(), value.encode())
    for name, value in {
        "content-security-policy": _CONTENT_POLICY,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }.items()
)

_PLAIN_STYLE: Final = (
    ":root{background:#fff;color:#1c2127;--link:#00598c}a{color:var(--link)}"
    "@media(prefers-color-scheme:dark){:root{background:#14181d;color:#e6e9ed;--link:#74c3f2}}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:48px auto;max-width:640px;"
    "overflow-wrap:anywhere;padding:0 24px}h1{font-size:22px}"
)


def plain_page(title: str, content: str, head: str = "") -> bytes:
    """Return an HTML page that needs neither scripts nor a style sheet; `content` is HTML."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - diel</title><style>{_PLAIN_STYLE}</style>{head}</head>"
        f"<body><main><h1>{escape(title)}</h1>{content}</main></body></html>"
    )
    return page.encode("utf-8", "replace")


class Refusal(NamedTuple):
    """Why a request is refused: the HTTP status, and a message."""

    status: int
    why: str


class Guard:
    """ASGI middleware that refuses requests without the token, or from other sites.

    Parameters
    ----------
    app : ASGI application
        The application to protect.
    token : str
    hosts : collection of str
        Names and addresses, without ports, under which the page is served: an ``ssh -L`` may give
        it any port.
    max_body_bytes : int, optional
        The largest body of a request.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        hosts: Collection[str],
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.app = app
        self._token = token
        self._hosts = frozenset(_plain_address(host.lower()) for host in hosts if host)
        self._max_body_bytes = max_body_bytes
        # Browsers share cookies between the ports of a host, on which several servers may run.
        self.cookie = f"diel-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            _log_refusal(scope, refusal)
            await _refuse(scope, send, refusal)
        elif scope["type"] == "websocket":
            await self.app(scope, receive, send)
        elif "token" in dict(_query(scope)):
            await self._take_token_out_of_address(scope, send)
        else:
            await self._pass_on(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _MAX_TARGET_BYTES:
            return Refusal(414, "the address is too long")
        host = _only(scope, b"host")
        if host is None or _name_of(host) not in self._hosts:
            known = ", ".join(sorted(self._hosts))
            return Refusal(403, f"the page is not served as {host}: it is known as {known}")
        origin = _only(scope, b"origin", missing="")
        own = {f"{scheme}://{host}".lower() for scheme in ("http", "https")}
        if origin is None or (origin and origin.lower() not in own):
            return Refusal(403, f"requests of another site, {origin}, are refused")
        problem = self._token_problem(scope)
        if problem:
            return Refusal(403, f"{problem}: open the address that diel gui has printed")
        length = _only(scope, b"content-length", missing="0")
        if length is None or not length.isdecimal():
            return Refusal(400, "content-length is no number")
        if int(length[:20]) > self._max_body_bytes:
            return Refusal(413, f"more than {self._max_body_bytes:,} bytes are refused")
        return None

    def _token_problem(self, scope: Scope) -> str:
        given = [value for name, value in _query(scope) if name == "token"]
        if not given and (cookie := self._cookie_of(scope)):
            given = [cookie]
        if not given:
            return "the token is missing"
        right = (hmac.compare_digest(each.encode(), self._token.encode()) for each in given)
        return "" if all(right) else "the token is wrong"

    def _cookie_of(self, scope: Scope) -> str:
        # Other programs of this host may have set any cookies: only this name is looked for.
        for key, value in scope["headers"]:
            for part in value.decode("latin-1").split(";") if key == b"cookie" else ():
                name, _, given = part.strip().partition("=")
                if name == self.cookie:
                    return str(given)
        return ""

    async def _take_token_out_of_address(self, scope: Scope, send: Send) -> None:
        """Put the token into a cookie, so that it stays out of histories and logs."""
        rest = urlencode([(name, value) for name, value in _query(scope) if name != "token"])
        # One slash at the beginning: with two a path would name another host.
        place = "/" + quote(scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")
        cookie = f"{self.cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"set-cookie", cookie.encode()), (b"cache-control", b"no-store"), *_HEADERS]
        if _only(scope, b"sec-fetch-site") == "none":  # typed, or opened from a terminal
            status, body = 303, b""
            headers.append((b"location", place.encode("latin-1", "replace")))
        else:
            # After a link on another site, a browser does not send the cookie along a redirection;
            # it does when a page of this server leads on by itself.
            there = escape(place)
            refresh = f'<meta http-equiv="refresh" content="0; url={there}">'
            status, body = 200, plain_page("Go on", f'<a href="{there}">to the page</a>', refresh)
            headers.append((b"content-type", b"text/html; charset=utf-8"))
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0

        async def receive_bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_body_bytes:  # of a body without content-length
                _log_refusal(scope, Refusal(413, "the body is too large"))
                return {"type": "http.disconnect"}
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                # A page may have a content policy too: then both hold.
                own = {name for name, _ in _HEADERS} - {b"content-security-policy"}
                given = [pair for pair in message.get("headers", ()) if pair[0].lower() not in own]
                message = {**message, "headers": [*given, *_HEADERS]}
            await send(message)

        await self.app(scope, receive_bounded, send_with_headers)


def _query(scope: Scope) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=100
        )
    except ValueError:  # too many fields
        return []


def _only(scope: Scope, name: bytes, missing: str | None = None) -> str | None:
    """Return the value of a header, ``missing`` without it; None if it is there more than once."""
    values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    if not values:
        return missing
    return values[0] if len(values) == 1 else None


def _name_of(host: str) -> str:
    """Return the name or address in a ``Host``, without the port; empty if it is anything else."""
    found = _HOST.fullmatch(host.lower())
    if found is None or int(found["port"] or 1) > _LARGEST_PORT:
        return ""
    return _plain_address(found["address"]) if found["address"] else str(found["name"])


def _plain_address(text: str) -> str:
    """Return an IPv6 address in its one shortest form; other texts as they are."""
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        return text


def _log_refusal(scope: Scope, refusal: Refusal) -> None:
    client = scope.get("client") or ("an unknown host",)
    LOG.warning(
        "refused: %s %s from %s: %s",
        scope.get("method", "websocket"),
        _shown(scope["path"]),
        client[0],
        _shown(refusal.why),
    )


def _shown(text: str) -> str:
    """Return a text that a client has sent, shortened and escaped for the log."""
    return ascii(text[:_LONGEST_SHOWN])


async def _refuse(scope: Scope, send: Send, refusal: Refusal) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": ""})
        return
    body = plain_page("Refused", f'<p role="alert">{escape(refusal.why)}</p>')
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *_HEADERS,
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
