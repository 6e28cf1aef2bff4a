"""Which groups that have finished after a checkpoint stay finished when the run goes on."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from support import record

from diel.run.kept_groups import KeptGroups
from diel.run.records import Finished

STARTED = record(
    "RunStarted",
    workflow="w",
    ranks=2,
    groups=["a", "b", "c", "loop", "first", "then"],
    copies={"a": {"m": 2}, "b": {"m": 1}, "c": {"m": 1}, "first": {"m": 1}, "then": {"m": 1}},
    depends={"b": ["a"], "c": ["b"], "then": ["first"]},
    inside={"first": "loop", "then": "loop"},
    iterations={"loop": 3},
)


def run(group: str, *iteration: int, apart: bool = True, copies: int = 1, ends: bool = True) -> Any:
    """Return the records of an iteration of a group, of which the last copy may use tuples."""
    place = {"group": group, "iteration": list(iteration or (0,))}
    copy = {**place, "module": "m"}
    return [
        record("GroupStarted", **place, copies={"m": copies}),
        *(record("CopyFinished", **copy, copy=each, is_apart=True) for each in range(copies - 1)),
        record("CopyFinished", **copy, copy=copies - 1, is_apart=apart),
        record("GroupFinished", **place, ended_by="iterations" if ends else None),
    ]


def loop(number: int) -> Any:
    ended_by = "iterations" if number == 2 else None
    return [record("GroupFinished", group="loop", iteration=[number], ended_by=ended_by)]


def kept(*records: Any, **settings: Any) -> dict[str, Finished]:
    groups = KeptGroups(STARTED, {}, {}, **settings)
    for each in chain(*records):
        groups.apply(each)
    return groups.finished


DONE = Finished((0,), True)


def test_executables_that_use_no_tuples_stay_finished() -> None:
    assert kept(run("a", copies=2), run("b")) == {"a": DONE, "b": DONE}


def test_what_comes_after_something_that_is_repeated_is_repeated() -> None:
    used = run("a", copies=2, apart=False)
    assert kept(used, run("b"), run("c")) == {}
    assert kept(run("a", copies=2), run("b", apart=False), run("c")) == {"a": DONE}


def test_a_copy_that_was_given_up_is_repeated_with_its_group() -> None:
    records = run("a", copies=2)
    del records[1]
    assert kept(records) == {}


def test_iterations_stay_as_far_as_all_of_their_groups_do() -> None:
    whole = [*run("first", 0, 0), *run("then", 0, 0), *loop(0)]
    broken = [*run("first", 1, 0), *run("then", 1, 0, apart=False), *loop(1)]
    later = [*run("first", 2, 0)]
    assert kept(whole, broken, later) == {
        "loop": Finished((0,), False),
        "first": Finished((1, 0), True),
        "then": Finished((0, 0), True),
    }


def test_a_group_that_a_tuple_ends_is_repeated() -> None:
    groups = KeptGroups(STARTED.replace(until=("a",)), {}, {})
    for each in run("a", copies=2):
        groups.apply(each)
    assert groups.finished == {}


def test_after_a_damaged_line_nothing_stays() -> None:
    groups = KeptGroups(STARTED, {}, {})
    groups.note_damage()
    for each in run("a", copies=2):
        groups.apply(each)
    assert groups.finished == {}


def test_a_group_that_runs_at_a_checkpoint_stays_finished_later() -> None:
    groups = KeptGroups(STARTED, {}, {})
    *before, last = run("a", copies=2)
    for each in before:
        groups.apply(each)
    groups = groups.at({}, {})
    groups.apply(last)
    assert groups.finished == {"a": DONE}


def skipped(group: str, values: dict[str, Any]) -> Any:
    return [record("GroupSkipped", group=group, iteration=[0], condition="...", values=values)]


def test_a_skipped_group_stays_so_unless_a_tuple_decides() -> None:
    groups = KeptGroups(STARTED, {}, {})
    for each in chain(run("a", copies=2), skipped("b", {"outcome('a')": "finished"}), run("c")):
        groups.apply(each)
    assert groups.finished == {"a": DONE, "b": DONE, "c": DONE}
    assert groups.outcomes == {"b": "skipped"}
    assert kept(run("a", copies=2), skipped("b", {"value('x')": 1}), run("c")) == {"a": DONE}
    assert kept(run("a", copies=2, apart=False), skipped("b", {"dt": 1})) == {}


def test_how_groups_have_ended_stays_with_them() -> None:
    groups = KeptGroups(STARTED, {"b": DONE}, {"b": "skipped"})
    *before, last = run("a", copies=2)
    for each in [*before, last.replace(outcome="failed")]:
        groups.apply(each)
    assert groups.outcomes == {"a": "failed", "b": "skipped"}
    groups.repeat("a", (0,))
    assert groups.outcomes == {"b": "skipped"}


@pytest.mark.parametrize("repeats_failed", [False, True])
def test_groups_with_failed_tasks_are_repeated_if_asked(repeats_failed: bool) -> None:
    *before, last = run("a", copies=2)
    failed = record("TasksFailed", group="a", module="m", failed=[3], total=9, is_repeatable=True)
    found = kept([*before, failed, last], run("b"), repeats_failed=repeats_failed)
    assert found == ({} if repeats_failed else {"a": DONE, "b": DONE})


def test_a_repeated_group_takes_the_iteration_around_it_along() -> None:
    finished = {"loop": Finished((1,), False), "first": Finished((1, 0), True)}
    groups = KeptGroups(STARTED, finished, {})
    groups.repeat("then", (1, 0))
    assert groups.finished == {"loop": Finished((0,), False), "first": Finished((1, 0), True)}
    groups = KeptGroups(STARTED, finished, {})
    groups.repeat("then", (2, 0))  # the iteration around it has not finished yet
    assert groups.finished == finished
