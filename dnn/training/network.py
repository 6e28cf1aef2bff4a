"""A built network: layers named and built, parameters in a flat buffer, plans on demand.

Users hold a `NeuralNetwork`, which trains a `Network`. One training step is

1. `BatchPlan.load` gathers the rows of a batch into the plan's inputs,
2. `Plan.run` computes the loss and writes all gradients into the flat gradient buffer,
3. `Update.run` moves the flat parameter buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dnn.backend import Array, Ops
from dnn.data.augmentation import Images
from dnn.errors import ConfigurationError, NonFiniteError
from dnn.graph import operations
from dnn.graph.arguments import describe
from dnn.graph.gradients import gradients
from dnn.graph.node import (
    PLACEHOLDER,
    VARIABLE,
    Node,
    Shape,
    placeholder,
    topological_order,
    variable,
)
from dnn.graph.operation import with_models
from dnn.graph.passes import checking_passes, precision_passes
from dnn.graph.plan import Arena, Plan
from dnn.graph.statistics import both_forms
from dnn.initializers import DETERMINISTIC
from dnn.layers import Input, Layer
from dnn.layers.layer import NoiseSource, Parameter, build_all
from dnn.layers.nested import leaves_of
from dnn.losses import Loss
from dnn.parameters import FlatBuffer, chosen, segments_of
from dnn.precision import Precision
from dnn.seeds import stream, streams
from dnn.summaries import LayerSummary, built_copies, summaries_of

if TYPE_CHECKING:
    from dnn.optimizers import Update
    from dnn.training.loss_scaling import LossScaling

__all__ = ["BatchPlan", "Network", "NetworkArguments", "PlanKind", "frozen_parameters", "load_rows"]

PlanKind = Literal["training", "weighted training", "evaluation", "probability"]


class BatchPlan(NamedTuple):
    """Compiled plan for one size of batch, with the arrays of its inputs and outputs.

    Attributes
    ----------
    plan : Plan
    x, target : array, shape (batch, ...)
        Inputs, to be filled before each replay. All arrays have a leading axis of length K in a
        plan for K networks.
    loss : array, shape ()
    outputs : array, shape (batch, ...)
        None in a plan for training where no predictions are counted: later nodes reuse its memory.
    weight : array, shape (batch,)
        Input too: weights of the samples; None in a plan without weights.
    """

    plan: Plan
    ops: Ops
    x: Array
    target: Array
    loss: Array
    outputs: Array | None
    weight: Array | None = None

    def check_finite(self) -> None:
        """Raise `NonFiniteError` if the last replay met NaN or infinity; it names the first node.

        Raises
        ------
        ConfigurationError
            If the plan was compiled with the pass ``buffer_reuse``.
        """
        node = self.plan.first_nonfinite()
        if node is None:
            return
        message = f"the first node with NaN or infinity is {describe(node)}"
        if node.operation is not None:
            message += f", {node.kind} of {', '.join(describe(x) for x in node.inputs)}"
        raise NonFiniteError(message, node.name or node.kind)

    def first_overflow(self, network: int | None) -> str:
        """Return the layer in which the last replay met NaN or infinity first, "" if in none.

        `network` is the number of one of K networks, None for a single network. The plan has to
        keep every value.
        """
        node = self.plan.first_nonfinite(network)
        if node is None:
            return ""
        order = self.plan.graph.order
        named = (later.name for later in order[order.index(node) :] if later.name)
        return next(named, "").partition(".")[0]

    def load(self, x: Array | Images, target: Array, rows: Array) -> None:
        """Gather rows of samples and targets, on the host or the plan's device, into the inputs.

        `rows`, on the host, are of shape (batch,), for K networks (K, batch).
        """
        load_rows(self.ops, x, rows, self.x)
        load_rows(self.ops, target, rows, self.target)


def load_rows(ops: Ops, values: Any, rows: Array, place: Array) -> None:
    """Gather rows of images, or of an array of the host or of the device, into `place`."""
    is_elsewhere = ops.device != "cpu" and isinstance(values, np.ndarray)
    if is_elsewhere or isinstance(values, Images):
        ops.load(values[rows], place)
    else:
        ops.take_rows(values, ops.asarray(rows), place)


class _Composed(NamedTuple):
    """The nodes of a plan: its edges, all that it computes, and gradients with their arrays."""

    x: Node
    target: Node
    weight: Node | None
    loss: Node
    outputs: Node
    wanted: list[Node]
    into: list[tuple[Node, Array]]


class NetworkArguments(NamedTuple):
    """Arguments of `Network`, as schemes take them; `seeds` are K of them, or a single one."""

    layers: Sequence[Layer]
    loss: Loss
    seeds: int | Sequence[int]
    precision: Precision
    ops: Ops
    passes: Sequence[str] | None


class Network:
    """Built layers with buffers of their parameters, gradients and states, and compiled plans.

    `seed` determines initial parameters and noise; `passes` over its graphs are those of
    `dnn.graph.passes`, and if left out those that pay with `ops` in this precision.

    Raises
    ------
    ConfigurationError
        If the first layer is no `Input`, or a layer is already part of a network.
    ShapeError
        If a layer does not take the output of the one before it.

    Attributes
    ----------
    precision : Precision
        Type of the parameters, and passes that round values.
    loss_scalars : dict of str to array, shape () or (K,)
        The loss's hyperparameters.
    states : dict of str to array
        Arrays besides the parameters that training changes, by name: running statistics, and the
        seed and the step number on which random numbers depend.
    """

    is_part = False
    """Whether other ranks have parameters, or parts of parameters, that this rank lacks."""

    seed_name = "noise.seed"
    """Name of the state with the seed on which random numbers depend."""
    step_name = "noise.step"
    """Name of the state that K networks share: the step number, on which these depend too."""

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        seed: int | Sequence[int],
        precision: Precision,
        ops: Ops,
        passes: Sequence[str] | None = None,
    ) -> None:
        if not layers or not isinstance(layers[0], Input):
            raise ConfigurationError("the first layer of a network must be an Input")
        self.layers = tuple(layers)
        self.loss = loss
        self.ops = ops
        self.precision = precision
        self.passes = precision_passes(precision, ops) if passes is None else passes
        self.dtype = precision.dtype
        self.input_shape = layers[0].shape
        self.input_dtype = np.dtype(np.intp) if layers[0].integers else self.dtype
        self.summaries = self._build()
        self.output_shape = self.summaries[-1].shape
        self._declared = [parameter for layer in self.own_layers for parameter in layer.parameters]
        self._variables = [parameter.node for parameter in self._declared]
        self._declared_states = [state for layer in self.own_layers for state in layer.states]
        self._state_nodes = [state.node for state in self._declared_states]
        self._find_trained()
        self._noise = NoiseSource(
            variable((), np.uint64, self.seed_name), variable((), np.uint64, self.step_name)
        )
        self._scale = variable((), self.dtype, "gradient_scale")
        self.resize(len(seed) if isinstance(seed, Sequence) else None)
        self.restart(tuple(seed) if isinstance(seed, Sequence) else (seed,))
        self.load_loss(loss)

    def restart(self, seeds: Sequence[int]) -> None:
        """Reset all arrays to their values before the first step, in place: plans stay valid."""
        self._start(self.parameters, self._declared, seeds)
        self._start(self.state_buffer, self._declared_states, seeds)
        noise_seeds = [each.bit_generator.random_raw() for each in streams(seeds, "noise")]
        there = self.states[self._noise.seed.name]
        self.ops.load(np.array(noise_seeds, np.uint64).reshape(there.shape), there)
        step = self.states[self._noise.step.name]
        self.ops.load(np.zeros((), np.uint64), step)

    def resize(self, models: int | None) -> None:
        """Allocate buffers for K networks, or with None for a single one without an axis of models.

        All buffers are new and hold zeros; an update has to be bound to them anew.
        """
        self.models = models
        ops, leading = self.ops, self.leading
        segments = segments_of(self._variables)
        self.parameters = FlatBuffer(segments, self.dtype, ops, models)
        self.gradients = FlatBuffer(segments, self.dtype, ops, models)
        self.gradients.trained = self._trained_segments
        self.state_buffer = FlatBuffer(segments_of(self._state_nodes), self.dtype, ops, models)
        self.states: dict[str, Array] = {
            **{node.name: self.state_buffer[node.name] for node in self._state_nodes},
            self._noise.seed.name: ops.asarray(np.zeros(leading, np.uint64)),
            self._noise.step.name: ops.asarray(np.zeros((), np.uint64)),
        }
        self.loss_scalars = {
            name: ops.asarray(np.zeros(leading, self.dtype)) for name in self.loss.hyperparameters
        }
        # Factor of the gradients as they are computed, an array of shape () or (K,).
        self.gradient_scale = ops.asarray(np.ones(leading, self.dtype))
        self._arena = Arena(ops)
        self._plans: dict[tuple[PlanKind, int, bool], BatchPlan] = {}
        self.average_by(None)

    def freeze(self, patterns: Sequence[str]) -> list[str]:
        """Freeze the parameters that patterns choose, and no others; return their names.

        An update has to be bound to the buffers anew. Errors as for `Networks.freeze`.
        """
        every = [each.node.name for layer in self.layers for each in layer.parameters]
        names = {*chosen(patterns, every)}
        if names == {*self.frozen}:
            return self.frozen
        pairs = zip(leaves_of(self.layers), leaves_of(self.whole_layers), strict=True)
        for layer, whole in pairs:
            own = [each.node.name for each in layer.parameters if each.node.name in names]
            layer.frozen = whole.frozen = frozenset(name.rpartition(".")[2] for name in own)
        self._find_trained()
        self.gradients.trained = self._trained_segments
        self.ops.fill(0, self.gradients.flat)
        self._plans.clear()
        return self.frozen

    @property
    def frozen(self) -> list[str]:
        """Names of the parameters that training leaves as they are, of all ranks."""
        return [
            each.node.name
            for layer in leaves_of(self.layers)
            for each in layer.parameters
            if each.node.name.rpartition(".")[2] in layer.frozen
        ]

    def _find_trained(self) -> None:
        """Find the parameters that no layer has frozen, and their segments."""
        frozen = {*self.frozen}
        self._trained = [node for node in self._variables if node.name not in frozen]
        segments = segments_of(self._variables)
        self._trained_segments = tuple(each for each in segments if each.name not in frozen)

    def load_loss(self, loss: Loss) -> None:
        """Load the hyperparameters of a loss of the same kind as the present loss.

        Raises
        ------
        ConfigurationError
            If one has values for another number of networks.
        """
        self.loss = loss
        for name, value in loss.hyperparameters.items():
            if isinstance(value, tuple) and self.leading != (len(value),):
                networks = "one network" if self.models is None else f"{self.models} networks"
                message = f"{name} has {len(value)} values for {networks}"
                raise ConfigurationError(f"{type(loss).__name__}: {message}")
            self.ops.load(np.array(value, self.dtype), self.loss_scalars[name])

    def _build(self) -> list[LayerSummary]:
        """Name and build each layer, with the shape that the layer before it puts out."""
        return summaries_of(self.layers, build_all(self.layers, self.input_shape, self.dtype))

    def _start(
        self, buffer: FlatBuffer, declared: Sequence[Parameter], seeds: Sequence[int]
    ) -> None:
        """Fill a buffer with the initial values of each of its segments."""
        for parameter in declared:
            node = parameter.node
            array = buffer[node.name]
            if parameter.initializer in DETERMINISTIC:
                generator = stream(seeds[0], "initialise", node.name)
                self.ops.load(parameter.initializer(generator, array.shape, self.dtype), array)
                continue
            drawn = [
                parameter.initializer(generator, node.shape, self.dtype)
                for generator in streams(seeds, "initialise", node.name)
            ]
            # One load for all: a load takes longer than to draw the values of a small network.
            self.ops.load(drawn[0] if self.models is None else np.array(drawn), array)

    def outputs(self, x: Node) -> Node:
        """Return the outputs of the layers of this rank for an input, as a node of a graph."""
        for layer in self.own_layers:
            x = layer.forward(x)
            if x.operation is not None:  # for printing the graph
                x.name = x.name or layer.name
        return x

    @property
    def own_layers(self) -> Sequence[Layer]:
        """The layers whose parameters lie on this rank: all layers, except in a pipeline."""
        return self.layers

    @property
    def whole_layers(self) -> Sequence[Layer]:
        """The layers as they were given, from which a copy of the whole network is made."""
        return self.layers

    @property
    def leading(self) -> Shape:
        """Leading axes of arrays of K networks: (K,), or () for a single network."""
        return () if self.models is None else (self.models,)

    @property
    def size_bytes(self) -> int:
        """Memory of parameters, gradients, states and plans."""
        buffers = self.parameters, self.gradients, self.state_buffer
        return self._arena.size_bytes + sum(buffer.flat.nbytes for buffer in buffers)

    @property
    def classes_to_tally(self) -> int | None:
        """Number of classes whose predictions training counts; None if it counts none."""
        shape, loss = self.output_shape, self.loss
        if not loss.classifies or len(shape) != 1:
            return None
        target = loss.target(placeholder((1, *shape), self.dtype, "outputs"))
        classes = loss.class_count(shape)
        labels = target.shape == (1,) and target.dtype == np.intp
        return classes if labels and shape in ((classes,), (1,)) else None

    def plan(self, kind: PlanKind, batch: int) -> BatchPlan:
        """Return the plan of a kind for one size of batch, compiled by the first call.

        ``"training"`` computes loss and gradients, ``"weighted training"`` too, with a weight for
        each sample; ``"evaluation"`` outputs and loss, ``"probability"`` probabilities as outputs.
        """
        key = (kind, batch, self.predicts_by_average and "training" not in kind)
        if key not in self._plans:
            self._plans[key] = self._compile(kind, batch, by_average=key[-1])
        return self._plans[key]

    def average_by(self, update: Update | LossScaling | None) -> None:
        """Take averages of the parameters from the state of an update, if it has any."""
        state = {} if update is None else update.state
        self._averages, self._averaging = state.get("average"), state.get("averaging")
        self._plans = {key: plan for key, plan in self._plans.items() if not key[-1]}

    @property
    def predicts_by_average(self) -> bool:
        """Whether predictions use averages of the parameters, which start with the first step."""
        return self._averaging is not None and bool(self._averaging["steps_done"])

    @property
    def prediction_arrays(self) -> dict[str, Array]:
        """Arrays that predictions use, by name: parameters or their averages, and states."""
        held = self.parameters
        if self.predicts_by_average:
            assert self._averages is not None
            held = self._averages
        return {**self.states, **{each.name: held[each.name] for each in held.segments}}

    def begin_averages(self) -> None:
        """Set averages that have not begun to the parameters: a first step may be left out."""
        if not self.predicts_by_average:
            self.reset_averages()

    def reset_averages(self) -> None:
        """Set averages of the parameters, if there are any, to the parameters."""
        if self._averages is not None:
            self.ops.copy(self.parameters.flat, self._averages.flat)

    def checking_plan(self, batch: int) -> BatchPlan:
        """Compile a plan of outputs and loss that keeps every value, in memory of its own."""
        passes = (*checking_passes(), *(self.precision.passes or ()))
        return self._compile("evaluation", batch, Arena(self.ops), passes)

    def _compile(
        self,
        kind: PlanKind,
        batch: int,
        arena: Arena | None = None,
        passes: Sequence[str] | None = None,
        by_average: bool = False,
    ) -> BatchPlan:
        x, target, weight, loss, outputs, wanted, into = self._composed(kind, batch)
        plan, now = self._planned(wanted, into, arena or self._arena, passes, by_average)

        def at(node: Node) -> Array:
            return plan[now[node]]

        trains = kind in ("training", "weighted training")
        shown = None if trains and self.classes_to_tally is None else at(outputs)
        weights = None if weight is None else at(weight)
        return BatchPlan(plan, self.ops, at(x), at(target), at(loss), shown, weights)

    def explain(self, kind: PlanKind, batch: int) -> str:
        """Return the graph of a plan as text, as it is written and as it is computed."""
        *_, wanted, into = self._composed(kind, batch)
        nodes = [*wanted, *(node for node, _ in into)]
        now = self._for_models(nodes)
        return both_forms([now[node] for node in nodes], self.passes, self.ops)

    def _composed(self, kind: PlanKind, batch: int) -> _Composed:
        x = placeholder((batch, *self.input_shape), self.input_dtype, "x")
        trains = self._begin(kind)
        outputs = self.outputs(x)
        target, weight, loss = self._compared(kind, outputs)
        if kind == "probability":
            outputs = self.loss.probabilities(outputs)
        wanted = [x, target, loss]
        if weight is not None:
            wanted.append(weight)
        into = []
        if trains:
            # Passes that round leave outputs of the graph as they are: the loss is of float32.
            if self.classes_to_tally is not None or self.precision.passes is not None:
                wanted.append(outputs)
            into = self._gradients_into(gradients(loss, self._trained, self._scale))
            wanted += self._assignments()
            if self._noise.step in topological_order([loss]):
                next_step = self._noise.step + np.array(1, np.uint64)
                wanted.append(operations.assign(self._noise.step, next_step))
        else:
            wanted.append(outputs)
        return _Composed(x, target, weight, loss, outputs, wanted, into)

    def _begin(self, kind: PlanKind) -> bool:
        """Prepare layers for composing a plan; return whether the plan trains."""
        trains = kind in ("training", "weighted training")
        for layer in self.layers:
            layer.begin(self._noise if trains else None)
        return trains

    def _compared(self, kind: PlanKind, outputs: Node) -> tuple[Node, Node | None, Node]:
        """Compose target, weights of samples if there are any, and the loss of `outputs`."""
        target = self.loss.target(outputs)
        weight = None
        if kind in ("evaluation", "probability"):
            return target, weight, self.loss.measured(outputs, target)
        self._check_end(outputs)
        if kind == "weighted training":
            shape = self.loss.weight_shape(outputs.shape)
            weight = placeholder(shape, self.dtype, "weight")
            loss = self.loss.weighted_value(outputs, target, weight)
        else:
            loss = self.loss.value(outputs, target)
        return target, weight, self._penalised(loss)

    def _penalised(self, loss: Node) -> Node:
        return self.loss.penalised(loss, self._variables)

    def _gradients_into(self, by_variable: Sequence[Node]) -> list[tuple[Node, Array]]:
        """Return the gradient of each variable with its segment of the gradient buffer.

        They go from the last layer to the first: each is computed while its operands are still in
        the cache.
        """
        pairs = zip(by_variable, self._trained, strict=True)
        return [(dw, self.gradients[node.name]) for dw, node in reversed([*pairs])]

    def _assignments(self) -> list[Node]:
        """Return the nodes that assign to states of the layers."""
        return [node for layer in self.own_layers for node in layer.assignments]

    def _planned(
        self,
        wanted: Sequence[Node],
        into: Sequence[tuple[Node, Array]],
        arena: Arena,
        passes: Sequence[str] | None = None,
        by_average: bool = False,
        more: Mapping[Node, Array] | None = None,
    ) -> tuple[Plan, dict[Node, Node]]:
        """Compile nodes on this network's arrays, and on more; return the plan and its nodes."""
        held = self.parameters
        if by_average:
            assert self._averages is not None
            held = self._averages
        arrays = {node: held[node.name] for node in self._variables}
        arrays |= {node: self.states[node.name] for node in (*self._state_nodes, *self._noise)}
        arrays[self._scale] = self.gradient_scale
        arrays |= more or {}
        nodes = [*wanted, *(node for node, _ in into)]
        of_loss = {f"loss.{name}": array for name, array in self.loss_scalars.items()}
        arrays |= {
            node: of_loss[node.name]
            for node in (topological_order(nodes) if of_loss else ())
            if node.kind == VARIABLE and node.name in of_loss
        }
        now = self._for_models(nodes)
        plan = Plan(
            [now[node] for node in wanted],
            self.ops,
            {now[node]: array for node, array in arrays.items() if node in now},
            [(now[node], array) for node, array in into],
            arena,
            passes or self.passes,
        )
        return plan, now

    def _check_end(self, outputs: Node) -> None:
        """Refuse to train a network whose end does not fit the loss.

        The loss applies the operation in which it ends itself, or needs one that is missing.
        """
        outputs = _without_reshapes(outputs)
        end = "softmax" if _is_softmax(outputs) else outputs.kind
        loss, needs = type(self.loss).__name__, self.loss.needs
        if needs and end not in needs:
            name = " or ".join(sorted(needs))
            raise ConfigurationError(
                f"{loss} takes probabilities, and the network ends in {end}: end it in "
                f'Activation("{name}"), or take the loss "softmax_cross_entropy", which has the '
                "softmax in it and is exact for small probabilities too"
            )
        if needs and _is_softmax(_without_reshapes(outputs.inputs[0].inputs[0])):
            raise ConfigurationError(
                "the network ends in a softmax of a softmax, which never comes near a probability "
                "of 1: leave one of them out"
            )
        if end not in self.loss.contains:
            return
        raise ConfigurationError(
            f"the network ends in {end}, but {loss} takes logits: it makes probabilities of them "
            "itself, and of numbers in 0 .. 1 it never makes one near 1. Leave the last Activation "
            "out; predict_proba gives probabilities."
        )

    def _for_models(self, nodes: Sequence[Node]) -> dict[Node, Node]:
        """Return for each node of a graph of one network the node for all K networks."""
        order = topological_order(nodes)
        if self.models is None:
            return {node: node for node in order}
        # Inputs and variables differ between networks, except for the step number.
        outside = {node for node in order if node.kind in (PLACEHOLDER, VARIABLE)}
        return with_models(nodes, self.models, outside - {self._noise.step})


def frozen_parameters(
    layers: Sequence[Layer], patterns: Sequence[str], *, trains_last: bool = False
) -> list[str]:
    """Return what `NeuralNetwork.freeze` would freeze, without allocating any parameter.

    Parameters
    ----------
    layers : sequence of Layer
        The first is an `Input`. They are left as they are.
    patterns : sequence of str
        As for `NeuralNetwork.freeze`.
    trains_last : bool
        Whether the last layer with parameters is trained, whatever the patterns say.

    Returns
    -------
    list of str
        Names of parameters.

    Raises
    ------
    ConfigurationError
        If a pattern is of no parameter, or none is left to train.
    ShapeError
        If a layer does not take the output of the one before it.
    """
    built, _ = built_copies(layers)
    names = [parameter.node.name for layer in built for parameter in layer.parameters]
    last = names[-1].rpartition(".")[0] if names else ""
    return chosen([*patterns, f"!{last}"] if trains_last else patterns, names)


def _without_reshapes(node: Node) -> Node:
    """Return what the elements of a node are computed as, before any change of shape."""
    while node.kind == "reshape":
        (node,) = node.inputs
    return node


def _is_softmax(node: Node) -> bool:
    return node.kind == "exp" and node.inputs[0].kind == "log_softmax"
