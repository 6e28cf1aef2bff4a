"""What comes of a copy: the value that it returns, or the exception or crash that ends it.

A returned value is in the journal if it is small, else in a file of its own.

::

    returned/<module>.<copy>.<group>.<iteration>.npy     an array
                                                .bin     bytes
                                                .json    numbers, lists and tables
                                                .txt     text; of anything else the repr, in part

None of them needs pickle to be read: ``numpy.load``, ``Path.read_bytes``, ``json.load``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import diel
from diel.errors import DielError, ModuleFailed
from diel.run.journal import as_json, plain
from diel.run.records import StoredValue

_OURS: Final = (f"{Path(diel.__file__).parent}{os.sep}", "<frozen importlib")
_LONGEST_REPR: Final = 2**20


def recordable(value: Any, folder: Path, stem: str, limit_bytes: int) -> Any:
    """Return a value as the journal can hold it; a large one goes to a file.

    Parameters
    ----------
    value : object
        What a module has returned.
    folder : Path
        Where files of large values are written; made if need be.
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
    if isinstance(value, (bytes, bytearray)):
        if len(value) <= limit_bytes and len(as_json(plain(value))) <= limit_bytes:
            return plain(value)
        return _store(value, folder, f"{stem}.bin", lambda file: file.write(value))
    if _is_plain_array(value):
        # An element and its comma are two bytes at least: a large array never becomes a list.
        if 2 * value.size <= limit_bytes and len(as_json(plain(value))) <= limit_bytes:
            return plain(value)
        return _store(value, folder, f"{stem}.npy", lambda file: _save_array(file, value))
    readable = plain(value)
    if not (isinstance(readable, str) and len(readable) > limit_bytes):
        encoded = as_json(readable)
        if len(encoded) <= limit_bytes:
            return readable
        if not isinstance(readable, str):
            return _store(value, folder, f"{stem}.json", lambda file: file.write(encoded))
    problem = ""
    if not isinstance(value, (str, int)) and len(readable) > _LONGEST_REPR:
        problem = f"it has the first {_LONGEST_REPR:,} of {len(readable):,} characters of its repr"
        readable = readable[:_LONGEST_REPR]
    text = readable.encode(errors="replace")
    return _store(value, folder, f"{stem}.txt", lambda file: file.write(text), problem)


def _is_plain_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # whoever returns an array has imported it
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def _save_array(file: BinaryIO, array: Any) -> None:
    import numpy as np

    np.save(file, array, allow_pickle=False)


def _store(
    value: Any, folder: Path, name: str, write: Callable[[BinaryIO], object], problem: str = ""
) -> StoredValue:
    described = type(value).__name__
    if _is_plain_array(value):
        described = f"array {value.dtype} {'x'.join(map(str, value.shape))}"
    part = folder / f"{name}.part"
    try:
        folder.mkdir(exist_ok=True)
        part.unlink(missing_ok=True)
        with part.open("xb") as file:
            write(file)
        part.replace(folder / name)
        return StoredValue(described, (folder / name).stat().st_size, name, problem)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        size_bytes = getattr(value, "nbytes", 0) or sys.getsizeof(value)
        why = f"{folder / name}: {error.strerror or error}"
        return StoredValue(described, int(size_bytes), None, why)


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
    told = traceback.TracebackException(type(error), error, frames or error.__traceback__)
    _leave_out_ours(told, error)
    if not told.stack:
        return str(error).strip().partition("\n")[2]
    return "".join(told.format()).rstrip()


def _leave_out_ours(told: traceback.TracebackException, error: BaseException) -> None:
    if isinstance(error, (DielError, OSError)):
        stack = list(told.stack)
        while stack and stack[-1].filename.startswith(_OURS):
            stack.pop()
            told.__cause__ = told.__context__ = None
        told.stack = traceback.StackSummary.from_list(stack)
    for told_before, before in (
        (told.__cause__, error.__cause__),
        (told.__context__, error.__context__),
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
