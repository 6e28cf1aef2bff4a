"""The tree of errors: every error that diel raises on purpose.

::

    DielError                       something diel noticed and can explain
    ├── WorkflowError               the workflow file is wrong (ValueError); every problem at once
    ├── EditRefused                 an edit would break the workflow file (ValueError)
    ├── LaunchError                 mpiexec cannot be started as asked (RuntimeError)
    ├── PluginError                 an installed plugin is missing or cannot be used (ValueError)
    ├── MissingPackage              an optional package is not installed (ImportError)
    ├── SweepCallError              diel.sweep cannot start a sweep as asked (ValueError)
    ├── NewModuleError              a new module cannot be written as asked (ValueError)
    ├── PageError                   the page cannot be served, or show what was asked (RuntimeError)
    ├── ConditionError              a condition that is to choose runs is wrong (ValueError)
    ├── RunDirectoryError           the run directory cannot be read or written (OSError)
    ├── ModuleFailed                an executable exited non-zero or did not start (RuntimeError)
    ├── RunStopped                  the run is ending: what a waiting module receives (RuntimeError)
    │   └── CopyStopped             only this copy is: it starts again, or is given up
    ├── TupleSocketError            `diel tuple` cannot reach its run, or is refused (RuntimeError)
    ├── TupleError                  the tuple space
    │   ├── TagError                a tag or pattern is malformed (ValueError)
    │   ├── PayloadError            a value cannot be stored, or ``out=`` does not fit (TypeError)
    │   ├── TupleTimeout            nothing matched, or there was no room, in time (TimeoutError)
    │   ├── TupleSpaceFull          there is no room for a tuple, or never will be (RuntimeError)
    │   ├── ClaimLost               a claim is no longer held: its lease ended (RuntimeError)
    │   └── CheckpointError         a file is no checkpoint, or a damaged one (ValueError)
    └── CouplingError               messages between modules, and shared boundaries
        ├── AddressError            nobody in the group has this address (ValueError)
        ├── BoundaryError           this rank has no such boundary, or no such part (ValueError)
        ├── OwnerEnded              who owns a section of a boundary pushes no more (EOFError)
        ├── TooFarAhead             a receiver is as far behind as it may be (RuntimeError)
        └── CouplingTimeout         no message came, or none was received, in time (TimeoutError)

Errors cross ranks, so each survives pickling with its fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

PROBLEMS_SHOWN: Final = 100
"""The most problems of a file, and of one check, that are described one by one."""
_LONGEST_SHOWN: Final = 600


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a workflow file.

    Attributes
    ----------
    path : str
        Where in the file, such as ``module[2].copies``; empty for the file as a whole.
    message : str
        What is wrong.
    remedy : str
        What to do next; empty if there is nothing to add.
    line : int or None
        The line of the file, from 1, where it is known.
    """

    path: str
    message: str
    remedy: str = ""
    line: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        where = ", ".join(place for place in (line, _shown(self.path)) if place)
        remedy = f" ({_shown(self.remedy)})" if self.remedy else ""
        return f"{where}{': ' if where else ''}{_shown(self.message)}{remedy}"


def _shown(text: str) -> str:
    """Escape what is not printable, and leave out the middle of what is very long.

    A file may hold line ends, a terminal's control codes, and names of 100,000 letters.
    """
    text = _cut(text)
    if text.isprintable():
        return text
    escaped = (
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
    return _cut("".join(escaped))


def _cut(text: str) -> str:
    half = _LONGEST_SHOWN // 2
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:half]} ... {text[-half:]}"


class DielError(Exception):
    """Base of all errors that diel raises on purpose, with a message for people."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds an exception from `args`, which for us is the finished message:
        # rebuild from the fields instead.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[DielError], args: tuple[Any, ...], fields: dict[str, Any]) -> DielError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


def limited(found: Iterator[Problem]) -> Iterator[Problem]:
    """Yield the first problems of a check, and after them whether there are more.

    Describing one takes a while, looking for near names above all: of a file in which thousands of
    keys are wrong nobody wants to read all.
    """
    yield from islice(found, PROBLEMS_SHOWN)
    following = next(found, None)
    if following is not None:
        yield more_below(following.path)


def more_below(path: str) -> Problem:
    """Return the problem that there are more of them from a place on."""
    return Problem(path, "there may be more problems from here on", "mend those above first")


class WorkflowError(DielError, ValueError):
    """A workflow file is wrong.

    Parameters
    ----------
    file : str
        The workflow file, as the user named it.
    problems : sequence of Problem
        Everything that is wrong in it.
    """

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{file}: {count} problem{'s' if count != 1 else ''}"
        shown = [f"  {problem}" for problem in self.problems[:PROBLEMS_SHOWN]]
        if count > len(shown):
            shown.append(f"  and {count - len(shown):,} more")
        super().__init__("\n".join([head, *shown]))


class EditRefused(DielError, ValueError):
    """An edit of a workflow file cannot be made, or would break it.

    Parameters
    ----------
    message : str
        What is wrong.
    remedy : str, optional
        What to do instead.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(message, remedy)

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class LaunchError(DielError, RuntimeError):
    """``mpiexec`` cannot be started as asked."""


