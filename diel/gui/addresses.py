"""Which pages are being served now: what ``diel run`` prints, so that its run is one click away.

Every server notes its folder and its address, token included, in a file that its user alone may
read, and holds a lock on it: a note whose lock is free was left by a server that was killed.
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

from diel.run.directory import open_regular

_LONGEST_NOTE: Final = 64 * 1024


@contextlib.contextmanager
def noted_server(folder: Path, base: str, token: str) -> Iterator[None]:
    """Note a server for the length of a block; where that cannot be written, nobody is told.

    Parameters
    ----------
    folder : Path
        What it may show.
    base : str
        Its address: ``http://127.0.0.1:8470``.
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
        with contextlib.suppress(OSError):  # a file system without locks: it counts as left behind
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(json.dumps({"folder": str(folder), "base": base, "token": token}))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def watch_words(run_dir: Path, *, is_private: bool) -> str:
    """Say how a run is watched in a browser; nothing where the extra ``gui`` is not installed.

    Parameters
    ----------
    run_dir : Path
    is_private : bool
        Whether the user alone reads this: only then the token of a server is in it.
    """
    if find_spec("nicegui") is None:
        return ""
    if is_private and (address := _address_for(run_dir.resolve())):
        return address
    return f"diel gui {shlex.quote(os.path.relpath(run_dir))}"


def _address_for(run_dir: Path) -> str:
    """Return the address of a run at a server whose folder it is in; nothing without one."""
    try:
        notes = sorted(_notes().glob("*.json"))
    except OSError:
        return ""
    for path in notes:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = _read(path)
            if note is not None and run_dir.is_relative_to(note["folder"]):
                place = run_dir.relative_to(note["folder"]).as_posix()
                query = urlencode({"path": place, "token": note["token"]})
                return f"{note['base']}/run?{query}"
    return ""


def _read(path: Path) -> dict[str, str] | None:
    """Return a note; None, and it is removed, if its server is not there any more."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found: dict[str, str] = json.loads(file.read(_LONGEST_NOTE))
            return found
        path.unlink(missing_ok=True)
        return None


def _notes() -> Path:
    """Return the folder of the notes of this machine: its own where homes are shared."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base, "diel-pages")
    return Path.home() / ".cache" / "diel" / f"pages-{os.uname().nodename}"
