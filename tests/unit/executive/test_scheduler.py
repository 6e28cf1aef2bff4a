from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from diel.executive.events import (
    AbandonCopy,
    ConnectModule,
    EndRun,
    Instruction,
    LeaveTimedOut,
    LookForTag,
    RanksDied,
    RanksSilent,
    ReadTuples,
    RestartCopies,
    StartGroup,
    StopAsked,
    StopRun,
    TagLooked,
    TimeLimitPassed,
    TuplesRead,
)
from diel.executive.messages import LossAllowed, ModuleCommAsked, RankFailed, RankFinished, RankLeft
from diel.executive.plans import CopyPlan, GroupPlan, ModulePlan
from diel.executive.scheduler import Scheduler
from diel.exit_codes import STOPPED
from diel.run.records import (
    CopiesRestarted,
    CopyFinished,
    CopyGivenUp,
    Finished,
    GroupFinished,
    GroupStarted,
    JournalLost,
    LeaveIgnored,
    ModuleCommMade,
    ModuleFailed,
    RanksLost,
    StopOrdered,
    TasksFailed,
)
from diel.run.tasks import ProgramEnd
from diel.workflow.when import When


def group(
    name: str, *modules: tuple[Any, ...], depends: Sequence[str] = (), **more: Any
) -> GroupPlan:
    return GroupPlan(name, tuple(ModulePlan(*module) for module in modules), tuple(depends), **more)


def finish(scheduler: Scheduler, plan: CopyPlan) -> list[Instruction]:
    """Let all ranks of a copy finish."""
    return [
        instruction
        for rank in plan.ranks
        for instruction in scheduler.handle(RankFinished(plan.serial, rank))
    ]


def started(instructions: Sequence[Instruction]) -> list[StartGroup]:
    return [instruction for instruction in instructions if isinstance(instruction, StartGroup)]


# -- by hand --------------------------------------------------------------------------------------


def test_nothing_to_run_ends_at_once() -> None:
    assert Scheduler([], range(2, 4)).start() == [EndRun()]


def test_copies_get_their_ranks_in_order() -> None:
    scheduler = Scheduler([group("g", ("a", 2, 2), ("b", 1, 1))], [7, 3, 4, 9, 5, 6])
    (start,) = started(scheduler.start())
    assert [(copy.module, copy.copy_index, copy.ranks) for copy in start.copies] == [
        ("a", 0, (3, 4)),
        ("a", 1, (5, 6)),
        ("b", 0, (7,)),
    ]
    assert [copy.module_ranks for copy in start.copies] == [(3, 4, 5, 6), (3, 4, 5, 6), (7,)]
    assert scheduler.free_ranks == (9,)
    assert [copy.copies for copy in start.copies] == [2, 2, 1]
    assert scheduler.plan_of(start.copies[1].serial) is start.copies[1]


def test_a_copy_returns_what_its_rank_0_returned() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 3))], [2, 3, 4])
    (start,) = started(scheduler.start())
    (plan,) = start.copies
    assert scheduler.handle(RankFinished(plan.serial, 2, "of rank 0")) == []
    assert scheduler.handle(RankFinished(plan.serial, 4, "of rank 2")) == []
    assert scheduler.handle(RankFinished(plan.serial, 3, "of rank 1")) == [
        CopyFinished.of("of rank 0", **plan.place),
        GroupFinished(group="g"),
        EndRun(),
    ]


def test_a_group_that_the_run_leaves_out_has_finished() -> None:
    asks = When("outcome('left out') == 'finished'")
    scheduler = Scheduler([group("g", ("a", 1, 1), when=asks)], [2])
    assert scheduler.start() == [ReadTuples("g", (0,), ())]
    assert started(scheduler.handle(TuplesRead("g", (0,), {})))


@pytest.mark.parametrize("is_apart", [True, False])
def test_a_group_finishes_without_its_failed_tasks(is_apart: bool) -> None:
    scheduler = Scheduler([group("g", ("a", 2, 1, "stop", 0, None, 30), ("b", 1, 1))], range(2, 5))
    (start,) = started(scheduler.start())
    ends = [ProgramEnd(True, (17, 4)), ProgramEnd(True, (5,)), ProgramEnd(is_apart)]
    for plan, end in zip(start.copies, ends, strict=True):
        last = scheduler.handle(RankFinished(plan.serial, plan.ranks[0], program=end))
    assert last == [
        CopyFinished(**start.copies[2].place, is_apart=is_apart),
        TasksFailed(group="g", module="a", failed=[4, 5, 17], total=30, is_repeatable=is_apart),
        GroupFinished(group="g"),
        EndRun(),
    ]


