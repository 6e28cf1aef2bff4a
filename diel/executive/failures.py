"""What is said of a module that fails: an exception, or the end of its whole rank."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import diel
from diel.errors import DielError, ModuleFailed

_OURS = (f"{Path(diel.__file__).parent}{os.sep}", "<frozen importlib")


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
