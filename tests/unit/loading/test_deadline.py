"""How much time a copy has left, and when it is told that this is little."""

from __future__ import annotations

import math
import time

import pytest

from diel.errors import LaunchError
from diel.loading.deadline import END_TIME, NO_DEADLINE, Deadline, time_left_of_run
from diel.testing import TupleSpace
from diel.workflow.programs import FACTS, child_environment


@pytest.mark.parametrize(
    ("limit_s", "before_s", "run_ends_s", "run_before_s", "ends_s", "warns_s"),
    [
        (None, None, math.inf, None, math.inf, math.inf),
        (60, None, math.inf, None, 160, math.inf),
        (60, 10, math.inf, None, 160, 150),
        (60, 10, 130, None, 130, 150),  # the run's end is not what signal_before is about
        (60, 10, 130, 20, 130, 110),
        (60, 10, 500, 20, 160, 150),
        (None, None, 130, 20, 130, 110),
        (60, 10, math.inf, 20, 160, 150),
        (None, None, 110, 20, 110, 90),
    ],
)
def test_what_ends_first_counts(
    limit_s: float | None,
    before_s: float | None,
    run_ends_s: float,
    run_before_s: float | None,
    ends_s: float,
    warns_s: float,
) -> None:
    found = Deadline.of(100.0, limit_s, before_s, run_ends_s, run_before_s)
    assert (found.ends_s, found.warns_s) == (ends_s, warns_s)


def test_what_is_left_is_never_negative() -> None:
    now_s = time.monotonic()
    over = Deadline(now_s - 5, now_s - 10)
    assert (over.left_s, over.is_near) == (0.0, True)
    later = Deadline(now_s + 1000, now_s + 900)
    assert later.left_s is not None
    assert 0 < later.left_s <= 1000
    assert not later.is_near
    end_time = int(later.facts()["DIEL_END_TIME"])
    assert end_time <= time.time() + 1000
    assert (NO_DEADLINE.left_s, NO_DEADLINE.is_near, NO_DEADLINE.facts()) == (None, False, {})


def test_it_is_a_fact_of_programs_that_they_do_not_inherit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(END_TIME, "1060")
    assert END_TIME in FACTS
    assert END_TIME not in child_environment()


def test_a_context_without_an_end() -> None:
    with TupleSpace() as space:
        context = space.context()
        assert (context.time_left_s, context.ends_soon) == (None, False)
        assert "DIEL_END_TIME" not in context.child_environment()


@pytest.mark.parametrize(
    ("environment", "left_s"),
    [
        ({}, None),
        ({"DIEL_END_TIME": "1060"}, 60),
        ({"DIEL_END_TIME": "940"}, None),  # of an earlier job
        ({"SLURM_JOB_END_TIME": "1100"}, 100),
        ({"SLURM_JOB_END_TIME": "Unknown"}, None),
        ({"DIEL_END_TIME": "1060", "SLURM_JOB_END_TIME": "1100"}, 60),
        ({"DIEL_END_TIME": "940", "SLURM_JOB_END_TIME": "1100"}, 100),
        ({"DIEL_END_TIME": ""}, None),
    ],
)
def test_the_end_of_the_job_around_a_run(environment: dict[str, str], left_s: float | None) -> None:
    assert time_left_of_run(environment, 1000.0) == left_s


@pytest.mark.parametrize("text", ["soon", "-5", "1e9", "12:30"])
def test_an_end_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match=r"DIEL_END_TIME is .* Unix time in seconds"):
        time_left_of_run({"DIEL_END_TIME": text}, 1000.0)
