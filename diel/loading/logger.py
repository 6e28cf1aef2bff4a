"""The logger of a module's rank: ``ctx.log``."""

from __future__ import annotations

import logging
from collections.abc import Callable


def logger_of(name: str, record: Callable[..., None]) -> logging.Logger:
    """Return a logger that prints, and sends warnings and errors to the journal.

    Parameters
    ----------
    name : str
        Who logs.
    record : callable
        Writes an event to the journal.
    """
    logger = logging.Logger(name, logging.INFO)
    to_file = _OutputHandler()
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(to_file)
    logger.addHandler(_JournalHandler(record))
    return logger


class _JournalHandler(logging.Handler):
    """Sends warnings and errors to the journal."""

    def __init__(self, record: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        self._write = record

    def emit(self, record: logging.LogRecord) -> None:
        self._write("MessageLogged", level=record.levelname, text=record.getMessage())


class _OutputHandler(logging.Handler):
    """Prints, and so writes to what standard output is at that moment: the module's log file."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)
