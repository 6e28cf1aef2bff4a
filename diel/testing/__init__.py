"""Modules without MPI: a tuple space within this process, and function modules that run on it.

::

    from diel.testing import TupleSpace, run_module, run_modules

    def test_the_solver():
        with TupleSpace(servers=3) as space:
            space.client().tput("initial field", np.ones(5))
            run = run_module(solver.run, {"steps": 10}, space=space)
        assert run.returned == 5.0
        assert run.tuples == [(("result", 0), 5.0)]

    def test_both_ends():
        runs = run_modules({"greeter": hello.greet, "answerer": Module(hello.answer, copies=2)})

The space is the real one: the same store, client and messages as in a run. The communicators of a
module, ``ctx.comm`` and ``ctx.module_comm``, are missing. A module runs in the working directory of
the test, and its log is printed.
"""

from __future__ import annotations

from diel.testing.runs import Module, ModuleRun, run_module, run_modules
from diel.testing.space import TupleSpace

__all__ = ["Module", "ModuleRun", "TupleSpace", "run_module", "run_modules"]
