"""Schedules of a pipeline: lists of the actions of each stage, and how long they take.

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
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dnn.errors import ConfigurationError, check_count

__all__ = [
    "SCHEDULES",
    "Action",
    "ActionKind",
    "Simulation",
    "gpipe",
    "most_kept",
    "one_forward_one_backward",
    "simulate",
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


@dataclass(frozen=True)
class Simulation:
    """Simulated times of a schedule.

    Attributes
    ----------
    spans : list of list of (Action, float, float)
        For each stage its computations, with begin and end.
    duration : float
        Time from the first begin to the last end, in the unit of the costs.
    bubble : float, in 0 .. 1
        The share of the duration in which stages idle, on average.
    """

    spans: list[list[tuple[Action, float, float]]]
    duration: float
    bubble: float


# For each kind of receive the action that sends its message, and the offset of that stage.
_SENT_BY: dict[ActionKind, tuple[ActionKind, int]] = {
    "receive": ("send", -1),
    "receive gradient": ("send gradient", 1),
}


def simulate(
    schedule: Sequence[Sequence[Action]],
    forward: Sequence[float],
    backward: Sequence[float],
    exchange: float = 0.0,
) -> Simulation:
    """Simulate a schedule: compute the times of all actions, where receives wait, sends never.

    Parameters
    ----------
    schedule : sequence of sequence of Action
        Actions of each stage.
    forward, backward : sequence of float
        Time of a micro-batch at each stage, in any unit.
    exchange : float
        Time from sending to receiving, in the same unit.

    Returns
    -------
    Simulation

    Raises
    ------
    ConfigurationError
        If a stage would wait for ever; it names the stage and what it waits for.
    """
    costs: dict[str, Sequence[float]] = {"forward": forward, "backward": backward}
    stages = range(len(schedule))
    next_action, now = [0 for _ in stages], [0.0 for _ in stages]
    sent: dict[tuple[int, Action], float] = {}
    spans: list[list[tuple[Action, float, float]]] = [[] for _ in stages]
    moved = True
    while moved:
        moved = False
        for stage in stages:
            while next_action[stage] < len(schedule[stage]):
                action = schedule[stage][next_action[stage]]
                if action.kind in _SENT_BY:
                    kind, further = _SENT_BY[action.kind]
                    message = stage + further, Action(kind, action.micro_batch)
                    if message not in sent:
                        break
                    now[stage] = max(now[stage], sent[message] + exchange)
                elif action.kind in costs:
                    begin = now[stage]
                    now[stage] += costs[action.kind][stage]
                    spans[stage].append((action, begin, now[stage]))
                else:
                    sent[stage, action] = now[stage]
                next_action[stage] += 1
                moved = True
    for stage in stages:
        if next_action[stage] < len(schedule[stage]):
            action = schedule[stage][next_action[stage]]
            waits = f"stage {stage} waits for ever to {action.kind} {action.micro_batch}"
            raise ConfigurationError(f"schedule: {waits}")
    duration = max(now, default=0.0)
    busy = sum(end - begin for stage in spans for _, begin, end in stage)
    bubble = 1 - busy / (duration * len(schedule)) if duration else 0.0
    return Simulation(spans, duration, bubble)
