"""Pass the trials of a sweep to reporters that log them, each as it ends, in a process beside it.

The process reads the sweep's files, as displays do: nothing is sent to it for a trial, so a
reporter that is slow, hangs or dies delays no trial. What it prints is in the log of the module
that has started it.

::

    master ── end of the stream: the last trial is in the file ──>  process
           <── a line for each reporter that has failed ──
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from diel.errors import PluginError
from diel.loading.reporter import Reporter, WatchedSweep, loggers_of_trials
from diel.loading.sweeps import watch_sweeps
from diel.processes import python_command, start_helper
from diel.run.directory import RunDirectory
from diel.text import describe_error, describe_traceback
from diel.workflow.programs import child_environment

_LOOK_EVERY_S: Final = 0.5
_LONGEST: Final = 500
_MOST_BYTES: Final = 2**16
_CODE: Final = (
    "from diel.processes import end_with_parent; end_with_parent(); "
    "from diel.loading.trial_log import main; main(*sys.argv[1:])"
)


class TrialLog:
    """Logs the trials of a sweep, if an installed reporter has ``log_trial``.

    Parameters
    ----------
    run_dir : Path
    sweep : str
        As ``group.module``.
    recorded : int
        How many trials are recorded already, and are not logged again.
    asked : collection of str
        Reporters on request, by their names among entry points, that the sweep asks for.
    """

    def __init__(
        self, run_dir: Path, sweep: str, recorded: int, asked: Collection[str] = ()
    ) -> None:
        self._problems: list[str] = []
        self._helper: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        try:
            if list(loggers_of_trials(asked)):  # all are made: none may be broken
                self._helper = _start([str(run_dir), sweep, str(recorded), *asked])
        except (OSError, PluginError) as error:
            self._problems.append(f"trials are not logged: {error}")

    def new_problems(self) -> list[str]:
        """Return what has kept reporters from logging trials since the last call, in words."""
        if self._helper is not None and select.select([self._helper[1]], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                text = self._helper[1].recv(_MOST_BYTES).decode(errors="replace")
                self._problems += text.splitlines()
        problems, self._problems = self._problems, []
        return problems

    def close(self, timeout_s: float) -> list[str]:
        """Wait until all trials are logged; return problems as `new_problems`."""
        last: list[str] = []
        if self._helper is not None:
            process, link = self._helper
            with contextlib.suppress(OSError):  # it has ended before
                link.shutdown(socket.SHUT_WR)
            try:
                if process.wait(timeout_s):
                    last = [f"logging of trials has ended with status {process.returncode}"]
            except subprocess.TimeoutExpired:
                last = [f"not all trials are logged: it has taken {timeout_s:g} s more until now"]
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
                process.wait()
        problems = [*self.new_problems(), *last]
        if self._helper is not None:
            self._helper[1].close()
            self._helper = None
        return problems


def _start(words: list[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    link, theirs = socket.socketpair()
    with theirs:
        try:
            command = [*python_command(_CODE), *words, str(theirs.fileno())]
            environment = child_environment()
            process = start_helper(
                command, theirs.fileno(), environment=environment, stdout=None, stderr=None
            )
        except BaseException:
            link.close()
            raise
    return process, link


# -- in the process -------------------------------------------------------------------------------


def main(run_dir: str, sweep: str, recorded: str, *rest: str) -> None:
    """Log the trials of a sweep until its master has closed the connection, and no trial is left.

    Parameters
    ----------
    run_dir, sweep, recorded : str
        As of `TrialLog`.
    *rest : str
        The reporters that are asked for, and the file descriptor of the connection.
    """
    *asked, descriptor = rest
    loggers = list(loggers_of_trials(asked))
    directory, left_out = RunDirectory(Path(run_dir)), int(recorded)
    watched: WatchedSweep | None = None
    with socket.socket(fileno=int(descriptor)) as link:
        is_over = False
        while loggers and not is_over:
            is_over = bool(select.select([link], [], [], _LOOK_EVERY_S)[0])
            if watched is None:
                found = {each.name: each for each in watch_sweeps(directory)}
                watched = found.get(sweep)
            while watched is not None and (trials := watched.new_trials()):
                for number, trial in enumerate(trials):
                    _log(loggers, directory.path, watched, trial, link, number < left_out)
                left_out = max(0, left_out - len(trials))


def _log(
    loggers: list[Reporter],
    run_dir: Path,
    sweep: WatchedSweep,
    trial: Mapping[str, Any],
    link: socket.socket,
    is_earlier: bool,
) -> None:
    """Pass a trial to the loggers, an earlier one to those on request; remove those that fail."""
    for logger in list(loggers):
        if is_earlier and not logger.on_request:
            continue
        try:
            logger.log_trial(run_dir, sweep, trial)
        except (Exception, SystemExit) as error:  # the code of a plugin can raise anything
            loggers.remove(logger)
            print(describe_traceback(error), file=sys.stderr, flush=True)
            words = f"{logger.log_trial.__module__}: log_trial is not called again: "
            with contextlib.suppress(OSError):  # raised if the master is gone
                link.sendall(f"{words}{describe_error(error)[:_LONGEST]}\n".encode())
