"""The tuple space: an associative store shared by all modules of a run.

::

    client.py ── Request ──> transport ──> server.py ──> store.py
              <── Reply ────                             (pure: no I/O, no clock)

`tags.py` gives tags and patterns their bytes, `codec.py` values; a server compares the bytes of
tags and never looks into a payload.
"""
