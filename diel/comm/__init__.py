"""Messages between ranks: MPI tags, waiting that leaves cores free, mailboxes, communicators.

Nothing here depends on groups, tuples or sweeps.
"""
