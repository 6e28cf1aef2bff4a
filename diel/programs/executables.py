"""Executable modules: run any program, or one for each task; keep its output and exit status."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from diel.comm.devices import VISIBLE_GPUS
from diel.comm.waiting import wait_for
from diel.errors import DielError, ModuleFailed, TupleTimeout
from diel.loading.environment import thread_environment
from diel.loading.module_spec import ExecutableSpec, folder_of_element
from diel.programs.supervised import Ending, Program, SupervisedProgram, Supervisor
from diel.programs.tuple_socket import TupleSocket
from diel.run.records import MessageLogged, ProgressMade, TaskFailed
from diel.run.tasks import ProgramEnd, TaskRecords
from diel.text import format_bytes
from diel.workflow.programs import (
    VARIABLES,
    Obstacle,
    child_environment,
    fill_placeholders,
    obstacle,
)

if TYPE_CHECKING:
    from diel.comm.wakeup import Wakeup
    from diel.executive.messages import RunCopy
    from diel.executive.plans import CopyPlan
    from diel.loading.deadline import Deadline
    from diel.loading.module_spec import ModuleSpec
    from diel.run.directory import RunDirectory
    from diel.tuples.client import TupleClient

_TERMINATION_GRACE_S: Final = 2.0
_STDERR_LINES: Final = 20
_TASK_LINES: Final = 5
_TASK_CHARACTERS: Final = 1000
"""What is recorded of the standard error of a task that failed, while its copy goes on."""
_EXPLAINED: Final = (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
"""Errors of a start that say little: of a missing interpreter, that the script does not exist."""
_STATUSES_EXPLAINED: Final = (2, 126, 127)
"""With these an interpreter, or ``env``, ends that cannot read the first line of a script."""
_PROGRESS_EVERY_S: Final = 0.5
_SHARE_S: Final = 0.015
# More than any number of tasks: a copy adds it to the task counter when no task is left.
_ALL_DONE: Final = 2**40
_COUNTERS: Final = ("diel tasks", "diel failed tasks")
_Copy: TypeAlias = tuple[int, int]
"""The serial of a module, and the index of a copy."""


def program_of(
    spec: ExecutableSpec,
    places: Mapping[str, object],
    facts: Mapping[str, object],
    attempt: int = 1,
    warns_s: float = math.inf,
    cpus: Sequence[int] | None = None,
) -> Program:
    """Return the program of one copy of a module, for an attempt, counted from 1.

    It gets its signal at `warns_s` of the monotonic clock, and is bound to `cpus`, if any.

    `places` has a value for each placeholder, `facts` has the environment variables of the run
    itself, over which those in the spec take precedence.
    """
    folder = Path(str(places["folder"]))

    def filled(text: str) -> str:
        return fill_placeholders(text, places)

    def located(text: str) -> str:
        name = filled(text)
        return str(folder / name) if "/" in name else name

    line = [words for words in (spec.launcher, spec.words) if words]
    added = {name: str(value) for name, value in facts.items()}
    added |= {name: filled(value) for name, value in spec.environment.items()}
    return Program(
        words=tuple(word for first, *rest in line for word in (located(first), *map(filled, rest))),
        directory=folder / filled(spec.directory),
        added=added,
        stdin=folder / filled(spec.stdin) if spec.stdin else None,
        memory_bytes=None
        if spec.memory_bytes is None
        else int(spec.memory_bytes * spec.more_memory ** (attempt - 1)),
        cpus=cpus,
        signal=None if warns_s == math.inf else (signal.Signals[f"SIG{spec.signal}"], warns_s),
    )


class ProgramRunner:
    """Runs the programs of a rank, one after the other, under one supervisor.

    The supervisor and the socket to the tuple space are made for the first program and stay. Only
    the main thread may use it.

    Attributes
    ----------
    used_tuples : set of int
        Which programs of the last call of `run` have used the tuple space, by their places in it.
    has_lost_supervisor : bool
        Whether their supervisor was killed.
    """

    def __init__(self, tuples: TupleClient, wakeup: Wakeup | None = None) -> None:
        self._tuples = tuples
        self._wakeup = wakeup
        self._tuple_socket: TupleSocket | None = None
        self._supervisor: Supervisor | None = None
        self.used_tuples: set[int] = set()
        self.has_lost_supervisor = False

    def run(
        self,
        programs: Sequence[Program],
        *,
        run_dir: Path,
        log: Path,
        safe_point: Callable[[], None],
    ) -> list[Ending | ModuleFailed]:
        """Run programs to their end, one after the other, and serve their tuple socket meanwhile.

        When this returns or raises, neither a program nor a process that it started is left.

        Parameters
        ----------
        programs : sequence of Program
        run_dir : Path
            Where their working directories are made if they are not there.
        log : Path
            Receives their standard output; the same name with the suffix ``.err``, their standard
            error. Both are appended to.
        safe_point : callable
            Called while waiting; what it raises ends the wait, once the program is terminated.

        Returns
        -------
        list of Ending or ModuleFailed
            For each a success; or the failure, if it cannot be started, is killed, or exits with a
            status other than zero: the last lines of its standard error are in the message.

        Raises
        ------
        ModuleFailed
            If there can be no supervisor, or no socket to the tuple space.
        RunStopped
            From `safe_point`.
        """
        if self._tuple_socket is None or self._supervisor is None:
            self._tuple_socket = TupleSocket(lambda: self._tuples)
            self._supervisor = Supervisor(child_environment(), self._tuple_socket.address)
        errors = log.with_suffix(".err")
        outcomes: dict[int, Ending | ModuleFailed] = {}
        started: dict[int, Program] = {}
        self.used_tuples, self.has_lost_supervisor = set(), False
        for index, program in enumerate(programs):
            try:
                _provide_directory(program, run_dir)
                _check_stdin(program.stdin)
            except ModuleFailed as failure:
                outcomes[index] = failure
                continue
            added = {**self._tuple_socket.facts_for(index), **program.added}
            started[index] = replace(program, added=added)
        if started:
            try:
                running = self._supervisor.start(
                    list(started.values()),
                    stdout=log,
                    stderr=errors,
                    grace_s=_TERMINATION_GRACE_S,
                )
            except OSError as error:
                why = f"the supervisor of programs cannot be started: {error.strerror or error}"
                raise ModuleFailed(why) from error
            try:
                endings = self._endings_of(running, self._tuple_socket, safe_point)
            finally:
                self.used_tuples = self._tuple_socket.take_users()
            self.has_lost_supervisor = bool(endings[-1].supervisor)
            # Where their supervisor was killed, it is not known how far the programs were.
            endings += endings[-1:] * (len(started) - len(endings))
            next_from = [ending.errors_from for ending in endings[1:]] + [None]
            for index, ending, end in zip(started, endings, next_from, strict=True):
                outcomes[index] = (
                    ending if ending.is_success else _failure(programs[index], ending, errors, end)
                )
        return [outcomes[index] for index in range(len(programs))]

    def _endings_of(
        self,
        running: SupervisedProgram,
        tuple_socket: TupleSocket,
        safe_point: Callable[[], None],
    ) -> list[Ending]:
        def poll() -> Ending | None:
            tuple_socket.serve()
            if self._wakeup is not None:
                # The request of a program may have to be tried again after a while.
                self._wakeup.sleeps_long = not tuple_socket.is_asked
            return running.poll()

        try:
            wait_for(
                poll, safe_point=safe_point, wakeup=self._wakeup, wakes=[running, tuple_socket]
            )
        except BaseException:
            running.end()
            with contextlib.suppress(DielError):  # it would say less
                tuple_socket.settle()
            raise
        tuple_socket.settle()
        return running.endings

    def close(self) -> None:
        """End the supervisor, and remove the socket to the tuple space."""
        if self._supervisor is not None:
            self._supervisor.close()
        if self._tuple_socket is not None:
            self._tuple_socket.close()


def _failure(program: Program, ending: Ending, errors: Path, end: int | None) -> ModuleFailed:
    name = program if ending.errno is None else program.words[0]
    is_known = not ending.supervisor  # else what it wrote, and where, is not known
    tail = last_lines(errors, start_bytes=ending.errors_from, end_bytes=end) if is_known else ""
    more = f"\nlast lines of its standard error:\n{tail}" if tail else ""
    says_little = ending.errno in _EXPLAINED or ending.status in _STATUSES_EXPLAINED
    why = _obstacle_to(program) if says_little and not ending.path else None
    if ending.memory_bytes is not None and program.memory_bytes is not None:
        limit = format_bytes(program.memory_bytes)
        return ModuleFailed(f"{name} {ending}, and may have {limit}{more}")
    if why is None:
        return ModuleFailed(f"{name} {ending}{more}")
    # "No such file" would be wrong: the file is there.
    how = "cannot be started" if ending.errno == errno.ENOENT else str(ending)
    remedy = f" ({why.remedy})" if why.remedy else ""
    return ModuleFailed(f"{name} {how}: it {why.message}{remedy}{more}")


def _obstacle_to(program: Program) -> Obstacle | None:
    """Find out why a program could not be started, beyond the system's error number."""
    where = program.added.get("PATH", child_environment()["PATH"])
    name = program.words[0]
    places = [program.directory] if "/" in name else where.split(os.pathsep)
    files = (Path(place, name) for place in places)
    file = next((file for file in files if file.exists()), None)
    return None if file is None else obstacle(file, where)


