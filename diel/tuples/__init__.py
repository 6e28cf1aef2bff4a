"""The tuple space: an associative store shared by all modules of a run.

::

    client.py                       what modules call; claims, subscriptions, watches: handles.py
      requests.py, striping.py      its parts: routing, credit and waits; tuples in pieces
        transport.py                carries messages, over MPI or within a process
          server.py                 receives them, and sends what the store answers
            store/                  pure: no network, no clock

`protocol.py` alone knows the bytes of a message. `tags.py` gives tags and patterns their bytes,
`codec.py` values; a server compares the bytes of tags and never looks into a payload.
"""
