"""Loss scaling: gradients that float16 can hold."""

from __future__ import annotations

import numpy as np

from dnn.backend import Array, empty
from dnn.graph.operation import Step
from dnn.graph.operations.arithmetic import Divide
from dnn.optimizers import Update

__all__ = ["LossScaling"]


class LossScaling:
    """An update of gradients that come multiplied by a scale of its own choice.

    Before a step the gradients are divided by the scale. If one of them is NaN or infinite, the
    scale was too large: the step is left out and the scale halved. After `interval` steps without
    that it is doubled [1]_.

    Parameters
    ----------
    update : Update
        What moves the parameters.
    gradients : array
        What it reads.
    scale : array, shape ()
        What the plan multiplies gradients by; written here.
    first : float
        What the scale begins with.
    interval : int

    References
    ----------
    .. [1] Micikevicius et al., Mixed precision training, 2018, section 3.2, and the dynamic form
       in NVIDIA's user guide of the same name.
    """

    LARGEST = 2.0**24

    def __init__(
        self,
        update: Update,
        gradients: Array,
        scale: Array,
        first: float = 2.0**15,
        interval: int = 2000,
    ) -> None:
        self._update = update
        self.gradients = gradients
        self._scale = scale
        self._scale[...] = first
        self.interval = interval
        self._counts = np.zeros(2, np.int64)  # steps since the scale changed, steps left out
        self._ops = update.ops
        self._finite = empty(self._ops, gradients.shape, bool)
        self.scalars = update.scalars
        self.state = update.state
        # As the steps of an `Update`.
        self.steps: list[Step] = [(self._step, ())]

    @property
    def scale(self) -> float:
        """What gradients are multiplied by at present."""
        return float(self._scale)

    @property
    def skipped(self) -> int:
        """How many steps were left out."""
        return int(self._counts[1])

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

    def run(self) -> None:
        """Move the parameters by one step, or leave it out."""
        self._step()
        self._update.steps_done += 1

    def _step(self) -> None:
        """Take a step and leave the counting to the caller, as the steps of an `Update` do."""
        divide, arguments = self._ops.elementwise(
            Divide.formula, (self.gradients, self._scale), self.gradients
        )
        divide(*arguments)
        if not self._ops.all_finite(self.gradients, self._finite):
            self._scale[...] = max(1.0, self.scale / 2)
            self._counts += [-self._counts[0], 1]
            return
        for function, arguments in self._update.steps:
            function(*arguments)
        self._counts[0] += 1
        if self._counts[0] == self.interval and self.scale < self.LARGEST:
            self._scale[...] = self.scale * 2
            self._counts[0] = 0

    def __len__(self) -> int:
        return len(self._update)
