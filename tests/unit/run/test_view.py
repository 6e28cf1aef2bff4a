from __future__ import annotations

from typing import Any

from support import record

from diel.run.view import RunView

STARTED = record("RunStarted", 100.0, workflow="study", ranks=4, groups=["g", "h"])
GROUP = record("GroupStarted", 101.0, group="g", copies={"a": 2, "b": 1})


def view_of(*records: Any) -> RunView:
    view = RunView()
    for one in records:
        view.apply(one)
    return view


def copy_finished(module: str, copy: int, returned: Any = None) -> Any:
    return record("CopyFinished", group="g", module=module, copy=copy, returned=returned)


def test_before_the_first_record_nothing_is_known() -> None:
    view = view_of()
    assert (view.name, view.groups, view.exit_code) == ("", {}, None)


def test_no_run_lasts_for_less_than_no_time() -> None:
    assert view_of().lasted_s(100.0) == 0.0
    assert view_of(STARTED).lasted_s(103.0) == 3.0
    assert view_of(STARTED).lasted_s(40.0) == 0.0  # the clock was set back


def test_a_run_that_goes_well() -> None:
    view = view_of(STARTED)
    assert (view.name, view.ranks, view.started_s) == ("study", 4, 100.0)
    assert {name: one.state for name, one in view.groups.items()} == {
        "g": "waiting",
        "h": "waiting",
    }
    view.apply(GROUP)
    group = view.groups["g"]
    assert (group.state, group.copies, group.started_s) == ("running", 3, 101.0)
    view.apply(copy_finished("a", 1, {"best": 1}))
    view.apply(copy_finished("a", 0))
    assert group.copies_finished == 2
    assert view.returned == [("a.1", {"best": 1})]
    view.apply(record("GroupFinished", 105.0, group="g"))
    assert (group.state, group.finished_s) == ("finished", 105.0)
    view.apply(record("RunEnded", 110.0, exit_code=0))
    assert (view.exit_code, view.ended_s) == (0, 110.0)
    assert [one.state for one in view.groups.values()] == ["finished", "waiting"]


def test_a_group_may_run_again() -> None:
    finished = record("GroupFinished", 105.0, group="g")
    view = view_of(STARTED, GROUP, copy_finished("a", 0), finished, GROUP)
    assert (view.groups["g"].state, view.groups["g"].copies_finished) == ("running", 0)


def test_the_first_failure_is_the_cause() -> None:
    first = record("ModuleFailed", module="a", copy=0, error="first")
    view = view_of(
        STARTED, GROUP, first, record("ModuleFailed", module="b", copy=0, error="second")
    )
    assert view.failure == first
    view.apply(record("RunEnded", exit_code=1))
    assert [group.state for group in view.groups.values()] == ["stopped", "waiting"]


def declared(module: str, columns: list[str], expected: int | None = 4) -> Any:
    return record(
        "ResultsDeclared",
        module=module,
        copy=0,
        columns=columns,
        objective="loss",
        maximise=False,
        expected=expected,
    )


def added(module: str, **row: Any) -> Any:
    return record("ResultAdded", module=module, copy=0, row=row)


def test_results_are_gathered_by_module() -> None:
    view = view_of(declared("one", ["x", "loss"]), declared("two", ["loss"], None))
    for row in (added("one", x=1, loss="nan"), added("two", loss=3), added("one", x=2, loss=0.5)):
        view.apply(row)
    one, two = view.results.values()
    assert (one.module, one.objective, one.maximise, one.expected) == ("one", "loss", False, 4)
    assert one.rows == [{"x": 1, "loss": "nan"}, {"x": 2, "loss": 0.5}]
    assert (two.rows, two.expected) == ([{"loss": 3}], None)


def test_copies_that_declare_the_same_columns_share_a_table() -> None:
    view = view_of(declared("one", ["loss"], 4), added("one", loss=1), declared("one", ["loss"], 3))
    (one,) = view.results.values()
    assert (one.expected, len(one.rows)) == (7, 1)


def test_other_columns_begin_another_table() -> None:
    view = view_of(declared("one", ["loss"]), added("one", loss=1), declared("one", ["x", "loss"]))
    view.apply(added("one", loss=2))  # another copy may still fill the first
    first, second = view.results.values()
    assert (first.columns, first.rows) == (["loss"], [{"loss": 1}, {"loss": 2}])
    assert (second.columns, second.rows) == (["x", "loss"], [])


def test_progress_is_shown_until_the_copy_is_done() -> None:
    def progress(copy: int, done: float) -> Any:
        return record("ProgressMade", module="a", copy=copy, done=done, total=10, text="t")

    view = view_of(STARTED, GROUP, progress(0, 1), progress(1, 2), progress(0, 3))
    assert view.progress == {"a.0": (3, 10, "t"), "a.1": (2, 10, "t")}
    view.apply(copy_finished("a", 0))
    assert list(view.progress) == ["a.1"]


