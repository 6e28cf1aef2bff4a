"""The store of a tuple server, with its tuples and waiting requests: a pure state machine.

``handle(client, message, now_s)`` applies a request and returns replies, ``expire(now_s)`` returns
replies for timeouts and leases that have ended. Messages are bytes as in `diel.tuples.protocol`;
there is no I/O except in `SpillFolder`, and no clock, so that tests, the transport within a process
and the server run the same code.

::

    store       TupleStore: the operations
    ├── queues   the tuples, by tag, with indexes for patterns
    ├── pending  waiting requests, subscriptions and claims
    └── memory   memory of the tuples, credit of clients, payloads moved to files

Several tuples may share a tag: first in, first out, also across all tags that a pattern matches.
Waiting requests are served in order of arrival.
"""

from diel.tuples.store.memory import SpillFolder
from diel.tuples.store.store import TupleStore

__all__ = ["SpillFolder", "TupleStore"]
