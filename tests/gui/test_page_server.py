"""The server of the page: who may use it, what it may show, and that runs go on without it."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from diel.run.directory import RunDirectory


def fetch(served: Any, target: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    """Ask the server as no browser would: nothing in the target is made proper."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
    try:
        connection.putrequest("GET", target, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        body = response.read().decode("utf-8", "replace")
        return response.status, body, {key.lower(): text for key, text in response.getheaders()}
    finally:
        connection.close()


@pytest.fixture
def cookie(served: Any) -> str:
    status, _, headers = fetch(served, f"/?token={served.token}")
    assert status == 200  # it goes on by itself
    return headers["set-cookie"].partition(";")[0]


def test_paths_outside_of_the_folder_are_refused(served: Any, cookie: str, tmp_path: Path) -> None:
    outside = RunDirectory.create(tmp_path, "secret", Path(__file__))
    inside = RunDirectory.create(served.folder, "inside", Path(__file__))
    (served.folder / "link").symlink_to(outside.path)
    before = sorted(tmp_path.rglob("*"))
    up = "/".join([".."] * 20)
    for path in (
        "..",
        "../..",
        f"{up}/etc",
        "/etc/passwd",
        str(outside.path),
        "link",
        "link/../link",
        "link/logs",
        "%00",
        "a" * 5000,
    ):
        for page in (
            "/run?path=", "/compose?file=", "/sweep?path=", "/trial?trial=1&path=",
            "/compare?path=", f"/compare?path={inside.path.name}&path=",
        ):  # fmt: skip
            status, body, _ = fetch(served, f"{page}{path}", Cookie=cookie)
            assert status == 404, (page, path)
            assert "secret" not in body.replace(str(outside.path), "")
    for target in ("/diel/../../security.py", "/diel/%2e%2e/security.py", f"/{up}/etc/passwd"):
        status, body, _ = fetch(served, target, Cookie=cookie)
        assert status == 404, target
        assert "root:" not in body
    assert sorted(tmp_path.rglob("*")) == before
    assert "is outside of the folder" in served.log.read_text()


def test_requests_without_the_token_of_others_and_of_other_sites_are_refused(
    served: Any, cookie: str
) -> None:
    assert fetch(served, "/")[0] == 403
    assert fetch(served, "/?token=wrong")[0] == 403
    assert fetch(served, "/diel/style.css")[0] == 403
    assert fetch(served, "/", Cookie=cookie, Origin="http://evil.example")[0] == 403
    assert fetch(served, "/", Cookie=cookie, Host="evil.example")[0] == 403
    status, _, headers = fetch(served, "/", Cookie=cookie)
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'self'")
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    socket = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    assert fetch(served, socket, **upgrade)[0] == 403
    assert fetch(served, socket, Cookie=cookie, Origin="http://evil.example", **upgrade)[0] == 403
    assert served.token not in served.log.read_text()


def test_the_first_page_shows_runs_and_files_as_text(served: Any, page: Any) -> None:
    rude = "<img src=x onerror=alert(1)>"
    file = served.folder / "study.toml"
    file.write_text('[workflow]\nname = "study"\n')
    (served.folder / "pyproject.toml").write_text("[project]\n")
    run = RunDirectory.create(served.folder / "runs", "study", file)
    with run.journal.open("a") as journal:
        for record in (
            {"event": "RunStarted", "workflow": rude, "ranks": 4, "groups": ["g"]},
            {"event": "StopOrdered", "reason": rude},
            {"event": "RunEnded", "exit_code": 130},
        ):
            journal.write(json.dumps({"time_s": 1.7e9, **record}) + "\n")
    page.goto(served.address)
    page.get_by_role("link", name=rude).first.wait_for()
    assert served.token not in page.url
    assert page.locator("img[src=x]").count() == 0
    page.get_by_text("stopped").wait_for()
    page.get_by_text("study.toml").wait_for()
    assert page.get_by_text("pyproject.toml").count() == 0
    # Light and dark: chosen once, kept over a reload, reached with the keyboard.
    switch = page.get_by_role("button", name="Light or dark")
    was_dark = page.locator("body.body--dark").count()
    switch.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "was => document.body.classList.contains('body--dark') !== Boolean(was)", arg=was_dark
    )
    page.reload()
    page.get_by_text("study.toml").wait_for()
    page.locator("body.body--light" if was_dark else "body.body--dark").wait_for()
