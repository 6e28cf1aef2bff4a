"""Acceleration of implicit coupling: constant relaxation, Aitken's, and IQN-ILS.

Modules that are coupled implicitly repeat a step until the values x at their interface are those
that the solvers give back for them::

    H(x) = second(first(x))         what one pass of both solvers makes of x
    r(x) = H(x) - x                 its residual; wanted is r(x) = 0

    x <- H(x)                       diverges where the coupling is strong
    x <- x + omega r(x)             ConstantRelaxation
    x <- x + omega_k r(x)           Aitken: omega_k from the last two residuals
    x <- H(x) + W c                 IQNILS: c from all residuals, of earlier steps too

Where x is distributed over the ranks of a copy, each rank gives its own part of it, and the
communicator of the copy: then all ranks find the same coefficients, and agree on the end.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from diel.errors import CouplingError

Array = np.ndarray[Any, Any]

_SMALLEST: Final = 0.01
"""Aitken's factor is no smaller than this part of the first one."""


class Communicator(Protocol):
    """What is used of a communicator, such as ``ctx.comm``."""

    rank: int

    def allreduce(self, sendobj: Any) -> Any:
        """Return the sum over all ranks."""

    def gather(self, sendobj: Any) -> Any:
        """Return the objects of all ranks on rank 0."""

    def bcast(self, obj: Any) -> Any:
        """Return the object of rank 0."""


class Acceleration(ABC):
    """Chooses the next values to try in an implicit coupling; the base of the three classes.

    Attributes
    ----------
    residual : float
        ``|H(x) - x| / |H(x)|`` of the last iteration, in the Euclidean norm over all ranks.
    iterations : int
        Of the present step, or of the last one if no other has begun.
    """

    def __init__(self, first: float, tolerance: float, comm: Communicator | None) -> None:
        if not 0 < first <= 2:
            raise CouplingError(f"a relaxation factor is above 0 and at most 2, not {first!r}")
        if not 0 < tolerance < 1:
            raise CouplingError(f"a relative tolerance is between 0 and 1, not {tolerance!r}")
        self._first, self._tolerance, self._comm = first, tolerance, comm
        self.residual = math.inf
        self.iterations = 0
        self._begins = True
        """Whether the next iteration is the first one of a step."""

    @property
    def converged(self) -> bool:
        """Whether `residual` is within the tolerance."""
        return self.residual <= self._tolerance

    def next(self, x: Any, solved: Any) -> Array:
        """Return the values to try next, after a pass of the solvers.

        Parameters
        ----------
        x : array_like
            The values that were tried: all of them, or the part of this rank.
        solved : array_like of the same shape
            What the solvers have made of them.

        Returns
        -------
        ndarray
            `solved` if it has converged: the step has ended, and the next call begins another.

        Raises
        ------
        CouplingError
            If the shapes differ, or there is a value that is not finite, on any rank.

        Notes
        -----
        Collective over the communicator, if there is one.
        """
        x, solved = np.asarray(x, float), np.asarray(solved, float)
        if x.shape != solved.shape:
            raise CouplingError(f"values of shape {x.shape} were tried, and {solved.shape} solved")
        residual = (solved - x).reshape(-1)
        squares, size = self._sum(residual @ residual, np.vdot(solved, solved))
        self.iterations = 1 if self._begins else self.iterations + 1
        if not math.isfinite(squares + size):
            raise CouplingError(
                f"in iteration {self.iterations} of this step there are values that are not "
                "finite: begin with a smaller relaxation factor, or a smaller time step"
            )
        self.residual = math.sqrt(squares / size) if squares else 0.0
        self._learn(residual, solved.reshape(-1))
        self._begins = False
        chosen: Array = solved.copy()
        if self.converged:
            self.end_step()
        else:
            chosen = x + self._update(residual).reshape(x.shape)
        return chosen

    def end_step(self) -> None:
        """End a step: only for modules that end it before it has converged."""
        self._begins = True

    @abstractmethod
    def _learn(self, residual: Array, solved: Array) -> None:
        """Take note of an iteration, also of the last one of a step."""

    @abstractmethod
    def _update(self, residual: Array) -> Array:
        """Return what is to be added to the values that were tried."""

    def _sum(self, *terms: Any) -> tuple[float, ...]:
        """Return the sums of terms over all ranks."""
        found = np.array(terms, float)
        return tuple(map(float, found if self._comm is None else self._comm.allreduce(found)))


