"""Polite waiting: spin briefly, then sleep, so that a waiting rank leaves its core to others.

MPI's own blocking calls poll without a pause. On a machine with fewer cores than ranks they
halve the speed of the ranks that compute. Every wait of diel therefore polls a non-blocking
call through this file. The spin keeps the round trip of an idle pair of ranks at the speed of
the hardware; the sleeps keep a rank that waits for minutes under one percent of a core.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Found = TypeVar("Found")

# One poll through mpi4py takes about 1 us.
_EAGER_POLLS: Final = 50
_SPIN_POLLS: Final = 250
_FIRST_SLEEP_S: Final = 20e-6
_LONG_SLEEP_S: Final = 1e-3
_IDLE_AFTER_S: Final = 1.0
_IDLE_SLEEP_S: Final = 5e-3
# While a payload of one's own is under way: MPI moves it only while it is called.
_BRISK_SPIN_POLLS: Final = 5000
_BRISK_SLEEP_S: Final = 50e-6
# A caller's slower checks take several calls of MPI: too often, and they would cost more than the
# wait itself. So they come after a twentieth of the time that was waited, within these bounds.
_CHECK_EVERY_S: Final = (4e-3, 50e-3)
_CHECK_SHARE: Final = 0.05


class Patience:
    """The pauses between the polls of one wait: none, then yields, then ever longer sleeps.

    Parameters
    ----------
    brisk : bool, optional
        Whether a payload may be under way meanwhile: yields for some milliseconds, then sleeps of
        50 us only.
    wakes : sequence of int or of objects with a fileno, optional
        What ends a sleep at once when it can be read. There are no yields then: who is woken need
        not look.
    """

    __slots__ = (
        "_brisk",
        "_next_check_s",
        "_polls",
        "_sleep_s",
        "_sleeping_since_s",
        "_spin_polls",
        "_waker",
    )

    def __init__(self, brisk: bool = False, wakes: Sequence[FileDescriptorLike] = ()) -> None:
        self._brisk = brisk
        self._spin_polls = _BRISK_SPIN_POLLS if brisk else _SPIN_POLLS
        self._waker: select.poll | None = None
        if wakes:
            self._waker = select.poll()
            for file in wakes:
                self._waker.register(file, select.POLLIN)
        self.reset()

    def reset(self) -> None:
        """Start over: something arrived, and more may follow at once."""
        self._polls = 0
        self._sleep_s = _FIRST_SLEEP_S
        self._sleeping_since_s = 0.0
        self._next_check_s = 0.0

    def pause(self) -> bool:
        """Pause before the next poll.

        Returns
        -------
        bool
            Whether this is the moment for a caller's slower checks: it slept, and the last such
            moment is a while ago.
        """
        self._polls += 1
        sleep_s = _BRISK_SLEEP_S
        if self._waker is None:
            if self._polls < _EAGER_POLLS:
                return False
            if self._polls < self._spin_polls:
                os.sched_yield()
                return False
        if not self._brisk:
            sleep_s = self._next_sleep_s()
        if self._waker is None:
            time.sleep(sleep_s)
        else:  # the kernel takes milliseconds
            self._waker.poll(max(1, round(1e3 * sleep_s)))
        now_s = time.perf_counter()
        if now_s < self._next_check_s:
            return False
        if not self._sleeping_since_s:
            self._sleeping_since_s = now_s
        least_s, most_s = _CHECK_EVERY_S
        share_s = _CHECK_SHARE * (now_s - self._sleeping_since_s)
        self._next_check_s = now_s + min(max(least_s, share_s), most_s)
        return True

    def _next_sleep_s(self) -> float:
        # A tenth more each time: whoever is waited for is noticed a tenth of the wait late.
        if not self._sleeping_since_s:
            self._sleeping_since_s = time.perf_counter()
        elif self._sleep_s >= _LONG_SLEEP_S:
            idle = time.perf_counter() - self._sleeping_since_s > _IDLE_AFTER_S
            self._sleep_s = _IDLE_SLEEP_S if idle else _LONG_SLEEP_S
        else:
            self._sleep_s = min(1.1 * self._sleep_s, _LONG_SLEEP_S)
        return self._sleep_s


def wait_for(
    poll: Callable[[], Found | None],
    timeout_s: float | None = None,
    safe_point: Callable[[], None] | None = None,
    *,
    brisk: bool = False,
    wakes: Sequence[FileDescriptorLike] = (),
) -> Found | None:
    """Poll until something is found, politely.

    Parameters
    ----------
    poll : callable
        Looks once, without blocking; returns None for "not yet".
    timeout_s : float, seconds, optional
        Give up after this long; without it, wait for ever.
    safe_point : callable, optional
        Called now and then while waiting; what it raises ends the wait. This is how a rank in
        the middle of a wait learns that the run is stopping.
    brisk : bool, optional
        Whether a payload of one's own may be under way meanwhile, as in `Patience`.
    wakes : sequence of int or of objects with a fileno, optional
        Files that end a pause at once when they can be read, as in `Patience`.

    Returns
    -------
    object or None
        What `poll` found, or None after the timeout.
    """
    found = poll()
    if found is not None:
        return found
    patience = Patience(brisk, wakes)
    deadline_s = None if timeout_s is None else time.perf_counter() + timeout_s
    while True:
        slept = patience.pause()
        found = poll()
        if found is not None:
            return found
        if slept and safe_point is not None:
            safe_point()
        if deadline_s is not None and time.perf_counter() >= deadline_s:
            return None