def test_a_large_group_is_not_overtaken() -> None:
    groups = [group("first", ("a", 2, 1)), group("large", ("b", 3, 1)), group("small", ("c", 1, 1))]
    scheduler = Scheduler(groups, range(2, 5))
    (first,) = started(scheduler.start())
    assert scheduler.free_ranks == (4,)  # enough for "small", which waits behind "large"
    assert started(finish(scheduler, first.copies[0])) == []
    (large,) = started(finish(scheduler, first.copies[1]))
    assert large.group == "large"


def test_a_module_that_two_groups_share_runs_in_one_at_a_time() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1)), group("h", ("a", 1, 1))], range(2, 6))
    (first,) = started(scheduler.start())
    assert first.group == "g"
    (second,) = started(finish(scheduler, first.copies[0]))
    assert second.group == "h"
    assert second.copies[0].serial != first.copies[0].serial


def test_a_group_that_never_fits_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"group 'g' needs 3 ranks of the pool, which has 2"):
        Scheduler([group("g", ("a", 3, 1))], [2, 3])


def test_a_failure_names_the_copy_and_the_rank() -> None:
    scheduler = Scheduler([group("g", ("a", 2, 2))], range(2, 6))
    (start,) = started(scheduler.start())
    stop = scheduler.handle(RankFailed(start.copies[1].serial, 5))
    assert stop == [
        ModuleFailed(
            group="g",
            module="a",
            copy=1,
            rank=5,
            copy_rank=1,
            ranks=(4, 5),
            error="",
            policy="stop",
        ),
        StopOrdered(reason="a.1 failed"),
        StopRun("a.1 failed"),
    ]
    assert scheduler.stopping
    assert scheduler.handle(RankFailed(start.copies[0].serial, 2)) == []


def test_a_stop_that_was_asked_for_has_no_culprit() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1))], [2])
    scheduler.start()
    assert scheduler.handle(StopAsked("enough")) == [
        StopOrdered(reason="enough"),
        StopRun("enough", exit_code=STOPPED),
    ]


def test_a_journal_that_is_lost_is_a_failure_without_a_culprit() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1))], [2])
    (start,) = started(scheduler.start())
    assert scheduler.handle(JournalLost(explanation="it is gone")) == [
        JournalLost(explanation="it is gone"),
        StopOrdered(reason="the journal is lost"),
        StopRun("the journal is lost"),
    ]
    # Nothing that ends after it starts anything.
    assert not started(scheduler.handle(RankFailed(start.copies[0].serial, 2)))


# -- iterations and nests -------------------------------------------------------------------------


def run_all(scheduler: Scheduler, instructions: Sequence[Instruction]) -> list[str]:
    """Let all copies finish as they start; return the groups of modules, with iterations."""
    names = []
    queue = list(instructions)
    while queue:
        one = queue.pop(0)
        if isinstance(one, StartGroup):
            names.append(f"{one.group}{list(one.iteration)}")
            for copy in one.copies:
                queue += finish(scheduler, copy)
    return names


def test_a_group_of_groups_repeats_what_is_inside() -> None:
    groups = [
        group("a", ("a", 1, 1), iterations=2),
        group("b", ("b", 1, 1), depends=["a"]),
        GroupPlan("ab", groups=("a", "b"), iterations=2),
        group("end", ("a", 1, 1), depends=["ab"]),
    ]
    scheduler = Scheduler(groups, [2, 3])
    assert run_all(scheduler, scheduler.start()) == [
        "a[0, 0]",
        "a[0, 1]",
        "b[0, 0]",
        "a[1, 0]",
        "a[1, 1]",
        "b[1, 0]",
        "end[0]",
    ]


def test_the_next_iteration_queues_up_behind_others() -> None:
    groups = [group("a", ("a", 1, 2), iterations=2), group("b", ("b", 1, 1), iterations=2)]
    scheduler = Scheduler(groups, [2, 3])  # for one of them at a time
    assert run_all(scheduler, scheduler.start()) == ["a[0]", "b[0]", "a[1]", "b[1]"]


