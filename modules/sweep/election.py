"""Which of several masters leads a shared sweep: the one that makes the file of a term.

::

    sweeps/<group>.<master>/terms/
        000001          the leader of the first term: made by link(), which succeeds only once
        000001.ended    that this term has ended, and how: made by its leader

A leader that has died makes no second file. The other masters find that out by its silence
(`joining`), and one of them takes the next term. A leader that was only slow finds its ledger
replaced: a new leader goes on with a copy of it, so what the old leader still writes is in no file
any more.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Final

from diel import open_regular, part_of, read_json, replace_file, replacing, whole_lines

from .joining import Identity

FINISHED: Final = "finished"
STOPPED: Final = "stopped"
_FOLDER: Final = "terms"
_LONGEST_WORDS_BYTES: Final = 100
_TERM: Final = re.compile(r"([0-9]{1,9})(\.ended)?")
_WITHOUT_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""Errors of a file system that has no hard links."""


def _words_in(file: Path) -> str:
    """Return how a term has ended; that its leader stopped, if its file cannot be read."""
    try:
        with open_regular(file) as opened:
            return opened.read(_LONGEST_WORDS_BYTES).decode(errors="replace") or STOPPED
    except FileNotFoundError:
        raise
    except OSError:
        return STOPPED


class Terms:
    """The terms of a shared sweep, beside its ledger; `me` identifies this master."""

    def __init__(self, ledger: Path, me: Identity) -> None:
        self._ledger = ledger
        self._folder = ledger.with_name(_FOLDER)
        self._me = me

    def latest(self) -> tuple[int, str]:
        """Return the latest term, 0 if there is none, and how it has ended: empty if it has not."""
        try:
            names = [entry.name for entry in os.scandir(self._folder)]
        except FileNotFoundError:
            return 0, ""
        terms = [int(found[1]) for name in names if (found := _TERM.fullmatch(name))]
        term = max(terms, default=0)
        ended = self._file(term, ".ended")
        return term, _words_in(ended) if ended.name in names else ""

    def take(self, term: int) -> bool:
        """Begin a term, unless another master has; return whether this master leads.

        The ledger is replaced by a copy of itself, to which a former leader does not write.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        part = part_of(self._file(term))
        try:
            with part.open("x", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self._me)) + "\n")
            is_taken = self._make(part, self._file(term))
        finally:
            part.unlink(missing_ok=True)
        if is_taken and self._ledger.exists():
            with replacing(self._ledger, sync=True) as copy:
                copy.writelines(whole_lines(self._ledger))
        return is_taken

    @staticmethod
    def _make(part: Path, file: Path) -> bool:
        """Make the file of a term; return whether this process has made it."""
        try:
            os.link(part, file)
        except FileExistsError:
            pass  # it may be our own link: the answer of a file server is lost at times
        except OSError as error:
            if error.errno not in _WITHOUT_LINKS:
                raise
            try:
                file.open("x").close()
            except FileExistsError:
                return False
            return True
        return part.stat().st_nlink > 1

    def end(self, term: int, how: str) -> None:
        """Record that a term of this master has ended, and how."""
        replace_file(self._file(term, ".ended"), how)

    def leader(self, term: int) -> str:
        """Return the run and the host of a term's leader as text; empty if that cannot be read."""
        identity = self._leader_identity(term)
        return f"{identity['run_dir']} on {identity['host']}" if identity else ""

    def is_of_this_run(self, term: int) -> bool:
        """Whether a term is of an earlier session of this run, which is over."""
        return self._leader_identity(term).get("run_dir") == self._me.run_dir

    def _leader_identity(self, term: int) -> dict[str, str]:
        try:
            identity = read_json(self._file(term))
            return {name: str(identity[name]) for name in ("run_dir", "host")}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def _file(self, term: int, suffix: str = "") -> Path:
        return self._folder / f"{term:06d}{suffix}"
