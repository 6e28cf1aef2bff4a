"""The environment of a module on a rank: process state, threads of BLAS and OpenMP, log files.

The number of threads comes from the workflow file and never from the number of ranks: one and two
BLAS threads give different bits. It is set before NumPy is imported, and verified afterwards.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from diel.run.files import file_opener

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
_MARKER: Final = "\n\n... {:,} bytes are left out here: log_size in [workflow] is {:,} ...\n\n"


# -- process state --------------------------------------------------------------------------------


@contextlib.contextmanager
def restored_process_state() -> Iterator[None]:
    """Restore working directory, environment and random state of the rank after a block."""
    directory, environment = os.getcwd(), _environment()
    state = random.getstate()
    numpy_random = sys.modules.get("numpy.random")
    numpy_state = numpy_random.get_state() if numpy_random else None
    try:
        yield
    finally:
        os.chdir(directory)
        if _environment() != environment:
            os.environb.clear()
            os.environb.update(environment)
        random.setstate(state)
        if numpy_random and numpy_state is not None:
            numpy_random.set_state(numpy_state)


def _environment() -> dict[bytes, bytes]:
    # What os.environ holds, without decoding all of it for every copy that runs.
    return dict(os.environ._data)  # type: ignore[attr-defined]


@contextlib.contextmanager
def output_to(file: TextIO) -> Iterator[None]:
    """Redirect standard output and error of a block to a file, which is flushed afterwards."""
    try:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            yield
    finally:
        if not file.closed:  # a module may close its standard output
            file.flush()


# -- threads --------------------------------------------------------------------------------------


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that limit a process to so many threads."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def set_thread_environment(threads: int) -> None:
    """Set the environment variables that limit the threads of libraries yet to be loaded."""
    for name, number in thread_environment(threads).items():
        if os.environ.get(name) != number:
            os.environ[name] = number


class ThreadLimiter:
    """Limits the thread pools of this process to the number that its present module asks for."""

    def __init__(self) -> None:
        self._controller: Any = None
        self._modules_seen = 0
        self._verified = 0  # all pools were found to have so many threads

    def apply(self, threads: int) -> None:
        """Limit the threads of every loaded pool, and of libraries that are loaded later."""
        set_thread_environment(threads)
        if self._verified == threads and len(sys.modules) == self._modules_seen:
            return
        if any(pool["num_threads"] != threads for pool in self._pools()):
            self._controller.limit(limits=threads)

    def exceeding(self, threads: int) -> list[str]:
        """Return a description of each pool that has more threads than the limit."""
        pools = self._pools()
        is_right = all(pool["num_threads"] == threads for pool in pools)
        self._verified = threads if is_right else 0
        return [
            f"{pool['internal_api']} has {pool['num_threads']} threads, not {threads}: "
            f"{pool['filepath']}"
            for pool in pools
            if pool["num_threads"] > threads
        ]

    def _pools(self) -> list[dict[str, Any]]:
        # Looking through all loaded libraries takes milliseconds: only after new imports.
        if self._controller is None or len(sys.modules) != self._modules_seen:
            from threadpoolctl import ThreadpoolController

            self._controller = ThreadpoolController()
            self._modules_seen = len(sys.modules)
        pools: list[dict[str, Any]] = self._controller.info()
        return pools


# -- log files ------------------------------------------------------------------------------------


def shorten(path: Path, limit_bytes: int) -> int:
    """Take the middle out of a log file that has outgrown its limit: a quarter at each end stays.

    Its writers have opened it to append, and go on behind its new end. Output that is written
    meanwhile may be lost. Returns the bytes that were left out; 0 if the file is short enough, or
    missing.
    """
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return 0
    kept_bytes = limit_bytes // 4
    if size_bytes <= limit_bytes:
        return 0
    with open(path, "r+b", opener=file_opener) as file:
        file.seek(-kept_bytes, os.SEEK_END)
        end = file.read(kept_bytes).partition(b"\n")
        left_out_bytes = size_bytes - kept_bytes - len(end[2] or end[0])
        file.truncate(kept_bytes)
        file.seek(0, os.SEEK_END)
        file.write(_MARKER.format(left_out_bytes, limit_bytes).encode() + (end[2] or end[0]))
    return left_out_bytes


class LimitedFile(io.FileIO):
    """A file to append to that is shortened when it has outgrown its limit."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        super().__init__(path, "a", opener=file_opener)
        self._path, self._limit_bytes = path, limit_bytes
        self._room_bytes = limit_bytes - path.stat().st_size
        self.left_out_bytes = 0  # what was taken out of it so far

    def write(self, data: Buffer, /) -> int:
        """Write, and shorten the file if that was too much."""
        written_bytes = super().write(data)
        self._room_bytes -= written_bytes
        if self._room_bytes < 0:
            self.left_out_bytes += shorten(self._path, self._limit_bytes)
            self._room_bytes = self._limit_bytes - os.fstat(self.fileno()).st_size
        return written_bytes


class OpenLog:
    """Keeps the last log file open: a group that iterates writes to the same one every time."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._path: Path | None = None
        self._file: LimitedFile | None = None
        self._text: TextIO | None = None

    def open(self, path: Path) -> TextIO:
        """Return the log file at a path, to append to; an open file at another path is closed."""
        if self._text is None or self._text.closed or path != self._path:
            self.close()
            self._file = LimitedFile(path, self._limit_bytes)
            buffer = io.BufferedWriter(self._file)
            self._text = io.TextIOWrapper(buffer, encoding="utf-8", line_buffering=True)
            self._path = path
        return self._text

    def take_left_out_bytes(self) -> int:
        """Return how many bytes were taken out of the present file since the last call."""
        if self._file is None:
            return 0
        left_out_bytes, self._file.left_out_bytes = self._file.left_out_bytes, 0
        return left_out_bytes

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._text is not None:
            self._text.close()
