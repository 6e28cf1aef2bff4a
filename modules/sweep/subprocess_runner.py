"""Runs trials in a child process of the rank, which may die, hang or use up memory without harm.

The process prepares once and then takes trial after trial, so a trial costs a message more. A
process that breaks a limit is killed with all that it has started, and the next trial gets a new
process.

::

    trainer ── Task ──>                 process
            <── "ready" and device facts, or an error ──
            ── Trial ──>
            <── "report" ──             any number of times
            ── verdict ──>
            ── StopCause.TIME ──>       at any moment: the time of the sweep is over
            <── "result" ──
        ── SaveModel ──>                    once, at the end
            <── "saved" ──
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel import child_environment, describe_error, end_with_parent, start_helper

from ..objective import Aim
from ..trial import IsToStop, LearningCurve, OnReport, StopCause, Trial, TrialResult
from .messages import SaveModel, Tags

if TYPE_CHECKING:
    from diel import Context

    from .runners import InProcessRunner, Limits, Task, TrialProgress

_LOOK_EVERY_S: Final = 0.25
"""How often a rank that waits for a trial looks whether the run is stopping."""
_MEASURE_EVERY_S: Final = 0.02
_GRACE_S: Final = 0.5
"""How long a trial has to end by itself once the time of the sweep is over."""
_LOOK_FOR_TIME_EVERY_S: Final = 0.05
_LEAVE_S: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_PACKAGE: Final = __name__.split(".")[0]
# This package may have been imported by another name here, beside a user's package of its name:
# the process imports it by the same name.
_START: Final = """\
import importlib.util, sys
name, folder, descriptor = sys.argv[1:]
sys.path[:] = [place for place in sys.path if place]
spec = importlib.util.spec_from_file_location(
    name, folder + "/__init__.py", submodule_search_locations=[folder])
