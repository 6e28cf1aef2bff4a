"""Pipelines of a mesh: the order in which stages compute, training and prediction.

A step of training, on each rank::

    for each action of the schedule:        micro-batches of this rank's rows of the batch
        receive, forward, send              activations go to the next stage
        receive gradient, backward, send    gradients go back
    sum of gradients                        over the ranks with other rows
    penalties                               on this rank's parameters, if the loss has some
    update                                  of this rank's parameters

Gradients of micro-batches are added up in the order of the schedule, each weighted by its share of
the rows, so that the sum equals the gradient of the whole batch, to rounding.

A schedule lists the actions of each stage, a part of the layers on one rank, through which a batch
goes in micro-batches. Both schedules give the same gradients; they differ in how many micro-batches
a stage keeps::

    gpipe, 3 stages, 4 micro-batches          1f1b
    stage 0  0 1 2 3 . . . . 3 2 1 0          0 1 2 . . 0 3 1 . 2 . 3
    stage 1  . 0 1 2 3 . . 3 2 1 0 .          . 0 1 . 0 2 1 3 2 . 3 .
    stage 2  . . 0 1 2 3 3 2 1 0 . .          . . 0 0 1 1 2 2 3 3 . .

With S stages of equal cost and M micro-batches a stage idles for a share of (S - 1) / (M + S - 1)
of the time in both [1]_. GPipe keeps what the backward half reads of all M micro-batches, 1F1B at
stage s of S - s at most [2]_.

References
----------
.. [1] Huang et al., GPipe: Efficient training of giant neural networks using pipeline parallelism,
   2019, section 2.3.
.. [2] Narayanan et al., PipeDream: Generalized pipeline parallelism for DNN training, 2019,
   section 3.2; with one version of the weights: Narayanan et al., Efficient large-scale language
   model training on GPU clusters using Megatron-LM, 2021, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dnn.backend import Array, empty
from dnn.data.augmentation import Images
from dnn.distributed.communicator import Request
from dnn.distributed.partition import even_bounds
from dnn.distributed.stage import StageNetwork, StagePlan
from dnn.errors import check_count
from dnn.graph.operation import Step
from dnn.training.data import Rows
from dnn.training.epoch import TrainingTask
from dnn.training.evaluation import ROWS, load_part
from dnn.training.network import PlanKind, load_rows

if TYPE_CHECKING:
    from dnn.distributed.mesh import Mesh

__all__ = [
    "MOST_MICRO_BATCHES",
    "SCHEDULES",
    "Action",
    "ActionKind",
    "MeshTrainer",
    "gpipe",
    "most_kept",
    "one_forward_one_backward",
    "replayed",
]


ActionKind = Literal["receive", "forward", "send", "receive gradient", "backward", "send gradient"]


class Action(NamedTuple):
    """Action of a stage on one micro-batch.

    Attributes
    ----------
    kind : str
        ``"receive"`` and ``"send"`` are of activations, from the stage before and to the next;
        those of gradients go the other way.
    micro_batch : int, from 0
    """

    kind: ActionKind
    micro_batch: int


def gpipe(stages: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of each stage: all micro-batches forward, then all back, last first."""
    _check(stages, micro_batches)
    forward = [("forward", m) for m in range(micro_batches)]
    backward = [("backward", m) for m in reversed(range(micro_batches))]
    return [_exchanging([*forward, *backward], stage, stages) for stage in range(stages)]


