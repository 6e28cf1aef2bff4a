"""Stages of a pipeline: the part of a network's layers that one rank computes.

All layers are built on every rank, which takes no memory, so that names and shapes are those of
the whole network; arrays are made for the layers of the stage only. Initial values depend on seed
and name, so a stage has the same ones as its part of the whole network.

The plan of a micro-batch is cut in two. On the last stage the backward half begins where the first
step reads the scale of gradients. On other stages it begins where the first step reads ``dy``, the
gradient of the outputs of the stage, which the next stage sends::

    samples or x -> forward half -> outputs        x, dx   exchanged with the stage before
              dx <- backward half <- dy            outputs, dy   with the next
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dnn.backend import Array, empty
from dnn.distributed.model_parallel import slices_of
from dnn.graph.gradients import gradients
from dnn.graph.node import Node, constant, placeholder, topological_order, variable
from dnn.graph.operation import Step, apply
from dnn.graph.plan import Arena, Plan
from dnn.layers import Layer
from dnn.optimizers import Update
from dnn.summaries import LayerSummary
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network, NetworkArguments, PlanKind

__all__ = ["StageNetwork", "StagePlan"]

Cut = Callable[[Network], Sequence[int]]
"""From a network with built layers to the first layer of each stage, and the end of the last."""


@dataclass(frozen=True)
class StagePlan:
    """Compiled plan of a stage for one size of micro-batch, with arrays of inputs and outputs.

    Attributes
    ----------
    forward, backward : list of (function, arguments)
        Steps of the two halves; `backward` is empty in a prediction.
    x : array, shape (batch, ...)
        Samples on the first stage, else outputs of the stage before: to be filled.
    outputs : array, shape (batch, ...)
        Kept until the backward half is done.
    target, weight, loss : array
        As in a `BatchPlan`, on the last stage; `weight` only in a plan for weighted samples.
    dy : array of the shape of `outputs`
        The gradient of the outputs, to be filled before the backward half; None on the last stage.
    dx : array of the shape of `x`
        The gradient of `x`; None on the first stage.
    draws : bool
        Whether the plan draws random numbers.
    """

    forward: list[Step]
    backward: list[Step]
    x: Array
    outputs: Array
    target: Array | None
    weight: Array | None
    loss: Array | None
    dy: Array | None
    dx: Array | None
    draws: bool

    @property
    def rows(self) -> int:
        """Number of samples of the micro-batch."""
        return int(self.x.shape[0])


class StageNetwork(Network):
    """The part of a network that one rank computes.

    Parameters
    ----------
    given : NetworkArguments
        Of the whole network.
    cut : callable
        Called once layers are built, to cut them into stages.
    stage : int
        Number of this stage.
    whole_layers : sequence of Layer
        Layers with all units, from which those of `given` were made.

    Attributes
    ----------
    bounds : tuple of int
        Stage s has layers ``bounds[s] .. bounds[s + 1] - 1``.
    stage : int
    slices : dict of str to (int, int)
        For each parameter or state of which this rank has a slice, by name: axis of the cut, and
        length of the whole along it.
    """

    def __init__(
        self, given: NetworkArguments, cut: Cut, stage: int, whole_layers: Sequence[Layer]
    ) -> None:
        self._cut = cut
        self._whole_layers = whole_layers
        self.stage = stage
        self._stage_plans: dict[tuple[PlanKind, int, int, bool], StagePlan] = {}
        self._arenas: dict[int, Arena] = {}
        super().__init__(*given)

    def _build(self) -> list[LayerSummary]:
        self.summaries = summaries = super()._build()
        self.bounds = tuple(self._cut(self))
        first = self.bounds[self.stage]
        self.is_first, self.is_last = self.stage == 0, self.stage == len(self.bounds) - 2
        self.received_shape = self.input_shape if self.is_first else summaries[first - 1].shape
        self.received_dtype = self.input_dtype if self.is_first else self.dtype
        self.slices = slices_of(self.own_layers)
        self.is_part = len(self.bounds) > 2 or bool(self.slices)
        declared = [each.node for layer in self.layers for each in layer.parameters]
        for penalty in self.loss.penalties:
            penalty.value(declared)  # an error if it is on no parameter of the network
        return summaries

    @property
    def own_layers(self) -> Sequence[Layer]:
        """The layers of this stage."""
        return self.layers[self.bounds[self.stage] : self.bounds[self.stage + 1]]

    @property
    def whole_layers(self) -> Sequence[Layer]:
        """The layers of the whole network, with all units."""
        return self._whole_layers

    def average_by(self, update: Update | LossScaling | None) -> None:
        """Take averages of the parameters from the state of an update, if it has any."""
        super().average_by(update)
        self._stage_plans.clear()

    def training_plan(self, batch: int, slot: int, weighted: bool, adds: bool) -> StagePlan:
        """Return the plan that trains on a micro-batch of `batch` rows, which may have weights.

        Plans of different slots may be in flight at once: each slot has memory of its own. With
        `adds` gradients are added to those of other micro-batches, and else replace them.
        """
        kind: PlanKind = "weighted training" if weighted else "training"
        key = (kind, batch, slot, adds)
        if key not in self._stage_plans:
            arena = self._arenas.setdefault(slot, Arena(self.ops))
            self._stage_plans[key] = self._compiled(kind, batch, arena, adds)
        return self._stage_plans[key]

    def prediction_plan(self, kind: PlanKind, batch: int) -> StagePlan:
        """Return the plan of ``"evaluation"`` or ``"probability"`` for one size of batch."""
        key = (kind, batch, -1, self.predicts_by_average)
        if key not in self._stage_plans:
            self._stage_plans[key] = self._compiled(kind, batch, self._arena, False, key[-1])
        return self._stage_plans[key]

    def _compiled(
        self, kind: PlanKind, batch: int, arena: Arena, adds: bool, by_average: bool = False
    ) -> StagePlan:
        trains = self._begin(kind)
        x = placeholder((batch, *self.received_shape), self.received_dtype, "x")
        outputs = self.outputs(x)
        target: Node | None = None
        weight: Node | None = None
        loss: Node | None = None
        dy: Node | None = None
        if self.is_last:
            target, weight, loss = self._compared(kind, outputs)
            if kind == "probability":
                outputs = self.loss.probabilities(outputs)
        elif trains:
            dy = placeholder(outputs.shape, outputs.dtype, "dy")
        edges = [x, outputs, target, weight, loss, dy]
        wanted = [node for node in edges if node is not None]
        into: list[tuple[Node, Array]] = []
        more: dict[Node, Array] = {}
        dx_array: Array | None = None
        if trains:
            sought = [*self._trained, *([] if self.is_first else [x])]
            end, seed = (outputs, dy) if loss is None else (loss, self._scale)
            found = gradients(end, sought, seed)
            of_variables = found[: len(self._trained)]
            if adds:
                of_variables, more = self._added(of_variables)
            into = self._gradients_into(of_variables)
            if not self.is_first:
                # Outside of the arena, where later steps would overwrite it.
                dx_array = empty(self.ops, x.shape, x.dtype)
                into.append((found[-1], dx_array))
            wanted += self._assignments()
        if not self.is_last:
            # Outputs are sent from an array of their own: in the plan axes may be in another order.
            into.append((outputs, empty(self.ops, outputs.shape, outputs.dtype)))
        # These passes would take outputs, which no node here reads, for the gradient of a weight.
        moving = ("products_last", "products_together")
        passes = [name for name in self.passes if name not in moving]
        plan, now = self._planned(wanted, into, arena, passes, by_average, more)
        first, second = self._halves(plan, now, self._scale if loss is not None else dy)

        def at(node: Node | None) -> Array | None:
            return None if node is None else plan[now[node]]

        return StagePlan(
            self.ops.link(first),
            self.ops.link(second),
            plan[x],
            plan[now[outputs]],
            at(target),
            at(weight),
            at(loss),
            at(dy),
            dx_array,
            self._noise.step in topological_order([outputs]),
        )

    def _added(self, by_variable: Sequence[Node]) -> tuple[list[Node], dict[Node, Array]]:
        """Return sums of gradients and present ones, and the arrays of the present gradients."""
        before = [variable(w.shape, w.dtype, w.name) for w in self._trained]
        pairs = zip(before, by_variable, strict=True)
        sums = [apply("add_to", total, dw) for total, dw in pairs]
        return sums, {total: self.gradients[total.name] for total in before}

    def _penalised(self, loss: Node) -> Node:
        return loss  # added once for a batch, not for each micro-batch: see `penalty_plan`

    def penalty_plan(self, counts_whole: bool) -> tuple[list[Step], Array]:
        """Return the steps that add gradients of penalties on this stage's weights, and the value.

        With `counts_whole` the value, an array of shape (), includes parameters that other shards
        have.
        """
        zero = constant(np.zeros((), self.dtype), self.dtype)
        value = self.loss.penalised(zero, self._variables, part=True)
        counted = [w for w in self._variables if counts_whole or w.name in self.slices]
        shown = self.loss.penalised(zero, counted, part=True)
        sums, more = self._added(gradients(value, self._trained))
        plan, now = self._planned([shown], self._gradients_into(sums), Arena(self.ops), more=more)
        return self.ops.link(plan.steps), plan[now[shown]]

    @staticmethod
    def _halves(
        plan: Plan, now: dict[Node, Node], boundary: Node | None
    ) -> tuple[list[Step], list[Step]]:
        if boundary is None or boundary not in now:
            return list(plan.steps), []
        return plan.split_at(now[boundary])