def last_lines(
    file: Path, count: int = _STDERR_LINES, start_bytes: int = 0, end_bytes: int | None = None
) -> str:
    """Return the last lines of a text file, within a range of bytes; not all need be text.

    Empty if the file cannot be read.
    """
    try:
        with file.open("rb") as stream:
            size = file.stat().st_size
            end = size if end_bytes is None or end_bytes > size else end_bytes
            start = max(start_bytes if start_bytes <= size else 0, end - 64 * 1024)  # shortened
            stream.seek(start)
            lines = stream.read(max(0, end - start)).decode(errors="replace").splitlines()
    except OSError:  # the program may have ended before its file was made
        return ""
    return "\n".join(lines[-count:])


def _provide_directory(program: Program, run_dir: Path) -> None:
    directory = program.directory
    # Without "..": a path that leaves the run directory by it is not inside.
    is_inside = Path(os.path.normpath(directory)).is_relative_to(os.path.normpath(run_dir))
    try:
        if is_inside:
            directory.mkdir(parents=True, exist_ok=True)
        elif not directory.is_dir():
            words = "is not a folder" if directory.exists() else "does not exist"
            raise ModuleFailed(
                f"the working directory {directory} {words}; one below {{run_dir}} is made by diel"
            )
    except OSError as error:
        raise ModuleFailed(
            f"the working directory {directory} cannot be used: {error.strerror}"
        ) from error


