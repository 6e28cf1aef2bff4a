"""The exit codes of diel: what a script can conclude from how a command has ended."""

from __future__ import annotations

from typing import Final

FINE: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
INTERNAL_ERROR: Final = 70  # EX_SOFTWARE of sysexits.h
NOT_FINISHED: Final = 75  # EX_TEMPFAIL: a later try may succeed
STOPPED: Final = 130  # as a shell says of what SIGINT has ended

MEANINGS: Final = {
    FINE: "fine",
    FAILED: "a module failed, or the run was lost",
    BAD_INPUT: "bad input, and nothing was run",
    INTERNAL_ERROR: "an error in diel itself",
    NOT_FINISHED: "not finished: SIGTERM or SIGUSR1 came, and diel run --resume goes on",
    STOPPED: "stopped by the user",
}
