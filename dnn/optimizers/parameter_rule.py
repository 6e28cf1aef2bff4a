"""Optimizers whose formula is of each parameter as a whole, and not of single elements.

::

    class NormalisedDescent(ParameterRule):
        def rule(self, w, g, state, scalars):
            size = graph.sqrt(graph.sum(g * g)) + 1e-12
            return {"w": w - scalars["learning_rate"] * (g / size)}

Every operation of the graph can be used: norms, products, shapes. The formulas of all parameters
become one plan, on every device, and for K networks it gets their axis, as a network's plan does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnn.backend import Array, Ops, Step
from dnn.errors import ConfigurationError, explains_arguments
from dnn.graph import operations
from dnn.graph.node import Node, variable
from dnn.graph.operation import with_models
from dnn.graph.plan import Plan
from dnn.optimizers.adam import AdamW
from dnn.optimizers.optimizer import Hyperparameter, Optimizer, Update
from dnn.parameters import FlatBuffer, Segment

__all__ = ["LARS", "Muon", "ParameterRule"]


class ParameterRule(Optimizer):
    """An optimizer whose step is a formula of each parameter as a whole.

    Parameters
    ----------
    learning_rate, weight_decay, **options
        As in `Optimizer`.
    """

    is_elementwise = False

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return a parameter's new value and state as nodes, all computed from the old values.

        Parameters
        ----------
        w, g : Node, of the parameter's shape
            A parameter, named as in the network, and its gradient.
        state : mapping of str to Node, of that shape
            The state by the names of `state_names`.
        scalars : mapping of str to Node, shape ()
            The hyperparameters; ``weight_decay`` is missing where there is none.

        Returns
        -------
        mapping of str to Node
            The new ``"w"``, and the new value of each state that changes.
        """
        raise NotImplementedError

    def parameter_steps(
        self,
        ops: Ops,
        buffers: Mapping[str, FlatBuffer],
        scalars: Mapping[str, Array],
        segments: Sequence[Segment],
    ) -> list[Step]:
        """Return the steps of one plan, compiled from the formulas of all parameters."""
        w = buffers["w"]
        arrays: dict[Node, Array] = {}
        outputs: list[Node] = []
        given = {}
        for name, array in scalars.items():
            given[name] = variable((), array.dtype, name)
            arrays[given[name]] = array.reshape(() if w.models is None else w.models)
        for segment in segments:
            nodes = {
                name: variable(segment.shape, buffer.flat.dtype, segment.name)
                for name, buffer in buffers.items()
            }
            arrays |= {nodes[name]: buffer[segment.name] for name, buffer in buffers.items()}
            state = {name: nodes[name] for name in self.state_names}
            numbers = dict(given)
            if not self._decays(segment):
                del numbers["weight_decay"]
            new = self.rule(nodes["w"], nodes["g"], state, numbers)
            if "w" not in new or not set(new) <= {"w", *state}:
                message = f"returned {sorted(new)}, but there are {sorted(('w', *state))}"
                raise ConfigurationError(f"{type(self).__name__}.rule {message}")
            outputs += [operations.assign(nodes[name], value) for name, value in new.items()]
        if not outputs:
            return []
        if w.models is not None:
            now = with_models(outputs, w.models, arrays)
            outputs = [now[node] for node in outputs]
            arrays = {now[node]: array for node, array in arrays.items() if node in now}
        return list(Plan(outputs, ops, arrays).steps)


