"""openDIEL's names [1]_.

::

    openDIEL          here
    IELAddModule      Executive.add_module    a function is what a module of the file runs
    IELExecutive      Executive.run           run a workflow file on the ranks of a communicator
    IEL_tput          ctx.tuples.tput         put a tuple, without waiting for who takes it
    IEL_tget          ctx.tuples.tget         take a tuple, wait until there is one
    IEL_dist_tput     ctx.tuples.dist_tput    put a tuple in pieces on all servers
    IEL_dist_tget     ctx.tuples.dist_tget    take it, all pieces at the same time

They act on the tuple space of the module whose function is running on this rank. Values come back
as what they were put as, so there are no pointers and sizes to pass. Everything else that the space
can do is in ``ctx.tuples``, and both can be used side by side.

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
from diel.loading.context import current_context

if TYPE_CHECKING:
    from mpi4py import MPI

    from diel.tuples.client import TupleClient
    from diel.tuples.tags import Pattern, Tag

__all__ = ["IELAddModule", "IELExecutive", "IEL_dist_tget", "IEL_dist_tput", "IEL_tget", "IEL_tput"]


_functions: dict[str, Callable[[Any], Any]] = {}


def IELAddModule(function: Callable[[Any], Any], name: str) -> None:
    """Let a function be what a module of the workflow file runs; for the next `IELExecutive`.

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
    Executive("").add_module(function, name)  # says what is wrong with it
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
    """Put a tuple; returns when `value` may be changed, not when somebody has taken it.

    Parameters
    ----------
    tag : str or tuple of str and int
    value : object

    Raises
    ------
    RuntimeError
        If no module is running here.
    TupleError
        As `TupleClient.tput`.
    """
    _tuples("IEL_tput").tput(tag, value)


def IEL_tget(tag: Pattern) -> Any:
    """Take the oldest tuple of a tag; wait until there is one, for as long as the run lasts.

    Parameters
    ----------
    tag : str or tuple of str, int and ANY

    Returns
    -------
    object
        What was put.

    Raises
    ------
    RuntimeError
        If no module is running here; `RunStopped`, which is one, if the run is stopping.
    TupleError
        As `TupleClient.tget`.
    """
    return _tuples("IEL_tget").tget(tag)


def IEL_dist_tput(tag: Tag, value: object) -> None:
    """Put a tuple in pieces, one on each tuple server, and their layout under its tag.

    Parameters
    ----------
    tag : str or tuple of str and int
    value : object
        A large array or bytes, usually.

    Raises
    ------
    RuntimeError
        If no module is running here.
    TupleError
        As `TupleClient.dist_tput`.
    """
    _tuples("IEL_dist_tput").dist_tput(tag, value)


def IEL_dist_tget(tag: Pattern) -> Any:
    """Take a tuple that lies in pieces, from all servers at the same time; wait as `IEL_tget`.

    Parameters
    ----------
    tag : str or tuple of str, int and ANY

    Returns
    -------
    object
        What was put, in one piece.

    Raises
    ------
    RuntimeError
        If no module is running here; `RunStopped`, which is one, if the run is stopping.
    TupleError
        As `TupleClient.dist_tget`.
    """
    return _tuples("IEL_dist_tget").dist_tget(tag)


def _tuples(name: str) -> TupleClient:
    try:
        return current_context().tuples
    except RuntimeError as error:
        raise RuntimeError(f"{name}: {error}") from None
