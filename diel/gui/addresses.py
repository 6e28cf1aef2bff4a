"""Find the server of ``diel gui`` that shows a run, so that ``diel run`` can print its address.

Every server notes its folder and its address, token included, in a file that its user alone may
read, and locks that file: if a note is not locked, its server was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from diel.run.files import open_regular
from diel.run.json_values import parse_json

_LONGEST_NOTE: Final = 64 * 1024


@contextlib.contextmanager
def noted_server(folder: Path, base: str, token: str) -> Iterator[None]:
    """Note a server in a file during a block; do without if the file cannot be written.

    Parameters
    ----------
    folder : Path
        The folder that the server may show.
    base : str
        The server's address: ``http://127.0.0.1:8470``.
    token : str
    """
    path = _notes() / f"{os.getpid()}.json"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        yield
        return
    with os.fdopen(descriptor, "w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: the server is not found
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(json.dumps({"folder": str(folder), "base": base, "token": token}))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def watch_words(run_dir: Path, *, is_private: bool) -> str:
    """Return the address or command that shows a run in a browser; empty without NiceGUI.

    Parameters
    ----------
    run_dir : Path
    is_private : bool
        Whether the user alone reads the text: only then it may have the token of a server.
    """
    if find_spec("nicegui") is None:
        return ""
    if is_private and (address := _address_for(run_dir.resolve())):
        return address
    return f"diel gui {shlex.quote(os.path.relpath(run_dir))}"


def _address_for(run_dir: Path) -> str:
    """Return the address of a run at a server whose folder has it; empty without such a server."""
    try:
        notes = sorted(_notes().glob("*.json"))
    except OSError:
        return ""
    for path in notes:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            note = _read(path)
            if note is not None and run_dir.is_relative_to(note["folder"]):
                place = run_dir.relative_to(note["folder"]).as_posix()
                query = urlencode({"path": place, "token": note["token"]})
                return f"{note['base']}/run?{query}"
    return ""


def _read(path: Path) -> dict[str, str] | None:
    """Return the note of a server; if the server does not run any more, remove it, return None."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found: dict[str, str] = parse_json(file.read(_LONGEST_NOTE))
            return found
        path.unlink(missing_ok=True)
        return None


def _notes() -> Path:
    """Return the folder for notes of servers on this machine, also where homes are shared."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base, "diel-pages")
    return Path.home() / ".cache" / "diel" / f"pages-{os.uname().nodename}"
