"""Which trials of a sweep are to be given out, are out, or are recorded; how many to give at once.

Pure: no clock, no tuple space. The master takes leases and records what came back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

TARGET_S = 0.1
"""How long the trials of a lease shall take together, in seconds."""
MOST_TRIALS = 4096
_GROWTH = 8
_SHARE = 4
_FEWEST = 8
"""Where trials gain by being together, a short lease has an eighth of `Pace.at_once` at least.
Sizes are that number halved repeatedly, so that compiled plans are reused."""
_SOON_S = 1.0
"""How long the trials of a lease may take together where others are judged by their results."""
_FULL = 0xFF


class Bitmap:
    """A set of whole numbers from 0: a bit each, so that a million trials take 125 KB."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        byte, bit = number >> 3, number & 7
        return byte < len(self._bytes) and bool(self._bytes[byte] >> bit & 1)

    def add(self, number: int) -> bool:
        """Add a number; return whether it was not there."""
        byte, bit = number >> 3, 1 << (number & 7)
        if byte >= len(self._bytes):
            self._grow(byte)
        if self._bytes[byte] & bit:
            return False
        self._bytes[byte] |= bit
        self._count += 1
        return True

    @property
    def end(self) -> int:
        """One more than the largest number in the set; 0 if the set is empty."""
        last = len(self._bytes.rstrip(b"\0")) - 1
        return 0 if last < 0 else (last << 3) + self._bytes[last].bit_length()

    def add_range(self, start: int, stop: int) -> bool:
        """Add ``start`` to ``stop - 1`` at once, if none is there; return whether none was."""
        if start >= stop:
            return True
        first, last = start >> 3, (stop - 1) >> 3
        if last >= len(self._bytes):
            self._grow(last)
        mask = ((1 << (stop - start)) - 1) << (start & 7)
        there = int.from_bytes(self._bytes[first : last + 1], "little")
        if there & mask:
            return False
        self._bytes[first : last + 1] = (there | mask).to_bytes(last + 1 - first, "little")
        self._count += stop - start
        return True

    def next_missing(self, start: int) -> int:
        """Return the smallest number from `start` that is not in the set."""
        byte = start >> 3
        if byte >= len(self._bytes):
            return start
        free = ~self._bytes[byte] & _FULL & (_FULL << (start & 7))
        while not free:
            byte += 1
            if byte >= len(self._bytes):
                return byte << 3
            free = ~self._bytes[byte] & _FULL
        return (byte << 3) + _lowest(free)

    def next_present(self, start: int, stop: int) -> int:
        """Return the smallest number from `start` that is in the set, `stop` at most."""
        byte = start >> 3
        if byte >= len(self._bytes):
            return stop
        there = self._bytes[byte] & (_FULL << (start & 7))
        while not there:
            byte += 1
            if byte >= len(self._bytes) or byte << 3 >= stop:
                return stop
            there = self._bytes[byte]
        return min(stop, (byte << 3) + _lowest(there))

    def _grow(self, byte: int) -> None:
        # By an eighth, so that it is not copied with every number.
        self._bytes.extend(bytes(max(byte + 1, len(self._bytes) * 9 // 8) - len(self._bytes)))


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


@dataclass(frozen=True)
class Grant:
    """Trials that are given out: from `start` to ``stop - 1``."""

    lease: int
    """Number of the lease under which the trials are out."""
    start: int
    stop: int
    attempt: int = 1
    """From 1: how often they have been given out because of failures, this time included."""


@dataclass
class TrialQueue:
    """The trials of a sweep: which are recorded, are out, or are still to be given out."""

    total: int | None
    """How many trials there are; None as long as that is not known."""
    recorded: Bitmap = field(default_factory=Bitmap)
    """Trials that need not be run. The queue adds to it."""
    enqueued: list[int] = field(default_factory=list)
    """Numbers of trials that were enqueued beside the strategy's, in ascending order."""

    def __post_init__(self) -> None:
        self._next = 0
        self._again: deque[tuple[int, int, int]] = deque()
        self._out: dict[int, Grant] = {}
        self._leases = self._trials_out = 0

    @property
    def leases_out(self) -> int:
        """How many leases have not come back."""
        return len(self._out)

    @property
    def to_give(self) -> int | None:
        """How many trials are neither recorded nor out; None if that is not known."""
        if self.expected is None:
            return None
        return max(0, self.expected - len(self.recorded) - self._trials_out)

    @property
    def expected(self) -> int | None:
        """How many trials there are with those that were enqueued; None if that is not known.

        Trials that are recorded, out or to be given out again count, even if the strategy is to
        have fewer by now.
        """
        if self.total is None:
            return None
        again = sum(stop - start for start, stop, _ in self._again if start not in self.recorded)
        least = len(self.recorded) + self._trials_out + again
        return max(self.total + len(self.enqueued), least)

    def next_enqueued(self) -> int:
        """Return the number of the next trial to be enqueued: larger than that of any other."""
        behind = max(self._next, self.recorded.end, *(grant.stop for grant in self._out.values()))
        return max(behind, self._end or 0, *(trial + 1 for trial in self.enqueued[-1:]))

    def enqueue(self, trial: int) -> None:
        """Add a trial under a number of its own: it is given out before new trials."""
        self.enqueued.append(trial)
        if trial not in self.recorded:
            self._again.append((trial, trial + 1, 1))

    def has(self, trial: int) -> bool:
        """Whether there is a trial of this number; of an endless sweep, whether it has begun."""
        if self._is_enqueued(trial):
            return True
        end = max(self._next, self.recorded.end) if self._end is None else self._end
        return trial < end

    def _is_enqueued(self, trial: int) -> bool:
        place = bisect_left(self.enqueued, trial)
        return self.enqueued[place : place + 1] == [trial]

    def is_trial_out(self, trial: int) -> bool:
        """Whether a trial is out."""
        return any(grant.start <= trial < grant.stop for grant in self._out.values())

    def waits_for_lease(self, trial: int) -> bool:
        """Whether a trial waits for another lease: it came back, is retried, or was enqueued."""
        return any(start <= trial < stop for start, stop, _ in self._again)

    def drop(self, trial: int) -> None:
        """Count a trial that is not out as recorded: it will not be given out any more."""
        self.recorded.add(trial)
        for place, (start, stop, attempt) in enumerate(self._again):
            if start <= trial < stop:
                parts = ((start, trial, attempt), (trial + 1, stop, attempt))
                rest = list(self._again)
                rest[place : place + 1] = [part for part in parts if part[0] < part[1]]
                self._again = deque(rest)
                return

    @property
    def _end(self) -> int | None:
        """One more than the last number of the strategy's trials, which skip enqueued ones."""
        if self.total is None:
            return None
        end = self.total
        for trial in self.enqueued:
            end += trial < end
        return end

    def upcoming(self, count: int) -> tuple[int, int]:
        """Return the trials that `take` would give out: from the first to before the second."""
        # An enqueued trial is put there before it is known what an earlier session has recorded.
        while self._again and self.recorded.next_missing(self._again[0][0]) >= self._again[0][1]:
            self._again.popleft()
        if self._again:
            start, stop, _ = self._again[0]
            return start, min(stop, start + count)
        start = self.recorded.next_missing(self._next)
        while self._is_enqueued(start):
            start = self.recorded.next_missing(start + 1)
        end = self._end
        stop = start + count if end is None else min(start + count, end)
        stop = min([stop, *self.enqueued[bisect_left(self.enqueued, start) :][:1]])
        return start, max(start, self.recorded.next_present(start, stop))

    def take(self, count: int) -> Grant | None:
        """Give out at most `count` trials that are not recorded; None if there are none."""
        start, stop = self.upcoming(count)
        if start >= stop:
            return None
        attempt = 1
        if self._again:
            _, end, attempt = self._again.popleft()
            if stop < end:
                self._again.appendleft((stop, end, attempt))
        else:
            self._next = stop
        self._leases += 1
        self._trials_out += stop - start
        self._out[self._leases] = grant = Grant(self._leases, start, stop, attempt)
        return grant

    def came_back(
        self,
        lease: int,
        done: int,
        retried: Collection[int] = (),
        untried: Collection[int] = (),
    ) -> Grant | None:
        """Take back a lease of which the first `done` trials were tried; return its grant.

        Trials in `retried` are given out again, and those in `untried`, which have not begun. For a
        lease that came back before, whose trials were run twice, by a trainer that was given up and
        by another, return None: nothing changes.
        """
        out = self._out.pop(lease, None)
        if out is None:
            return None
        self._trials_out -= out.stop - out.start
        tried = out.start + done
        if not retried and not untried:
            self.recorded.add_range(out.start, tried)
        else:
            for trial in range(out.start, tried):
                if trial in retried or trial in untried:
                    attempt = out.attempt + (trial in retried)
                    self._again.append((trial, trial + 1, attempt))
                else:
                    self.recorded.add(trial)
        if tried < out.stop:
            self._again.append((tried, out.stop, out.attempt))
        return out

    def grant_of(self, lease: int) -> Grant | None:
        """Return the grant of a lease that is out; None if it is not out."""
        return self._out.get(lease)


class Pace:
    """Chooses how many trials a lease has, from how long trials take.

    Short trials are given out by the thousand, long ones one by one, and near the end the rest is
    shared among all trainers. Where a time is set, no lease takes more than half of what is left of
    it: so each trainer's next lease is sized by what this one has shown.
    """

    def __init__(self) -> None:
        self.trial_s: float | None = None
        """How long a trial takes at the moment, in seconds; None if nothing is known yet."""
        self._size = 1
        self.at_once = 1
        """How many trials a trainer runs together, which takes less time."""

    def observe(self, trials: int, seconds: float) -> None:
        """Record how long the trials of a lease took."""
        if trials < 1:
            return
        each_s = seconds / trials
        # Slower trials count at once, faster ones by halves: too long a lease delays others.
        if self.trial_s is None or each_s > self.trial_s:
            self.trial_s = each_s
        else:
            self.trial_s = (self.trial_s + each_s) / 2

    def soon(self) -> int:
        """Return how many trials of a lease have their results soon.

        Where trials gain by being together, an eighth of `at_once` at least.
        """
        fits = max(int(_SOON_S / self.trial_s) if self.trial_s else 1, self.at_once // _FEWEST)
        size = max(self.at_once, 1)
        while size > max(fits, 1):
            size = (size + 1) // 2
        return size if self.at_once > 1 else MOST_TRIALS

    def size(self, to_give: int | None, trainers: int, left_s: float | None = None) -> int:
        """Return how many trials to give out next; `left_s` is the time that is left for all."""
        if left_s is None:
            return self._size_of(to_give, trainers)
        if self.trial_s is None:
            return 1
        in_time = max(1.0, left_s / self.trial_s) if self.trial_s > 0 else MOST_TRIALS
        if to_give is None:  # as if the trials were as many as there is time for
            to_give = int(min(in_time, MOST_TRIALS) * trainers)
        return max(1, min(self._size_of(to_give, trainers), int(in_time / 2)))

    def _size_of(self, to_give: int | None, trainers: int) -> int:
        if self.at_once > 1 and to_give is not None:
            short = int(TARGET_S / self.trial_s) if self.trial_s else 1
            share = max(to_give // (2 * trainers), min(self.at_once // _FEWEST, short))
            size = self.at_once
            while 3 * size > 4 * max(1, share):
                size = (size + 1) // 2
            return size
        if self.trial_s is None:
            return 1
        fits = int(TARGET_S / self.trial_s) if self.trial_s > 0 else MOST_TRIALS
        size = max(1, min(fits, self._size * _GROWTH, MOST_TRIALS))
        self._size = size
        if to_give is not None:
            size = min(size, max(1, to_give // (_SHARE * trainers)))
        return size
