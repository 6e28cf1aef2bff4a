"""MPI tags on the parent communicator, named by direction."""

from __future__ import annotations

from typing import Final

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
