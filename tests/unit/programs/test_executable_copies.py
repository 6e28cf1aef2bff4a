"""Tasks: the copies of an executable share them, and each is done by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diel import ANY
from diel.executive.plans import CopyPlan
from diel.programs.executables import ExecutableCopies
from diel.run.directory import RunDirectory
from diel.testing import TupleSpace


@pytest.fixture
def space() -> Iterator[TupleSpace]:
    with TupleSpace() as space:
        yield space


def rank(space: TupleSpace, session: str = "first") -> ExecutableCopies:
    none: Any = None
    return ExecutableCopies(RunDirectory("run"), Path("."), space.client(), none, session)


def copy(index: int, copies: int, module_serial: int = 7) -> CopyPlan:
    return CopyPlan(1, "g", "m", index, copies, (2,), module_serial, (2,))


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("total", [1, 2, 500])
def test_each_task_goes_to_one_copy(space: TupleSpace, copies: int, total: int) -> None:
    asking = [rank(space)._shares(copy(index, copies), total) for index in range(copies)]
    done, sizes = [], []
    while asking:
        one = asking.pop(0)
        share = next(one, None)
        if share is not None:
            done += share
            sizes.append(len(share))
            share.clear()
            asking.append(one)
    assert sorted(done) == list(range(total))
    assert sizes[0] == 1  # until it is known how long they take
    assert max(sizes) > 1 or total < 500
    assert max(sizes) <= max(1, total // (2 * copies))
    assert space.client().count((ANY,) * 5) == 0


def test_long_tasks_are_given_one_by_one(
    space: TupleSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diel.programs.executables._SHARE_S", 0.0)
    assert all(len(share) == 1 for share in rank(space)._shares(copy(0, 1), 50))


def test_what_a_copy_has_not_done_it_begins_with(space: TupleSpace) -> None:
    here, there = rank(space), rank(space)
    failing, other = here._shares(copy(0, 2), 5), there._shares(copy(1, 2), 5)
    assert [next(failing), next(other)] == [[0], [1]]
    failing.close()
    rest = [task for share in other for task in share]
    assert next(here._shares(copy(0, 2), 5)) == [0]
    assert sorted(rest) == [2, 3, 4]


def test_tasks_are_counted_anew_in_each_iteration_and_session(space: TupleSpace) -> None:
    assert next(rank(space)._shares(copy(0, 1), 5)) == [0]
    assert next(rank(space)._shares(copy(0, 1, module_serial=9), 5)) == [0]
    # A run that is resumed finds the tuple of a group that had begun, and does all of it again.
    assert next(rank(space, "second")._shares(copy(0, 1), 5)) == [0]
