"""MPI tags on the parent communicator, named by direction."""

from __future__ import annotations

from typing import Final

_GROUP_TAGS: Final = 2**14

EXECUTIVE_TO_WORKER: Final = 1
WORKER_TO_EXECUTIVE: Final = 2
# Beside the orders, so that a rank in the middle of a module can look for this one alone.
EXECUTIVE_TO_ALL_STOP: Final = 3
EXECUTIVE_TO_WORKER_LEAVE_COPY: Final = 4

CLIENT_TO_SERVER: Final = 10
CLIENT_TO_SERVER_PAYLOAD: Final = 11
SERVER_TO_CLIENT: Final = 12
SERVER_TO_CLIENT_PAYLOAD: Final = 13
EXECUTIVE_TO_SERVER_LEAVE: Final = 14

# Between the ranks of modules. A payload has a number of its own among those under way, from this
# tag on: 2^15 - 1 is the largest tag that every MPI has (MPI-4.1, 8.1.2).
DIRECT_HEAD: Final = 20
DIRECT_PAYLOAD_FIRST: Final = 1024
DIRECT_PAYLOADS: Final = 2**13


def for_group(serial: int) -> int:
    """Return the tag with which a communicator with this number is made.

    By the standard these tags have a space of their own (MPI-4.1, 7.4.2). Open MPI 5 sends ordinary
    messages with them: one that equals a tag above would land in a receive that waits for that.
    Tags up to 2^15 - 1 are allowed everywhere (MPI-4.1, 9.1.2).
    """
    return _GROUP_TAGS + serial % _GROUP_TAGS