def test_messages_keep_their_order() -> None:
    def message(level: str, text: str) -> Any:
        return record("MessageLogged", module="a", copy=0, level=level, text=text)

    view = view_of(message("WARNING", "one"), message("ERROR", "two"))
    assert view.messages == [("WARNING", "a.0", "one"), ("ERROR", "a.0", "two")]


def test_events_of_a_later_diel_are_passed_over() -> None:
    assert view_of(STARTED, record("SomethingNew", anything=1)) == view_of(STARTED)


# -- iterations and failures that are passed over -------------------------------------------------

NESTED = record(
    "RunStarted",
    100.0,
    workflow="study",
    ranks=4,
    groups=["g", "nest", "end"],
    iterations={"g": 3, "nest": None, "end": 1},
    inside={"g": "nest"},
)


def test_iterations_are_followed() -> None:
    view = view_of(NESTED)
    group = view.groups["g"]
    assert (group.inside, group.iterations) == ("nest", 3)
    view.apply(record("GroupStarted", 101.0, group="nest", iteration=[4], groups=["g"]))
    view.apply(record("GroupStarted", 101.0, group="g", iteration=[4, 1], copies={"a": 2}))
    assert group.describe_iteration(group.iteration) == "iteration 2 of 3, in iteration 5"
    assert view.groups["nest"].describe_iteration([4]) == "iteration 5"
    view.apply(record("GroupFinished", 102.0, group="g", iteration=[4, 1], ended_by=None))
    assert group.state == "running"
    view.apply(record("GroupFinished", 103.0, group="g", iteration=[4, 2], ended_by="until"))
    assert group.state == "finished"
    assert [view.is_repeated(name) for name in ("g", "nest", "end")] == [True, True, False]


def test_of_several_iterations_the_last_result_counts() -> None:
    finished = [copy_finished("a", 0, number) for number in range(3)]
    assert view_of(STARTED, GROUP, *finished).returned == [("a.0", 2)]


def test_a_failure_that_is_passed_over_is_no_end() -> None:
    failed = record("ModuleFailed", module="a", copy=1, policy="continue", error="it diverged")
    given_up = record("CopyGivenUp", group="g", module="a", copy=1, attempt=1, error="it diverged")
    view = view_of(STARTED, GROUP, failed, given_up)
    assert view.failure is None
    assert view.given_up == [given_up]
    assert view.groups["g"].copies_finished == 1
    ignored = record("LeaveIgnored", module="a", copy=0, explanation="...")
    view.apply(ignored)
    assert view.failure == ignored


def test_a_table_that_a_module_writes_itself_is_shown_by_its_best_rows() -> None:
    view = RunView()
    declared = record(
        "ResultsDeclared",
        module="m",
        columns=["trial", "x", "k"],
        objective="x",
        maximise=True,
        expected=1000,
        file="results.csv",
    )
    view.apply(declared)
    best = [{"trial": 3, "x": 0.5, "k": 1}]

    def show(count: int, **fields: Any) -> None:
        view.apply(record("ResultsShown", module="m", file="results.csv", count=count, **fields))

    show(700, best=best, constants={"k": 1})
    show(800)
    (table,) = view.results.values()
    assert (table.count, table.rows, table.constants) == (800, best, {"k": 1})
    assert table.notes == []
    show(800, notes=["that is all"])
    show(900)
    assert table.notes == ["that is all"]
    view.apply(declared)  # the module has begun again
    (table,) = view.results.values()
    assert (table.count, table.rows) == (0, [])
    assert view.own_files == {"results.csv"}


def test_failed_tasks_are_shown_until_they_are_repeated() -> None:
    copy = {"group": "g", "module": "a", "copy": 0, "total": 9}
    view = view_of(STARTED, GROUP, record("TaskFailed", task=7, error="status 1", **copy))
    view.apply(record("TaskFailed", task=4, error="status 2", **copy))
    (failed,) = view.failed_tasks.values()
    assert str(failed) == "2 of 9 tasks failed: 4, 7"
    # A retry has done one of them.
    view.apply(record("TasksFailed", group="g", module="a", failed=[4], total=9))
    view.apply(record("GroupFinished", group="g"))
    (failed,) = view.failed_tasks.values()
    assert str(failed) == "8 of 9 tasks, 1 failed: 4"
    assert failed.errors == {4: "status 2"}
    resumed = {"checkpoint": 0, "file": None}
    view.apply(record("RunResumed", finished={"g": [[0], True]}, **resumed))
    assert view.failed_tasks
    view.apply(record("RunResumed", finished={}, **resumed))
    assert not view.failed_tasks


def test_a_run_returns_to_a_checkpoint_that_was_pinned() -> None:
    declared = record(
        "ResultsDeclared", module="a", columns=["x"], objective="x", maximise=True, expected=None
    )
    view = view_of(STARTED, declared)
    for number in range(1, 4):
        view.apply(record("ResultAdded", module="a", row={"x": number}))
        is_pinned = number == 1
        view.apply(record("CheckpointSaved", number=number, file=None, is_pinned=is_pinned))
    view.apply(record("RunResumed", checkpoint=1, file=None, finished={}))
    (table,) = view.results.values()
    assert (view.checkpoint, table.rows) == (1, [{"x": 1}])
