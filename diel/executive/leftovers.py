"""Removal of the shared memory and temporary files of runs whose processes were all killed.

::

    /dev/shm/sm_segment.<host>.<uid>.*      Open MPI's shared memory (vader_segment: version 4)
    /dev/shm/mpich_shm_*                    MPICH's shared memory
    /dev/shm/diel-<uid>-*/                  sockets by which ranks wake each other
    /tmp/ompi.<pid>/                        the folder of Open MPI's launcher
    /tmp/diel-*/tuples                      the socket of ``diel tuple``

The kernel removes none of it, and 16 MiB a rank add up. So the next run removes such a file or
folder if it is this user's, is a minute old, and is not in use: no process has mapped it, none
listens at a socket in it, and the process in its name has ended.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_SHARED_MEMORY: Final = Path("/dev/shm")
# Younger files are kept: a process may have created one and not mapped it yet.
_YOUNG_S: Final = 60.0
_CONNECTION_S: Final = 0.5


def remove_leftovers(places: Sequence[Path] | None = None) -> list[Path]:
    """Remove the files of dead runs of this user on this machine.

    Parameters
    ----------
    places : sequence of Path, optional
        The folders to search. Default: shared memory and the folders for temporary files.

    Returns
    -------
    list of Path
        The removed files and folders.
    """
    if places is None:
        places = (_SHARED_MEMORY, Path(tempfile.gettempdir()), Path("/tmp"))
    found = [path for place in dict.fromkeys(places) for path in _candidates(place)]
    if not found:
        return []
    mapped = _mapped()
    removed = []
    for path in found:
        if not _is_used(path, mapped):
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            except OSError:  # another process has removed it
                continue
            removed.append(path)
    return removed


def _candidates(place: Path) -> Iterator[Path]:
    host, user = re.escape(platform.node().split(".")[0]), os.geteuid()
    names = re.compile(
        rf"(sm|vader)_segment\.{host}(\.\S+)?\.{user}\.\S+|mpich_shm_\w+|diel-{user}-[0-9a-f]+"
        r"|ompi\.\d+|diel-[a-z0-9_]{8}"
    )
    try:
        entries = list(os.scandir(place))
    except OSError:
        return
    for entry in entries:
        if not names.fullmatch(entry.name):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it has just gone
            continue
        is_known = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if is_known and status.st_uid == user and time.time() - status.st_mtime > _YOUNG_S:
            yield Path(entry.path)


def _is_used(path: Path, mapped: set[str]) -> bool:
    """Whether a process may still use a file or folder; one of unknown origin counts as used."""
    inside = f"{path}{os.sep}"
    if any(name == str(path) or name.startswith(inside) for name in mapped):
        return True
    if not path.is_dir():
        return False
    try:
        names = set(os.listdir(path))
        if path.name.startswith("ompi."):
            # Only this host's: if containers share the folder, this one does not see the
            # processes of the others.
            host = platform.node().split(".")[0]
            is_ours = any(name.startswith(f"pmix.{host}.") for name in names)
            return not is_ours or Path("/proc", path.suffix[1:]).exists()
        if not names <= {"tuples"} and not names & {"pid", "asleep"}:
            return True
        return any(_listens(path / name) for name in names)
    except OSError:  # it is just being removed
        return True


def _listens(path: Path) -> bool:
    """Whether a process, also one in another container, receives at a socket."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as connection:
            connection.settimeout(_CONNECTION_S)
            try:
                connection.connect(str(path))
            except ConnectionRefusedError:
                return False
            except OSError:  # a socket of the other kind, or a busy one
                continue
            return True
    return True


def _mapped() -> set[str]:
    """Return the paths that processes of this user have mapped into their memory."""
    files: set[str] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                lines = Path("/proc", name, "maps").read_bytes().splitlines()
            except OSError:  # the process has just ended, or is another user's
                continue
            fields = (line.split(None, 5) for line in lines)
            files.update(field[5].decode(errors="replace") for field in fields if len(field) > 5)
    return files
