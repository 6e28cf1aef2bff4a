"""What the page refuses, without a server and without a browser."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from diel.gui.security import Guard

TOKEN = "right-token"
HOST = "127.0.0.1:8470"


class Inner:
    """The application behind the guard: counts what reaches it."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.body = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["type"])
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            return
        while True:
            message = await receive()
            self.body += message.get("body", b"")
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                break
        headers = [(b"x-frame-options", b"ALLOWALL"), (b"x-own", b"1")]
        headers.append((b"content-security-policy", b"sandbox"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"shown"})


def ask(
    path: str = "/",
    query: str = "",
    *,
    kind: str = "http",
    host: str | None = HOST,
    body: tuple[bytes, ...] = (b"",),
    cookie: str = "",
    headers: tuple[tuple[bytes, bytes], ...] = (),
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
) -> tuple[list[Any], Inner]:
    """Send a request to a guard; return what it sends, and what is behind it."""
    inner = Inner()
    guard = Guard(inner, TOKEN, hosts, max_body_bytes=100)
    own = [] if host is None else [(b"host", host.encode())]
    if cookie:
        own.append((b"cookie", f"other=1; {guard.cookie}={cookie}".encode()))
    scope = {
        "type": kind,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [*own, *headers],
        "client": ("127.0.0.1", 5),
    }
    sent: list[Any] = []
    parts = [
        {"type": "http.request", "body": part, "more_body": part is not body[-1]} for part in body
    ]

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    return sent, inner


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:1", True),
        ("LocalHost:8470", True),
        ("[::1]", True),
        ("[::1]:8470", True),
        ("[0:0:0:0:0:0:0:1]:8470", True),
        ("", False),
        (":8470", False),
        ("[]", False),
        ("[::1].evil.com", False),
        ("[::1]evil.com:8470", False),
        ("[::1]:8470.evil.com", False),
        ("[::1]@evil.com", False),
        ("[::1", False),
        ("::1", False),
        ("[::1%25lo]", False),
        ("[::1%lo]:8470", False),
        ("[::ffff:127.0.0.1]", False),
        ("[localhost]", False),
        ("[127.0.0.1]", False),
        ("localhost.", False),
        ("localhost.evil.com", False),
        ("localhost:8470.evil.com", False),
        ("localhost:evil.com", False),
        ("localhost:", False),
        ("localhost:0", False),
        ("localhost:65536", False),
        ("localhost:\u0668", False),
        ("localhost:8470:8470", False),
        ("localhost:8470@evil.com", False),
        ("localhost@evil.com", False),
        ("evil.com@localhost", False),
        ("localhost, evil.com", False),
        ("localhost/evil.com", False),
        ("localhost#.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("127.1", False),
        ("2130706433", False),
        ("0x7f000001", False),
        ("\u2460127.0.0.1", False),
    ],
)
def test_a_host_is_known_as_a_whole_or_not_at_all(host: str, is_known: bool, kind: str) -> None:
    reached = ask(kind=kind, host=host, cookie=TOKEN, hosts=("127.0.0.1", "localhost", "::1"))[1]
    assert bool(reached.reached) == is_known
    # Whatever the host, its own pages are the only ones that may send requests.
    for origin in (f"http://{host}.evil.com", f"http://{host}@evil.com", f"http://{host}/x",
                   f"ftp://{host}", f"http:{host}", f"http://{host}:1:2", host):  # fmt: skip
        from_there = ((b"origin", origin.encode("utf-8")),)
        assert ask(kind=kind, host=host, cookie=TOKEN, headers=from_there)[1].reached == []


def status_of(sent: list[Any]) -> int:
    return int(sent[0]["status"])


def test_a_token_in_the_address_becomes_a_cookie() -> None:
    typed = ((b"sec-fetch-site", b"none"),)
    sent, inner = ask("//evil.example/x", f"a=1&token={TOKEN}&b=%2F", headers=typed)
    assert status_of(sent) == 303
    assert inner.reached == []
    headers = dict(sent[0]["headers"])
    assert headers[b"location"] == b"/evil.example/x?a=1&b=%2F"
    cookie = headers[b"set-cookie"].decode()
    assert cookie.startswith("diel-")
    assert f"={TOKEN};" in cookie
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert TOKEN.encode() not in headers[b"location"]


def test_an_address_that_another_site_links_to_goes_on_by_itself() -> None:
    # The cookie is SameSite=Strict: along a redirection it would not be sent.
    elsewhere = ((b"sec-fetch-site", b"cross-site"),)
    for headers in (elsewhere, ()):
        sent, inner = ask("/<b>", f'a="1&token={TOKEN}', headers=headers)
        assert (status_of(sent), inner.reached) == (200, [])
        body = sent[1]["body"].decode()
        assert 'http-equiv="refresh" content="0; url=/%3Cb%3E?a=%221"' in body
        assert TOKEN not in body
        assert TOKEN.encode() in dict(sent[0]["headers"])[b"set-cookie"]


