"""What a master and its trainers say to each other through the tuple space.

::

    master  ── (group, "trial")  ──>  trainers      a Trial, or None: there are no more
            <── (group, "result") ──                an Outcome
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any


@dataclass(frozen=True)
class Trial:
    """One point to try.

    Attributes
    ----------
    index : int
        Of the point in the space.
    parameters : dict
    seed : int
    """

    index: int
    parameters: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a trial gave.

    Attributes
    ----------
    trial : Trial
    metrics : dict
        ``accuracy``, ``loss``, ``mcc``, ``training_time_s``.
    trainer : int
        The copy that trained.
    """

    trial: Trial
    metrics: dict[str, float]
    trainer: int


def trial_tag(group: str) -> tuple[str, str]:
    """Return the tag under which trials lie."""
    return (group, "trial")


def result_tag(group: str) -> tuple[str, str]:
    """Return the tag under which outcomes lie."""
    return (group, "result")


def trial_seed(sweep_seed: int, index: int) -> int:
    """Return the seed of a trial: the same whoever trains it, in whatever order.

    Parameters
    ----------
    sweep_seed, index : int

    Returns
    -------
    int
        From 0 to 2**32 - 1, all equally likely.
    """
    digest = blake2b(f"{sweep_seed}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")
