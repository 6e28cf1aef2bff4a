"""Stop signals to a rank: the first asks the run to stop; 8 s later the rank exits in any case.

Under ``diel run`` the launcher asks the run to stop by its own means. Under a bare mpirun SIGTERM,
SIGINT and SIGHUP reach the ranks: Open MPI kills them a quarter of a second later, MPICH never
does. So a rank exits by itself 8 s after its first signal, whatever its module is doing. A thread
does this, since Python runs no signal handler while the main thread is in a C library.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from diel.exit_codes import NOT_FINISHED, STOPPED
from diel.run.directory import LOST_OR_ENDED

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
_OF_BATCH_SCHEDULERS: Final = (signal.SIGTERM, signal.SIGUSR1)
_PATIENCE_S: Final = 8.0


class StopSignals:
    """Handles stop signals to this process; to be created once, in the main thread.

    Parameters
    ----------
    patience_s : float, seconds, optional
        How long after the first signal the process exits.
    """

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._ask_to_stop: Callable[[str, int], object] | None = None
        self._number = 0  # of the first signal
        self._changing = threading.Lock()
        self._leave = os._exit  # itself: it is replaced, to note crashes, while modules run
        self._patience_s = patience_s
        self._signals, writing = os.pipe()
        os.set_blocking(writing, False)
        # The number of each signal goes into the pipe at once, also in the middle of a C call.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, _ignore)
        threading.Thread(target=self._watch, name="diel-signals", daemon=True).start()

    def set_stop_request(self, ask_to_stop: Callable[[str, int], object]) -> None:
        """Set the function that asks the run to stop: called with a reason and an exit code.

        A thread calls it at the first signal; this method does if that has come already.
        """
        with self._changing:
            self._ask_to_stop = ask_to_stop
            if self._number:
                ask_to_stop(_reason(self._number), exit_code_after(self._number))

    def _watch(self) -> None:
        number = 0
        # Signals that a module handles itself, or other signals, do not stop the run.
        while number not in STOP_SIGNALS or signal.getsignal(number) is not _ignore:
            number = os.read(self._signals, 1)[0]
        exit_code = exit_code_after(number)
        leaves_here = False
        try:
            deadline = threading.Timer(self._patience_s, self._leave, [exit_code])
            deadline.daemon = True
            deadline.start()
        except (RuntimeError, MemoryError):  # no memory for another thread
            leaves_here = True
        try:
            with self._changing:
                self._number = number
                if self._ask_to_stop is not None:
                    self._ask_to_stop(_reason(number), exit_code)
        finally:
            if leaves_here:
                time.sleep(self._patience_s)
                self._leave(exit_code)


def release_signals() -> None:
    """In a process that was forked from a rank: handle stop signals as any process of Python does.

    Its parent is not meant: ``multiprocessing.Pool.terminate`` sends SIGTERM to such a process.
    """
    signal.set_wakeup_fd(-1)  # the pipe is shared with the rank
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _ignore:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def exit_code_after(number: int) -> int:
    """Return the exit code of a run that a signal has ended.

    Batch schedulers send SIGTERM and SIGUSR1 before a time limit: such a run is not finished, and
    is to be resumed. SIGINT and SIGHUP come from a person.
    """
    return NOT_FINISHED if number in _OF_BATCH_SCHEDULERS else STOPPED


def before_time_limit(number: int) -> str:
    """Return the reason for stopping a run that a batch scheduler has warned by a signal."""
    return f"{signal.Signals(number).name} came, as before a time limit"


def _reason(number: int) -> str:
    if number == signal.SIGUSR1:  # only batch schedulers send it, no launcher
        return before_time_limit(number)
    return f"{signal.Signals(number).name} came: {LOST_OR_ENDED}"


def _ignore(number: int, frame: object) -> None:
    """Do nothing, as a handler that keeps the signal from ending the process at once."""
