"""MPI tags on the parent communicator, named by direction."""

from __future__ import annotations

from typing import Final

_GROUP_TAGS: Final = 2**14

EXECUTIVE_TO_WORKER: Final = 1
WORKER_TO_EXECUTIVE: Final = 2
# Apart from other instructions, so that a rank in the middle of a module can probe for it alone.
EXECUTIVE_TO_ALL_STOP: Final = 3
EXECUTIVE_TO_WORKER_LEAVE_COPY: Final = 4

CLIENT_TO_SERVER: Final = 10
CLIENT_TO_SERVER_PAYLOAD: Final = 11
SERVER_TO_CLIENT: Final = 12
SERVER_TO_CLIENT_PAYLOAD: Final = 13

# Between the ranks of modules. A payload has a number that no other payload under way has, added to
# the first tag: 2^15 - 1 is the largest tag that every MPI has (MPI-4.1, 8.1.2).
DIRECT_HEAD: Final = 20
DIRECT_PAYLOAD_FIRST: Final = 1024
DIRECT_PAYLOADS: Final = 2**13
# Where MPI has larger tags.
LANE_FIRST: Final = 2**15


def for_group(serial: int) -> int:
    """Return the tag for creating the communicator with this serial number.

    By the standard these tags have a space of their own (MPI-4.1, 7.4.2). Open MPI 5 sends ordinary
    messages with them: if one equalled a tag above, it would match a receive for that tag.
    Tags up to 2^15 - 1 are allowed everywhere (MPI-4.1, 9.1.2).
    """
    return _GROUP_TAGS + serial % _GROUP_TAGS
