"""``tuples.json``: the socket by which processes outside of a run reach its tuples.

::

    {"host": "node17", "address": "/tmp/diel-.../tuples", "token": "..."}

It is there while the run goes on. Only its owner may read it (mode 0600), and the folder of the
socket is open to the owner only.
"""

from __future__ import annotations

import json

from diel.frozen import Frozen
from diel.run.directory import RunDirectory
from diel.run.files import read_json, replace_file


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

    An OSError if it cannot be written.
    """
    replace_file(directory.tuple_access, json.dumps(access.as_dict()), mode=0o600)


def read_tuple_access(directory: RunDirectory) -> TupleAccess | None:
    """Return the content of ``tuples.json``; None if it is missing or cannot be read."""
    try:
        found = read_json(directory.tuple_access)
        return TupleAccess(str(found["host"]), str(found["address"]), str(found["token"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
