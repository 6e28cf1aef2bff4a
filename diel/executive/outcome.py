"""The outcome of a copy: the value that it returns, or the exception or crash that ends it.

A returned value is in the journal if it is small, else in a file of its own, as long as these files
together do not exceed a limit.

::

    returned/<module>.<copy>.<group>.<iteration>.npy     an array
                                                .bin     bytes
                                                .json    numbers, lists and tables
                                                .txt     text; else the beginning of the repr
             left_out.txt     exists if values did not fit

None of them needs pickle to be read: ``numpy.load``, ``Path.read_bytes``, ``json.load``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import math
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import diel
from diel.errors import DielError, ModuleFailed
from diel.loading import files
from diel.run.files import file_opener, part_of
from diel.run.json_values import StoredValue, as_json, plain
from diel.tuples.codec import is_plain_array

_OWN_FILES: Final = (f"{Path(diel.__file__).parent}{os.sep}", "<frozen importlib")
_OF_IMPORTS: Final = (files.__file__, importlib.__file__, "<frozen importlib")
_LONGEST_REPR: Final = 2**20
_NPY_HEAD_BYTES: Final = 128  # an estimate: a long dtype needs more
_DEEPEST: Final = 100
"""Deeper levels are not counted, since a list may contain itself."""


class ReturnedFolder:
    """The folder for returned values that are too large for the journal, with a limit on its size.

    It is created with the first value. The limit is that of all its files together, of whichever of
    the ranks.
    """

    def __init__(self, path: Path, limit_bytes: int, ranks: int) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._ranks = ranks
        self._share_bytes = 0  # how much this rank may write before it has to scan the folder

    def store(
        self, value: Any, name: str, size_bytes: int, write: Callable[[BinaryIO], object]
    ) -> StoredValue:
        """Write a value to a file if its size fits; a file of the same name is replaced."""
        part = part_of(self.path / name)
        try:
            self.path.mkdir(exist_ok=True)
            with part.open("xb") as file:
                file.truncate(size_bytes)  # reserves the room: other ranks count this file
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
        """Return how much of the limit is left, without counting the file to be replaced."""
        left_bytes = self._limit_bytes
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name != replaced:
                    with contextlib.suppress(FileNotFoundError):  # it was removed just now
                        left_bytes -= entry.stat(follow_symlinks=False).st_size
        # A scan of many files takes long: the next is due when this rank's share is used up.
        self._share_bytes = max(0, left_bytes) // self._ranks
        return left_bytes

    def left_out(self, value: Any, size_bytes: int) -> StoredValue:
        """Return the journal's entry for a value without room; the first in a run has a reason."""
        reason = (
            f"the folder returned may hold {self._limit_bytes:,} bytes (returned_total in "
            "[workflow]) and has no room for it; what does not fit from now on is left out too"
        )
        try:
            self.path.mkdir(exist_ok=True)
            with (self.path / "left_out.txt").open("x") as file:
                file.write(f"{_described(value)}: {reason}\n")
        except FileExistsError:  # another value had the reason already
            reason = ""
        except OSError:
            pass
        return StoredValue(_described(value), size_bytes, None, reason)


