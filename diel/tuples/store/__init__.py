"""The tuples of one server and the requests that wait for more: a pure state machine.

``handle(client, message, now_s)`` returns the replies that follow from a request, ``expire(now_s)``
those that follow from the passing of time. Messages are bytes in the form of
`diel.tuples.protocol`; there is no I/O but that of `SpillFolder`, and no clock, so tests, the
transport within a process and the server run the same code.

::

    store       TupleStore: what follows from a request
    ├── queues   where tuples lie
    ├── pending  requests that wait for one, subscriptions, which get a copy of each, claims
    └── memory   what they take, the credit of clients, and payloads moved to files

Several tuples may share a tag: first in, first out, also across the tags that a pattern matches.
Requests that wait are served in the order in which they came.
"""

from diel.tuples.store.memory import SpillFolder
from diel.tuples.store.store import TupleStore

__all__ = ["SpillFolder", "TupleStore"]
