"""Signals to a rank: the first asks the run to stop, and ends the rank if it does not.

Under ``diel run`` the launcher has its own way to ask. Under a bare mpirun SIGTERM, SIGINT and
SIGHUP reach the ranks: Open MPI kills them a quarter of a second later, MPICH never does. So a rank
that got one leaves by itself after 8 s, whatever its module is doing: a thread sees to that, since
the main thread may be deep in somebody's numerical library, where Python runs no handler.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from diel.exit_codes import NOT_FINISHED, STOPPED
from diel.run.directory import LOST_OR_ENDED

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
_OF_BATCH_SCHEDULERS: Final = (signal.SIGTERM, signal.SIGUSR1)
_PATIENCE_S: Final = 8.0


class StopSignals:
    """Watches for signals to this process; to be made in the main thread, once.

    Parameters
    ----------
    leave : callable, optional
        Ends the process with a status.
    patience_s : float, seconds, optional
        How long after the first signal.
    """

    def __init__(
        self, leave: Callable[[int], object] = os._exit, patience_s: float = _PATIENCE_S
    ) -> None:
        self._ask_to_stop: Callable[[str, int], object] | None = None
        self._number = 0  # of the first signal
        self._changing = threading.Lock()
        self._leave = leave
        self._patience_s = patience_s
        self._signals, writing = os.pipe()
        os.set_blocking(writing, False)
        # The number of each signal goes into the pipe at once, also in the middle of a C call.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, _stay)
        threading.Thread(target=self._watch, name="diel-signals", daemon=True).start()

    def stop_with(self, ask_to_stop: Callable[[str, int], object]) -> None:
        """Say what asks the run to stop: told why and with which exit code, by a thread."""
        with self._changing:
            self._ask_to_stop = ask_to_stop
            if self._number:
                ask_to_stop(_why(self._number), exit_code_after(self._number))

    def _watch(self) -> None:
        number = 0
        # A module may handle others, or these in its own way.
        while number not in STOP_SIGNALS or signal.getsignal(number) is not _stay:
            number = os.read(self._signals, 1)[0]
        deadline = threading.Timer(self._patience_s, self._leave, [exit_code_after(number)])
        deadline.daemon = True
        deadline.start()
        with self._changing:
            self._number = number
            if self._ask_to_stop is not None:
                self._ask_to_stop(_why(number), exit_code_after(number))


def exit_code_after(number: int) -> int:
    """Return the exit code of a run that a signal has ended.

    SIGTERM and SIGUSR1 are what batch schedulers send before a time limit: such a run is to be gone
    on with. SIGINT and SIGHUP are a person's.
    """
    return NOT_FINISHED if number in _OF_BATCH_SCHEDULERS else STOPPED


def before_time_limit(number: int) -> str:
    """Return why a run is stopped that a batch scheduler has warned by a signal."""
    return f"{signal.Signals(number).name} came, as before a time limit"


def _why(number: int) -> str:
    if number == signal.SIGUSR1:  # which no launcher sends by itself
        return before_time_limit(number)
    return f"{signal.Signals(number).name} came: {LOST_OR_ENDED}"


def _stay(number: int, frame: object) -> None:
    """Do nothing: without a handler the signal would end the process at once."""