def test_until_ends_a_group_when_its_tag_is_there() -> None:
    scheduler = Scheduler([group("a", ("a", 1, 1), until="done", iterations=None)], [2])
    (start,) = started(scheduler.start())
    for iteration in range(3):
        _, look = finish(scheduler, start.copies[0])
        assert look == LookForTag("a", (iteration,), "done")
        note, start, _ = scheduler.handle(TagLooked("a", (iteration,), False))
        assert note == GroupFinished(group="a", iteration=(iteration,), ended_by=None)
        assert isinstance(start, StartGroup)
    finish(scheduler, start.copies[0])
    assert scheduler.handle(TagLooked("a", (2,), True)) == []  # an answer to an earlier question
    assert scheduler.handle(TagLooked("a", (3,), True)) == [
        GroupFinished(group="a", iteration=(3,), ended_by="until"),
        EndRun(),
    ]


def test_the_last_iteration_says_whether_the_tag_came() -> None:
    scheduler = Scheduler([group("a", ("a", 1, 1), until="done", iterations=1)], [2])
    (start,) = started(scheduler.start())
    finish(scheduler, start.copies[0])
    note, _ = scheduler.handle(TagLooked("a", (0,), False))
    assert note == GroupFinished(group="a", iteration=(0,), ended_by="iterations")


def test_it_goes_on_from_what_is_finished() -> None:
    groups = [
        group("a", ("a", 1, 1), iterations=3),
        group("b", ("b", 1, 1), depends=["a"]),
        GroupPlan("ab", groups=("a", "b"), iterations=3),
        group("early", ("c", 1, 1)),
        group("late", ("c", 1, 1), depends=["ab"]),
    ]
    finished = {
        "ab": Finished((0,), False),
        "a": Finished((1, 1), False),
        "b": Finished((0, 0), True),
        "early": Finished((0,), True),
    }
    scheduler = Scheduler(groups, [2, 3], finished)
    names = run_all(scheduler, scheduler.start())
    assert names[:2] == ["a[1, 2]", "b[1, 0]"]
    assert names[2:] == ["a[2, 0]", "a[2, 1]", "a[2, 2]", "b[2, 0]", "late[0]"]


def test_it_goes_on_where_only_the_question_for_a_tag_was_open() -> None:
    """Nests whose content is finished are asked for at once, and nothing is begun twice."""
    groups = [
        group("x", ("a", 1, 1)),
        GroupPlan("nest", groups=("x",), until="done", iterations=2),
        group("y", ("b", 1, 1), depends=["nest"]),
        group("z", ("c", 1, 1), depends=["y"]),
    ]
    scheduler = Scheduler(groups, [2], {"x": Finished((0, 0), True)})
    assert scheduler.start() == [
        GroupStarted(group="nest", groups=("x",)),
        LookForTag("nest", (0,), "done"),
    ]
    assert [type(one) for one in scheduler.handle(TagLooked("nest", (0,), True))] == [
        GroupFinished,
        StartGroup,
        GroupStarted,
    ]


def test_nests_that_had_nothing_left_do_not_begin_their_followers_twice() -> None:
    groups = [
        group("x", ("a", 1, 1)),
        GroupPlan("nest", groups=("x",)),
        group("y", ("b", 1, 1), depends=["nest"]),
        GroupPlan("all", groups=("nest", "y"), iterations=2),
    ]
    scheduler = Scheduler(groups, [2, 3], {"x": Finished((0, 0, 0), True)})
    names = run_all(scheduler, scheduler.start())
    assert names == ["y[0, 0]", "x[1, 0, 0]", "y[1, 0]"]


@pytest.mark.parametrize(
    "groups",
    [
        [group("a", ("m", 1, 1), depends=["a"])],
        [group("a", ("m", 1, 1), depends=["b"]), GroupPlan("b", groups=("a",))],
        [GroupPlan("a", groups=("b",)), GroupPlan("b", groups=("a",))],
        [group("x", ("m", 1, 1)), *(GroupPlan(name, groups=("x",)) for name in "ab")],
    ],
)
def test_what_could_never_start_is_refused(groups: list[GroupPlan]) -> None:
    with pytest.raises(ValueError, match=r"never start|inside two others"):
        Scheduler(groups, [2])


