"""An optimizer bound to the buffers of one network, or of K networks with the same shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from dnn.backend import Array, Ops
from dnn.errors import ShapeError
from dnn.graph.operation import Step
from dnn.parameters import FlatBuffer

__all__ = ["Update"]


class Update:
    """An optimizer's step as a list of (function, arrays), which `run` replays like a plan.

    Parameters
    ----------
    steps : sequence of (function, arrays)
    scalars : dict of str to array of shape () or (K,)
        The hyperparameters, to be changed between steps: ``scalars["learning_rate"][...] = 0.01``.
        A part of the step that a value of 0 switched off when bound, such as weight decay, stays
        off.
    state : dict of str to FlatBuffer
        State of the optimizer, such as velocities.
    ops : Ops
        Of the device where the arrays lie.
    gradients : array
        The gradients that the steps read.

    Attributes
    ----------
    steps_done : int
        Number of updates of the parameters so far.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        scalars: dict[str, Array],
        state: dict[str, FlatBuffer],
        ops: Ops,
        gradients: Array,
    ) -> None:
        self.steps = list(steps)
        self.gradients = gradients
        self.ops = ops
        self.scalars = scalars
        self.state = state
        self.steps_done = 0

    @cached_property
    def _calls(self) -> list[Step]:
        # Linked at the first run, as in `Plan`.
        return self.ops.link(self.steps)

    def run(self) -> None:
        """Move the parameters by one step."""
        for function, arguments in self._calls:
            function(*arguments)
        self.steps_done += 1

    def __len__(self) -> int:
        return len(self.steps)

    def snapshot(self) -> dict[str, Array]:
        """Return a copy of all that the next steps depend on besides parameters and gradients.

        On the host: ``state.NAME`` for each buffer, ``scalar.NAME`` for each hyperparameter, and
        ``steps_done``.
        """
        arrays = {f"state.{name}": buffer.flat for name, buffer in self.state.items()}
        arrays |= {f"scalar.{name}": array for name, array in self.scalars.items()}
        copies = {name: self.ops.to_host(array).copy() for name, array in arrays.items()}
        return copies | {"steps_done": np.array(self.steps_done, np.int64)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Go back to a snapshot, in place; further steps repeat the steps after it bit for bit.

        Raises
        ------
        ShapeError
            If it is not a snapshot of the same optimizer on a network of the same shapes; then
            nothing was changed.
        """
        present = self.snapshot()
        if set(arrays) != set(present):
            different = ", ".join(sorted(set(arrays) ^ set(present)))
            raise ShapeError("optimizer", f"another one's state was given: {different} differ")
        for name, array in present.items():
            given = arrays[name]
            if (given.shape, given.dtype) != (array.shape, array.dtype):
                message = f"{name} is {array.shape} {array.dtype}, given {given.shape} "
                message += f"{given.dtype}"
                raise ShapeError("optimizer", message, array.shape, given.shape)
        for name, buffer in self.state.items():
            self.ops.load(arrays[f"state.{name}"], buffer.flat)
        for name, scalar in self.scalars.items():
            self.ops.load(arrays[f"scalar.{name}"], scalar)
        self.steps_done = int(arrays["steps_done"])
