"""A real browser without a window, Chromium driven by Playwright, and a server of the page."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_LIMIT_S = 120
"""For anything to show: a browser and a run beside other tests need a multiple of their time."""
_TEST_LIMIT_S = 900


@pytest.fixture(autouse=True)
def _more_time(request: pytest.FixtureRequest) -> None:
    """Give a test more time than others before its process is ended."""
    stderr = request.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(_TEST_LIMIT_S, file=stderr, exit=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add what the page shows to the report of a test that fails."""
    report = yield
    shown = getattr(item, "funcargs", {}).get("page")
    if call.when == "call" and report.failed and shown is not None:
        with contextlib.suppress(Exception):
            report.sections.append(("shown on the page", shown.inner_text("body", timeout=5000)))
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a browser; ``CHROMIUM`` may name it. The test is skipped where there is none.

    Otherwise it is the machine's, or one that ``playwright install chromium`` has fetched.

    It is closed before tests of other files: as long as it is open, an event loop runs in this
    thread, and no test can run one of its own.
    """
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    api.expect.set_options(timeout=1000 * _LIMIT_S)
    with api.sync_playwright() as playwright:
        if path is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip(f"there is no browser: none of {', '.join(_NAMES)}, nor Playwright's own")
        path = path or playwright.chromium.executable_path
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        new_context = browser.new_context

        def patient_context(**options: Any) -> Any:
            context = new_context(**options)
            context.set_default_timeout(1000 * _LIMIT_S)
            return context

        browser.new_context = patient_context  # type: ignore[method-assign]
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Return an empty page; at the end of the test it must not have complained of anything."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900},
        permissions=["clipboard-read", "clipboard-write"],
    )
    page = context.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert complaints == []
    hosts = {urlsplit(url).hostname for url in asked if urlsplit(url).scheme != "data"}
    assert hosts <= {None, "127.0.0.1"}  # None: a file


class Served:
    """A ``diel gui`` of a folder: its address, and what it has logged.

    `address` has the token in it; `url("/run?path=a")` has not, and needs the cookie. Commands
    that a test puts into the folder `commands` are found by it before others.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        pytest.importorskip("nicegui", reason="the extra gui is not installed")
        self.folder = folder
        self.log = folder.parent / f"{folder.name}-server.log"
        self.commands = folder.parent / f"{folder.name}-commands"
        self.commands.mkdir(exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "diel", "gui", str(folder), "--port", "0", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PATH": f"{self.commands}:{os.environ['PATH']}"},
            )
        self.address = self._address()
        self.port = urlsplit(self.address).port
        self.token = self.address.rpartition("token=")[2]

    def _address(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], _LIMIT_S)
        line = self.process.stdout.readline().decode() if ready else ""
        found = re.search(r"http://\S+", line)
        assert found, f"the server has said {line!r}, and {self.log.read_text()}"
        return found[0]

    def url(self, place: str) -> str:
        """Return the address of a page."""
        return f"http://127.0.0.1:{self.port}{place}"

    def end(self) -> None:
        """End the server as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_LIMIT_S)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        log = self.log.read_text()
        assert "Traceback" not in log, log


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server of an empty folder, one for all tests of a file."""
    server = Served(tmp_path_factory.mktemp("served"))
    yield server
    server.end()


@pytest.fixture(scope="module")
def serve() -> Callable[..., Served]:
    """Return what starts a server of a folder, to be ended by whoever starts it."""
    return Served
