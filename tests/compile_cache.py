"""Files that compilers made for tests: kept, shared by processes, and each made by one of them."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path


def digest(*facts: object) -> str:
    """Return a name for what depends on these facts alone."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def cache_folder(kind: str, *facts: object) -> Path:
    """Return the folder of files of a kind that depend on facts: of the machine, the compiler."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "dnn" / kind / digest(*facts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def made_once(file: Path, make: Callable[[Path], None]) -> Path:
    """Return a file, written under another name by the one process that makes it.

    Others wait for it. If `make` raises, there is no file, and the next process tries again.
    """
    if not file.exists():
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                half_done = file.with_suffix(".tmp")
                make(half_done)
                half_done.replace(file)
    return file
