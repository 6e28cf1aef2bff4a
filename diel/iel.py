"""The functions of openDIEL under their names there, on top of diel.

::

    openDIEL          here
    IELAddModule      Executive.add_module    set the function that a module of the file runs
    IELExecutive      Executive.run           run a workflow file on the ranks of a communicator
    IEL_tput          ctx.tuples.tput         put a tuple, without waiting until it is taken
    IEL_tget          ctx.tuples.tget         take a tuple, wait until there is one
    IEL_dist_tput     ctx.tuples.dist_tput    put a tuple in pieces on all servers
    IEL_dist_tget     ctx.tuples.dist_tget    take it, all pieces at the same time
    IEL_send          ctx.send                send to a rank of another module, without waiting
    IEL_recv          ctx.recv                receive, wait until something was sent
    IEL_move          ctx.move                send, wait until it has been received

They act for the module whose function is running on this rank. Values come back with the type and
size that they were put or sent with, so openDIEL's pointers and sizes [1]_ are not passed. The last
three also take a shared boundary, of which they send and receive the sections that this rank owns
and reads. Everything else is in ``ctx``, and both can be used side by side.

All but the first two raise RuntimeError where no module is running; otherwise they raise the errors
of the methods beside them.

References
----------
.. [1] Nichols, Tomov, Betancourt et al., MagmaDNN: Towards High-Performance Data Analytics and
   Machine Learning for Data-Driven Scientific Computing, ISC High Performance 2019, section 3.1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diel.embedding import Executive
from diel.errors import AddressError
from diel.loading.context import current_context

if TYPE_CHECKING:
    from mpi4py import MPI

    from diel.coupling.address import To
    from diel.coupling.messages import Sending
    from diel.loading.context import Context
    from diel.tuples.client import TupleClient
    from diel.tuples.tags import Pattern, Tag

__all__ = [
    "IELAddModule",
    "IELExecutive",
    "IEL_dist_tget",
    "IEL_dist_tput",
    "IEL_move",
    "IEL_recv",
    "IEL_send",
    "IEL_tget",
    "IEL_tput",
]


_functions: dict[str, Callable[[Any], Any]] = {}


def IELAddModule(function: Callable[[Any], Any], name: str) -> None:
    """Set the function that a module of the workflow file runs, for the next `IELExecutive`.

    Parameters
    ----------
    function : callable
        Takes a context.
    name : str
        Of the module in the file.

    Raises
    ------
    TypeError
        If it cannot be called.
    ValueError
        If the module has a function already.
    """
    Executive("").add_module(function, name)  # raises TypeError if it cannot be called
    if name in _functions:
        raise ValueError(f"the module {name!r} has a function already")
    _functions[name] = function


def IELExecutive(comm: MPI.Intracomm, config: str | os.PathLike[str]) -> int:
    """Run a workflow file on all ranks of a communicator, which all call this.

    Parameters
    ----------
    comm : MPI.Intracomm
    config : path
        The workflow file.

    Returns
    -------
    int
        The exit code, as from `Executive.run`.
    """
    executive = Executive(config)
    for name, function in _functions.items():
        executive.add_module(function, name)
    _functions.clear()
    return executive.run(comm)


def IEL_tput(tag: Tag, value: object) -> None:
    """Put a tuple, as `TupleClient.tput` does."""
    _tuples("IEL_tput").tput(tag, value)


def IEL_tget(tag: Pattern) -> Any:
    """Take a tuple, as `TupleClient.tget` does; wait for as long as the run lasts."""
    return _tuples("IEL_tget").tget(tag)


def IEL_dist_tput(tag: Tag, value: object) -> None:
    """Put a tuple in pieces on all servers, as `TupleClient.dist_tput` does."""
    _tuples("IEL_dist_tput").dist_tput(tag, value)


def IEL_dist_tget(tag: Pattern) -> Any:
    """Take a tuple in pieces, as `TupleClient.dist_tget` does; wait as `IEL_tget`."""
    return _tuples("IEL_dist_tget").dist_tget(tag)


def IEL_send(value: object, to: To | None = None, tag: Tag | None = None) -> Sending:
    """Send a value, as `Context.send` does, or push a shared boundary, as `SharedBoundary.push`.

    Parameters
    ----------
    value : object or SharedBoundary
    to : str, tuple or Address
        As in `Context.send`; None for a boundary, whose readers are in the workflow file.
    tag : str or tuple of str and int, optional
    """
    context = _context("IEL_send")
    if to is None:
        pushed: Sending = _boundary("IEL_send", value).push()
        return pushed
    return context.send(value, to, tag=tag)


def IEL_recv(source: Any = None, tag: Tag | None = None, out: Any = None) -> Any:
    """Receive a value, as `Context.recv` does, or pull a shared boundary, as `SharedBoundary.pull`.

    Parameters
    ----------
    source : str, tuple, Address or SharedBoundary, optional
    tag : str or tuple of str and int, optional
    out : array, optional

    Returns
    -------
    object
        As from `Context.recv`; the array of a boundary.
    """
    context = _context("IEL_recv")
    if hasattr(source, "pull"):
        source.pull()
        return source.array
    return context.recv(source, tag=tag, out=out)


def IEL_move(value: object, to: To | None = None, tag: Tag | None = None) -> None:
    """Send a value and wait until it has been received, as `Context.move` does.

    Parameters
    ----------
    value, to, tag
        As in `IEL_send`; for a boundary the wait is that of `Sending.wait`.
    """
    context = _context("IEL_move")
    if to is None:
        _boundary("IEL_move", value).push().wait()
    else:
        context.move(value, to, tag=tag)


def _boundary(name: str, value: Any) -> Any:
    if not hasattr(value, "push"):
        raise AddressError(f"{name}: say to whom, unless it is a shared boundary")
    return value


def _tuples(name: str) -> TupleClient:
    return _context(name).tuples


def _context(name: str) -> Context:
    try:
        return current_context()
    except RuntimeError as error:
        raise RuntimeError(f"{name}: {error}") from None
