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

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
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
        self._ask_to_stop: Callable[[str], object] | None = None
        self._why = ""  # from the first signal on
        self._changing = threading.Lock()
        self._leave = leave
        self._patience_s = patience_s
        self._signals, writing = os.pipe()
        os.set_blocking(writing, False)
        # The number of each signal goes into the pipe at once, also in the middle of a C call.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, _stay)
        threading.Thread(target=self._watch, name="diel-signals", daemon=True).start()

    def stop_with(self, ask_to_stop: Callable[[str], object]) -> None:
        """Say what asks the run to stop: told the reason at the first signal, by a thread."""
        with self._changing:
            self._ask_to_stop = ask_to_stop
            if self._why:
                ask_to_stop(self._why)

    def _watch(self) -> None:
        number = 0
        while number not in _SIGNALS:  # a module may handle others
            number = os.read(self._signals, 1)[0]
        deadline = threading.Timer(self._patience_s, self._leave, [128 + number])
        deadline.daemon = True
        deadline.start()
        with self._changing:
            name = signal.Signals(number).name
            self._why = f"{name} came: somebody ends the job, or its launcher, having lost a rank"
            if self._ask_to_stop is not None:
                self._ask_to_stop(self._why)


def _stay(number: int, frame: object) -> None:
    """Do nothing: without a handler the signal would end the process at once."""
