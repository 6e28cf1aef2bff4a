"""Tags that a client has used before: what most of a message about them is."""

from __future__ import annotations

import math
from typing import NamedTuple

from diel.tuples import codec
from diel.tuples.memory import Account
from diel.tuples.protocol import PLAIN, PUT_HEAD, QUERY_HEAD, QUESTION_HEAD, SIZE, Operation


class KnownTag(NamedTuple):
    """What does not change from message to message about a tag: most of the next message.

    Attributes
    ----------
    key : bytes
    server : int
    account : Account
        At that server.
    put_head : bytes
        All of the put of bytes that stands before their size.
    question_rest : bytes
        All of a `PLAIN` question behind its serial.
    """

    key: bytes
    server: int
    account: Account
    put_head: bytes
    question_rest: bytes

    @classmethod
    def of(cls, key: bytes, server: int, account: Account) -> KnownTag:
        """Prepare the messages of a tag whose bytes are `key`."""
        put_head = PUT_HEAD.pack(Operation.PUT, 0, 0, 0, 0, codec.BYTES, len(key), 0, 0)
        question = QUERY_HEAD.pack(0, 0, PLAIN, 0, 0, math.inf, -1, len(key), 0)
        question_rest = question[QUESTION_HEAD.size :] + key
        return cls(key, server, account, put_head[: -SIZE.size], question_rest)
