"""Schedules of a pipeline: order, idle share, what is kept; and how layers are cut into stages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pytest

from dnn.distributed import pipeline
from dnn.distributed.partition import even_bounds, stage_bounds
from dnn.distributed.pipeline import SCHEDULES, Action, ActionKind, most_kept
from dnn.errors import ConfigurationError


@dataclass(frozen=True)
class Simulation:
    """Simulated times of a schedule: computations of each stage, and the share of idle time."""

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
    """Compute the times of all actions, where receives wait and sends never do."""
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
            raise AssertionError(waits)
    duration = max(now, default=0.0)
    busy = sum(end - begin for stage in spans for _, begin, end in stage)
    bubble = 1 - busy / (duration * len(schedule)) if duration else 0.0
    return Simulation(spans, duration, bubble)


SIZES = [(1, 1), (1, 4), (2, 1), (2, 2), (3, 4), (4, 3), (4, 8), (5, 16)]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_each_micro_batch_goes_forward_and_then_backward(
    name: str, stages: int, micro_batches: int
) -> None:
    schedule = SCHEDULES[name](stages, micro_batches)
    assert len(schedule) == stages
    for stage, actions in enumerate(schedule):
        assert len(actions) == len(set(actions))
        kinds = ["forward", "backward"]
        kinds += ["receive", "send gradient"] if stage else []
        kinds += ["send", "receive gradient"] if stage < stages - 1 else []
        at = {kind: [a.micro_batch for a in actions if a.kind == kind] for kind in kinds}
        assert len(actions) == len(kinds) * micro_batches
        assert all(sorted(numbers) == [*range(micro_batches)] for numbers in at.values())
        place = {action: i for i, action in enumerate(actions)}
        for m in range(micro_batches):
            chain = ["receive", "forward", "send", "receive gradient", "backward", "send gradient"]
            places = [place[Action(kind, m)] for kind in chain if kind in kinds]  # type: ignore[arg-type]
            assert places == sorted(places)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_messages_are_received_in_the_order_in_which_they_are_sent(
    name: str, stages: int, micro_batches: int
) -> None:
    # So that a tag for each direction is enough.
    for here, there in pairwise(SCHEDULES[name](stages, micro_batches)):
        for sender, sent, receiver, received in (
            (here, "send", there, "receive"),
            (there, "send gradient", here, "receive gradient"),
        ):
            assert [a.micro_batch for a in sender if a.kind == sent] == [
                a.micro_batch for a in receiver if a.kind == received
            ]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_no_stage_waits_for_ever_and_idles_as_little_as_published(
    name: str, stages: int, micro_batches: int
) -> None:
    schedule = SCHEDULES[name](stages, micro_batches)
    result = simulate(schedule, [1.0] * stages, [2.0] * stages)
    assert result.duration == 3 * (micro_batches + stages - 1)
    assert result.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    for actions, (stage, kept) in zip(schedule, enumerate(map(most_kept, schedule)), strict=True):
        assert kept == (micro_batches if name == "gpipe" else min(stages - stage, micro_batches))
        assert actions


def test_the_picture_at_the_top_of_the_file_is_what_is_simulated() -> None:
    lines = re.findall(r"stage \d +(.*)", pipeline.__doc__ or "")
    assert len(lines) == 3
    for column, name in enumerate(("gpipe", "1f1b")):
        spans = simulate(SCHEDULES[name](3, 4), [1.0] * 3, [1.0] * 3).spans
        for line, of_stage in zip(lines, spans, strict=True):
            drawn = ["."] * 12
            for action, begin, _ in of_stage:
                drawn[int(begin)] = str(action.micro_batch)
            assert re.split(r"   +", line.strip())[column] == " ".join(drawn)


def test_times_follow_from_costs_and_exchanges() -> None:
    schedule = SCHEDULES["gpipe"](2, 2)
    result = simulate(schedule, [1.0, 3.0], [2.0, 4.0], exchange=0.5)
    # Stage 1 begins at 1.5 and is never idle until 15.5; the last gradient takes 0.5 + 2 more.
    assert [(a.kind, begin, end) for a, begin, end in result.spans[1]] == [
        ("forward", 1.5, 4.5),
        ("forward", 4.5, 7.5),
        ("backward", 7.5, 11.5),
        ("backward", 11.5, 15.5),
    ]
    assert result.duration == 18.0
    assert result.bubble == pytest.approx(1 - 20 / 36)


def test_a_stage_that_waits_for_ever_is_named() -> None:
    schedule = SCHEDULES["1f1b"](2, 2)
    without = [a for a in schedule[0] if a != Action("send", 1)]
    with pytest.raises(AssertionError, match="stage 0 waits for ever to receive gradient 1"):
        simulate([without, schedule[1]], [1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize("name", SCHEDULES)
def test_sizes_are_at_least_one(name: str) -> None:
    with pytest.raises(ConfigurationError, match="stages must be an integer of at least 1"):
        SCHEDULES[name](0, 1)
    with pytest.raises(ConfigurationError, match="micro_batches must be"):
        SCHEDULES[name](1, 0)


def test_the_largest_stage_is_as_small_as_it_can_be() -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        parts = int(random.integers(1, 9))
        costs = random.integers(0, 6, parts).tolist()
        crossing = random.integers(1, 4, parts).tolist()
        stages = int(random.integers(1, parts + 1))
        bounds = stage_bounds(costs, stages, crossing)
        assert bounds[0] == 0
        assert bounds[-1] == parts
        assert all(start < stop for start, stop in pairwise(bounds))

        def judged(cuts: tuple[int, ...]) -> tuple[int, int]:
            largest = max(sum(costs[a:b]) for a, b in pairwise(cuts))  # noqa: B023
            return largest, sum(crossing[cut - 1] for cut in cuts[1:-1])  # noqa: B023

        every = ((0, *cuts, parts) for cuts in combinations(range(1, parts), stages - 1))
        largest, _ = judged(bounds)
        assert largest == min(judged(cuts)[0] for cuts in every)


def test_of_equal_cuts_the_one_with_less_to_exchange_is_taken() -> None:
    assert stage_bounds([2, 0, 2], 2, [9, 1, 1]) == (0, 2, 3)
    assert stage_bounds([2, 0, 2], 2, [1, 9, 1]) == (0, 1, 3)
    assert stage_bounds([2, 0, 2], 2) == (0, 1, 3)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"4 stages need as many layers .* there are 3"):
        stage_bounds([1, 1, 1], 4)


def test_slices_of_units_differ_by_one_at_most() -> None:
    assert even_bounds(10, 4) == (0, 3, 6, 8, 10)
    assert even_bounds(2, 3) == (0, 1, 2, 2)
