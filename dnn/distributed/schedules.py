"""Schedules of a pipeline: lists of the actions of each stage.

A stage is a part of the layers on one rank, and a batch goes through the stages in micro-batches.
Both schedules give the same gradients; they differ in how many micro-batches a stage keeps::

    gpipe, 3 stages, 4 micro-batches          1f1b
    stage 0  0 1 2 3 . . . . 3 2 1 0          0 1 2 . . 0 3 1 . 2 . 3
    stage 1  . 0 1 2 3 . . 3 2 1 0 .          . 0 1 . 0 2 1 3 2 . 3 .
    stage 2  . . 0 1 2 3 3 2 1 0 . .          . . 0 0 1 1 2 2 3 3 . .

With S stages of equal cost and M micro-batches a stage idles for a share of (S - 1) / (M + S - 1)
of the time in both [1]_. GPipe keeps what the backward half reads of all M micro-batches, 1F1B at
stage s of S - s at most [2]_.

References
----------
.. [1] Huang et al., GPipe: Efficient training of giant neural networks using pipeline parallelism,
   2019, section 2.3.
.. [2] Narayanan et al., PipeDream: Generalized pipeline parallelism for DNN training, 2019,
   section 3.2; with one version of the weights: Narayanan et al., Efficient large-scale language
   model training on GPU clusters using Megatron-LM, 2021, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from dnn.errors import check_count

__all__ = [
    "SCHEDULES",
    "Action",
    "ActionKind",
    "gpipe",
    "most_kept",
    "one_forward_one_backward",
]

ActionKind = Literal["receive", "forward", "send", "receive gradient", "backward", "send gradient"]


class Action(NamedTuple):
    """Action of a stage on one micro-batch.

    Attributes
    ----------
    kind : str
        ``"receive"`` and ``"send"`` are of activations, from the stage before and to the next;
        those of gradients go the other way.
    micro_batch : int, from 0
    """

    kind: ActionKind
    micro_batch: int


def gpipe(stages: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of each stage: all micro-batches forward, then all backward, last first.

    Parameters
    ----------
    stages, micro_batches : int, at least 1

    Returns
    -------
    list of list of Action
    """
    _check(stages, micro_batches)
    forward = [("forward", m) for m in range(micro_batches)]
    backward = [("backward", m) for m in reversed(range(micro_batches))]
    return [_exchanging([*forward, *backward], stage, stages) for stage in range(stages)]


def one_forward_one_backward(stages: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of each stage: a few micro-batches forward, then backward and forward.

    Stage s begins with S - s micro-batches, or with all if there are fewer; then a micro-batch goes
    forward after each that goes backward.

    Parameters
    ----------
    stages, micro_batches : int, at least 1

    Returns
    -------
    list of list of Action
    """
    _check(stages, micro_batches)
    schedule = []
    for stage in range(stages):
        kept = min(stages - stage, micro_batches)
        order = [("forward", m) for m in range(kept)]
        for m in range(micro_batches):
            order.append(("backward", m))
            if m + kept < micro_batches:
                order.append(("forward", m + kept))
        schedule.append(_exchanging(order, stage, stages))
    return schedule


def _check(stages: int, micro_batches: int) -> None:
    check_count("stages", stages)
    check_count("micro_batches", micro_batches)


def _exchanging(order: Sequence[tuple[str, int]], stage: int, stages: int) -> list[Action]:
    """Return the actions of a stage: those that compute, with the receives and sends around."""
    is_first, is_last = stage == 0, stage == stages - 1
    actions = []
    for kind, m in order:
        if kind == "forward":
            parts: list[tuple[ActionKind, bool]] = [
                ("receive", not is_first),
                ("forward", True),
                ("send", not is_last),
            ]
        else:
            parts = [
                ("receive gradient", not is_last),
                ("backward", True),
                ("send gradient", not is_first),
            ]
        actions += [Action(part, m) for part, is_done in parts if is_done]
    return actions


SCHEDULES: dict[str, Callable[[int, int], list[list[Action]]]] = {
    "1f1b": one_forward_one_backward,
    "gpipe": gpipe,
}
"""Functions that make a schedule, by name."""


def most_kept(actions: Sequence[Action]) -> int:
    """Return the largest number of micro-batches whose values a stage keeps at the same time.

    Parameters
    ----------
    actions : sequence of Action
        Actions of one stage.

    Returns
    -------
    int
    """
    kept = most = 0
    for action in actions:
        kept += (action.kind == "forward") - (action.kind == "backward")
        most = max(most, kept)
    return most
