"""Waiting by polls: spin briefly, then sleep, so that a waiting rank leaves its core to others.

MPI's own blocking calls poll without a pause. On a machine with fewer cores than ranks they
halve the speed of the ranks that compute. Every wait of diel therefore polls a non-blocking
call through this file. The spin keeps the round trip of an idle pair of ranks at the speed of
the hardware; the sleeps leave the core to other processes. Where the awaited rank can wake this one
(`diel.comm.wakeup`), or a file descriptor can, sleeps are long; elsewhere they are short, since a
message is noticed only at their end.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from diel.comm.wakeup import Wakeup, sleep_on

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
# A rank that can be woken polls several times as long as waking it takes, if it has a core to
# itself: ranks that only wait for each other then start groups as fast as by polling alone.
_WAKEABLE_SPIN_S: Final = 500e-6
# A message may have come before the rank announces its sleep. Open MPI's probe looks for a match
# first and processes arrivals afterwards, so that only the second probe finds it.
_POLLS_AFTER_ANNOUNCING: Final = 2
# Its sleeps end by themselves too, in case that a wake-up is lost. They are not shorter, since many
# ranks on few cores wait for each other so long that the polls themselves would hold them up.
_FIRST_WAKEABLE_SLEEP_S: Final = 50e-3
_SLEEP_SHARE: Final = 0.1
_LONGEST_WAKEABLE_SLEEP_S: Final = 0.2
# While a payload of this rank is under way: MPI moves it only while it is called.
_BRISK_SPIN_POLLS: Final = 5000
_BRISK_SLEEP_S: Final = 50e-6
# A caller's slower checks take several calls of MPI: made too often, they would cost more than the
# wait itself. So they come after a twentieth of the time waited so far, within these bounds.
_CHECK_EVERY_S: Final = (4e-3, 50e-3)
_CHECK_SHARE: Final = 0.05


class Backoff:
    """The pauses between the polls of one wait: none, then yields, then ever longer sleeps.

    Parameters
    ----------
    brisk : bool, optional
        Whether a payload may be under way meanwhile: yields for some milliseconds, then sleeps of
        50 us only.
    wakeup : Wakeup, optional
        By which the ranks that are waited for wake this one.
    wakes : sequence of int or of objects with a fileno, optional
        Files that end a sleep at once when they can be read; the poll has to read them then. With
        them there are no yields, since they end the sleep in time.
    """

    __slots__ = (
        "_announced",
        "_brisk",
        "_next_check_s",
        "_polls",
        "_sleep_s",
        "_sleeping_since_s",
        "_spin_polls",
        "_spins_until_s",
        "_wakes",
        "_wakeup",
    )

    def __init__(
        self,
        brisk: bool = False,
        wakeup: Wakeup | None = None,
        wakes: Sequence[FileDescriptorLike] = (),
    ) -> None:
        self._brisk = brisk
        self._wakeup = wakeup
        self._wakes = wakes
        self._announced = 0  # polls before the sleep that was announced
        self.reset()

    def reset(self) -> None:
        """Start over with the shortest pauses: a message arrived, and more may follow at once."""
        self.end()
        self._polls = 0
        self._spin_polls = _BRISK_SPIN_POLLS if self._brisk else _SPIN_POLLS
        self._spins_until_s = 0.0
        if self._wakeup is not None:
            spins = not self._wakes and not self._wakeup.is_crowded
            self._spins_until_s = time.perf_counter() + (_WAKEABLE_SPIN_S if spins else 0)
        self._sleep_s = _FIRST_SLEEP_S
        self._sleeping_since_s = 0.0
        self._next_check_s = 0.0

    def end(self) -> None:
        """End the wait: senders need not wake this rank any more."""
        if self._announced:
            assert self._wakeup is not None
            self._announced = 0
            self._wakeup.call_off()

    def pause(self, limit_s: float = math.inf) -> bool:
        """Pause before the next poll; return whether it is time for a caller's slower checks.

        It is if this has slept, and the last such time is a while ago, or if it was woken.
        """
        self._polls += 1
        if self._is_spinning():
            return False
        woken = False
        if self._announced > 1:
            self._announced -= 1
            return False
        if self._announced:
            assert self._wakeup is not None
            self._announced = 0
            woken = self._wakeup.sleep(min(self._sleep_s, limit_s), self._wakes)
        else:
            wakeup = self._wakeup if not self._brisk else None
            if wakeup is not None and not wakeup.can_sleep():
                wakeup = None
            sleep_s = self._next_sleep_s(wakeup)
            if wakeup is not None and sleep_s >= _LONG_SLEEP_S:
                self._announced = _POLLS_AFTER_ANNOUNCING
                wakeup.announce()
                return False
            if self._wakes:
                sleep_on(self._wakes, min(sleep_s, limit_s))
            else:
                time.sleep(max(0.0, min(sleep_s, limit_s)))
        now_s = time.perf_counter()
        if not self._sleeping_since_s:
            self._sleeping_since_s = now_s
        if woken:
            # Its message may take MPI a few polls more.
            self._spins_until_s = now_s + _WAKEABLE_SPIN_S
        elif now_s < self._next_check_s:
            return False
        least_s, most_s = _CHECK_EVERY_S
        share_s = _CHECK_SHARE * (now_s - self._sleeping_since_s)
        self._next_check_s = now_s + min(max(least_s, share_s), most_s)
        return True

    def _is_spinning(self) -> bool:
        """Return whether it is too early for a sleep; yield the core after the first polls."""
        if self._wakeup is not None and not self._brisk and self._wakeup.wakes_all:
            if time.perf_counter() >= self._spins_until_s:
                return False
            os.sched_yield()  # the awaited rank may be on the same core
            return True
        if self._wakes:
            return False
        if self._polls < _EAGER_POLLS:
            return True
        if self._polls < self._spin_polls:
            os.sched_yield()
            return True
        return False

    def _next_sleep_s(self, wakeup: Wakeup | None) -> float:
        if not self._sleeping_since_s:
            self._sleeping_since_s = time.perf_counter()
        waited_s = time.perf_counter() - self._sleeping_since_s
        if wakeup is not None and wakeup.wakes_all:
            share_s = _SLEEP_SHARE * waited_s
            self._sleep_s = min(max(share_s, _FIRST_WAKEABLE_SLEEP_S), _LONGEST_WAKEABLE_SLEEP_S)
        elif self._sleep_s >= _LONG_SLEEP_S:
            self._sleep_s = _IDLE_SLEEP_S if waited_s > _IDLE_AFTER_S else _LONG_SLEEP_S
        else:
            # A tenth more each time: a message is noticed a tenth of the wait late at most.
            self._sleep_s = min((1 + _SLEEP_SHARE) * self._sleep_s, _LONG_SLEEP_S)
        return _BRISK_SLEEP_S if self._brisk else self._sleep_s


def wait_for(
    poll: Callable[[], Found | None],
    timeout_s: float | None = None,
    safe_point: Callable[[], None] | None = None,
    *,
    brisk: bool = False,
    wakeup: Wakeup | None = None,
    wakes: Sequence[FileDescriptorLike] = (),
) -> Found | None:
    """Poll until something is found, with pauses that leave the core to other processes.

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
        Whether a payload of this rank may be under way meanwhile, as in `Backoff`.
    wakeup : Wakeup, optional
        By which the ranks that are waited for wake this one.
    wakes : sequence of int or of objects with a fileno, optional
        Files that end a pause at once when they can be read, as in `Backoff`.

    Returns
    -------
    object or None
        What `poll` found, or None after the timeout.
    """
    found = poll()
    if found is not None:
        return found
    backoff = Backoff(brisk, wakeup, wakes)
    deadline_s = math.inf if timeout_s is None else time.perf_counter() + timeout_s
    left_s = math.inf
    try:
        while True:
            if deadline_s < math.inf:
                left_s = deadline_s - time.perf_counter()
            slept = backoff.pause(left_s)
            found = poll()
            if found is not None:
                return found
            if slept and safe_point is not None:
                safe_point()
            if left_s <= 0:
                return None
    finally:
        backoff.end()