def _check_stdin(stdin: Path | None) -> None:
    """Raise ModuleFailed if standard input is no file: a pipe could block the supervisor."""
    if stdin is None:
        return
    try:
        if not stdin.is_file():
            words = "is not a file" if stdin.exists() else "does not exist"
            raise ModuleFailed(f"the standard input {stdin} {words}")
    except OSError as error:
        raise ModuleFailed(
            f"the standard input {stdin} cannot be read: {error.strerror}"
        ) from error


# -- copies and their tasks ------------------------------------------------------------------------


class ExecutableCopies:
    """Runs the copies of executables on a rank: once each, or once for each of their tasks.

    `tuples` is the client for ``diel tuple`` in a program, and for the counters of tasks: a resumed
    run, which has another session, has new ones. `folder` is that of the workflow file.
    """

    def __init__(
        self,
        directory: RunDirectory,
        folder: Path,
        tuples: TupleClient,
        wakeup: Wakeup,
        session: str,
    ) -> None:
        self._directory = directory
        self._folder = folder
        self._tuples = tuples
        self._runner = ProgramRunner(tuples, wakeup)
        self._session = session
        self._records = TaskRecords(directory, session)
        # By copy: what it has begun, or has to repeat; what has failed; who has used tuples.
        self._unfinished: dict[_Copy, tuple[list[int], list[int]]] = {}
        self._failed: dict[_Copy, list[int]] = {}
        self._used_tuples: set[_Copy] = set()

    def run(
        self,
        order: RunCopy,
        spec: ModuleSpec,
        deadline: Deadline,
        safe_point: Callable[[], None],
        record: Callable[..., None],
    ) -> ProgramEnd:
        """Run a copy to its end, on its first rank, and return how it has finished.

        The program that runs when the deadline warns gets a signal; what starts later does not.
        `safe_point` is called while a program runs; an exception that it raises ends the program.
        `record` is called with the class of a record for the journal, and its fields. A
        ModuleFailed if a program cannot be started, or does not end well, or too many tasks.
        """
        assert spec.executable is not None
        plan, tasks = order.plan, spec.executable.tasks
        places = spec.places(
            copy=plan.copy_index,
            copies=plan.copies,
            processes=len(plan.ranks),
            group=plan.group,
            iteration=plan.iteration,
            run_dir=self._directory.path,
            folder=self._folder,
        )
        if spec.element is not None:
            folder_of_element(self._directory.path, spec.element).mkdir(parents=True, exist_ok=True)
        facts = {VARIABLES[name]: value for name, value in places.items()}
        facts |= thread_environment(spec.threads) | deadline.facts()
        if order.gpus is not None:
            facts[VISIBLE_GPUS] = ",".join(order.gpus)
        cpus = order.cpus_of(plan.ranks[0])
        copy = plan.module_serial, plan.copy_index
        place = plan.group, plan.iteration, plan.module
        to_do: Sequence[int] = range(tasks or 1)
        if tasks is not None and (earlier := self._records.done_earlier(place)):
            to_do = [task for task in to_do if task not in earlier]
        left_behind = 0
        recorded_s = time.monotonic()
        shares = [[0]] if tasks is None else self._shares(plan, to_do, spec.executable.retries)
        for share in shares:
            programs = []
            for task in share:
                places["task"] = facts["DIEL_TASK"] = task
                programs.append(
                    program_of(spec.executable, places, facts, plan.attempt, deadline.warns_s, cpus)
                )
            try:
                outcomes = self._runner.run(
                    programs,
                    run_dir=self._directory.path,
                    log=self._directory.module_log(plan.module, plan.copy_index, 0),
                    safe_point=safe_point,
                )
            finally:
                if self._runner.used_tuples:
                    self._used_tuples.add(copy)
            failures: list[tuple[int, ModuleFailed]] = []
            done = []
            for index, (task, outcome) in enumerate(zip(tuple(share), outcomes, strict=True)):
                if isinstance(outcome, ModuleFailed):
                    failures.append((task, outcome))
                    continue
                share.remove(task)
                left_behind += outcome.left_behind
                if index not in self._runner.used_tuples:
                    done.append(task)
            if done and tasks is not None:
                self._records.add(plan.ranks[0], place, done)
            if failures:
                if tasks is None:
                    raise failures[0][1]
                if spec.executable.max_failures is None or self._runner.has_lost_supervisor:
                    raise ModuleFailed("task {}: {}".format(*failures[0]))
                self._go_on_without(failures, share, plan, spec.executable, record)
            if tasks is not None and time.monotonic() - recorded_s > _PROGRESS_EVERY_S:
                recorded_s = time.monotonic()
                position = tasks - len(to_do) + bisect_right(to_do, task)
                failed = len(self._failed.get(copy, ()))
                text = f"{position} of {tasks}, {failed} failed here" if failed else ""
                record(ProgressMade, done=position, total=tasks, text=text)
        if left_behind:
            text = f"{left_behind} process(es) that it had left behind were ended"
            record(MessageLogged, level="WARNING", text=text)
        is_apart = copy not in self._used_tuples
        self._used_tuples.discard(copy)
        return ProgramEnd(is_apart, tuple(self._failed.pop(copy, ())))

    def _go_on_without(
        self,
        failures: Sequence[tuple[int, ModuleFailed]],
        share: list[int],
        plan: CopyPlan,
        spec: ExecutableSpec,
        record: Callable[..., None],
    ) -> None:
        """Record tasks that have failed; a ModuleFailed if more have than the module may have."""
        of_copy = self._failed.setdefault((plan.module_serial, plan.copy_index), [])
        for task, failure in failures:
            share.remove(task)
            of_copy.append(task)
            error, *lines = str(failure).splitlines()
            record(
                TaskFailed,
                group=plan.group,
                iteration=plan.iteration,
                task=task,
                total=spec.tasks,
                error=error,
                detail="\n".join(lines[1:][-_TASK_LINES:])[-_TASK_CHARACTERS:],
            )
        count = self._tuples.increment(_tag(_COUNTERS[1], self._session, plan), len(failures))
        assert spec.max_failures is not None
        if count > spec.max_failures:
            task, failure = failures[-1]
            raise ModuleFailed(
                f"{count} of {spec.tasks} tasks have failed, and {spec.max_failures or 'none'} may "
                f"(max_failures); task {task}: {failure}"
            )

    def _shares(
        self, plan: CopyPlan, tasks: Sequence[int], retries: int = 0
    ) -> Iterator[list[int]]:
        """Yield the tasks of a copy in shares; each task goes to exactly one copy.

        A share is some milliseconds of work, so that few requests go to the counter, which is in
        the tuple space. It at most doubles each time, since long tasks may follow short ones. Tasks
        that are still in it when the copy fails or is left come first when the copy starts again,
        and then those that have failed. A ModuleFailed at the end if a retry may mend these.
        """
        tag, of_failed = (_tag(name, self._session, plan) for name in _COUNTERS)
        copy = (plan.module_serial, plan.copy_index)
        share, again = self._unfinished.pop(copy, ([], []))
        again = share + again
        if failed := self._failed.pop(copy, []):
            again += failed
            self._tuples.increment(of_failed, -len(failed))
        given, wanted, task_s = 0, 1, math.inf
        while True:
            if again:
                share, again = again[:1], again[1:]
            else:
                fair = (len(tasks) - given) // (2 * plan.copies)
                wanted = max(1, min(int(_SHARE_S / task_s), 2 * wanted, fair))
                given = self._tuples.increment(tag, wanted)
                share = list(tasks[given - wanted : given])
            if not share:
                break
            self._unfinished[copy] = share, again
            began_s, count = time.perf_counter(), len(share)
            yield share
            task_s = (time.perf_counter() - began_s) / count
            del self._unfinished[copy]
        failed = self._failed.get(copy, [])
        if failed and plan.attempt <= retries:
            numbers = ", ".join(map(str, failed[:_TASK_LINES]))
            raise ModuleFailed(f"{len(failed)} task(s) failed and are repeated: {numbers}")
        if self._tuples.increment(tag, _ALL_DONE) // _ALL_DONE == plan.copies:
            self._tuples.tget(tag)  # the last copy to ask removes the counters
            with contextlib.suppress(TupleTimeout):
                self._tuples.tget(of_failed, timeout=0)

    def close(self) -> None:
        """End the supervisor of programs."""
        self._records.close()
        self._runner.close()


def _tag(counter: str, session: str, plan: CopyPlan) -> tuple[str | int, ...]:
    return (counter, session, plan.group, plan.module, plan.module_serial)
