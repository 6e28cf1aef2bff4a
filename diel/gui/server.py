"""``diel gui``: the server of the page, on the loopback unless ``--host`` says otherwise."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import importlib
import ipaddress
import logging
import secrets
import socket
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from diel.errors import PageError
from diel.gui.addresses import noted_server
from diel.gui.security import LOG, MAX_BODY_BYTES, Guard
from diel.run.history import is_run

_NEEDED: Final = ("nicegui", "tomlkit")
# Each of these modules has `add_pages(site)`.
_PAGES: Final = (
    "diel.gui.home",
    "diel.gui.watch",
    "diel.gui.compose",
    "diel.gui.sweep",
    "diel.gui.compare",
    "diel.gui.box",
    "diel.gui.differences",
)
_BACKLOG: Final = 128
_RECONNECT_S: Final = 30.0
"""How long a browser may be away, or take to show a page, before the page is built anew."""
_END_S: Final = 2
"""How long open connections may take to end; runs go on anyway."""


def serve(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C; return the exit code.

    Raises
    ------
    PageError
        If there is nothing to show, a package is missing, or the port cannot be had.
    """
    folder, start = _folder_and_first_page(options.target)
    _check_packages()
    token = secrets.token_urlsafe(32)
    listener = _listen(options.host, options.port)
    with listener:
        port = listener.getsockname()[1]
        app = Guard(_application(folder), token, _known_as(options.host))
        base = _base(options.host, port)
        _print_address(options.host, port, base, start, token)
        with noted_server(folder, base, token):
            _serve(app, listener)
    print("diel gui: ended; runs go on", flush=True)
    return 0


def _folder_and_first_page(target: Path) -> tuple[Path, str]:
    """Return the folder that the page may show, and the page to begin with."""
    try:
        place = target.resolve(strict=True)
    except OSError as error:
        raise PageError(
            f"{target}: {error.strerror}; name a workflow file, a run's directory or a folder"
        ) from error
    here = Path.cwd().resolve()
    around = here if here in place.parents else place.parent
    if place.is_file():
        return around, _page_of("/compose", "file", place.relative_to(around))
    if not place.is_dir():
        raise PageError(f"{target} is neither a file nor a folder")
    if is_run(place):
        return around, _page_of("/run", "path", place.relative_to(around))
    return place, "/"


def _page_of(page: str, key: str, place: Path) -> str:
    try:
        return f"{page}?{urlencode({key: place.as_posix()})}"
    except UnicodeEncodeError as error:
        raise PageError(
            f"{str(place)!a} is no name in UTF-8, so no address can have it: rename it"
        ) from error


def _check_packages() -> None:
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise PageError(
                f"the page needs {name}, which is not installed: pip install 'diel[gui]'"
            ) from error


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise PageError(
            f"cannot listen on {host}, port {port}: {why}; --port 0 takes a free port"
        ) from error
    return listener


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _known_as(host: str) -> set[str]:
    """Return the host names and addresses under which a browser may request the page."""
    names = {"localhost", "127.0.0.1", "::1", host.lower()}
    if not _is_loopback(host):
        own = socket.gethostname().lower()
        names |= {own, own.partition(".")[0]}
        with contextlib.suppress(OSError):
            names |= {str(found[4][0]) for found in socket.getaddrinfo(own, None)}
    return names


def _application(folder: Path) -> Any:
    """Return the ASGI application of all pages."""
    import nicegui
    from fastapi import FastAPI
    from nicegui import ui

    from diel.gui.site import Site

    nicegui.core.sio.eio.max_http_buffer_size = MAX_BODY_BYTES  # else a longer message is dropped
    # Quasar's bar, which says that the browser waits, has no name and is outside of the page.
    nicegui.app.config.quasar_config["loadingBar"]["skipHijack"] = True
    site = Site(folder)
    for name in _PAGES:
        importlib.import_module(name).add_pages(site)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        app,
        title="diel",
        language="en-US",
        dark=None,
        show_welcome_message=False,
        tailwind=False,
        reconnect_timeout=_RECONNECT_S,
    )
    return app


def _base(host: str, port: int) -> str:
    reached = host if host not in ("0.0.0.0", "::", "") else socket.gethostname()
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _print_address(host: str, port: int, base: str, start: str, token: str) -> None:
    between = "&" if "?" in start else "?"
    print(f"diel gui: {base}{start}{between}token={token}")
    if _is_loopback(host):
        inside = f"[{host}]" if ":" in host else host
        print(
            "from another machine, run this there and open the same address:\n"
            f"    ssh -L {port}:{inside}:{port} {_user()}@{socket.gethostname()}"
        )
    else:
        print(
            f"diel gui: {host} can be reached by others, and nothing is encrypted: whoever reads "
            "the address in passing can start programs as you. Without --host an ssh -L line is "
            "printed in its place",
            file=sys.stderr,
        )
    print("Ctrl-C ends the page; runs go on", flush=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return "USER"


def _serve(app: Guard, listener: socket.socket) -> None:
    import uvicorn

    logging.basicConfig(level=logging.WARNING, format="diel gui: %(message)s", stream=sys.stderr)
    LOG.setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws_max_size=MAX_BODY_BYTES,
        timeout_graceful_shutdown=_END_S,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
