"""What modules call: ``ctx.tuples``.

::

    Asking          requests and their answers; which server has a tag; credit
    ├── Putting      tput, put_if_absent, increment, update, flush
    └── Striping     dist_tput, dist_tget, dist_tread
        └── Getting   tget, tread, claim, count, collect
    TupleClient     both; what comes later: subscribe, watch; the whole space: checkpoint, restore
"""

from __future__ import annotations

import json
import os
from typing import Any

from diel.tuples import checkpoint
from diel.tuples.getting import Getting
from diel.tuples.protocol import Operation
from diel.tuples.putting import Putting
from diel.tuples.subscriptions import Subscription
from diel.tuples.tags import Pattern
from diel.tuples.watching import Watch


class TupleClient(Putting, Getting):
    """The tuple space, as one rank sees it.

    A tag is a string or a tuple of strings and integers. Values are NumPy arrays and bytes,
    which travel as they are, numbers, and any Python object that can be pickled. Several tuples
    may share a tag: first in, first out. With several servers the first field of a tag decides
    which one has it. Not to be shared by threads.

    Parameters
    ----------
    transport : Transport
    """

    def subscribe(self, tag: Pattern) -> Subscription:
        """Receive a copy of each tuple that is put from now on and matches.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY

        Returns
        -------
        Subscription
            An iterator over (tag, value), and a context manager that ends it. What it has not
            given out yet counts as memory of the server.

        Raises
        ------
        TagError
            If `tag` is no pattern.
        """
        key, servers = self._pattern_places(tag)
        return Subscription(self._transport, servers, key, tag, self._note_wait)

    def is_empty(self) -> bool:
        """Whether no tuple is in the space, claimed or not."""
        return not any(self.survey(server)["held_bytes"] for server in range(self._servers))

    def watch(self, tag: Pattern) -> Watch:
        """Return what tells, without waiting, that a tuple matches: for loops that poll.

        Parameters
        ----------
        tag : str or tuple of str, int and ANY

        Raises
        ------
        TagError
            If `tag` is no pattern.
        """
        key, servers = self._pattern_places(tag)
        return Watch(self._transport, servers, key)

    def survey(self, server: int) -> dict[str, Any]:
        """Return what a server holds and who waits there, for whoever explains a deadlock."""
        survey: dict[str, Any] = json.loads(bytes(self._ask(server, Operation.SURVEY).payload))
        return survey

    def checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Write all tuples of the space into a file; they stay in the space.

        Each server's part is as of one instant, and these instants lie close together. Tuples
        that others put or take meanwhile may be in the file or not: where tuples of several
        servers belong together, let the modules be quiet.

        Parameters
        ----------
        path : path
            A module writes to ``ctx.run_dir / "checkpoints" / name``. The folder is made if need
            be; a file that is there is replaced once the new one is whole.

        Returns
        -------
        int
            Tuples in the file, claimed ones included.

        Raises
        ------
        OSError
            If the file cannot be written.
        RunStopped
            If the run is stopping.
        """
        servers = [(server, b"") for server in range(self._servers)]
        first = self._ask_all(Operation.DUMP, servers)
        return checkpoint.save(path, first, self._ask, self._route)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Put all tuples of a checkpoint into the space, beside those that are there.

        The number of servers may differ from that of the run that wrote it. Tuples of the same
        tag keep their order. Values may be pickled objects: restore only what you trust.

        Parameters
        ----------
        path : path

        Returns
        -------
        int
            Tuples that were put.

        Raises
        ------
        CheckpointError
            If the file is no checkpoint, or a damaged one; nothing was put.
        OSError
            If the file cannot be read.
        TupleSpaceFull
            If there is no room, and the file says to raise; what was put before stays.
        RunStopped
            If the run is stopping.
        """
        return checkpoint.restore(path, self._put_again, self.flush)
