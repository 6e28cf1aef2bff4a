"""The executive inside a user's own program, started by a plain ``mpirun -n N python driver.py``.

::

    import diel

    def greet(ctx):
        ctx.tuples.tput("greeting", "hello")

    def listen(ctx):
        return ctx.tuples.tget("greeting")

    executive = diel.Executive("study.toml")
    executive.add_module(greet).add_module(listen, "listener")
    raise SystemExit(executive.run())

The file names the modules and groups; functions that are added here need no ``function`` there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diel.errors import DielError
from diel.exit_codes import BAD_INPUT, INTERNAL_ERROR
from diel.run.part import Part
from diel.text import describe_traceback

if TYPE_CHECKING:
    from mpi4py import MPI


class Executive:
    """Runs a workflow file on the ranks of a communicator.

    Parameters
    ----------
    file : path
        The workflow file.
    runs : path, optional
        Where run directories are made.
    trace : bool, optional
        Whether to keep every single call of the tuple space in the trace, as ``diel run --trace``.
    parameters : mapping of str to value, optional
        Values of the file's parameters, or of any other of its keys, as ``diel run --set``:
        ``{"dt": 0.1, "module.solver.options.cells": 64}``.
    only, from_groups : sequence of str, optional
        Groups to run alone, or with all that depend on them, as ``diel run --only`` and ``--from``.
    force : bool, optional
        Whether to run what is up to date, as ``diel run --force``.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        *,
        runs: str | os.PathLike[str] = "runs",
        trace: bool = False,
        parameters: Mapping[str, Any] | None = None,
        only: Sequence[str] = (),
        from_groups: Sequence[str] = (),
        force: bool = False,
    ) -> None:
        for name, groups in (("only", only), ("from_groups", from_groups)):
            if isinstance(groups, str):
                raise TypeError(f"{name} is a list of names of groups: [{groups!r}]")
        self._force = force
        self._part = Part(tuple(only), tuple(from_groups))
        self._file = os.fspath(file)
        self._parameters = dict(parameters or {})
        self._runs = Path(runs)
        self._trace = trace
        self._functions: dict[str, Callable[[Any], Any]] = {}

    def add_module(self, function: Callable[[Any], Any], name: str | None = None) -> Executive:
        """Set the function that a module of the workflow file runs.

        Parameters
        ----------
        function : callable
            Takes a context, as every module does.
        name : str, optional
            Of the module in the file; default: that of the function.

        Returns
        -------
        Executive
            This one, so that calls can be chained.

        Raises
        ------
        TypeError
            If it cannot be called.
        ValueError
            If the module has a function already.
        """
        if not callable(function):
            raise TypeError(f"a module is a function that takes a context, not {function!r}")
        name = name if name is not None else function.__name__
        if name in self._functions:
            raise ValueError(f"the module {name!r} has a function already")
        self._functions[name] = function
        return self

    def run(self, comm: MPI.Intracomm | None = None) -> int:
        """Run the workflow; every rank of the communicator calls this, with the same modules added.

        Rank 0 is the executive, the next ranks serve tuples, all others run modules. Rank 0 prints
        the progress. MPI is neither started nor ended here if the program has done so.

        Parameters
        ----------
        comm : MPI.Intracomm, optional
            Default: COMM_WORLD. It is duplicated, and free for the program's own messages.

        Returns
        -------
        int
            The exit code, on every rank, as `diel.exit_codes` lists them.
        """
        from diel.comm.mpi import abort, check_that_tasks_are_ranks, world
        from diel.comm.parent import Parent
        from diel.loading.functions import register_functions
        from diel.loading.process_state import given_back

        parent = Parent(comm if comm is not None else world())
        provided = register_functions(self._functions)
        try:
            if comm is None:
                check_that_tasks_are_ranks(os.environ, parent.size)
            if parent.rank != parent.EXECUTIVE_RANK:
                from diel.executive.worker import run_worker

                with given_back():
                    return run_worker(parent)
            from diel.cli.display import PlainDisplay
            from diel.executive.rank0 import run_rank0
            from diel.workflow.parameters import setting_of

            with given_back():
                return run_rank0(
                    parent,
                    self._file,
                    observer_for=PlainDisplay,
                    runs=self._runs,
                    provided=provided,
                    given=[setting_of(name, value) for name, value in self._parameters.items()],
                    part=self._part,
                    makes_all=self._force,
                    traces_all=self._trace,
                )
        except DielError as error:
            print(f"diel: {error}", file=sys.stderr, flush=True)
            return BAD_INPUT
        except Exception as error:  # of diel itself: no rank may be left waiting for this one
            abort(parent.comm, INTERNAL_ERROR, partial(_print_failure, error))
            raise
        finally:
            parent.close()


def _print_failure(error: BaseException) -> None:
    print(describe_traceback(error), file=sys.stderr, flush=True)