# -- failures -------------------------------------------------------------------------------------


def test_a_copy_starts_again_when_all_its_ranks_have_left() -> None:
    scheduler = Scheduler([group("g", ("a", 2, 2, "stop", 1))], range(2, 6))
    (start,) = started(scheduler.start())
    first, other = start.copies
    failed = RankFailed(first.serial, 2, "an error", "node17", "its traceback")
    noted, leave = scheduler.handle(failed)
    assert noted == ModuleFailed(
        **first.place,
        ranks=(2, 3),
        rank=2,
        copy_rank=0,
        host="node17",
        error="an error",
        detail="its traceback",
        policy="retry",
    )
    assert leave == AbandonCopy(first, (3,))
    assert scheduler.handle(TimeLimitPassed(first.serial, "late")) == []
    again, restarted = scheduler.handle(RankLeft(first.serial, 3))
    assert restarted == CopiesRestarted(group="g", module="a", copies=[0], attempt=2)
    assert isinstance(again, RestartCopies)
    assert (again.group, again.iteration) == ("g", (0,))
    (second,) = again.copies
    assert (second.ranks, second.attempt) == ((2, 3), 2)
    assert second.serial not in (first.serial, other.serial)
    assert scheduler.running_ranks == {2, 3, 4, 5}
    finish(scheduler, other)
    # Its last attempt: now the policy counts.
    noted, _, stop = scheduler.handle(RankFailed(second.serial, 3))
    assert isinstance(noted, ModuleFailed)
    assert (noted.policy, noted.attempt) == ("stop", 2)
    assert stop == StopRun("a.0 failed")


def test_dependants_of_a_failure_that_is_passed_over_run() -> None:
    groups = [group("g", ("a", 2, 1, "continue")), group("h", ("b", 1, 1), depends=["g"])]
    scheduler = Scheduler(groups, range(2, 4))
    (start,) = started(scheduler.start())
    finish(scheduler, start.copies[0])
    noted, given_up, finished, dependant, _ = scheduler.handle(
        RankFailed(start.copies[1].serial, 3, "an error")
    )
    assert isinstance(noted, ModuleFailed)
    assert noted.policy == "continue"
    assert given_up == CopyGivenUp(**start.copies[1].place, error="an error")
    assert finished == GroupFinished(group="g", outcome="failed")
    assert isinstance(dependant, StartGroup)
    assert dependant.group == "h"


def ask(scheduler: Scheduler, *plans: CopyPlan) -> list[Instruction]:
    return [
        one
        for plan in plans
        for rank in plan.ranks
        for one in scheduler.handle(ModuleCommAsked(plan.serial, rank))
    ]


def test_copies_that_share_a_communicator_start_again_together() -> None:
    scheduler = Scheduler([group("g", ("a", 2, 1, "stop", 2))], [2, 3])
    (start,) = started(scheduler.start())
    first, second = start.copies
    assert ask(scheduler, first) == []
    assert ask(scheduler, second) == [
        ConnectModule("g", (0,), "a", first.module_serial, (2, 3)),
        ModuleCommMade(group="g", module="a"),
    ]
    noted, leave = scheduler.handle(RankFailed(second.serial, 3))
    assert isinstance(noted, ModuleFailed)
    assert noted.whole_module
    assert leave == AbandonCopy(first, (2,))
    again, _ = scheduler.handle(RankLeft(first.serial, 2))
    assert isinstance(again, RestartCopies)
    assert [copy.attempt for copy in again.copies] == [2, 2]
    (module_serial,) = {copy.module_serial for copy in again.copies}
    assert module_serial != first.module_serial


def test_a_copy_that_fails_before_they_share_one_starts_again_alone() -> None:
    scheduler = Scheduler([group("g", ("a", 2, 1, "stop", 2))], [2, 3])
    (start,) = started(scheduler.start())
    first, second = start.copies
    ask(scheduler, first)
    _, again, _ = scheduler.handle(RankFailed(second.serial, 3))
    assert isinstance(again, RestartCopies)
    (second,) = again.copies
    assert second.module_serial == first.module_serial
    made, _ = ask(scheduler, second)  # the first is still waiting for it
    assert isinstance(made, ConnectModule)


