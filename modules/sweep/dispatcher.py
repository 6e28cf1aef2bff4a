"""Giving out leases: which trials are next, with which parameters, and which trainer gets them.

A lease goes where it is needed most: to the trainers of the master's own run, which find it in the
tuple space, or to a worker of another run. A strategy that learns is asked for points only when the
lease is made.

Where trials have different numbers of ranks, a lease goes to ranks of one trainer, and its trials
have one number of ranks. The next trial is held until there is room for it; no other passes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from diel.errors import ModuleFailed

from ..search import StrategyError
from ..strategies import Wait
from ..trial_ranks import TrialRanks, TrialRanksError
from .joined_workers import JoinedWorkers, leases_ahead
from .leases import TARGET_S, Pace, TrialQueue
from .messages import Lease, Tags
from .rank_queues import RankQueues, Ranks
from .results import COMPUTED_BY
from .steering import Steering
from .warm_start import EarlierResults

if TYPE_CHECKING:
    from diel import Context

    from ..search import Search

_AHEAD: Final = 2
"""Leases for each trainer that are out at a time: one to work on, one to find at once."""
_OWN_TRAINERS: Final = ""
"""Stands for the trainers of this run, in place of a worker's name."""
_MOST_ADAPTIVE: Final = 16
"""Caps the lease where the strategy learns, so that results reach it soon; cohorts stay whole."""
_MOST_IN_ONE_PLAN: Final = 8
"""Caps it where networks of all points are trained in one plan and results choose the next points:
of 4, 8 and 16 the best in the replays of docs/performance.md."""


