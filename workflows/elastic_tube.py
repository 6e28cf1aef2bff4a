"""A flow in an elastic tube: its pressure widens the tube, and the wider tube changes the flow.

::

      wall    61 points, on two ranks    p -> a       x--------x--------x--------x
      fluid   101 points, on one rank    a -> p       x-----x-----x-----x-----x---

The fluid is incompressible, so a slightly wrong cross section leads to a very wrong pressure:
without acceleration the coupling diverges. Equations [1]_ and numbers are those of the tutorial
"elastic-tube-1d" of preCICE [2]_, with the cross section a, the velocity u and the pressure p::

    a_t + (a u)_x = 0,      (a u)_t + (a u**2)_x + a p_x = 0,      a = a_0 / (1 - p / (2 c**2))**2

Inflow is a given velocity, and waves leave at the outlet without being reflected. Finite volumes,
upwind in the momentum, implicit Euler in time.

References
----------
.. [1] Degroote, Bruggeman, Haelterman, Vierendeels, Stability of a coupling technique for
   partitioned solvers in FSI applications, Computers and Structures 86, 2008.
.. [2] https://precice.org/tutorials-elastic-tube-1d.html
"""

from itertools import count

import numpy as np

from diel import IQNILS, Aitken, ConstantRelaxation, MappedField

LENGTH = 10.0
SQUARE_OF_SPEED = 10000 / 2 * np.sqrt(np.pi)  # c**2, of waves in the wall: E h / (2 r_0)


def inflow(time):
    """Return the velocity at the inlet."""
    return 10 + 3 * np.sin(10 * np.pi * time)


def widened(pressure):
    """Return by how much the wall's cross section has grown from its 1 under a pressure."""
    return 1 / (1 - pressure / (2 * SQUARE_OF_SPEED)) ** 2 - 1


class Flow:
    """The flow in a tube of given cross sections, at points with equal distances.

    Attributes
    ----------
    x : ndarray
        The points.
    u, p : ndarray
        Velocity and pressure at the end of the last step.
    """

    def __init__(self, points, dt):
        self.x, self.dt, self.time = np.linspace(0, LENGTH, points), dt, 0.0
        self.u, self.p, self.a = np.full(points, inflow(0.0)), np.zeros(points), np.ones(points)
        self.solved = self.u, self.p, self.a

    def solve(self, a):
        """Return the pressure at the end of this step, for the cross sections there."""
        u, p = self.solved[0].copy(), self.solved[1].copy()
        for _ in range(20):  # Newton's method
            residual, matrix = self.equations(a, u, p)
            change = np.linalg.solve(matrix, -residual)
            u += change[: len(u)]
            p += change[len(u) :]
            if abs(change).max() < 1e-10 * abs(p).max():
                break
        self.solved = u, p, a
        return p

    def end_step(self):
        """Go on from what has been solved last."""
        self.u, self.p, self.a = self.solved
        self.time += self.dt

    def equations(self, a, u, p):
        """Return the residuals of momentum and mass, and their derivatives by u and p."""
        n = len(u)
        inside = np.arange(1, n - 1)
        rate = (self.x[1] - self.x[0]) / self.dt
        a_face = (a[1:] + a[:-1]) / 2
        flux = a_face * (u[1:] + u[:-1]) / 2
        residual, matrix = np.empty(2 * n), np.zeros((2 * n, 2 * n))
        momentum, mass, of_p = residual[:n], residual[n:], n + inside

        momentum[1:-1] = rate * (a * u - self.a * self.u)[1:-1]
        momentum[1:-1] += flux[1:] * u[1:-1] - flux[:-1] * u[:-2]
        momentum[1:-1] += (a_face[1:] * (p[2:] - p[1:-1]) + a_face[:-1] * (p[1:-1] - p[:-2])) / 2
        half = a_face / 2
        matrix[inside, inside - 1] = -half[:-1] * u[:-2] - flux[:-1]
        matrix[inside, inside] = rate * a[1:-1] + flux[1:] + half[1:] * u[1:-1]
        matrix[inside, inside] -= half[:-1] * u[:-2]
        matrix[inside, inside + 1] = half[1:] * u[1:-1]
        matrix[inside, of_p - 1] = -half[:-1]
        matrix[inside, of_p] = half[:-1] - half[1:]
        matrix[inside, of_p + 1] = half[1:]

        mass[1:-1] = rate * (a - self.a)[1:-1] + flux[1:] - flux[:-1]
        matrix[of_p, inside - 1] = -half[:-1]
        matrix[of_p, inside] = half[1:] - half[:-1]
        matrix[of_p, inside + 1] = half[1:]

        # The velocity is given at the inlet; velocity at the outlet and pressure at the inlet go on
        # as beside them; waves leave at the outlet.
        momentum[0] = u[0] - inflow(self.time + self.dt)
        momentum[-1] = u[-1] - 2 * u[-2] + u[-3]
        mass[0] = p[0] - 2 * p[1] + p[2]
        speed = np.sqrt(SQUARE_OF_SPEED - self.p[-1] / 2) - (u[-1] - self.u[-1]) / 4
        mass[-1] = p[-1] - 2 * (SQUARE_OF_SPEED - speed**2)
        matrix[0, 0] = 1
        matrix[n - 1, n - 3 : n] = 1, -2, 1
        matrix[n, n : n + 3] = 1, -2, 1
        matrix[2 * n - 1, n - 1], matrix[2 * n - 1, 2 * n - 1] = -speed, 1
        return residual, matrix