def test_a_time_limit_is_a_failure_of_nobody_in_particular() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 2, "continue"))], [2, 3])
    (start,) = started(scheduler.start())
    (plan,) = start.copies
    assert scheduler.handle(TimeLimitPassed(plan.serial, "late")) == [
        ModuleFailed(**plan.place, ranks=(2, 3), error="late", policy="continue"),
        AbandonCopy(plan, (2, 3)),
    ]
    # What they do about it is a consequence, whatever it is.
    assert scheduler.handle(RankFailed(plan.serial, 2, "a consequence")) == []
    assert scheduler.handle(RankFinished(plan.serial, 3)) == [
        CopyGivenUp(**plan.place, error="late"),
        GroupFinished(group="g", outcome="failed"),
        EndRun(),
    ]


def test_a_time_limit_stops_the_run_as_other_failures_do() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1))], [2])
    (start,) = started(scheduler.start())
    (plan,) = start.copies
    assert scheduler.handle(TimeLimitPassed(plan.serial, "late")) == [
        ModuleFailed(**plan.place, ranks=(2,), error="late", policy="stop"),
        StopOrdered(reason="a.0 failed"),
        StopRun("a.0 failed"),
    ]


def test_a_rank_that_does_not_leave_ends_the_run() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 3, "continue"))], [2, 3, 4])
    (start,) = started(scheduler.start())
    (plan,) = start.copies
    scheduler.handle(RankFailed(plan.serial, 2))
    scheduler.handle(RankLeft(plan.serial, 4))
    ignored, ordered, stop = scheduler.handle(LeaveTimedOut(plan.serial, 5.0))
    assert isinstance(ignored, LeaveIgnored)
    assert (ignored.group, ignored.name, ignored.ranks) == ("g", "a.0", (3,))
    reason = "rank 3 did not leave a.0, which has failed"
    assert ignored.explanation.startswith(f"{reason}, within 5 s: it computes")
    assert (ordered, stop) == (StopOrdered(reason=reason), StopRun(reason))
    assert scheduler.handle(RankLeft(plan.serial, 3)) == []  # the run ends, whatever it does


def test_all_ranks_that_do_not_leave_are_named() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 3, "continue"))], [2, 3, 4])
    (start,) = started(scheduler.start())
    scheduler.handle(RankFailed(start.copies[0].serial, 2))
    *_, stop = scheduler.handle(LeaveTimedOut(start.copies[0].serial, 5.0))
    assert isinstance(stop, StopRun)
    assert stop.reason.startswith("ranks 3, 4 did not leave")


def test_a_single_copy_that_has_a_communicator_of_its_module_fails_alone() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1, "continue"))], [2])
    (start,) = started(scheduler.start())
    assert len(ask(scheduler, *start.copies)) == 2  # to make it, and to record that
    noted, *_ = scheduler.handle(RankFailed(start.copies[0].serial, 2))
    assert isinstance(noted, ModuleFailed)
    assert not noted.whole_module


def test_an_alarm_that_comes_late_is_passed_over() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1, "stop", 1), ("b", 1, 1))], [2, 3])
    (start,) = started(scheduler.start())
    plan = start.copies[0]
    _, again, _ = scheduler.handle(RankFailed(plan.serial, 2))
    assert isinstance(again, RestartCopies)
    assert scheduler.handle(LeaveTimedOut(plan.serial, 5.0)) == []
    assert scheduler.handle(LeaveTimedOut(again.copies[0].serial, 5.0)) == []
    assert scheduler.handle(TimeLimitPassed(plan.serial, "late")) == []


def test_what_is_yet_to_come_is_named() -> None:
    groups = [
        group("loop", ("a", 1, 1), iterations=None, until="done"),
        group("once", ("b", 1, 1)),
        group("x", ("c", 1, 1), depends=["once"]),
        GroupPlan("nest", groups=("loop",), iterations=2),
    ]
    scheduler = Scheduler(groups, [2, 3])
    scheduler.start()
    assert scheduler.groups_to_come == [
        "loop (further iterations)",
        "x",
        "nest (further iterations)",
    ]