class ConstantRelaxation(Acceleration):
    """Moves a constant part of the way: ``x + omega (H(x) - x)``.

    Parameters
    ----------
    omega : float
        Above 0 and at most 2. The stronger the coupling, the smaller it has to be.
    tolerance : float, optional
        Of ``|H(x) - x| / |H(x)|``.
    comm : MPI.Intracomm, optional
        Of the ranks among which the values are distributed, such as ``ctx.comm``.
    """

    def __init__(
        self, omega: float, *, tolerance: float = 1e-5, comm: Communicator | None = None
    ) -> None:
        super().__init__(omega, tolerance, comm)

    def _learn(self, residual: Array, solved: Array) -> None:
        pass

    def _update(self, residual: Array) -> Array:
        update: Array = self._first * residual
        return update


class Aitken(Acceleration):
    """Relaxation by a factor that is computed anew from the last two residuals.

    Parameters
    ----------
    first : float, optional
        The factor of the first iteration; later steps begin with the last factor, where that is
        smaller.
    tolerance, comm
        As for `ConstantRelaxation`.

    Notes
    -----
    ``omega_k = -omega_{k-1} r_{k-1} . (r_k - r_{k-1}) / |r_k - r_{k-1}|**2`` [1]_, [2]_. Where that
    is less than a hundredth of `first`, the factor is `first` again: with a factor near 0 nothing
    would change any more, the factor included.

    References
    ----------
    .. [1] Irons, Tuck, A version of the Aitken accelerator for computer iteration, International
       Journal for Numerical Methods in Engineering 1, 1969.
    .. [2] Küttler, Wall, Fixed-point fluid-structure interaction solvers with dynamic relaxation,
       Computational Mechanics 43, 2008, section 3.2.
    """

    def __init__(
        self,
        first: float = 0.1,
        *,
        tolerance: float = 1e-5,
        comm: Communicator | None = None,
    ) -> None:
        super().__init__(first, tolerance, comm)
        self._omega = first
        self._last: Array | None = None

    def _learn(self, residual: Array, solved: Array) -> None:
        if self._begins or self._last is None:
            self._omega = math.copysign(min(self._first, abs(self._omega)), self._omega)
        else:
            change = residual - self._last
            along, square = self._sum(self._last @ change, change @ change)
            omega = -self._omega * along / square if square else 0.0
            is_stuck = abs(omega) < _SMALLEST * self._first
            self._omega = self._first if is_stuck else omega
        self._last = residual

    def _update(self, residual: Array) -> Array:
        update: Array = self._omega * residual
        return update


class _Secant(NamedTuple):
    """How residual and solution have changed from one iteration of a step to the next."""

    step: int
    residual: Array
    solved: Array


