"""What a module finds round it in a rank, and what is put back after it."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def restored_process_state() -> Iterator[None]:
    """Give the rank back its working directory, environment and random state afterwards."""
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
    """Let what is printed go to a file, and be there afterwards."""
    try:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            yield
    finally:
        if not file.closed:  # a module may close its standard output
            file.flush()
