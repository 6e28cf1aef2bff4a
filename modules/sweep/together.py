"""A trainer of several ranks: one takes the leases, all try each point together.

The others wait for their points in the tuple space, and not in a collective call of MPI, which
would take a core from those who work, and where nobody could tell them that the run ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .messages import Tags
from .trying import Hear, Tried

if TYPE_CHECKING:
    from diel import Context


class SeveralRanksFailed(RuntimeError):
    """A trial failed on a trainer with several ranks, which may be out of step now."""


class Followers:
    """Tries points together with the other ranks of the copy; for its rank 0.

    Parameters
    ----------
    ctx : Context
    tags : Tags
    trier : callable
        Tries a point on this rank.
    """

    def __init__(self, ctx: Context, tags: Tags, trier: Callable[..., Tried]) -> None:
        self._ctx = ctx
        session = ctx.comm.bcast(uuid.uuid4().hex)
        self._tags = [tags.point(ctx.copy_index, session, rank) for rank in range(1, ctx.comm.size)]
        self._trier = trier

    def __call__(
        self, trial: int, parameters: dict[str, Any], seed: int, attempt: int, hear: Hear | None
    ) -> Tried:
        """Try a point; `hear` takes what the trial says meanwhile."""
        for tag in self._tags:
            self._ctx.tuples.tput(tag, (trial, parameters, seed, attempt))
        tried = self._trier(trial, parameters, seed, attempt, _heard_by_all(self._ctx, hear))
        _raise_if_failed(tried, trial)
        return tried

    def dismiss(self) -> None:
        """Let the other ranks go."""
        for tag in self._tags:
            self._ctx.tuples.tput(tag, None)


def follow(ctx: Context, tags: Tags, trier: Callable[..., Tried]) -> int:
    """Try what rank 0 of the copy says; return how many trials it was."""
    trials, session = 0, ctx.comm.bcast(None)
    while True:
        told = ctx.tuples.tget(tags.point(ctx.copy_index, session, ctx.comm.rank))
        if told is None:
            return trials
        trial, parameters, seed, attempt = told
        _raise_if_failed(trier(trial, parameters, seed, attempt, _heard_by_all(ctx, None)), trial)
        trials += 1


def _heard_by_all(ctx: Context, hear: Hear | None) -> Hear:
    """All ranks report at the same places, and all get the verdict of rank 0."""

    def heard(trial: int, step: int, metrics: dict[str, Any]) -> bool:
        verdict = hear(trial, step, metrics) if hear is not None else True
        goes_on: bool = ctx.comm.bcast(verdict)
        return goes_on

    return heard


def _raise_if_failed(tried: Tried, trial: int) -> None:
    # The others may wait for this rank in a collective call: only a new start helps.
    if tried.reason:
        raise SeveralRanksFailed(f"trial {trial} failed: {tried.reason}\n{tried.detail}")