package = importlib.util.module_from_spec(spec)
sys.modules[name] = package
spec.loader.exec_module(package)
importlib.import_module(name + ".sweep.subprocess_runner").work(int(descriptor))
"""


class SubprocessRunner:
    """Runs trials in a child process; `progress` shows how far each is."""

    def __init__(
        self,
        ctx: Context,
        task: Task,
        limits: Limits,
        progress: TrialProgress,
        is_to_stop: IsToStop | None = None,
    ) -> None:
        self._is_to_stop = is_to_stop
        self._ctx = ctx
        self._task = task
        self._limits = limits
        self._progress = progress
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self.facts: dict[str, str] = {}
        self.saves_models = False
        self.aim: Aim | None = None
        self._sent_aim: Aim | None = None
        self.kept_trial: int | None = None
        """The trial whose network the process keeps; None if it keeps none."""

    def __call__(self, trial: Trial, on_report: OnReport | None) -> TrialResult:
        """Run a trial."""
        if self._process is None:
            self._start()
        curve = LearningCurve()
        self._progress.begin(trial.number, curve)
        deadline_s = None
        if self._limits.time_s is not None:
            deadline_s = time.monotonic() + self._limits.time_s
        end = _EndInTime(self._is_to_stop, trial.number, curve, self._send)
        try:
            if self._sent_aim != self.aim:
                self._send(self.aim)
                self._sent_aim = self.aim
            self._send(trial)
            while True:
                kind, *rest = self._receive(deadline_s, end)
                if kind == "result":
                    result: TrialResult = rest[0]
                    self.kept_trial = rest[1]
                    if end.is_told and result.is_stopped:
                        result.is_out_of_time = True
                    return result
                step, metrics = rest
                curve.add(step, metrics)
                self._progress(step, None, f"trial {trial.number}, step {step}")
                goes_on = on_report is None or on_report(trial.number, step, metrics)
                self._send(goes_on and not end.tell())
        except _OutOfTime:
            _, last = curve.last or (0, {})
            return TrialResult(
                last, is_stopped=True, is_out_of_time=True, reports=curve.points if last else []
            )
        except _ProcessEnded as death:
            _, last = curve.last or (0, {})
            return TrialResult(last, str(death), has_died=True, reports=curve.points)

    def save_model(self, trial: Trial, path: Path, provenance: Mapping[str, Any]) -> Path:
        """Write the model of a trial; return its file. A RuntimeError if that fails."""
        if self._process is None:
            self._start()
        time_s = self._limits.time_s
        try:
            self._send(SaveModel("", trial, path, dict(provenance)))
            _, file, reason = self._receive(None if time_s is None else time.monotonic() + time_s)
        except _ProcessEnded as death:
            raise RuntimeError(str(death)) from None
        if file is None:
            raise RuntimeError(reason)
        return Path(file)

    def _start(self) -> None:
        """Start a process and wait until it is ready; `NotReady` if it cannot prepare."""
        folder = Path(__file__).parents[1]
        environment = child_environment()
        # The process has to find this package, and what this rank finds.
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(folder.parent), *filter(None, [environment.get("PYTHONPATH")])]
        )
        self._sent_aim = self.kept_trial = None
        self._link, child_end = Pipe()
        with child_end:
            self._process = start_helper(
                [sys.executable, "-c", _START, _PACKAGE, str(folder), str(child_end.fileno())],
                child_end.fileno(),
                environment=environment,
                stdout=_descriptor(sys.stdout),
                stderr=_descriptor(sys.stderr),
            )
        try:
            self._send(self._task)
            kind, *rest = self._receive(None)
            if kind == "ready":
                self.facts, self.saves_models = rest
        except _ProcessEnded as death:
            raise NotReady(f"the process for trials could not get ready: it {death}") from None
        if kind == "error":
            self.close()
            raise NotReady(f"the process for trials could not get ready: {rest[0]}")

    def _send(self, message: object) -> None:
        assert self._link is not None
        try:
            self._link.send(message)
        except OSError:
            raise _ProcessEnded(self._how_it_died()) from None

    def _receive(self, deadline_s: float | None, end: _EndInTime | None = None) -> Any:
        """Return the next message; end the process if it breaks a limit.

        `_ProcessEnded` if the process breaks a limit, or has died by itself; `_OutOfTime` if it was
        ended by `end`; `RunStopped` if the run is stopping.
        """
        assert self._link is not None
        looked_s = time.monotonic()
        while True:
            wait_s = _LOOK_EVERY_S
            if self._limits.memory_bytes is not None:
                wait_s = _MEASURE_EVERY_S
            now_s = time.monotonic()
            if deadline_s is not None:
                if now_s >= deadline_s:
                    self._kill()
                    raise _ProcessEnded(f"took more than {self._limits.time_s:g} s")
                wait_s = min(wait_s, deadline_s - now_s)
            if end is not None and end.is_late():
                self._kill()
                raise _OutOfTime
            try:
                if self._link.poll(wait_s):
                    return self._link.recv()
            except (EOFError, OSError):
                raise _ProcessEnded(self._how_it_died()) from None
            self._check_memory()
            if now_s - looked_s >= _LOOK_EVERY_S:
                looked_s = now_s
                try:
                    self._ctx.tuples.count(Tags(self._ctx.group, self._ctx.module).lease)
                except BaseException:
                    self._kill()
                    raise

    def _check_memory(self) -> None:
        limit = self._limits.memory_bytes
        if limit is None or self._process is None:
            return
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return
        if pages * _PAGE_BYTES > limit:
            self._kill()
            raise _ProcessEnded(
                f"used {pages * _PAGE_BYTES / 2**20:,.0f} MiB of memory, "
                f"more than {limit / 2**20:,.0f} MiB"
            )

    def _how_it_died(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            status = None  # it has closed its end of the connection, and still runs
        self._kill()
        if status is None:
            return "closed its connection"
        if status < 0:
            try:
                return f"died by {signal.Signals(-status).name}"
            except ValueError:
                return f"died by signal {-status}"
        return f"ended by itself with status {status}"

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._link is not None:
            self._link.close()
        self._process = self._link = self.kept_trial = None

    def close(self) -> None:
        """End the process."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_S)
        self._kill()