def one_forward_one_backward(stages: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of each stage: a few micro-batches forward, then backward and forward.

    Stage s begins with S - s micro-batches, or with all if there are fewer; then a micro-batch goes
    forward after each that goes backward.
    """
    _check(stages, micro_batches)
    schedule = []
    for stage in range(stages):
        kept = min(stages - stage, micro_batches)
        order = [("forward", m) for m in range(kept)]
        for m in range(micro_batches):
            order.append(("backward", m))
            if m + kept < micro_batches:
                order.append(("forward", m + kept))
        schedule.append(_exchanging(order, stage, stages))
    return schedule


def _check(stages: int, micro_batches: int) -> None:
    check_count("stages", stages)
    check_count("micro_batches", micro_batches)


def _exchanging(order: Sequence[tuple[str, int]], stage: int, stages: int) -> list[Action]:
    """Return the actions of a stage: those that compute, with the receives and sends around."""
    is_first, is_last = stage == 0, stage == stages - 1
    actions = []
    for kind, m in order:
        if kind == "forward":
            parts: list[tuple[ActionKind, bool]] = [
                ("receive", not is_first),
                ("forward", True),
                ("send", not is_last),
            ]
        else:
            parts = [
                ("receive gradient", not is_last),
                ("backward", True),
                ("send gradient", not is_first),
            ]
        actions += [Action(part, m) for part, is_done in parts if is_done]
    return actions


SCHEDULES: dict[str, Callable[[int, int], list[list[Action]]]] = {
    "1f1b": one_forward_one_backward,
    "gpipe": gpipe,
}
"""Functions that make a schedule, by name."""


def most_kept(actions: Sequence[Action]) -> int:
    """Return the most micro-batches whose values a stage keeps at once, from its actions."""
    kept = most = 0
    for action in actions:
        kept += (action.kind == "forward") - (action.kind == "backward")
        most = max(most, kept)
    return most


MOST_MICRO_BATCHES = 8192
"""Tags are 0 to 16,383, and each micro-batch has one for activations and one for gradients."""


def _tag(micro_batch: int, is_gradient: bool = False) -> int:
    return 2 * micro_batch + is_gradient


@lru_cache(maxsize=64)
def _actions(schedule: str, stages: int, micro_batches: int, stage: int) -> tuple[Action, ...]:
    return tuple(SCHEDULES[schedule](stages, micro_batches)[stage])


class MeshTrainer:
    """Trainer of a network on a mesh; it has the methods of `dnn.training.epoch.Trainer`.

    Parameters
    ----------
    mesh : Mesh
    network : StageNetwork
        This rank's part.
    task : TrainingTask
        Its update is of this rank's parameters; its samples are the same on all ranks.
    """

    def __init__(self, mesh: Mesh, network: StageNetwork, task: TrainingTask) -> None:
        self.samples = samples = task.samples
        self.count = samples.count
        self.batch_size = min(task.batch_size, self.count)
        self.steps = -(-self.count // self.batch_size)
        self._mesh = mesh
        self._network = network
        self._update = task.update
        self._ops = ops = network.ops
        self._weighted = samples.weights is not None
        slots = most_kept(self._actions_of(mesh.micro_batches))
        self._free = [*range(slots)]
        # Last requests of each slot, to be done before its memory is written again.
        self._outputs_sent: list[Request | None] = [None] * slots
        self._dx_sent: list[Request | None] = [None] * slots
        self._tallies: Array | None = None
        if network.is_last and network.classes_to_tally is not None:
            self._tallies = ops.asarray(np.zeros(network.classes_to_tally + 1, np.int64))
        self._losses = empty(ops, (self.steps * mesh.micro_batches,), network.dtype)
        self._shares: list[float] = []
        self._scale: float | None = None
        self._penalty: tuple[list[Step], Array] | None = None
        if network.loss.penalties:
            self._penalty = network.penalty_plan(counts_whole=mesh.shard == 0)
        self._penalties: list[tuple[float, Array]] = []  # for each batch its share and the value
        self._images: Array | None = None
        self._all_tallies: Array | None = None
        self._begin_batch(self.batch_size)
        rows = max(1, self._size(0))  # a rank may have no row of a small batch
        self._draws = network.training_plan(rows, 0, self._weighted, False).draws

    def tallies(self) -> Array | None:
        """Return counts of predictions in the last epoch, of all ranks together."""
        return self._all_tallies

    def exchange(self) -> dict[str, Any] | None:
        """Return None: exchange statistics are not collected on a mesh."""
        return None

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample once.

        Parameters
        ----------
        order : array of intp, shape (1, count)
            Which samples are visited, one after the other.
        seeds : sequence of one int
            Seed for random changes of `Images`.
        number : int, from 0
            Number of the epoch, for the same.

        Returns
        -------
        list of one float
            The mean over samples of the loss, each batch before its step; the same on all ranks.
        """
        network, ops, rows = self._network, self._ops, order.reshape(-1)
        if self._tallies is not None:
            ops.fill(0, self._tallies)
        self._shares, self._penalties = [], []
        images: Iterator[Array] | None = None
        if isinstance(self.samples.x, Images) and network.is_first:
            images = self.samples.x.batches(rows, self.batch_size, seeds, number)
        for start in range(0, self.count, self.batch_size):
            self._images = None if images is None else next(images)
            self._step(rows[start : start + self.batch_size])
        for request in (*self._outputs_sent, *self._dx_sent):
            if request is not None:
                request.wait()
        return [self._together()]

    def _together(self) -> float:
        """Return the mean loss of the epoch over all ranks; counts are summed for `tallies`."""
        network, mesh = self._network, self._mesh
        loss, tally = 0.0, None
        if mesh.replica == 0:
            loss = sum(share * float(value) for share, value in self._penalties)
        if network.is_last and mesh.shard == 0:
            losses = self._ops.to_host(self._losses)[: len(self._shares)].astype(np.float64)
            loss += float(np.add.reduce(losses * np.array(self._shares)))
            if self._tallies is not None:
                tally = self._ops.to_host(self._tallies).tolist()
        parts = mesh.communicator.gather_values([loss, tally])
        counted = [tally for _, tally in parts if tally is not None]
        self._all_tallies = np.sum([counted], axis=1) if counted else None
        return float(np.add.reduce([loss for loss, _ in parts]))

    def _actions_of(self, micro_batches: int) -> Sequence[Action]:
        mesh = self._mesh
        return _actions(mesh.schedule, mesh.pipeline, micro_batches, mesh.stage)

    def _begin_batch(self, rows: int) -> Sequence[Action]:
        """Cut a batch into micro-batches; return the actions for those of this rank."""
        mesh = self._mesh
        bounds = even_bounds(rows, mesh.data)
        self._first_row = bounds[mesh.replica]
        own = bounds[mesh.replica + 1] - self._first_row
        count = min(mesh.micro_batches, own)
        self._bounds = even_bounds(own, count) if count else (0, 0)
        return self._actions_of(count) if count else ()

    def _size(self, m: int) -> int:
        return self._bounds[m + 1] - self._bounds[m]

    def _step(self, batch: Rows) -> None:
        """Train on this rank's rows of one batch."""
        network, ops = self._network, self._ops
        actions = self._begin_batch(len(batch))
        self._batch = batch
        self._coming = [action.micro_batch for action in actions if action.kind == "forward"]
        # The first backward half writes the gradients, and later ones add to them.
        self._writes = next((a.micro_batch for a in actions if a.kind == "backward"), None)
        self._open: dict[int, tuple[int, StagePlan]] = {}
        self._awaited: dict[tuple[int, bool], Request] = {}
        step = network.states[network.step_name]
        self._number = ops.to_host(step).copy() if self._draws else None
        if not actions:
            ops.fill(0, network.gradients.flat)
        self._open_micro_batches()
        for action in actions:
            self._perform(action)
        if self._number is not None:
            ops.load(self._number + np.uint64(1), step)
        if self._mesh.data > 1:
            self._mesh.replicas.sum(network.gradients.flat)
        if self._penalty is not None:
            calls, value = self._penalty
            for function, arguments in calls:
                function(*arguments)
            self._penalties.append((len(batch) / self.count, ops.to_host(value).copy()))
        self._update.run()

    def _open_micro_batches(self) -> None:
        """Assign free slots to the next micro-batches, and begin to receive their inputs."""
        mesh, stage = self._mesh, self._mesh.stage
        while self._free and self._coming:
            m, slot = self._coming.pop(0), self._free.pop(0)
            sent = self._outputs_sent[slot]
            if sent is not None:
                sent.wait()
            adds = m != self._writes
            plan = self._network.training_plan(self._size(m), slot, self._weighted, adds)
            self._open[m] = slot, plan
            if stage > 0:
                self._awaited[m, False] = mesh.line.receive(plan.x, stage - 1, _tag(m))
            if plan.dy is not None:
                self._awaited[m, True] = mesh.line.receive(plan.dy, stage + 1, _tag(m, True))

    def _perform(self, action: Action) -> None:
        kind, m = action
        slot, plan = self._open[m]
        line, stage = self._mesh.line, self._mesh.stage
        if kind == "receive":
            self._awaited.pop((m, False)).wait()
        elif kind == "forward":
            self._forward(m, plan)
        elif kind == "send":
            self._outputs_sent[slot] = line.send(plan.outputs, stage + 1, _tag(m))
        elif kind == "receive gradient":
            self._awaited.pop((m, True)).wait()
        elif kind == "backward":
            self._backward(slot, plan)
        else:
            assert plan.dx is not None
            self._dx_sent[slot] = line.send(plan.dx, stage - 1, _tag(m, True))
        if kind == ("send gradient" if stage > 0 else "backward"):
            del self._open[m]
            self._free.append(slot)
            self._open_micro_batches()

    def _forward(self, m: int, plan: StagePlan) -> None:
        network, ops, data = self._network, self._ops, self.samples
        first = self._first_row + self._bounds[m]
        part = slice(first, first + plan.rows)
        rows = self._batch[part]
        if network.is_first:
            if self._images is not None:
                ops.load(self._images[part], plan.x)
            else:
                load_rows(ops, data.x, rows, plan.x)
        if plan.target is not None:
            load_rows(ops, data.y, rows, plan.target)
        if plan.weight is not None:
            load_rows(ops, data.weights, rows, plan.weight)
        if self._number is not None:
            # Each micro-batch has noise of its own; the first has that of one process.
            micro_batch = np.uint64(self._mesh.replica * self._mesh.micro_batches + m)
            number = self._number + (micro_batch << np.uint64(32))
            ops.load(number, network.states[network.step_name])
        for function, arguments in plan.forward:
            function(*arguments)
        if plan.loss is not None:
            place = len(self._shares)
            ops.copy(plan.loss, self._losses[place : place + 1].reshape(()))
            self._shares.append(plan.rows / self.count)
            if self._tallies is not None:
                assert plan.target is not None
                guesses = empty(ops, plan.target.shape, np.int64)
                ops.tally_classes(plan.outputs, plan.target, guesses, self._tallies)

    def _backward(self, slot: int, plan: StagePlan) -> None:
        network, ops = self._network, self._ops
        share = plan.rows / len(self._batch)
        if network.is_last and share != self._scale:
            ops.load(np.array(share, network.dtype), network.gradient_scale)
            self._scale = share
        sent = self._dx_sent[slot]
        if sent is not None:
            sent.wait()
        for function, arguments in plan.backward:
            function(*arguments)


def replayed(
    mesh: Mesh,
    network: StageNetwork,
    kind: PlanKind,
    x: Array | Images,
    y: Array | None = None,
) -> Iterator[tuple[Array, Array]]:
    """Cut samples into pieces; yield the outputs and the mean loss of each, on every rank.

    Pieces follow each other through the stages; outputs of the last stage are sent to all stages.
    """
    ops, line, stage = network.ops, mesh.line, mesh.stage
    sent: Request | None = None
    parts: list[tuple[Array, Array]] = []
    for start in range(0, len(x), ROWS):
        part = slice(start, min(start + ROWS, len(x)))
        plan = network.prediction_plan(kind, part.stop - start)
        if sent is not None:
            sent.wait()
        if network.is_first:
            load_part(ops, x[part], plan.x)
        else:
            line.receive(plan.x, stage - 1).wait()
        if plan.target is not None:
            load_part(ops, np.zeros(()) if y is None else y[part], plan.target)
        for function, arguments in plan.forward:
            function(*arguments)
        if plan.loss is None:
            sent = line.send(plan.outputs, stage + 1)
        else:
            parts.append((ops.to_host(plan.outputs).copy(), ops.to_host(plan.loss).copy()))
    if sent is not None:
        sent.wait()
    about = [[(array.shape, array.dtype.str) for array in part] for part in parts]
    about = line.gather_values(about)[-1]
    if not network.is_last:
        parts = [(np.empty(*outputs), np.empty(*loss)) for outputs, loss in about]
    for part_of_all in parts:
        for array in part_of_all:
            line.broadcast(array, line.size - 1)
        yield part_of_all
