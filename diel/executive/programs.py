"""Copies of executable modules: the arguments and environment of their programs, their tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from diel.comm.devices import VISIBLE_GPUS
from diel.errors import ModuleFailed
from diel.loading.environment import thread_environment
from diel.programs.executables import ProgramRunner, program_of
from diel.run.records import MessageLogged, ProgressMade

if TYPE_CHECKING:
    from diel.comm.wakeup import Wakeup
    from diel.executive.messages import RunCopy
    from diel.executive.plans import CopyPlan
    from diel.loading.module_spec import ModuleSpec
    from diel.run.directory import RunDirectory
    from diel.tuples.client import TupleClient

_PROGRESS_EVERY_S: Final = 0.5
_SHARE_S: Final = 0.015
# More than any number of tasks: a copy adds it to the task counter when no task is left.
_ALL_DONE: Final = 2**40


class ExecutableCopies:
    """Runs the copies of executables on a rank: once each, or once for each of their tasks.

    Parameters
    ----------
    directory : RunDirectory
    folder : Path
        Of the workflow file.
    tuples : TupleClient
        The client for ``diel tuple`` in a program, and for the task counter.
    wakeup : Wakeup
        Of this rank.
    session : str
        As in `Welcome`: a resumed run has a new task counter.
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
        self._unfinished: dict[tuple[int, int], list[int]] = {}

    def run(
        self,
        order: RunCopy,
        spec: ModuleSpec,
        safe_point: Callable[[], None],
        record: Callable[..., None],
    ) -> None:
        """Run a copy to its end, on its first rank.

        Parameters
        ----------
        order : RunCopy
        spec : ModuleSpec
            Of an executable.
        safe_point : callable
            Called while a program runs; an exception that it raises ends the program.
        record : callable
            Called with the class of a record for the journal, and its fields.

        Raises
        ------
        ModuleFailed
            If a program cannot be started, or does not end well.
        """
        assert spec.executable is not None
        plan, tasks = order.plan, spec.executable.tasks
        places: dict[str, object] = {
            "copy": plan.copy_index,
            "copies": plan.copies,
            "task": 0,
            "tasks": tasks or 1,
            "iteration": ".".join(map(str, plan.iteration)),
            "run_dir": self._directory.path,
            "folder": self._folder,
            "processes": len(plan.ranks),
            "threads": spec.threads,
            "module": plan.module,
            "group": plan.group,
        }
        facts = {
            "DIEL_RUN_DIR": places["run_dir"],
            "DIEL_WORKFLOW_DIR": places["folder"],
            "DIEL_GROUP": plan.group,
            "DIEL_MODULE": plan.module,
            "DIEL_COPY": plan.copy_index,
            "DIEL_COPIES": plan.copies,
            "DIEL_TASK": 0,
            "DIEL_TASKS": places["tasks"],
            "DIEL_ITERATION": places["iteration"],
            "DIEL_PROCESSES": len(plan.ranks),
            "DIEL_THREADS": spec.threads,
            **thread_environment(spec.threads),
        }
        if order.gpus is not None:
            facts[VISIBLE_GPUS] = ",".join(order.gpus)
        left_behind = 0
        recorded_s = time.monotonic()
        for share in [[0]] if tasks is None else self._shares(plan, tasks):
            programs = []
            for task in share:
                places["task"] = facts["DIEL_TASK"] = task
                programs.append(program_of(spec.executable, places, facts))
            outcomes = self._runner.run(
                programs,
                run_dir=self._directory.path,
                log=self._directory.module_log(plan.module, plan.copy_index, 0),
                safe_point=safe_point,
            )
            failure: ModuleFailed | None = None
            for task, outcome in zip(tuple(share), outcomes, strict=True):
                if isinstance(outcome, ModuleFailed):
                    named = outcome if tasks is None else ModuleFailed(f"task {task}: {outcome}")
                    failure = failure or named
                else:
                    share.remove(task)
                    left_behind += outcome.left_behind
            if failure is not None:
                raise failure
            if time.monotonic() - recorded_s > _PROGRESS_EVERY_S:
                recorded_s = time.monotonic()
                record(ProgressMade, done=task + 1, total=tasks, text="")
        if left_behind:
            text = f"{left_behind} process(es) that it had left behind were ended"
            record(MessageLogged, level="WARNING", text=text)

    def _shares(self, plan: CopyPlan, tasks: int) -> Iterator[list[int]]:
        """Yield the tasks of a copy in shares; each task goes to exactly one copy.

        A share is some milliseconds of work, so that few requests go to the counter, which is in
        the tuple space. It at most doubles each time, since long tasks may follow short ones. Tasks
        that are still in it when the copy fails or is left come first when the copy starts again.
        """
        tag = ("diel tasks", self._session, plan.group, plan.module, plan.module_serial)
        key = (plan.module_serial, plan.copy_index)
        share = self._unfinished.pop(key, [])
        given, wanted, task_s = 0, 1, math.inf
        while True:
            if not share:
                fair = (tasks - given) // (2 * plan.copies)
                wanted = max(1, min(int(_SHARE_S / task_s), 2 * wanted, fair))
                given = self._tuples.increment(tag, wanted)
                share = list(range(given - wanted, min(given, tasks)))
            if not share:
                break
            self._unfinished[key] = share
            began_s, count = time.perf_counter(), len(share)
            yield share
            task_s = (time.perf_counter() - began_s) / count
            del self._unfinished[key]
            share = []
        if self._tuples.increment(tag, _ALL_DONE) // _ALL_DONE == plan.copies:
            self._tuples.tget(tag)  # the last copy to ask removes the counter

    def close(self) -> None:
        """End the supervisor of programs."""
        self._runner.close()
