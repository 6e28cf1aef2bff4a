"""Conjugate heat transfer: a flow in a channel, above a solid that is heated from below.

::

               insulated
    ┌───────────────────────────────┐
    │ fluid                         │
  → │ u(y) T_x = k_f (T_xx + T_yy)  │ →      inlet: T = 0, outlet: T_x = 0
    ╞═══════════ the wall ══════════╡        T and k T_y are the same on both sides
    │ solid                         │
    │        0 = k_s (T_xx + T_yy)  │        sides: T_x = 0
    └───────────────────────────────┘
                 T = 1

The two solvers know nothing of each other but the wall. The solid gives its temperature there
(Dirichlet), the fluid answers with the heat that it lets through (Neumann), and the solid moves
the wall's temperature a part of the way towards the one that this heat leads to [1]_::

    T_wall <- T_wall + relaxation (T_solid(q) - T_wall),     q = k_f dT_fluid(T_wall)/dy

until it hardly changes any more. What they agree on is the solution of the whole.

Both use finite volumes, upwind for the flow. A step of the coupling is a number of sweeps, each
of which solves all columns exactly from top to bottom, with the columns to their left and right as
they were before. Each rank has some columns, and a further one on each side.

References
----------
.. [1] Funaro, Quarteroni, Zanolli, An iterative procedure with interface relaxation for domain
   decomposition methods, SIAM Journal on Numerical Analysis 25, 1988.
"""

from itertools import count

import numpy as np
from mpi4py import MPI

from diel import ANY

SWEEPS = 20  # for each step of the coupling
RELAXATION = 0.8
TOLERANCE = 1e-11  # of the wall's temperature, in a step
HEATED = 1.0  # temperature below the solid


class Columns:
    """The columns of the fluid or the solid that this rank has.

    Attributes
    ----------
    T : ndarray, shape (columns + 2, cells)
        Temperatures, from below to above; the first and the last column are the neighbours'.
    dx, dy : float
        Size of a cell.
    to_face : float
        Heat that flows from a cell to its lower or upper face, for a difference of 1.
    """

    def __init__(self, ctx, columns, columns_of_all, speed_at=None):
        k, cells = ctx.options["conductivity"], ctx.options["cells"]
        self.comm = ctx.comm
        self.dx = ctx.options["length"] / columns_of_all
        self.dy = ctx.options["height"] / cells
        self.T = np.zeros((columns + 2, cells))
        self.to_face = 2 * k * self.dx / self.dy
        self.from_east = np.full(cells, k * self.dy / self.dx)
        self.from_west = self.from_east.copy()
        if speed_at is not None:  # the flow comes from the west
            self.from_west += self.dy * speed_at((np.arange(cells) + 0.5) * self.dy)
        self.has_inlet = speed_at is not None
        # What a column exchanges within itself, between neighbouring cells ...
        between = np.full(cells - 1, k * self.dx / self.dy)
        inside = -np.diag(between, 1) - np.diag(between, -1)
        inside -= np.diag(inside.sum(axis=1))
        # ... with the columns beside it, and through its lowest face, whose temperature is given.
        outside = np.diag(self.from_east + self.from_west)
        outside[0, 0] += self.to_face
        self.solve = np.linalg.inv(inside + outside)

    def sweep(self, heat):
        """Solve all columns; `heat` is what flows into each cell from outside the domain."""
        for _ in range(SWEEPS):
            self._exchange_sides()
            sides = self.from_east * self.T[2:] + self.from_west * self.T[:-2]
            self.T[1:-1] = (sides + heat) @ self.solve.T

    def _exchange_sides(self):
        comm, T = self.comm, self.T
        west = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
        east = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
        comm.Sendrecv(T[1], west, recvbuf=T[-1], source=east)
        comm.Sendrecv(T[-2], east, recvbuf=T[0], source=west)
        if east == MPI.PROC_NULL:
            T[-1] = T[-2]  # no heat is conducted out here
        if west == MPI.PROC_NULL:
            T[0] = 0.0 if self.has_inlet else T[1]


def fluid(ctx):
    """Solve for the fluid at the temperature of the wall; give back the heat through the wall."""
    height, mean = ctx.options["height"], ctx.options["speed"]
    wall = ctx.boundary("wall")
    temperature, flux = wall.read[0][0], wall.owned[0][0]
    here = Columns(
        ctx, len(flux), wall.array.shape[1], lambda y: 6 * mean * y / height * (1 - y / height)
    )
    heat = np.zeros_like(here.T[1:-1])
    for step in count():
        wall.pull()
        heat[:, 0] = here.to_face * temperature
        here.sweep(heat)
        flux[:] = here.to_face * (here.T[1:-1, 0] - temperature)
        wall.push()
        if ctx.tuples.tread(("change", step)) < TOLERANCE:
            break
    ctx.tuples.tput(("fluid", ctx.comm.rank), here.T[1:-1])


def solid(ctx):
    """Solve for the solid with the heat through the wall; give back the temperature of the wall."""
    wall = ctx.boundary("wall")
    temperature, flux = wall.owned[0][0], wall.read[0][0]
    here = Columns(ctx, len(flux), wall.array.shape[1])
    heat = np.zeros_like(here.T[1:-1])
    heat[:, 0] = here.to_face * HEATED
    for step in count():
        wall.push()
        wall.pull()
        heat[:, -1] = flux
        here.sweep(heat)
        change = RELAXATION * (here.T[1:-1, -1] + flux / here.to_face - temperature)
        temperature += change
        largest = max(ctx.comm.allgather(float(abs(change).max())))
        if ctx.comm.rank == 0:
            ctx.progress(step + 1, text=f"the wall changes by {largest:.1e}")
            ctx.tuples.tput(("change", step), largest)
        if largest < TOLERANCE:
            break
    ctx.tuples.tput(("solid", ctx.comm.rank), here.T[1:-1])


def report(ctx):
    """Write the temperatures, and the change of the wall's in each step; return how many steps."""
    steps = sorted(ctx.tuples.collect(("change", ANY)))
    history = [(step, change) for (_, step), change in steps]
    np.savetxt(ctx.run_dir / "history.csv", history, delimiter=",", header="step,change")
    rows = []
    places = [("solid", -ctx.options["solid_height"]), ("fluid", ctx.options["fluid_height"])]
    for name, height in places:
        parts = sorted(ctx.tuples.collect((name, ANY)), key=lambda part: part[0])
        T = np.concatenate([part for _, part in parts])
        x = (np.arange(T.shape[0]) + 0.5) * ctx.options["length"] / T.shape[0]
        y = (np.arange(T.shape[1]) + 0.5) * abs(height) / T.shape[1] + min(height, 0.0)
        rows += [(x[i], y[j], T[i, j]) for j in range(len(y)) for i in range(len(x))]
    np.savetxt(ctx.run_dir / "heat.csv", rows, delimiter=",", header="x,y,temperature")
    return len(history)
