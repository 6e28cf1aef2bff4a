"""What comes of a copy: the value that it returns, or the exception or crash that ends it.

A returned value is in the journal if it is small, else in a file of its own, as long as all of
these together do not outgrow their limit.

::

    returned/<module>.<copy>.<group>.<iteration>.npy     an array
                                                .bin     bytes
                                                .json    numbers, lists and tables
                                                .txt     text; of anything else the repr, in part
             left_out.txt     there if values did not fit

None of them needs pickle to be read: ``numpy.load``, ``Path.read_bytes``, ``json.load``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import diel
from diel.errors import DielError, ModuleFailed
from diel.run.json_values import StoredValue, as_json, plain

_OURS: Final = (f"{Path(diel.__file__).parent}{os.sep}", "<frozen importlib")
_LONGEST_REPR: Final = 2**20
_NPY_HEAD_BYTES: Final = 128  # nearly always
_DEEPEST: Final = 100
"""Lists may hold themselves: what is nested deeper is not counted."""


class ReturnedFolder:
    """The folder of returned values that the journal does not hold, and the limit on their sum.

    Parameters
    ----------
    path : Path
        Made with the first value.
    limit_bytes : int
        What its files may take together, whichever ranks write them.
    ranks : int
        How many may write there.
    """

    def __init__(self, path: Path, limit_bytes: int, ranks: int) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._ranks = ranks
        self._share_bytes = 0  # what this rank may still write without looking at the folder

    def store(
        self, value: Any, name: str, size_bytes: int, write: Callable[[BinaryIO], object]
    ) -> StoredValue:
        """Write a value to a file of this size if there is room; one of its name is replaced."""
        part = self.path / f"{name}.part"
        try:
            self.path.mkdir(exist_ok=True)
            part.unlink(missing_ok=True)
            with part.open("xb") as file:
                file.truncate(size_bytes)  # other ranks see it: no two use the same room
                if size_bytes <= self._share_bytes:
                    self._share_bytes -= size_bytes
                elif self._left_bytes(replaced=name) < 0:
                    part.unlink()
                    return self.left_out(value, size_bytes)
                write(file)
                file.truncate()
            part.replace(self.path / name)
            return StoredValue(_described(value), (self.path / name).stat().st_size, name)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            why = f"{self.path / name}: {error.strerror or error}"
            return StoredValue(_described(value), size_bytes, None, why)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a file of this size would fit."""
        return size_bytes <= self._share_bytes or size_bytes <= self._left_bytes()

    def _left_bytes(self, replaced: str = "") -> int:
        """Return what the files leave of the limit, but for one that is to be replaced."""
        left_bytes = self._limit_bytes
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name != replaced:
                    with contextlib.suppress(FileNotFoundError):  # it was removed just now
                        left_bytes -= entry.stat(follow_symlinks=False).st_size
        # To look takes long where there are many files: not again before this is used up.
        self._share_bytes = max(0, left_bytes) // self._ranks
        return left_bytes

    def left_out(self, value: Any, size_bytes: int) -> StoredValue:
        """Return what the journal says of a value without room; the first in a run has a reason."""
        reason = (
            f"the folder returned may hold {self._limit_bytes:,} bytes (returned_total in "
            "[workflow]) and has no room for it; what does not fit from now on is left out too"
        )
        try:
            self.path.mkdir(exist_ok=True)
            with (self.path / "left_out.txt").open("x") as file:
                file.write(f"{_described(value)}: {reason}\n")
        except FileExistsError:  # it was said before
            reason = ""
        except OSError:
            pass
        return StoredValue(_described(value), size_bytes, None, reason)


