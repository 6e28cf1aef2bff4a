"""The tuple space: an associative store shared by all modules of a run.

::

    client.py                       the calls of modules; claims, subscriptions, watches: handles.py
      requests.py, striping.py      routing, credit and waits; tuples in pieces
        transport.py                sends messages, within a process; mpi_transport.py over MPI
          server.py                 receives requests, and sends the replies of the store
            store/                  the tuples; pure: no network, no clock

`protocol.py` has the layout of messages. `tags.py` encodes tags and patterns, `codec.py` values; a
server compares encoded tags and inspects no payload, except to add numbers.
"""