def test_a_group_of_groups_that_has_not_begun_is_named_whole() -> None:
    groups = [
        group("once", ("a", 1, 1)),
        GroupPlan("later", groups=("inside", "behind"), depends=("once",), iterations=2),
        group("inside", ("b", 1, 1), iterations=3),
        group("behind", ("c", 1, 1), depends=["inside"]),
    ]
    scheduler = Scheduler(groups, [2])
    (start,) = started(scheduler.start())
    assert scheduler.groups_to_come == ["later", "inside", "behind"]
    scheduler.handle(RankFinished(start.copies[0].serial, 2))
    assert scheduler.groups_to_come == [
        "later (further iterations)",
        "inside (further iterations)",
        "behind",
    ]


def test_what_is_finished_or_asked_about_is_not_to_come() -> None:
    groups = [
        group("a", ("a", 1, 1), until="done", iterations=2),
        group("b", ("b", 1, 1), depends=["a"]),
        group("c", ("c", 1, 1), depends=["a"]),
        GroupPlan("around", groups=("d",), depends=("c",)),
        group("d", ("d", 1, 1)),
    ]
    scheduler = Scheduler(groups, [2, 3])
    (start,) = started(scheduler.start())
    finish(scheduler, start.copies[0])
    assert scheduler.groups_to_come == ["b", "c", "around", "d"]  # nobody knows yet of "a"
    (start,) = started(scheduler.handle(TagLooked("a", (0,), False)))
    assert scheduler.groups_to_come == ["b", "c", "around", "d"]  # its last iteration runs
    finish(scheduler, start.copies[0])
    running = started(scheduler.handle(TagLooked("a", (1,), False)))
    assert [one.group for one in running] == ["b", "c"]
    assert scheduler.groups_to_come == ["around", "d"]
    # A late answer to the same question changes nothing.
    assert started(scheduler.handle(TagLooked("a", (1,), False))) == []
    (last,) = started(finish(scheduler, running[1].copies[0]))
    assert (last.group, scheduler.groups_to_come) == ("d", [])


def test_the_end_of_a_group_starts_all_that_waited_for_it_and_what_is_around() -> None:
    """Inside a group of groups the last one to finish begins both, in the order of the file."""
    groups = [
        group("a", ("a", 1, 1)),
        group("b", ("b", 1, 1), depends=["a"]),
        group("c", ("c", 1, 1), depends=["a"]),
        GroupPlan("nest", groups=("a", "b", "c"), iterations=2),
    ]
    scheduler = Scheduler(groups, [2, 3, 4])
    names = run_all(scheduler, scheduler.start())
    assert names == [f"{name}[{i}, 0]" for i in (0, 1) for name in "abc"]


# -- ranks that are lost --------------------------------------------------------------------------


def sweep_of(
    trainers: int, on_failure: str = "stop", **more: Any
) -> tuple[Scheduler, list[CopyPlan]]:
    """Return a group of a master and trainers that has started, and its copies."""
    plan = group("g", ("master", 1, 1), ("trainer", trainers, 1, on_failure), **more)
    scheduler = Scheduler([plan], range(2, 3 + trainers))
    (start,) = started(scheduler.start())
    for copy in start.copies[1:]:
        assert scheduler.handle(LossAllowed(copy.serial)) == []
    return scheduler, list(start.copies)


def test_a_run_goes_on_without_a_copy_that_can_be_missed() -> None:
    scheduler, (master, first, second) = sweep_of(2)
    lost, given_up = scheduler.handle(RanksDied({3: "n1"}))
    assert lost == RanksLost(
        ranks=[3],
        hosts=["n1"],
        explanation="rank 3 died, and the run goes on\nrank 3 on n1: trainer.0",
        policy="continue",
    )
    assert given_up == CopyGivenUp(**first.place, error="rank 3 died")
    assert scheduler.running_ranks == {2, 4}
    finish(scheduler, master)
    assert finish(scheduler, second)[-2:] == [GroupFinished(group="g"), EndRun()]
    assert scheduler.free_ranks == (2, 4)


@pytest.mark.parametrize(("rank", "runs_on"), [(2, "master.0"), (1, "a tuple server")])
def test_a_rank_that_cannot_be_missed_ends_the_run(rank: int, runs_on: str) -> None:
    scheduler, _ = sweep_of(2)
    assert scheduler.handle(RanksDied({rank: "n1"})) == [
        RanksLost(
            ranks=[rank],
            hosts=["n1"],
            explanation=f"rank {rank} died\nrank {rank} on n1: {runs_on}",
        ),
        StopOrdered(reason=f"rank {rank} died"),
        StopRun(f"rank {rank} died"),
    ]