def recordable(value: Any, folder: ReturnedFolder, stem: str, limit_bytes: int) -> Any:
    """Return a value as the journal can hold it: in JSON's own types, or a `StoredValue`.

    A value that is larger than the limit as JSON is written to a file in the folder, which is named
    by the stem; a file of that name is replaced.
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
    if is_plain_array(value):
        size_bytes = value.nbytes + _NPY_HEAD_BYTES
        return folder.store(value, f"{stem}.npy", size_bytes, lambda file: _save_array(file, value))
    if readable is None:
        # Without room it is not converted, which would take many times its memory.
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
    """Return a lower bound of a value's size as JSON, without converting it.

    Counting ends when it exceeds `enough_bytes`.
    """
    least_bytes = 0
    items = [(value, 0)]
    while items and least_bytes <= enough_bytes:
        item, depth = items.pop()
        try:
            if isinstance(item, (str, bytes, bytearray)):
                least_bytes += len(item)
            elif isinstance(item, (dict, list, tuple)):
                least_bytes += 2 * len(item)  # an element and its comma
                if least_bytes <= enough_bytes and depth < _DEEPEST:
                    inside = item.values() if isinstance(item, dict) else item
                    items += [(each, depth + 1) for each in inside]
            elif hasattr(item, "tolist") and isinstance(item.size, int):  # an array
                least_bytes += 2 * item.size
        except Exception:  # a user's class can raise anything
            continue
    return least_bytes


def _save_array(file: BinaryIO, array: Any) -> None:
    import numpy as np

    np.save(file, array, allow_pickle=False)


def _described(value: Any) -> str:
    if is_plain_array(value):
        return f"array {value.dtype} {'x'.join(map(str, value.shape))}"
    return type(value).__name__


# -- failures -------------------------------------------------------------------------------------


def detail(error: BaseException) -> str:
    """Return a module's traceback, from the module's first frame on.

    Frames of imports are left out. For an error that diel raises, or a failure of the system such
    as a full disk, so are the innermost frames within diel and the errors that led to it: the
    message suffices.
    """
    try:
        return _detail(error)
    except BaseException:  # without memory, say; and a user's exception may have any attributes
        return ""


def _detail(error: BaseException) -> str:
    if isinstance(error, ModuleFailed):
        return str(error).partition("\n")[2]
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        frames = frames.tb_next
    summary = traceback.TracebackException(type(error), error, frames or error.__traceback__)
    _drop_own_frames(summary, error)
    if not summary.stack:
        return str(error).strip().partition("\n")[2]
    return "".join(summary.format()).rstrip()


def _drop_own_frames(summary: traceback.TracebackException, error: BaseException) -> None:
    stack = [frame for frame in summary.stack if not frame.filename.startswith(_OF_IMPORTS)]
    if isinstance(error, (DielError, OSError)):
        while stack and stack[-1].filename.startswith(_OWN_FILES):
            stack.pop()
            summary.__cause__ = summary.__context__ = None
    summary.stack = traceback.StackSummary.from_list(stack)
    for summary_before, error_before in (
        (summary.__cause__, error.__cause__),
        (summary.__context__, error.__context__),
    ):
        if summary_before is not None and error_before is not None:
            _drop_own_frames(summary_before, error_before)


class CrashNote(NamedTuple):
    """The file for crashes of this process: what has them noted there again, and its descriptor."""

    renew: Callable[[], None]
    descriptor: int


@contextlib.contextmanager
def noting_crashes(file: Path) -> Iterator[CrashNote]:
    """Write the Python stack to a file if this process crashes or a module exits it in this block.

    Parameters
    ----------
    file : Path
        Removed at the end. After a crash its first line is ``Fatal Python error: ...``, after
        ``os._exit(7)`` just that; frames follow, innermost first, as `faulthandler` writes them.

    Yields
    ------
    CrashNote
        Its ``renew`` is for after a module that has used `faulthandler` itself.

    Notes
    -----
    The file is opened at once, since a signal handler cannot open it. Open MPI's handlers run after
    that of `faulthandler`.
    """
    leave, pid = os._exit, os.getpid()

    def dump_stack(status: int) -> None:
        if os.getpid() == pid:  # not in a fork, which usually ends by os._exit
            with contextlib.suppress(Exception):
                os.write(stream.fileno(), f"os._exit({status})\n".encode())
                faulthandler.dump_traceback(stream, all_threads=False)
        leave(status)

    with open(file, "wb", opener=file_opener) as stream:

        def note_crashes() -> None:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.enable(stream, all_threads=False)

        note_crashes()
        setattr(os, "_exit", dump_stack)  # noqa: B010 - an assignment is an error to mypy
        try:
            yield CrashNote(note_crashes, stream.fileno())
        finally:
            setattr(os, "_exit", leave)  # noqa: B010
            faulthandler.disable()
            file.unlink(missing_ok=True)