def recordable(value: Any, folder: ReturnedFolder, stem: str, limit_bytes: int) -> Any:
    """Return a value as the journal can hold it; a large one goes to a file.

    Parameters
    ----------
    value : object
        What a module has returned.
    folder : ReturnedFolder
        Where files of large values are written.
    stem : str
        The file's name without its suffix. A file of that name is replaced.
    limit_bytes : int
        What the value may take as JSON.

    Returns
    -------
    object
        In JSON's own types, or a `StoredValue`.
    """
    if value is None or type(value) in (bool, float):
        return plain(value)
    readable = None
    least_bytes = _least_json_bytes(value, limit_bytes)
    if least_bytes <= limit_bytes:
        readable = plain(value)
        fits = not isinstance(readable, str) or len(readable) <= limit_bytes
        if fits and len(as_json(readable)) <= limit_bytes:
            return readable
    if isinstance(value, (bytes, bytearray)):
        return folder.store(value, f"{stem}.bin", len(value), lambda file: file.write(value))
    if _is_plain_array(value):
        size_bytes = value.nbytes + _NPY_HEAD_BYTES
        return folder.store(value, f"{stem}.npy", size_bytes, lambda file: _save_array(file, value))
    if readable is None:
        # Without room it is not even converted, which takes many times its memory.
        least_bytes = _least_json_bytes(value)
        if not folder.has_room(least_bytes):
            return folder.left_out(value, least_bytes)
        readable = plain(value)
    if not isinstance(readable, str):
        data = as_json(readable)
        return folder.store(value, f"{stem}.json", len(data), lambda file: file.write(data))
    problem = ""
    if not isinstance(value, (str, int)) and len(readable) > _LONGEST_REPR:
        problem = f"it has the first {_LONGEST_REPR:,} of {len(readable):,} characters of its repr"
        readable = readable[:_LONGEST_REPR]
    text = readable.encode(errors="replace")
    stored = folder.store(value, f"{stem}.txt", len(text), lambda file: file.write(text))
    return stored.replace(problem=stored.problem or problem) if stored.file else stored


def _least_json_bytes(value: Any, enough_bytes: float = math.inf) -> int:
    """Return what a value takes as JSON at least, without converting it.

    Counting ends when it is more than enough.
    """
    least_bytes = 0
    items = [(value, 0)]
    while items and least_bytes <= enough_bytes:
        item, depth = items.pop()
        if isinstance(item, (str, bytes, bytearray)):
            least_bytes += len(item)
        elif isinstance(item, (dict, list, tuple)):
            least_bytes += 2 * len(item)  # an element and its comma
            if least_bytes <= enough_bytes and depth < _DEEPEST:
                inside = item.values() if isinstance(item, dict) else item
                items += [(each, depth + 1) for each in inside]
        elif hasattr(item, "tolist") and isinstance(item.size, int):  # an array
            least_bytes += 2 * item.size
    return least_bytes


def _is_plain_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # whoever returns an array has imported it
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def _save_array(file: BinaryIO, array: Any) -> None:
    import numpy as np

    np.save(file, array, allow_pickle=False)


def _described(value: Any) -> str:
    if _is_plain_array(value):
        return f"array {value.dtype} {'x'.join(map(str, value.shape))}"
    return type(value).__name__


# -- failures -------------------------------------------------------------------------------------


def detail(error: BaseException) -> str:
    """Return a module's traceback, from its own first frame on.

    Of an error that diel has found, or a failure of the system such as a full disk, the frames
    within diel are left out, and so is what led to it: the message says it all.
    """
    if isinstance(error, ModuleFailed):
        return str(error).partition("\n")[2]
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    summary = traceback.TracebackException(type(error), error, frames or error.__traceback__)
    _leave_out_ours(summary, error)
    if not summary.stack:
        return str(error).strip().partition("\n")[2]
    return "".join(summary.format()).rstrip()


def _leave_out_ours(summary: traceback.TracebackException, error: BaseException) -> None:
    if isinstance(error, (DielError, OSError)):
        stack = list(summary.stack)
        while stack and stack[-1].filename.startswith(_OURS):
            stack.pop()
            summary.__cause__ = summary.__context__ = None
        summary.stack = traceback.StackSummary.from_list(stack)
    for told_before, before in (
        (summary.__cause__, error.__cause__),
        (summary.__context__, error.__context__),
    ):
        if told_before is not None and before is not None:
            _leave_out_ours(told_before, before)


@contextlib.contextmanager
def noting_crashes(file: Path) -> Iterator[None]:
    """Keep in a file where Python is if this process crashes or a module ends it meanwhile.

    Parameters
    ----------
    file : Path
        Removed at the end. A crash leaves ``Fatal Python error: ...``, ``os._exit(7)`` leaves just
        that; frames follow, the innermost first, as `faulthandler` writes them.

    Notes
    -----
    What a signal handler may write must be open before. Open MPI's handlers run after ours.
    """
    leave, pid = os._exit, os.getpid()

    def say_where(status: int) -> None:
        if os.getpid() == pid:  # and not a fork, which ends so as a rule
            with contextlib.suppress(Exception):
                os.write(stream.fileno(), f"os._exit({status})\n".encode())
                faulthandler.dump_traceback(stream, all_threads=False)
        leave(status)

    with file.open("wb") as stream:
        faulthandler.enable(stream, all_threads=False)
        setattr(os, "_exit", say_where)  # noqa: B010 - an assignment is an error to mypy
        try:
            yield
        finally:
            setattr(os, "_exit", leave)  # noqa: B010
            faulthandler.disable()
            file.unlink(missing_ok=True)