class LARS(ParameterRule):
    """Momentum with a learning rate for each layer, by the norms of weights and gradient [1]_.

    ::

        local <- trust |w| / (|g| + weight_decay |w|)
        v <- momentum v + learning_rate local (g + weight_decay w)
        w <- w - v

    for each parameter of two or more axes, by its norm; ``local`` is 1 for all others, and where a
    norm is 0. It is for batches of thousands of samples, with a warm-up of the learning rate.

    Parameters
    ----------
    learning_rate : float, positive
    momentum : float, in 0 .. 1 without 1
    weight_decay : float, not negative
    trust : float, positive
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] You, Gitman and Ginsburg, Large batch training of convolutional networks, 2017,
       algorithm 1.
    """

    state_names = ("velocity",)

    @explains_arguments
    def __init__(
        self,
        learning_rate: Hyperparameter = 1.0,
        momentum: Hyperparameter = 0.9,
        weight_decay: Hyperparameter = 0.0,
        trust: Hyperparameter = 0.001,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.hyperparameter("momentum", momentum, 0.0, below=1.0)
        self.hyperparameter("trust", trust, above=0.0)

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the formula."""
        rate, decay = scalars["learning_rate"], scalars.get("weight_decay")
        if w.ndim >= 2:
            of_w, of_g = _norm(w), _norm(g)
            beside = of_g if decay is None else of_g + decay * of_w
            known = operations.greater(of_w * of_g, 0.0)
            # `where` computes both values, and neither may be 0 / 0.
            local = scalars["trust"] * of_w / operations.where(known, beside, 1.0)
            rate = rate * operations.where(known, local, 1.0)
        d = g if decay is None else g + decay * w
        v = scalars["momentum"] * state["velocity"] + rate * d
        return {"w": w - v, "velocity": v}


class Muon(ParameterRule):
    """Momentum with orthogonal matrices as steps, and `AdamW` for other parameters [1]_.

    ::

        v <- momentum v + (1 - momentum) g
        d <- (1 - momentum) g + momentum v             or v, without Nesterov's
        w <- (1 - learning_rate weight_decay) w - learning_rate scale orthogonal(d)

    ``orthogonal(d)`` has the singular vectors of `d`, and singular values of about 1 (0.7 to 1.2),
    by five steps of a Newton-Schulz iteration with ``X = d / |d|``, then five times ``A = X X^T,
    X = 3.4445 X - 4.7750 A X + 2.0315 A A X``. ``scale`` is ``sqrt(max(1, outputs / inputs))``. The
    filters of a convolution are a matrix with a row for each filter.

    Parameters
    ----------
    learning_rate : float, positive
    momentum : float, in 0 .. 1 without 1
    weight_decay : float, not negative
    nesterov : bool
    others : Optimizer, optional
        For parameters of fewer than two axes, and those of `leave_out`: ``AdamW(0.001)`` if left
        out. It follows the schedule of `Muon` if it has none of its own.
    leave_out : sequence of str
        Layers or parameters that are left to `others`, by the beginning of their name, such as the
        last one: ``["fully_connected_3"]``.
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024,
       https://kellerjordan.github.io/posts/muon.
    """

    state_names = ("velocity",)
    COEFFICIENTS = (3.4445, -4.7750, 2.0315)
    ITERATIONS = 5

    @explains_arguments
    def __init__(
        self,
        learning_rate: Hyperparameter = 0.02,
        momentum: Hyperparameter = 0.95,
        weight_decay: Hyperparameter = 0.0,
        nesterov: bool = True,
        others: Optimizer | None = None,
        leave_out: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.hyperparameter("momentum", momentum, 0.0, below=1.0)
        self.nesterov = bool(nesterov)
        self.others = AdamW(0.001, weight_decay=0.0) if others is None else others
        if not isinstance(self.others, Optimizer):
            raise ConfigurationError(f"Muon: others must be an Optimizer, not {others!r}")
        for name, arrays in (("average", "parameters"), ("clip_norm", "gradients")):
            if name in self.others.hyperparameters:
                raise ConfigurationError(f"Muon: {name} is of all {arrays}: say it to Muon")
        self.leave_out = tuple(leave_out)

    def for_networks(self, indices: Sequence[int]) -> Optimizer:
        """Return a copy for some of the K networks, with a copy of `others` for them."""
        chosen = super().for_networks(indices)
        assert isinstance(chosen, Muon)
        chosen.others = self.others.for_networks(indices)
        return chosen

    def bind(
        self,
        ops: Ops,
        parameters: FlatBuffer,
        gradients: FlatBuffer,
        segments: Sequence[Segment] | None = None,
    ) -> Update:
        """Compile the update of matrices, followed by that of all other parameters."""
        segments = gradients.trained if segments is None else segments
        matrices = [each for each in segments if self._is_matrix(each)]
        every = parameters.all_segments
        unknown = [name for name in self.leave_out if not any(_begins(x, name) for x in every)]
        if unknown:
            known = ", ".join(segment.name for segment in every)
            message = f"no parameter begins with {unknown[0]!r} (there are: {known})"
            raise ConfigurationError(f"Muon: leave_out: {message}")
        update = super().bind(ops, parameters, gradients, matrices)
        rest = [each for each in segments if not self._is_matrix(each)]
        optimizer = self.others.for_networks(())
        optimizer.schedule = optimizer.schedule or self.schedule
        of_rest = optimizer.bind(ops, parameters, gradients, rest)
        # Parameters are averaged after both updates.
        end = len(update.steps) - len(gradients.trained_ranges) * ("average" in update.state)
        return Update(
            [*update.steps[:end], *of_rest.steps, *update.steps[end:]],
            update.scalars | {f"others.{name}": x for name, x in of_rest.scalars.items()},
            update.state | {f"others.{name}": x for name, x in of_rest.state.items()},
            ops,
            gradients.flat,
        )

    def _is_matrix(self, segment: Segment) -> bool:
        left_out = any(_begins(segment, name) for name in self.leave_out)
        return len(segment.shape) >= 2 and not left_out

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the formula."""
        rate, momentum = scalars["learning_rate"], scalars["momentum"]
        fresh = (1.0 - momentum) * g
        v = momentum * state["velocity"] + fresh
        d = fresh + momentum * v if self.nesterov else v
        # (inputs, units) of a layer, (filters, ...) of a convolution.
        outputs = w.shape[-1] if w.ndim == 2 else w.shape[0]
        inputs = w.size // outputs
        scale = float(np.sqrt(max(1.0, outputs / inputs)))
        moved = (rate * scale) * self._orthogonal(d)
        if "weight_decay" in scalars:
            w = (1.0 - rate * scalars["weight_decay"]) * w
        return {"w": w - moved, "velocity": v}

    def _orthogonal(self, d: Node) -> Node:
        x = operations.reshape(d, (d.shape[0], d.size // d.shape[0]))
        is_tall = x.shape[0] > x.shape[1]
        if is_tall:
            x = operations.transpose(x)
        x = x / (_norm(x) + 1e-7)
        first, third, fifth = self.COEFFICIENTS
        for _ in range(self.ITERATIONS):
            a = x @ operations.transpose(x)
            x = first * x + (third * a + fifth * (a @ a)) @ x
        return operations.reshape(operations.transpose(x) if is_tall else x, d.shape)


def _begins(segment: Segment, name: str) -> bool:
    return f"{segment.name}.".startswith(f"{name}.")


def _norm(x: Node) -> Node:
    return operations.sqrt(operations.sum(x * x))
