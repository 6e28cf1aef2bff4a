"""Tasks: the copies of an executable share them, and each is done by one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diel import ANY
from diel.coupling.address import Peers
from diel.errors import ModuleFailed
from diel.executive.messages import RunCopy
from diel.executive.plans import CopyPlan
from diel.loading.deadline import Deadline
from diel.loading.module_spec import ExecutableSpec, ModuleSpec
from diel.programs.executables import ExecutableCopies
from diel.run.directory import RunDirectory
from diel.run.fields import Record
from diel.run.records import TaskFailed
from diel.run.tasks import ProgramEnd, keep_done
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
    asking = [rank(space)._shares(copy(index, copies), range(total)) for index in range(copies)]
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
    assert all(len(share) == 1 for share in rank(space)._shares(copy(0, 1), range(50)))


def test_what_a_copy_has_not_done_it_begins_with(space: TupleSpace) -> None:
    here, there = rank(space), rank(space)
    failing, other = (
        one._shares(copy(index, 2), range(5)) for index, one in enumerate((here, there))
    )
    assert [next(failing), next(other)] == [[0], [1]]
    failing.close()
    rest = [task for share in other for task in share]
    assert next(here._shares(copy(0, 2), range(5))) == [0]
    assert sorted(rest) == [2, 3, 4]


def test_tasks_are_counted_anew_in_each_iteration_and_session(space: TupleSpace) -> None:
    assert next(rank(space)._shares(copy(0, 1), range(5))) == [0]
    assert next(rank(space)._shares(copy(0, 1, module_serial=9), range(5))) == [0]
    # A run that is resumed finds the tuple of a group that had begun, and does all of it again.
    assert next(rank(space, "second")._shares(copy(0, 1), range(5))) == [0]


# -- tasks that fail -------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "w.toml").touch()
    return RunDirectory.create(tmp_path / "runs", "w", tmp_path / "w.toml")


class Tasks:
    """A rank that runs the tasks of one copy, 9 of them if not told otherwise, in a session."""

    def __init__(self, directory: RunDirectory, space: TupleSpace, session: str = "first") -> None:
        none: Any = None
        client = space.client()
        self._copies = ExecutableCopies(directory, directory.path, client, none, session)
        self.records: list[Record] = []

    def run(self, line: str, attempt: int = 1, tasks: int | None = 9, **keys: Any) -> ProgramEnd:
        words = ("sh", "-c", f"echo {{task}} >> ran; {line}")
        program = ExecutableSpec(words=words, tasks=tasks, **keys)
        order = RunCopy(copy(0, 1).replace(attempt=attempt), {}, Peers("g", {}, ()))
        spec = ModuleSpec("m", None, program, threads=1, options={})
        return self._copies.run(order, spec, Deadline(), lambda: None, self._record)

    def _record(self, kind: type[Record], **fields: Any) -> None:
        self.records.append(kind(module="m", copy=0, **fields))

    def close(self) -> None:
        self._copies.close()


@pytest.fixture
def begin(directory: RunDirectory, space: TupleSpace) -> Iterator[Callable[..., Tasks]]:
    begun: list[Tasks] = []

    def begin(session: str = "first") -> Tasks:
        begun.append(Tasks(directory, space, session))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


def ran(directory: RunDirectory) -> list[int]:
    file = directory.path / "ran"
    done = [int(line) for line in file.read_text().split()]
    file.unlink()
    return sorted(done)


ODD = "test $(({task} % 2)) = 0 || { echo it is odd >&2; exit 3; }".replace("{ ", "{{ ").replace(
    "; }", "; }}"
)


def test_a_copy_goes_on_without_tasks_that_may_fail(
    begin: Callable[..., Tasks], directory: RunDirectory, space: TupleSpace
) -> None:
    rank = begin()
    assert rank.run(ODD, max_failures=4) == ProgramEnd(True, (1, 3, 5, 7))
    assert ran(directory) == [*range(9)]
    failed = [each for each in rank.records if isinstance(each, TaskFailed)]
    assert [(each.task, each.total, each.group) for each in failed] == [
        (task, 9, "g") for task in (1, 3, 5, 7)
    ]
    assert "exited with status 3" in failed[0].error
    assert failed[0].detail == "it is odd"
    assert space.client().count((ANY,) * 5) == 0
    # A later session repeats these.
    keep_done(directory, {("g", (0,))})
    assert begin("second").run("true", max_failures=4) == ProgramEnd(True)
    assert ran(directory) == [1, 3, 5, 7]


def test_one_more_fails_the_copy(begin: Callable[..., Tasks], directory: RunDirectory) -> None:
    words = r"4 of 9 tasks have failed, and 3 may \(max_failures\); task 7: sh .* status 3\n"
    with pytest.raises(ModuleFailed, match=words):
        begin().run(ODD, max_failures=3)
    with pytest.raises(ModuleFailed, match=r"^task 1: sh .* status 3"):
        begin("second").run(ODD)


def test_a_retry_repeats_what_failed_and_counts_it_anew(
    begin: Callable[..., Tasks], directory: RunDirectory
) -> None:
    rank = begin()
    with pytest.raises(ModuleFailed, match=r"4 task\(s\) failed and are repeated: 1, 3, 5, 7"):
        rank.run(ODD, max_failures=4, retries=2)
    ran(directory)
    with pytest.raises(ModuleFailed, match="2 of 9 tasks have failed, and 1 may"):
        rank.run(ODD, attempt=2, max_failures=1, retries=2)
    ran(directory)
    end = rank.run("test {task} != 3", attempt=3, max_failures=1, retries=2)
    assert end == ProgramEnd(True, (3,))
    assert ran(directory) == [1, 3, 5, 7]


PUT = f'test {{task}} != 2 || "{sys.executable}" -m diel tuple put t/{{task}} x'


def test_a_task_that_has_used_the_tuple_space_is_repeated(
    begin: Callable[..., Tasks], directory: RunDirectory
) -> None:
    assert begin().run(PUT, tasks=4) == ProgramEnd(False)
    assert ran(directory) == [0, 1, 2, 3]
    keep_done(directory, {("g", (0,))})
    assert begin("second").run("true", tasks=4) == ProgramEnd(True)
    assert ran(directory) == [2]


def test_a_program_without_tasks_says_too_whether_it_has_used_tuples(
    begin: Callable[..., Tasks],
) -> None:
    assert begin().run("true", tasks=None) == ProgramEnd(True)
    assert begin().run(PUT.replace("!= 2", "!= 0"), tasks=None) == ProgramEnd(False)