class IQNILS(Acceleration):
    """Interface quasi-Newton with the inverse Jacobian from a least-squares model.

    Parameters
    ----------
    first : float, optional
        The relaxation factor of an iteration before which nothing is known: the first one of all,
        or, without reuse, of each step.
    tolerance, comm
        As for `ConstantRelaxation`.
    reused_steps : int, optional
        From how many earlier steps differences are used. Many save iterations where the problem
        changes little from step to step; 0 forgets them.
    filter_limit : float, optional
        A difference is left out if that of which newer ones are no combination is less than this
        part of it.
    most_columns : int, optional
        How many differences are kept at most, the newest ones.

    Notes
    -----
    The columns of V are differences of residuals, those of W the differences of H(x) that belong to
    them, the newest first [1]_. ``c`` minimizes ``|V c + r|``, and the next x is ``H(x) + W c``.
    Columns are left out by the filter QR2 [2]_. Distributed over ranks, V and r are reduced to a
    triangle by a QR decomposition of the triangles of the ranks [3]_, which costs one gather and
    one broadcast in each iteration.

    References
    ----------
    .. [1] Degroote, Bathe, Vierendeels, Performance of a new partitioned procedure versus a
       monolithic procedure in fluid-structure interaction, Computers and Structures 87, 2009.
    .. [2] Haelterman, Bogaers, Scheufele, Uekermann, Mehl, Improving the performance of the
       partitioned QN-ILS procedure for fluid-structure interaction problems: filtering, Computers
       and Structures 171, 2016.
    .. [3] Demmel, Grigori, Hoemmen, Langou, Communication-optimal parallel and sequential QR and LU
       factorizations, SIAM Journal on Scientific Computing 34, 2012.
    """

    def __init__(
        self,
        first: float = 0.1,
        *,
        tolerance: float = 1e-5,
        reused_steps: int = 8,
        filter_limit: float = 1e-3,
        most_columns: int = 100,
        comm: Communicator | None = None,
    ) -> None:
        super().__init__(first, tolerance, comm)
        if reused_steps < 0 or most_columns < 1 or not 0 < filter_limit < 1:
            raise CouplingError(
                "reused_steps is at least 0, most_columns at least 1, and filter_limit between 0 "
                f"and 1, not {reused_steps!r}, {most_columns!r} and {filter_limit!r}"
            )
        self._reused_steps, self._filter_limit = reused_steps, filter_limit
        self._secants: deque[_Secant] = deque(maxlen=most_columns)  # the newest first
        self._step = 0
        self._last: tuple[Array, Array] | None = None

    def _learn(self, residual: Array, solved: Array) -> None:
        if self._begins:
            self._step += 1
            while self._secants and self._secants[-1].step < self._step - self._reused_steps:
                self._secants.pop()
        elif self._last is not None:
            changes = residual - self._last[0], solved - self._last[1]
            self._secants.appendleft(_Secant(self._step, *changes))
        self._last = residual, solved.copy()

    def _update(self, residual: Array) -> Array:
        if self._secants:
            coefficients = self._coefficients(
                np.stack([*(secant.residual for secant in self._secants), residual], axis=1)
            )
            if coefficients.any():  # else no column was left
                W = np.stack([secant.solved for secant in self._secants], axis=1)
                residual = residual + W @ coefficients
                return residual
        return self._first * residual

    def _coefficients(self, columns: Array) -> Array:
        """Return the same c on all ranks, from the parts of V and r that this rank has."""
        triangle: Array = np.linalg.qr(columns, mode="r")  # type: ignore[assignment]
        if self._comm is None:
            return filtered_least_squares(triangle, self._filter_limit)
        triangles = self._comm.gather(triangle)
        found = None
        if triangles is not None:
            triangle = np.linalg.qr(np.concatenate(triangles), mode="r")  # type: ignore[assignment]
            found = filtered_least_squares(triangle, self._filter_limit)
        coefficients: Array = self._comm.bcast(found)
        return coefficients


def filtered_least_squares(columns: Array, limit: float) -> Array:
    """Return the c that minimizes ``|V c + r|``, without the columns that hardly add to the others.

    Parameters
    ----------
    columns : ndarray, shape (any, m + 1)
        V, and r as the last column.
    limit : float
        A column v is left out if ``|v - Q Q^T v| <= limit |v|``, with the columns of Q a base of
        those before it: the filter QR2 of `IQNILS`.

    Returns
    -------
    ndarray, shape (m,)
        0 for a column that is left out.
    """
    V, r = columns[:, :-1], columns[:, -1]
    Q = np.zeros((len(V), 0))
    kept = []
    for index, v in enumerate(V.T):
        rest = v - Q @ (Q.T @ v)
        rest -= Q @ (Q.T @ rest)  # a second time, for what rounding has left
        size = np.linalg.norm(rest)
        if size > limit * np.linalg.norm(v):
            Q = np.column_stack([Q, rest / size])
            kept.append(index)
    coefficients = np.zeros(V.shape[1])
    coefficients[kept] = np.linalg.lstsq(V[:, kept], -r)[0]
    return coefficients
