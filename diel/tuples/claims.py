"""Claims: tuples that are out for as long as the work on them lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

from diel.errors import ClaimLost
from diel.tuples.protocol import Operation, Reply, Status
from diel.tuples.tags import Tag, format_tag


class Claim:
    """A tuple that this rank holds; made by `TupleClient.claim`.

    As a context manager it acknowledges the tuple at the end of the block, after which it is
    gone, and gives it back if the block raises.

    Attributes
    ----------
    tag : str or tuple of str and int
    value : object
    """

    def __init__(self, tag: Any, value: Any, ask: Callable[[Operation, float], Reply]) -> None:
        self.tag: Tag = tag
        self.value = value
        self._ask = ask
        self._is_held = True

    def acknowledge(self) -> None:
        """Say that the work is done: the tuple is gone.

        Raises
        ------
        ClaimLost
            If its lease ended before.
        """
        self._end(Operation.ACKNOWLEDGE)

    def give_back(self) -> None:
        """Put the tuple back to its old place.

        Raises
        ------
        ClaimLost
            If its lease ended before.
        """
        self._end(Operation.GIVE_BACK)

    def renew(self, lease: float) -> None:
        """Let the lease end `lease` seconds from now.

        Raises
        ------
        ClaimLost
            If it ended before.
        """
        if not lease > 0:
            raise ValueError(f"a lease is longer than 0 s; got {lease!r}")
        self._check(self._ask(Operation.RENEW, lease))

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_held:
            return
        if error is None:
            self.acknowledge()
            return
        with contextlib.suppress(ClaimLost):  # then it was given back, and the error says more
            self.give_back()

    def _end(self, operation: Operation) -> None:
        reply = self._ask(operation, 0.0)
        self._is_held = False
        self._check(reply)

    def _check(self, reply: Reply) -> None:
        if reply.status == Status.GONE:
            self._is_held = False
            raise ClaimLost(f"the claim on {format_tag(self.tag)} is no longer held")