@pytest.mark.parametrize(
    "others", ['other={"a": 1}', "a b=1", "a@x=1", 'x="unclosed', "flag", "=;;", "\xff=1"]
)
def test_cookies_of_other_programs_lock_nobody_out(others: str) -> None:
    guard = Guard(Inner(), TOKEN, ())
    header = f"{others}; {guard.cookie}={TOKEN}".encode("latin-1")
    sent, _ = ask(headers=((b"cookie", header),))
    assert status_of(sent) == 200


def test_the_cookie_lets_pass_and_answers_limit_what_a_page_may_load() -> None:
    sent, inner = ask(cookie=TOKEN)
    assert (status_of(sent), inner.reached) == (200, ["http"])
    headers = sent[0]["headers"]
    assert [value for name, value in headers if name == b"x-frame-options"] == [b"DENY"]
    # A page can have a stricter policy, which holds beside that of all pages.
    policies = [value for name, value in headers if name == b"content-security-policy"]
    assert policies[0] == b"sandbox"
    policy = policies[1].decode()
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert dict(headers)[b"x-own"] == b"1"
    assert ask(kind="websocket", cookie=TOKEN)[1].reached == ["websocket"]
    assert ask(kind="lifespan", host=None)[1].reached == ["lifespan"]
    # A forwarded port is another one here than there.
    own = (b"origin", b"http://localhost:9000")
    assert ask(host="localhost:9000", cookie=TOKEN, headers=(own,))[1].reached == ["http"]


@pytest.mark.parametrize(
    ("why", "status", "request_"),
    [
        ("token is missing", 403, {}),
        ("token is wrong", 403, {"query": "token=wrong"}),
        ("token is wrong", 403, {"query": "token="}),
        ("token is wrong", 403, {"query": f"token={TOKEN}&token=wrong"}),
        ("token is wrong", 403, {"query": "token=wrong", "cookie": TOKEN}),
        ("token is wrong", 403, {"cookie": "wrong"}),
        ("token is wrong", 403, {"query": "token=%F0%9F%98%80"}),
        ("token is missing", 403, {"query": "&".join(f"a{i}=1" for i in range(200))}),
        ("not served as", 403, {"cookie": TOKEN, "host": "evil.example:8470"}),
        ("not served as", 403, {"cookie": TOKEN, "host": "127.0.0.1.evil.example"}),
        ("not served as", 403, {"cookie": TOKEN, "host": "[::1]:80"}),
        ("not served as", 403, {"cookie": TOKEN, "host": None}),
        (
            "not served as",
            403,
            {"cookie": TOKEN, "headers": ((b"host", b"evil.example"),)},
        ),
        (
            "another site",
            403,
            {"cookie": TOKEN, "headers": ((b"origin", b"http://evil.example"),)},
        ),
        ("another site", 403, {"cookie": TOKEN, "headers": ((b"origin", b"null"),)}),
        ("another site", 403, {"cookie": TOKEN, "headers": ((b"origin", b"http://["),)}),
        (
            "another site",
            403,
            {"cookie": TOKEN, "headers": ((b"origin", b"http://127.0.0.1:8888"),)},
        ),
        ("too long", 414, {"cookie": TOKEN, "path": "/" + "a" * 20_000}),
        ("more than 100", 413, {"cookie": TOKEN, "headers": ((b"content-length", b"101"),)}),
        ("more than 100", 413, {"cookie": TOKEN, "headers": ((b"content-length", b"9" * 9999),)}),
        ("no number", 400, {"cookie": TOKEN, "headers": ((b"content-length", b"-1"),)}),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_everything_else_is_refused_and_logged(
    why: str, status: int, request_: dict[str, Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "diel.gui"):
        sent, inner = ask(kind=kind, **request_)
    assert inner.reached == []
    assert why in caplog.text
    assert TOKEN not in caplog.text
    if kind == "websocket":
        assert [message["type"] for message in sent] == ["websocket.close"]
    else:
        assert status_of(sent) == status
        assert why in sent[1]["body"].decode()


def test_a_body_of_unknown_length_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    _, inner = ask(cookie=TOKEN, body=(b"a" * 60, b"b" * 60, b"c" * 60))
    assert inner.body == b"a" * 60
    assert "too large" in caplog.text


def test_what_is_logged_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    ask("/a\ndiel gui: all is well\x1b[2J")
    (line,) = caplog.messages
    assert "\n" not in line
    assert "\x1b" not in line