def test_a_run_goes_on_with_the_twin_of_a_tuple_server() -> None:
    twins = ((1, 2), (2, 3), (3, 1))
    scheduler = Scheduler([group("g", ("a", 1, 1))], range(4, 6), twins=twins)
    scheduler.start()
    (lost,) = scheduler.handle(RanksDied({2: "n1"}))
    assert lost == RanksLost(
        ranks=[2],
        hosts=["n1"],
        explanation="rank 2 died, and the run goes on\n"
        "rank 2 on n1: a tuple server; its tuples are on ranks 1, 3 too",
        policy="continue",
    )
    lost, *stop = scheduler.handle(RanksDied({1: "n1"}))
    assert lost == RanksLost(
        ranks=[1],
        hosts=["n1"],
        explanation="rank 1 died\nrank 1 on n1: a tuple server, whose twin has died too",
    )
    assert stop == [StopOrdered(reason="rank 1 died"), StopRun("rank 1 died")]


def test_a_rank_that_nothing_runs_on_is_not_given_out_again() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1))], range(2, 5))
    scheduler.start()
    (lost,) = scheduler.handle(RanksDied({4: "n1"}))
    assert isinstance(lost, RanksLost)
    assert lost.explanation.endswith("rank 4 on n1: no module at this moment")
    assert not lost.stops_run
    assert scheduler.free_ranks == (3,)


def test_the_last_copy_of_a_module_cannot_be_missed() -> None:
    scheduler, _ = sweep_of(2)
    assert not scheduler.stopping
    scheduler.handle(RanksDied({4: "n1"}))
    assert not scheduler.stopping
    scheduler.handle(RanksDied({3: "n1"}))
    assert scheduler.stopping


def test_a_copy_that_was_given_up_does_not_do_the_work_of_another() -> None:
    scheduler, (_, first, second) = sweep_of(2, on_failure="continue")
    scheduler.handle(RankFailed(first.serial, first.ranks[0], "", "n1", ""))
    assert not scheduler.stopping
    scheduler.handle(RanksDied({second.ranks[0]: "n1"}))
    assert scheduler.stopping


@pytest.mark.parametrize("asking", [1, 2])
def test_a_copy_whose_module_comm_others_want_cannot_be_missed(asking: int) -> None:
    scheduler, (_, *trainers) = sweep_of(2)  # they have allowed their loss before
    for copy in trainers[:asking]:
        scheduler.handle(ModuleCommAsked(copy.serial, copy.ranks[0]))
    scheduler.handle(RanksDied({trainers[0].ranks[0]: "n1"}))
    assert scheduler.stopping


def test_what_a_rank_has_reported_before_it_died_may_come_late() -> None:
    scheduler, (_, first, _) = sweep_of(2)
    rank = first.ranks[0]
    scheduler.handle(RanksDied({rank: "n1"}))
    for late in (
        RankFinished(first.serial, rank),
        RankFailed(first.serial, rank, "", "", ""),
        RankLeft(first.serial, rank),
        ModuleCommAsked(first.serial, rank),
        LossAllowed(first.serial),
    ):
        assert scheduler.handle(late) == []
    assert not scheduler.stopping


def test_a_group_that_needs_more_ranks_than_are_left_ends_the_run() -> None:
    scheduler, (master, _, second) = sweep_of(2, iterations=2)
    scheduler.handle(RanksDied({3: "n1"}))
    finish(scheduler, master)
    lost, *_ = (one for one in finish(scheduler, second) if isinstance(one, RanksLost))
    assert lost.explanation == "group 'g' needs 3 ranks, 2 are left"
    assert (lost.ranks, lost.stops_run) == ([3], True)
    assert scheduler.stopping


def test_ranks_that_are_silent_end_the_run() -> None:
    scheduler, _ = sweep_of(2)
    lost, *_ = scheduler.handle(RanksSilent({3: "n1", 4: "n1"}, 30.0, "12:00:00"))
    assert isinstance(lost, RanksLost)
    assert lost.explanation.splitlines() == [
        "host n1 has not been heard of for 30.0 s, since 12:00:00",
        "rank 3 on n1: trainer.0",
        "rank 4 on n1: trainer.1",
    ]
    assert scheduler.stopping
