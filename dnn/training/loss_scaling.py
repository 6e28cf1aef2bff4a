"""Loss scaling: gradients that float16 can hold."""

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
    """An update of gradients that come multiplied by a scale of its own choice.

    Before a step the gradients are divided by the scale. If one of them is NaN or infinite, the
    scale was too large: the step is left out, with what it would assign to running statistics, and
    the scale halved. After `interval` steps without
    that it is doubled [1]_. Each of K networks has a scale of its own, and all of this is computed
    where the networks lie. What counts steps, as Adam does, counts those left out too.

    Parameters
    ----------
    update : Update
        What moves the parameters.
    parameters, gradients : FlatBuffer
        What it moves and what it reads.
    states : FlatBuffer
        What layers assign to.
    scale : array, shape () or (K,)
        What the plan multiplies gradients by; written here.
    first : float
        What the scale begins with.
    interval : int, optional
        2000 steps if left out.

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
        # As the steps of an `Update`.
        self.steps = self._steps(parameters)

    def _steps(self, parameters: FlatBuffer) -> list[Step]:
        ops, update, gradients, flags = self.ops, self._update, self.gradients, self._flags
        scale = self._scale.reshape(flags.shape)
        # What only counts steps is not held back.
        buffers = [parameters, *update.state.values()]
        written = [x.flat for x in buffers if x.segments == parameters.segments]
        return [
            ops.elementwise(Divide.formula, (gradients, scale), gradients),
            *ops.finite_flags(gradients, flags),
            *ops.conditional(flags, update.steps, written),
            *ops.adjust_scale(flags, scale, self._counts, self.interval, self.LARGEST),
        ]

    def gated(self, assignments: Sequence[Step]) -> list[Step]:
        """Return assignments, such that those of a step that is left out change no state.

        To be done behind `steps`. The number of a step, which is no layer's state, goes on.
        """
        states = self._states
        if not any(arguments[-1].dtype == states.dtype for _, arguments in assignments):
            return list(assignments)
        return self.ops.conditional(self._flags, assignments, [states])

    @property
    def scale(self) -> Array:
        """What gradients are multiplied by at present: shape () or (K,)."""
        return self.ops.to_host(self._scale)

    @property
    def skipped(self) -> Array:
        """How many steps were left out: shape () or (K,)."""
        return self.ops.to_host(self._counts)[..., 1]

    @property
    def arrays(self) -> dict[str, Array]:
        """What it remembers besides what the update does: ``scale`` and ``counts``."""
        return {"scale": self._scale, "counts": self._counts}

    @property
    def steps_done(self) -> int:
        """How often the parameters were moved, or would have been."""
        return self._update.steps_done

    @steps_done.setter
    def steps_done(self, count: int) -> None:
        self._update.steps_done = count

    @cached_property
    def _calls(self) -> list[Step]:
        return self.ops.link(self.steps)

    def run(self) -> None:
        """Move the parameters by one step, or leave it out."""
        with np.errstate(all="ignore"):
            for function, arguments in self._calls:
                function(*arguments)
        self._update.steps_done += 1

    def __len__(self) -> int:
        return len(self.steps)

    def snapshot(self) -> dict[str, Array]:
        """Return a copy of all that the next steps depend on, as `Update.snapshot` does."""
        mine = {name: self.ops.to_host(array).copy() for name, array in self.arrays.items()}
        return self._update.snapshot() | mine

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Go back to a snapshot, in place; errors as in `Update.restore`."""
        mine = self.arrays
        self._update.restore({name: x for name, x in arrays.items() if name not in mine})
        for name, array in mine.items():
            self.ops.load(arrays[name], array)