class _EndInTime:
    """Tells the process that the time of the sweep is over, and when it has had its time to end."""

    def __init__(
        self,
        is_to_stop: IsToStop | None,
        trial: int,
        curve: LearningCurve,
        send: Callable[[StopCause], None],
    ) -> None:
        self._is_to_stop, self._trial, self._curve, self._send = is_to_stop, trial, curve, send
        self._late_s = math.inf

    @property
    def is_told(self) -> bool:
        """Whether the process was told."""
        return self._late_s < math.inf

    @property
    def cause(self) -> StopCause:
        """Why the trial is to end."""
        cause = StopCause.NO if self._is_to_stop is None else self._is_to_stop(self._trial)
        if cause == StopCause.TIME_ONCE_REPORTED:
            return StopCause.NO if self._curve.last is None else StopCause.TIME
        return StopCause(cause)

    def tell(self) -> StopCause:
        """Return why the trial is to end; tell the process if the time is over."""
        cause = self.cause
        if cause == StopCause.TIME and not self.is_told:
            self._late_s = time.monotonic() + _GRACE_S
            self._send(StopCause.TIME)
        return cause

    def is_late(self) -> bool:
        """Tell the process if it is time for that; return whether it should have ended by now."""
        self.tell()
        return time.monotonic() >= self._late_s


class NotReady(RuntimeError):
    """The process for trials could not load the function, or ended before it was ready."""


class _OutOfTime(Exception):
    """The process was ended, since the time of the sweep is over."""


class _ProcessEnded(Exception):
    """The process has ended, or was killed; the message says why."""


def work(descriptor: int) -> None:
    """Run trials in the child process, until its rank sends no more."""
    end_with_parent()
    link = Connection(descriptor)
    task: Task = link.recv()
    from .runners import InProcessRunner

    try:
        runner = InProcessRunner(task)
    except Exception as error:
        link.send(("error", describe_error(error)))
        raise
    link.send(("ready", runner.facts, runner.saves_models))

    time_over = _TimeOver(link)
    runner.is_to_stop = time_over

    def on_report(trial: int, step: int, metrics: dict[str, Any]) -> bool:
        link.send(("report", step, metrics))
        while isinstance(verdict := link.recv(), StopCause):
            time_over.note()
        return verdict is True

    while True:
        try:
            order: Trial | SaveModel | Aim | StopCause | None = link.recv()
        except EOFError:
            return
        if isinstance(order, StopCause):  # of a trial that has ended meanwhile
            continue
        time_over.forget()
        if isinstance(order, Aim) or order is None:
            runner.aim = order
        elif isinstance(order, SaveModel):
            link.send(("saved", *_saved(runner, order)))
        else:
            link.send(("result", runner(order, on_report), runner.kept_trial))


class _TimeOver:
    """Whether the rank of this process has said that the time of the sweep is over."""

    def __init__(self, link: Connection) -> None:
        self._link, self._due_s, self._cause = link, 0.0, StopCause.NO

    def __call__(self, trial: int) -> StopCause:
        """Return why the trial is to end; the connection is looked at now and then."""
        now_s = time.monotonic()
        if now_s >= self._due_s and not self._cause:
            self._due_s = now_s + _LOOK_FOR_TIME_EVERY_S
            # Nothing else is sent while no answer to a report is due.
            if self._link.poll() and isinstance(self._link.recv(), StopCause):
                self.note()
        return self._cause

    def note(self) -> None:
        """Note that it has said so."""
        self._cause = StopCause.TIME

    def forget(self) -> None:
        """Begin another trial."""
        self._cause = StopCause.NO


def _saved(runner: InProcessRunner, wanted: SaveModel) -> tuple[Path | None, str]:
    try:
        return runner.save_model(wanted.trial, wanted.path, wanted.provenance), ""
    except Exception as error:
        return None, describe_error(error)


def _descriptor(stream: Any) -> int | None:
    """Return the file descriptor of a stream; None, for that of this process, if it has none."""
    try:
        stream.flush()
        descriptor: int = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return descriptor
