"""Why groups do not start and what ranks wait for, as ``diel explain`` and the page say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import case_count, record, status_of
from unit.executive.simulation import Case, Simulation, cases

from diel.executive.explanation import RankQueue, RunExplanation, explain
from diel.executive.plans import GroupPlan, ModulePlan, recorded
from diel.run.status import StatusView, WaitView
from diel.run.view import RunView


def group(name: str, modules: str = "", copies: int = 1, **more: Any) -> GroupPlan:
    plans = tuple(ModulePlan(module, copies, 1) for module in modules.split())
    return GroupPlan(name, plans, **more)


def view_of(groups: list[GroupPlan], *records: Any, ranks: int = 6) -> RunView:
    view = RunView()
    started = record("RunStarted", 1.0, workflow="w", ranks=ranks, servers=[1], **recorded(groups))
    for one in (started, *records):
        view.apply(one)
    return view


def started(name: str, placement: dict[str, list[int]], time_s: float = 2.0) -> Any:
    copies: dict[str, int] = {}
    for copy in placement:
        copies[copy.split(".")[0]] = copies.get(copy.split(".")[0], 0) + 1
    return record("GroupStarted", time_s, group=name, copies=copies, placement=placement)


def texts(view: RunView, status: StatusView | None = None) -> dict[str, str]:
    found = explain(view, status or StatusView(), 10.0)
    return {each.group: each.text for each in found.groups}


GROUPS = [
    group("first", "a b"),
    group("wide", "c", copies=3),
    group("small", "d"),
    group("last", "e", depends=("wide", "small")),
]
FIRST = started("first", {"a.0": [2], "b.0": [3]})


def test_the_first_of_the_queue_wants_ranks_and_none_overtakes_it() -> None:
    assert texts(view_of(GROUPS, FIRST)) == {
        "first": "runs on ranks 2, 3, 2 of 2 copies go on",
        "wide": "is ready, and waits for ranks: it wants 3, 2 are free; first has 2",
        "small": "is ready, behind wide in the queue for ranks: none overtakes another",
        "last": "waits for wide (queued), small (queued)",
    }
    found = {each.group: each for each in explain(view_of(GROUPS, FIRST), StatusView(), 3.0).groups}
    wide = found["wide"]
    assert (wide.situation, wide.wanted) == ("queued", 3)


def test_a_module_runs_in_one_group_at_a_time() -> None:
    groups = [group("first", "a"), group("again", "a b")]
    words = texts(view_of(groups, started("first", {"a.0": [2]})))
    assert words["again"] == (
        "is ready, and waits for a, which runs in first: a module runs in one group at a time"
    )


def test_groups_inside_and_iterations() -> None:
    groups = [
        group("outer", groups=("inner", "next"), iterations=3, until=("done", 1)),
        group("inner", "a"),
        group("next", "b", depends=("inner",)),
        group("after", "c", depends=("outer",)),
    ]
    begun = [record("GroupStarted", 2.0, group="outer", iteration=[1], groups=["inner", "next"])]
    begun.append(record("GroupStarted", 2.0, group="inner", iteration=[1, 0], copies={"a": 1},
                        placement={"a.0": [2]}))  # fmt: skip
    assert texts(view_of(groups, *begun)) == {
        "outer": "runs, iteration 2 of 3, until a tuple ('done', 1) is there, "
        "the groups inside are inner, next",
        "inner": "runs on rank 2, 1 of 1 copies go on",
        "next": "waits for inner (running, 0 of 1 copies have ended)",
        "after": "waits for outer (running, iteration 2 of 3, until a tuple ('done', 1) is there)",
    }
    assert texts(view_of(groups))["next"] == "waits for inner (starting)"


def test_who_waits_for_what_and_who_could_end_it() -> None:
    waiting = [WaitView(3, "b.0", "tget('x')", 4.0)]
    found = explain(view_of(GROUPS, FIRST), StatusView(tuple(waiting)), 10.0)
    (wait,) = found.waits
    assert wait.could_end_it == ("a.0", "group wide", "group small", "group last")
    assert "rank 3: b.0 has waited 6.0 s in tget('x'); those that go on: a.0" in found.lines()[-1]
    alone = view_of([GROUPS[0]], FIRST)
    waiting.append(WaitView(2, "a.0", "tget('y')", 5.0))
    found = explain(alone, StatusView(tuple(waiting)), 10.0)
    assert [wait.could_end_it for wait in found.waits] == [(), ()]
    assert "this is a deadlock" in found.waits[0].text


def test_groups_that_come_after_a_wait_cannot_end_it() -> None:
    groups = [
        group("outer", groups=("first", "second")),
        group("first", "a"),
        group("second", "b", depends=("first",)),
        group("after", "c", depends=("outer",)),
        group("last", groups=("inside",), depends=("after",)),
        group("inside", "d"),
        group("beside", "e", copies=5),
    ]
    view = view_of(groups, started("first", {"a.0": [2]}))
    (wait,) = explain(view, StatusView((WaitView(2, "a.0", "tget('x')", 4.0),)), 10.0).waits
    assert wait.could_end_it == ("group beside",)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record("RunEnded", 9.0, exit_code=0)], "the run has finished"),
        ([record("RunEnded", 9.0, exit_code=130)], "the run was stopped"),
        (
            [record("RunEnded", 9.0, exit_code=1)],
            "the run has ended with exit code 1; its logs may say why",
        ),
        (
            [record("RunRefused", 9.0, error="2 ranks are too few", exit_code=2)],
            "the run was refused: 2 ranks are too few",
        ),
        (
            [
                record("ModuleFailed", module="a", copy=0, error="ouch"),
                record("RunEnded", 9.0, exit_code=1),
            ],
            "the run was ended, since a.0 failed: ouch",
        ),
        (
            [
                record("DeadlockFound", explanation="a.0 waits"),
                record("RunEnded", 9.0, exit_code=1),
            ],
            "the run was ended, since everybody waited for what nobody would do:\na.0 waits",
        ),
    ],
)
def test_a_run_that_has_ended_says_why(records: list[Any], words: str) -> None:
    found = explain(view_of(GROUPS, FIRST, *records), StatusView(), 10.0)
    assert found.ended == words
    assert [each.situation for each in found.groups] == ["stopped"] + ["never started"] * 3


def test_of_a_run_that_has_not_begun_there_is_nothing_to_say() -> None:
    assert explain(RunView(), StatusView(), 1.0) == RunExplanation((), (), "")


@settings(max_examples=case_count(60), deadline=None)
@given(cases(failing=True, conditional=True), st.integers(0, 60))
def test_the_queue_is_that_of_the_scheduler(case: Case, steps: int) -> None:
    first = max(1, case.pool[0])
    case = replace(case, pool=tuple(range(first, first + len(case.pool))))
    simulation = Simulation(case)
    simulation.start()
    for _ in range(steps):
        if simulation.is_over:
            break
        simulation.step()
    # While rank 0 looks for a tag its journal does not say yet that the iteration is done.
    assume(not simulation.is_over and not simulation.looking and not simulation.reading)
    view = RunView()
    for one in simulation.records:
        view.apply(one)
    queue = RankQueue(view)
    # When a condition was found to be true is not recorded, only when a group could be judged.
    in_order = sorted if any(group.when for group in case.groups) else list
    ready = [name for name, _ in simulation.scheduler.ready]
    assert in_order(queue.ready) == in_order(ready)
    assert tuple(queue.free) == simulation.scheduler.free_ranks
    for each in explain(view, StatusView(), 1e6).groups:
        plan = simulation.plans[each.group]
        assert (each.situation == "running") == bool(
            view.groups[each.group].ranks or (plan.groups and each.situation == "running")
        )
        assert (each.situation in ("starting", "queued")) == (each.group in queue.ready)


def test_of_a_file_it_says_what_would_start_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diel.loading.environment import THREAD_VARIABLES

    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    (tmp_path / "w.toml").write_text("""
[[module]]
name = "a"
executable = ["echo"]
[[module]]
name = "b"
executable = ["echo"]
[[group]]
name = "first"
modules = ["a"]
[[group]]
name = "second"
modules = ["b"]
depends = ["first"]
""")
    assert status_of("explain", tmp_path / "w.toml", "-n", "3") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows[1] == ["1", "first", "1", "starts", "now,", "on", "rank", "2"]
    assert rows[2] == ["2", "second", "1", "waits", "for", "first", "(starting)"]
