"""``tuples.json``: the socket by which processes outside of a run reach its tuples.

::

    {"host": "node17", "address": "/tmp/diel-.../tuples", "token": "..."}

It is there while the run goes on. Only its owner may read it (mode 0600), and the folder of the
socket is open to the owner only.
"""

from __future__ import annotations

import json
import os
from typing import Final

from diel.frozen import Frozen
from diel.run.directory import RunDirectory, open_regular

_LONGEST_BYTES: Final = 2**16


class TupleAccess(Frozen):
    """The socket by which the tuples of a run can be reached, and the token for it.

    Attributes
    ----------
    host : str
        On which the socket is.
    address : str
        Path of the socket.
    token : str
        To be sent with each request.
    """

    host: str
    address: str
    token: str


def write_tuple_access(directory: RunDirectory, access: TupleAccess) -> None:
    """Write ``tuples.json`` in one step, in place of an older one.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    unfinished = directory.tuple_access.with_suffix(".json.part")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(unfinished, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps(access.as_dict()))
    os.replace(unfinished, directory.tuple_access)


def read_tuple_access(directory: RunDirectory) -> TupleAccess | None:
    """Return the content of ``tuples.json``; None if it is missing or cannot be read."""
    try:
        with open_regular(directory.tuple_access) as file:
            found = json.loads(file.read(_LONGEST_BYTES))
        return TupleAccess(str(found["host"]), str(found["address"]), str(found["token"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
