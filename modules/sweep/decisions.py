"""What a master decides on requests to its sweep: pure, and the same after every restart.

A decision is a record of the ledger. It is made by `Steering.decide`, written, and then takes
effect by `Steering.apply`; a session that resumes the sweep applies the ledger's decisions again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .leases import TrialQueue
from .steering import Request, SteeringError, point_problem

if TYPE_CHECKING:
    from ..search import Search


class Steering:
    """Decides on requests, and holds what they have changed.

    Attributes
    ----------
    is_paused : bool
        Whether no trial is to be given out.
    stopped : set of int
        Trials that are to end; some have ended since.
    points : dict of int to dict
        The parameters of trials that were enqueued.
    """

    def __init__(self, search: Search, queue: TrialQueue) -> None:
        self._search, self._queue = search, queue
        self.is_paused = False
        self.stopped: set[int] = set()
        self.points: dict[int, dict[str, Any]] = {}
        self._known: set[str] = set()

    def is_known(self, request: Request) -> bool:
        """Whether a request has been decided on."""
        return request.id in self._known

    def decide(self, request: Request, reason_to_end: str = "") -> dict[str, Any]:
        """Return the decision on a request, as a record; nothing has changed yet.

        `reason_to_end` says why no further trial begins, if that is so.
        """
        decision: dict[str, Any] = {"request": request.as_dict(), "accepted": True}
        try:
            decision |= getattr(self, f"_{request.kind}")(request, reason_to_end)
        except SteeringError as error:
            decision |= {"accepted": False, "answer": str(error)}
        return decision

    def apply(self, decision: Mapping[str, Any]) -> None:
        """Let a decision take effect; one that no master has made, in a damaged ledger, has none.

        A decision that `decide` has just made always has.
        """
        try:
            request = Request.parse(decision["request"])
        except SteeringError:
            return
        self._known.add(request.id)
        if not decision["accepted"]:
            return
        if request.kind == "enqueue":
            trial, parameters = decision.get("trial"), dict(request.parameters or {})
            if trial is None or point_problem(self._search.space, parameters):
                return
            self.points[trial] = parameters
            self._queue.enqueue(trial)
            self._search.enqueue(trial)
        elif request.kind == "trials":
            self._search.limit(request.number)
            self._queue.total = self._search.size
        elif request.kind == "stop":
            assert request.number is not None
            self.stopped.add(request.number)
        else:
            self.is_paused = request.kind == "pause"

    # -- one function for each kind of request: what stands in the record -------------------------

    def _enqueue(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        if reason_to_end:
            raise SteeringError(f"no further trial begins: {reason_to_end}")
        assert request.parameters is not None
        if problem := point_problem(self._search.space, request.parameters):
            raise SteeringError(problem)
        trial = self._queue.next_enqueued()
        return {"answer": f"it is trial {trial}", "trial": trial}

    def _pause(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        if reason_to_end:
            raise SteeringError(f"no further trial begins: {reason_to_end}")
        was = "was paused already" if self.is_paused else "is paused: trials under way go on"
        return {"answer": f"the sweep {was}"}

    def _resume(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        return {"answer": f"the sweep {'goes on' if self.is_paused else 'was not paused'}"}

    def _stop(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        trial = request.number
        assert trial is not None
        if trial in self._queue.recorded:
            raise SteeringError(f"trial {trial} has ended")
        if trial in self.stopped:
            raise SteeringError(f"trial {trial} is to stop already")
        if self._queue.is_trial_out(trial):
            return {"answer": f"trial {trial} ends when it reports next"}
        if not self._queue.has(trial):
            raise SteeringError(f"there is no trial {trial}")
        if not (
            trial in self.points or self._search.is_stateless or self._queue.waits_for_lease(trial)
        ):
            raise SteeringError(f"trial {trial} has not been chosen yet: the strategy learns first")
        return {"answer": f"trial {trial} is not run"}

    def _trials(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        if reason_to_end:
            raise SteeringError(f"no further trial begins: {reason_to_end}")
        most, wanted = self._search.most, request.number
        assert wanted is not None
        if most is not None and wanted > most:
            raise SteeringError(f"the strategy has {most} trials, and no more")
        return {
            "answer": f"the strategy tries {wanted} points; there were {self._limit_text} to be"
        }

    @property
    def _limit_text(self) -> str:
        return "any number" if self._search.size is None else str(self._search.size)
