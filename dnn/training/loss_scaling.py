"""Dynamic loss scaling, which keeps gradients within the range of float16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from dnn.backend import Array, empty
from dnn.graph.operation import Step
from dnn.graph.operations.arithmetic import Divide
from dnn.optimizers import Update
from dnn.parameters import FlatBuffer

__all__ = ["LossScaling"]


class LossScaling:
    """An update by scaled gradients: it divides by the scale, skips overflows, adapts the scale.

    Before a step the gradients are divided by the scale. If one of them was NaN or infinite, the
    scale was too large: the step is left out, with its assignments to running statistics, and the
    scale is halved. After `interval` steps without that it is doubled [1]_. Each of K networks has
    a scale of its own, and all of this is computed on the device of the networks. An optimizer that
    counts steps, as Adam does, counts those left out too.

    Parameters
    ----------
    update : Update
        Moves the parameters by the gradients without the scale.
    parameters, gradients : FlatBuffer
        Buffers that `update` writes and reads.
    states : FlatBuffer
        Running statistics, to which layers assign.
    scale : array, shape () or (K,)
        Factor by which the plan multiplies gradients; written here.
    first : float
        Initial scale.
    interval : int, optional
        Steps without overflow after which the scale is doubled; 2000 if left out.

    References
    ----------
    .. [1] Micikevicius et al., Mixed precision training, 2018, section 3.2, and the dynamic form
       in NVIDIA's user guide of the same name.
    """

    LARGEST = 2.0**24
    INTERVAL = 2000

    def __init__(
        self,
        update: Update,
        parameters: FlatBuffer,
        gradients: FlatBuffer,
        states: FlatBuffer,
        scale: Array,
        first: float = 2.0**15,
        interval: int | None = None,
    ) -> None:
        self._update = update
        self.gradients = gradients.flat
        self.ops = ops = update.ops
        self.scalars = update.scalars
        self.state = update.state
        self._scale = scale
        self._states = states.flat
        # For each network the steps since the scale changed, and the steps left out.
        self._counts = ops.asarray(np.zeros((*scale.shape, 2), np.int64))
        self.interval = self.INTERVAL if interval is None else interval
        ops.load(np.array(first, scale.dtype), scale)
        each = () if self.gradients.ndim == 1 else (len(self.gradients), 1)
        self._flags = empty(ops, each, self.gradients.dtype)
        # Pairs of function and arguments, as `Update.steps`.
        self.steps = self._steps(parameters)

    def _steps(self, parameters: FlatBuffer) -> list[Step]:
        ops, update, gradients, flags = self.ops, self._update, self.gradients, self._flags
        scale = self._scale.reshape(flags.shape)
        present = empty(ops, flags.shape, scale.dtype)
        # Buffers that only count steps change in a step that is left out, too.
        buffers = [parameters, *update.state.values()]
        written = [x.flat for x in buffers if x.segments == parameters.segments]
        # A scale is at least 1: a gradient is finite if it is so with the scale.
        return [
            *ops.finite_flags(gradients, flags),
            (ops.copy, (scale, present)),
            *ops.adjust_scale(flags, scale, self._counts, self.interval, self.LARGEST),
            ops.elementwise(Divide.formula, (gradients, present), gradients),
            *ops.conditional(flags, update.steps, written),
        ]

    def gated(self, assignments: Sequence[Step]) -> list[Step]:
        """Return assignments that change no state in a step that is left out.

        They are to be done after `steps`. The step number, which is no layer's state, is always
        counted up.
        """
        states = self._states
        if not any(arguments[-1].dtype == states.dtype for _, arguments in assignments):
            return list(assignments)
        return self.ops.conditional(self._flags, assignments, [states])

    @property
    def scale(self) -> Array:
        """Present factor of the gradients, on the host: shape () or (K,)."""
        return self.ops.to_host(self._scale)

    @property
    def skipped(self) -> Array:
        """Number of steps that were left out, on the host: shape () or (K,)."""
        return self.ops.to_host(self._counts)[..., 1]

    @property
    def arrays(self) -> dict[str, Array]:
        """State besides that of the update, on the device: ``scale`` and ``counts``."""
        return {"scale": self._scale, "counts": self._counts}

    @property
    def steps_done(self) -> int:
        """Number of steps done, those that were left out included."""
        return self._update.steps_done

    @steps_done.setter
    def steps_done(self, count: int) -> None:
        self._update.steps_done = count

    @cached_property
    def _calls(self) -> list[Step]:
        return self.ops.link(self.steps)

    def run(self) -> None:
        """Move the parameters by one step, or leave it out if a gradient is not finite."""
        with np.errstate(all="ignore"):
            for function, arguments in self._calls:
                function(*arguments)
        self._update.steps_done += 1

    def __len__(self) -> int:
        return len(self.steps)

    def snapshot(self) -> dict[str, Array]:
        """Return copies of all arrays that the next steps depend on, as `Update.snapshot` does."""
        mine = {name: self.ops.to_host(array).copy() for name, array in self.arrays.items()}
        return self._update.snapshot() | mine

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore a snapshot in place; errors as in `Update.restore`."""
        mine = self.arrays
        self._update.restore({name: x for name, x in arrays.items() if name not in mine})
        for name, array in mine.items():
            self.ops.load(arrays[name], array)