class Dispatcher:
    """Gives trials to trainers as leases, in one session of a master.

    `trainers` is the number of trainers of this run; `workers` are those of other runs. A trial
    whose point is among the results of `earlier` is given to `record`, and not given out.
    `reason_to_end` returns why no more trials are given out; an empty text if they are. `left_s`
    returns how many seconds are left of the sweep's time; None if it has none. `ranks_of` is given
    where trials have different numbers of ranks, of which `queues` are those of the trainers.

    Attributes
    ----------
    pace : Pace
        Chooses the size of leases; has to be given how long trials take. Where trials have
        different numbers of ranks, that of the number that was looked at last.
    """

    def __init__(
        self,
        ctx: Context,
        tags: Tags,
        trainers: int,
        session: str,
        search: Search,
        queue: TrialQueue,
        steering: Steering,
        workers: JoinedWorkers,
        earlier: EarlierResults | None,
        *,
        record: Callable[[dict[str, Any]], None],
        reason_to_end: Callable[[], str],
        left_s: Callable[[], float | None] = lambda: None,
        ranks_of: TrialRanks | None = None,
        queues: RankQueues | None = None,
    ) -> None:
        self._tuples = ctx.tuples
        self._tags = tags
        self._trainers = trainers
        self._session = session
        self._search = search
        self._queue = queue
        self._steering = steering
        self._workers = workers
        self._earlier = earlier
        self._record, self._why_over, self._left_s = record, reason_to_end, left_s
        self._ranks_of, self._queues = ranks_of, queues
        self.pace = Pace()
        self._paces: dict[int, Pace] = {}
        self._asks_here = not search.is_stateless
        self._asked = 0
        self._points: dict[int, dict[str, Any]] = {}

    def give_out(self) -> None:
        """Give out leases, as far as trainers are about to need them."""
        if self._steering.is_paused:
            return
        while (taker := self._next_taker()) is not None and not self._why_over():
            ranks = None
            if self._ranks_of is not None and (ranks := self._ranks_for_next()) is None:
                return
            trainers = self._trainers + sum(self._workers.here.values())
            if ranks is not None:
                trainers = max(1, trainers // ranks.count)
            count = self.pace.size(self._queue.to_give, trainers, self._left_s())
            if self._search.wants_reports:
                count = min(count, self.pace.soon())
            points = None
            if self._asks_here:
                points = self._ask(self._within_cohorts(count), count)
                count = len(points)
            elif (
                ranks is not None
                or self._queue.enqueued
                or self._earlier is not None
                or taker != _OWN_TRAINERS
            ):
                # Trainers here do not know such points; trainers of other runs are sent all points.
                known = map(self.point_of, range(*self._queue.upcoming(count)))
                points = [point for point in known if point is not None]
                count = len(points)
            if points and self._earlier is not None:
                known_before = self._take_over(points)
                if known_before:
                    continue
                count = len(points)
            if ranks is not None and points is not None:
                alike = takewhile(lambda point: self._count(point) == ranks.count, points)  # noqa: B023
                points = list(alike)
                count = len(points)
            grant = self._queue.take(count)
            if grant is None:
                return
            cutoffs, cohorts = self._search.cohorts(range(grant.start, grant.stop)) or (None, None)
            parents = None
            if self._search.has_parents:
                parents = [self._search.parent(each) for each in range(grant.start, grant.stop)]
            lease = Lease(
                *(self._session, grant.lease, grant.start, grant.stop, points, grant.attempt),
                *(cutoffs, cohorts, parents, ranks),
            )
            if ranks is not None:
                self._give_to(ranks, lease)
            elif taker == _OWN_TRAINERS:
                self._tuples.tput(self._tags.lease, lease)
            else:
                self._workers.give(taker, lease)

    # -- where trials have different numbers of ranks ---------------------------------------------

    def pace_of(self, lease: int) -> Pace:
        """Return the pace of the trials that have as many ranks as those of a lease that is out."""
        ranks = None if self._queues is None else self._queues.ranks_of(lease)
        return self.pace if ranks is None else self._paces.setdefault(ranks.count, Pace())

    def _count(self, point: dict[str, Any]) -> int:
        assert self._ranks_of is not None
        try:
            return self._ranks_of(point)
        except TrialRanksError as error:
            remedy = f": {error.remedy}" if error.remedy else ""
            text = f"a trial at {point} cannot be given ranks: {error}{remedy}"
            raise ModuleFailed(text) from error

    def _ranks_for_next(self) -> Ranks | None:
        """Return the ranks for the next trial, whose point is asked for; None if it is to wait."""
        assert self._queues is not None
        first, stop = self._queue.upcoming(1)
        points = self._ask(1, 1) if self._asks_here else [self.point_of(first)] * (stop > first)
        if not points or points[0] is None:
            return None
        count = self._count(points[0])
        self.pace = self._paces.setdefault(count, Pace())
        return self._queues.place(count, self._enough)

    def _give_to(self, ranks: Ranks, lease: Lease) -> None:
        assert self._queues is not None
        self._queues.give(lease.number, ranks)
        for rank in ranks:
            self._tuples.tput(self._tags.lease_of(ranks.copy_index, rank), lease)

    def _take_back_from_ranks(self) -> None:
        """Take back the leases of which none of its ranks knows yet."""
        assert self._queues is not None
        copies, ranks = range(self._queues.copies), range(self._queues.ranks)
        tags = [self._tags.lease_of(copy, rank) for copy in copies for rank in ranks]
        found = [(tag, lease) for tag in tags for _, lease in self._tuples.collect(tag)]
        ours = [lease for _, lease in found if lease.session == self._session]
        untaken = Counter(lease.number for lease in ours)
        whole = {lease.number for lease in ours if untaken[lease.number] == lease.ranks.count}
        for tag, lease in found:  # in their order
            if lease.session != self._session or lease.number not in whole:
                self._tuples.tput(tag, lease)
        for number in sorted(whole):
            self.came_back(number)
            self._queue.came_back(number, 0)

    def came_back(self, lease: int) -> None:
        """Count a lease that its ranks have ended, or that was taken back from them."""
        if self._queues is not None:
            self._queues.came_back(lease)

    # -- how many trials, and whose ---------------------------------------------------------------

    def _within_cohorts(self, count: int) -> int:
        """Return how many trials to ask for: of those that are alike, whole cohorts if possible."""
        alike = self._search.alike
        if self._search.members is not None:
            # None of them waits for another, and all that come next wait for the last of them.
            trainers = self._trainers + sum(self._workers.here.values())
            return min(count, -(-self._search.members // trainers))
        if self._search.learns:
            count = min(count, max(self._most_adaptive(), alike))
        start = self._search.place(self._queue.upcoming(1)[0])
        whole = (start + count) // alike * alike - start
        return whole if whole > 0 else count

    def _most_adaptive(self) -> int:
        """Return how many points a strategy that learns is asked for at once.

        One that chooses by results is asked for few: points that are asked for before results are
        there cost more than what waiting costs, but for trials of milliseconds.
        """
        if not self._search.chooses_by_results:
            return _MOST_ADAPTIVE
        is_one_plan = self._search.has_one_structure and self.pace.at_once > 1
        least = _MOST_IN_ONE_PLAN if is_one_plan else 1
        if self.pace.trial_s is None:
            return least
        return max(least, min(_MOST_ADAPTIVE, int(TARGET_S / max(self.pace.trial_s, 1e-6))))

    def _next_taker(self) -> str | None:
        """Return which worker needs a lease most, or `_OWN_TRAINERS`; None if all have enough."""
        trial_s, enough = self.pace.trial_s, self._enough
        if self._queues is not None:
            return _OWN_TRAINERS if self._queues.has_room(enough) else None
        if self._workers.here:
            enough = min(enough, leases_ahead(trial_s))
        busy = self.leases_here / (enough * self._trainers)
        busy, taker = min((busy, _OWN_TRAINERS), self._workers.least_busy(trial_s))
        return taker if busy < 1 else None

    @property
    def _enough(self) -> int:
        """How many leases a trainer is to have."""
        trial_s = self.pace.trial_s
        is_quick = trial_s is not None and trial_s * _MOST_ADAPTIVE < TARGET_S
        # What waits for a rank is tried by no other: so only what does not wait for long.
        is_bound = self._queues is not None or self._search.chooses_by_results
        return 1 if is_bound and not is_quick else _AHEAD

    @property
    def leases_here(self) -> int:
        """How many leases the trainers of this run have."""
        return self._queue.leases_out - self._workers.leases_out

    def _ask(self, count: int, most: int) -> list[dict[str, Any]]:
        """Ask the strategy for the parameters of the next trials, as far as it has some.

        They are more than `count`, `most` at most, if the cohort of the last one has more.
        """
        points: list[dict[str, Any]] = []
        most = max(count, min(most, self._search.most_in_cohort))
        for trial in range(*self._queue.upcoming(most)):
            if len(points) >= count and not self._search.is_in_cohort(self._search.place(trial)):
                break
            point = self._steering.points.get(trial) or self._points.get(trial)
            if point is None:
                # Trials of earlier sessions count: strategies are asked for all trials in order.
                while self._asked < trial:
                    if self._asked not in self._steering.points:
                        self._search.ask(self._asked)
                    self._asked += 1
                asked = self._search.ask(trial)
                if isinstance(asked, Wait):
                    break
                parent = self._search.parent(trial)
                if parent is not None and parent not in self._queue.recorded:
                    raise StrategyError(
                        f"trial {trial} is to go on from trial {parent}, which has not ended: its "
                        "strategy is to return WAIT"
                    )
                if asked is None:
                    self._queue.total = self._search.place(trial)
                    break
                self._asked = trial + 1
                self._points[trial] = point = asked
            points.append(point)
        return points

    def point_of(self, trial: int) -> dict[str, Any] | None:
        """Return the point of a trial; None if it is not known yet."""
        point = self._steering.points.get(trial) or self._points.get(trial)
        if point is None and not self._asks_here:
            asked = self._search.ask(trial)
            point = asked if isinstance(asked, dict) else None
        return point

    def _take_over(self, points: list[dict[str, Any]]) -> int:
        """Record the next trials, up to the first whose point an earlier sweep does not have.

        Returns how many were recorded. If none, `points` is cut before the first that it has.
        """
        assert self._earlier is not None
        start, _ = self._queue.upcoming(len(points))
        found = [self._earlier.of(point) for point in points]
        first = next((place for place, record in enumerate(found) if record is None), len(points))
        for place, record in enumerate(found[:first]):
            assert record is not None
            trial = start + place
            self._queue.drop(trial)
            own = {**record, "trial": trial, "warm_start": record["trial"]}
            own.pop(COMPUTED_BY, None)
            self._record(own)
        if not first:
            wanted = (place for place, record in enumerate(found) if record is not None)
            del points[next(wanted, len(points)) :]
        return first

    def forget(self, trial: int) -> None:
        """Forget the point of a trial that is recorded."""
        self._points.pop(trial, None)

    def take_back_unclaimed(self) -> None:
        """Take back the leases that no trainer of this run has begun."""
        if self._queues is not None:
            self._take_back_from_ranks()
            return
        for _, lease in self._tuples.collect(self._tags.lease):
            if isinstance(lease, Lease):
                self._queue.came_back(lease.number, 0)
