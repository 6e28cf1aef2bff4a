"""``tuples.json``: by which socket processes outside of a run reach its tuples, while it goes on.

::

    {"host": "node17", "address": "/tmp/diel-.../tuples", "token": "..."}

Its owner alone may read it (mode 0600), and the folder of the socket is its owner's alone.
"""

from __future__ import annotations

import json
import os
from typing import Final

from diel.frozen import Frozen
from diel.run.directory import RunDirectory, open_regular

_LONGEST_BYTES: Final = 2**16


class TupleAccess(Frozen):
    """Where the tuples of a run are to be had.

    Attributes
    ----------
    host : str
        On which the socket is.
    address : str
        Its path.
    token : str
        To be said with each request.
    """

    host: str
    address: str
    token: str


def write_tuple_access(directory: RunDirectory, access: TupleAccess) -> None:
    """Write the file anew.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    directory.tuple_access.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(directory.tuple_access, flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"host": access.host, "address": access.address, "token": access.token}, file)


def read_tuple_access(directory: RunDirectory) -> TupleAccess | None:
    """Return what the file says; None if there is none that can be read."""
    try:
        with open_regular(directory.tuple_access) as file:
            found = json.loads(file.read(_LONGEST_BYTES))
        return TupleAccess(str(found["host"]), str(found["address"]), str(found["token"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