class PluginError(DielError, ValueError):
    """A plugin that an installed package declares is missing, or cannot be used."""


class MissingPackage(DielError, ImportError):
    """An optional package is not installed; the message names the extra that has it."""


class SweepCallError(DielError, ValueError):
    """`diel.sweep` cannot start a sweep as asked, say of a function that ranks cannot import."""


class NewModuleError(DielError, ValueError):
    """The files of a new module cannot be written as asked."""


class PageError(DielError, RuntimeError):
    """The page in a browser cannot be served, or cannot show what was asked for."""


class ConditionError(DielError, ValueError):
    """A condition that is to choose runs is none, or names what no run has."""


class RunDirectoryError(DielError, OSError):
    """A run directory cannot be created, read or written."""


class ModuleFailed(DielError, RuntimeError):
    """A module failed, and the message says it all: no traceback is printed.

    An executable that exited with a status other than zero or could not be started, say, or a sweep
    in which no trial succeeded.
    """


class RunStopped(DielError, RuntimeError):
    """The run is ending; raised in every module that waits in diel."""


class CopyStopped(RunStopped):
    """Rank 0 ended this copy, which has failed: it starts again or is given up; the run goes on."""


class TupleSocketError(DielError, RuntimeError):
    """A command of an executable did not reach the tuple space of its run, or was refused."""


class TupleError(DielError):
    """Base of the errors of the tuple space."""


class TagError(TupleError, ValueError):
    """A tag is not a string or a non-empty tuple of strings and integers."""


class PayloadError(TupleError, TypeError):
    """A value cannot be stored, or the array given as ``out=`` does not fit it."""


class TupleSpaceFull(TupleError, RuntimeError):
    """A server has no room for a tuple, or the tuple is larger than a server may ever hold."""


class ClaimLost(TupleError, RuntimeError):
    """A claim is no longer held: its lease ended, and the tuple was given back."""


class CheckpointError(TupleError, ValueError):
    """A file is not a checkpoint of a tuple space, or a damaged one."""


class TupleTimeout(TupleError, TimeoutError):
    """No tuple matched, or no room was found for one, before the timeout.

    Parameters
    ----------
    operation : str
        Such as ``tget`` or ``tput``.
    tag : str
        The pattern, as a person would write it.
    timeout_s : float
        Seconds waited.
    reason : str, optional
        What did not happen: nothing matched, or, for a put, there was no room.
    hint : str, optional
        Ends the message: tags that nearly match.
    """

    def __init__(
        self,
        operation: str,
        tag: str,
        timeout_s: float,
        reason: str = "nothing matched",
        hint: str = "",
    ) -> None:
        self.operation = operation
        self.tag = tag
        self.timeout_s = timeout_s
        self.reason = reason
        end = f"; {hint}" if hint else ""
        super().__init__(f"{operation}({tag}): {reason} within {timeout_s:g} s{end}")


class CouplingError(DielError):
    """Base of the errors of messages between modules and of shared boundaries."""


class AddressError(CouplingError, ValueError):
    """No rank in the group has this address."""


class BoundaryError(CouplingError, ValueError):
    """A rank has no part in a shared boundary, or not the one that it asked for."""


class OwnerEnded(CouplingError, EOFError):
    """An owner of a shared boundary has returned, and what it had pushed has been pulled."""


class TooFarAhead(CouplingError, RuntimeError):
    """A sender is as far ahead of a receiver as it may be, and its policy is "error"."""


class CouplingTimeout(CouplingError, TimeoutError):
    """No message came in time, or a sent message was not received in time.

    Parameters
    ----------
    operation : str
        What was waited for, as a person would write it.
    timeout_s : float
        Seconds waited.
    """

    def __init__(self, operation: str, timeout_s: float) -> None:
        self.operation = operation
        self.timeout_s = timeout_s
        super().__init__(f"{operation}: nothing happened within {timeout_s:g} s")