def acceleration_of(name, comm=None):
    """Return what accelerates the coupling, with the numbers of the tutorial where it has them."""
    if name == "constant":
        return ConstantRelaxation(0.01, comm=comm)
    if name == "aitken":
        return Aitken(0.01, comm=comm)
    return IQNILS(0.01, reused_steps=8, most_columns=50, filter_limit=1e-3, comm=comm)


def fluid(ctx):
    """Solve for the flow in the tube that the wall gives, until the wall says that it agrees."""
    flow = Flow(ctx.options["points"], ctx.options["dt"])
    area = MappedField(ctx, "area", "wall", "fluid", flow.x)
    pressure = MappedField(ctx, "pressure", "fluid", "wall", flow.x)
    for _ in range(ctx.options["steps"]):
        has_converged = False
        while not has_converged:
            pressure.push(flow.solve(1 + area.pull()))
            has_converged = ctx.recv("wall", tag="converged")
        flow.end_step()
    table = np.stack([flow.x, flow.a, flow.u, flow.p], axis=1)
    header = "x,area,velocity,pressure"
    np.savetxt(ctx.run_dir / "tube.csv", table, delimiter=",", header=header)
    return {"outlet_pressure": float(flow.p[-1])}


def wall(ctx):
    """Give cross sections, and try others, until they are those that follow from the pressure."""
    x = np.array_split(np.linspace(0, LENGTH, ctx.options["points"]), ctx.comm.size)[ctx.comm.rank]
    area = MappedField(ctx, "area", "wall", "fluid", x)
    pressure = MappedField(ctx, "pressure", "fluid", "wall", x)
    coupling = acceleration_of(ctx.options["acceleration"], ctx.comm)
    wider, iterations = np.zeros(len(x)), 0
    for step in range(ctx.options["steps"]):
        for _ in count():
            area.push(wider)
            wider = coupling.next(wider, widened(pressure.pull()))
            if ctx.comm.rank == 0:
                ctx.send(coupling.converged, to="fluid", tag="converged")
            if coupling.converged:
                break
        iterations += coupling.iterations
        if ctx.comm.rank == 0:
            ctx.progress(step + 1, ctx.options["steps"], f"{coupling.iterations} iterations")
    return {"iterations": iterations}
