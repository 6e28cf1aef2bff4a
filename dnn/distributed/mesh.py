"""Meshes of ranks: rows of a batch along one axis, layers along another, units along the third.

::

    rank = (replica * pipeline + stage) * model + shard

    replica    0 .. data - 1        has a part of the rows of every batch
    stage      0 .. pipeline - 1    has a part of the layers
    shard      0 .. model - 1       has a part of the units of wide layers

Shards exchange most, twice for each pair of layers. So they have successive ranks, which usually
are on one host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np

from dnn.backend import Array
from dnn.backend.routines import ROUTINES_VARIABLE
from dnn.data.augmentation import Images
from dnn.distributed.model_parallel import is_cut, joined, pairs_of, sharded
from dnn.distributed.partition import even_bounds, measured_costs, stage_bounds
from dnn.distributed.pipeline import MOST_MICRO_BATCHES, SCHEDULES, MeshTrainer, replayed
from dnn.distributed.scheme import RanksScheme, clip_by_norm_of_all, share_gradients
from dnn.distributed.stage import StageNetwork
from dnn.errors import ConfigurationError, check_count, explains_arguments, unknown_name
from dnn.layers import Activation, Input, Layer, Output
from dnn.optimizers import Optimizer, ParameterRule, Update
from dnn.training.data import Samples
from dnn.training.epoch import TrainingTask
from dnn.training.evaluation import evaluate, outputs_of
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network, NetworkArguments, PlanKind
from dnn.training.parallel import TrainerLike

__all__ = ["Mesh"]

MICRO_BATCHES_PER_STAGE = 2
"""Micro-batches for each stage by default: with more, stages idle less, but products are small."""
_SPLITS = ("measured", "multiply_adds")


class Mesh(RanksScheme):
    """Train one network on a mesh of ranks: rows x layers x units.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or Communicator
        All its ranks make the mesh, with the same arguments.
    data : int, optional
        Number of parts of the rows of a batch; if left out, all ranks by `pipeline` and `model`.
    pipeline : int
        Number of parts of the layers, called stages.
    model : int
        Number of parts of the units of wide layers, called shards.
    micro_batches : int, optional
        Pieces of the rows of a rank that go through a pipeline in sequence; 2 for each stage if
        left out, and 1 without a pipeline.
    schedule : "1f1b" or "gpipe"
        Order in which stages compute; see `dnn.distributed.pipeline`.
    split : "measured", "multiply_adds" or sequence of int
        How layers are cut into stages: by the time of each layer, which rank 0 measures when a
        network is made; by the products of a prediction; or where stages after the first one
        begin, as numbers of layers, the `Input` being 0. With ``DNN_ROUTINES=fixed`` nothing is
        measured.

    Raises
    ------
    ConfigurationError
        If a number is out of its range or the mesh is not of as many ranks as there are.
    DisagreementError
        On every rank, if they make different meshes.

    Notes
    -----
    Results equal those of one process on the whole batch, to rounding, with these exceptions.
    Batch norm takes the statistics of a micro-batch, and running statistics become the mean of the
    replicas' after each epoch. Random numbers, as of dropout, are drawn anew for each micro-batch:
    they depend on `data` and `micro_batches`, and neither on `pipeline` nor on `model`.
    """

    @explains_arguments
    def __init__(
        self,
        comm: Any,
        *,
        data: int | None = None,
        pipeline: int = 1,
        model: int = 1,
        micro_batches: int | None = None,
        schedule: str = "1f1b",
        split: str | Sequence[int] = "measured",
    ) -> None:
        super().__init__(comm)
        with self.agreeing():
            problem = self.problem(
                self.communicator.size,
                data=data,
                pipeline=pipeline,
                model=model,
                schedule=schedule,
                split=split,
            )
            if problem is not None:
                raise ConfigurationError(problem)
            self.pipeline, self.model = pipeline, model
            self.data = self.communicator.size // (pipeline * model)
            default = MICRO_BATCHES_PER_STAGE * pipeline if pipeline > 1 else 1
            given = default if micro_batches is None else micro_batches
            self.micro_batches = check_count("micro_batches", given)
            if self.micro_batches > MOST_MICRO_BATCHES:
                message = f"micro_batches must be at most {MOST_MICRO_BATCHES}, not {micro_batches}"
                raise ConfigurationError(f"mesh: {message}")
            self.schedule = schedule
            self.split = split if isinstance(split, str) else tuple(split)
        at, self.shard = divmod(self.communicator.rank, model)
        self.replica, self.stage = divmod(at, pipeline)
        # Ranks with the same layers and units; the stages of the same rows; the shards of a stage.
        self.replicas = self.communicator.split(self.stage * model + self.shard)
        self.line = self.communicator.split(self.replica * model + self.shard)
        self.shards = self.communicator.split(self.replica * pipeline + self.stage)

    def __repr__(self) -> str:
        sizes = f"data={self.data}, pipeline={self.pipeline}, model={self.model}"
        how = f"schedule={self.schedule!r}, split={self.split!r}"
        return f"Mesh({sizes}, micro_batches={self.micro_batches}, {how})"

    @staticmethod
    def problem(
        ranks: int,
        *,
        data: int | None = None,
        pipeline: int = 1,
        model: int = 1,
        schedule: str = "1f1b",
        split: str | Sequence[int] = "measured",
        layers: Sequence[Layer] | None = None,
    ) -> str | None:
        """Return the problem of a mesh and a remedy, or None, without any communication.

        Parameters
        ----------
        ranks : int
            Number of ranks.
        data, pipeline, model, schedule, split
            As of `Mesh`.
        layers : sequence of Layer, optional
            Layers of the network that is to be trained on the mesh.

        Returns
        -------
        str or None
            What is wrong and what to do; None if nothing is.
        """
        problem = _problem_of_sizes(ranks, data, pipeline, model)
        problem = problem or _problem_of_names(schedule, split)
        if problem is None and layers is not None:
            problem = _problem_of_layers(layers, pipeline, model, split)
        return problem

    # Methods of a scheme, which `Networks` and `Fit` call.

    def network(self, given: NetworkArguments) -> Network:
        """Build this rank's part of a network.

        Raises
        ------
        ConfigurationError
            If there are more stages than layers, or a mesh cannot train it: an `Ensemble`,
            float16; with shards, a penalty by a user's function.
        """
        layers, loss = given.layers, given.loss
        if isinstance(given.seeds, Sequence):
            raise ConfigurationError("mesh: an Ensemble has no stages: take DataParallel, or none")
        if given.precision.scales_loss:
            raise ConfigurationError("mesh: float16 scales the loss: take bfloat16 or float32")
        if self.model > 1 and not all(penalty.is_separable for penalty in loss.penalties):
            message = (
                "mesh: a penalty's own function wants whole parameters, and a shard has slices"
            )
            raise ConfigurationError(f"{message}: take L1, L2 or model=1")
        problem = self.problem(
            self.communicator.size,
            pipeline=self.pipeline,
            model=self.model,
            split=self.split,
            layers=layers,
        )
        if problem is not None:
            raise ConfigurationError(problem)
        parts = _parts(layers, self.model)
        if self.model > 1:
            given = given._replace(layers=sharded(layers, self.shards))

        def cut(network: Network) -> tuple[int, ...]:
            return self._bounds(network, parts)

        network = StageNetwork(given, cut, self.stage, layers)
        share_gradients(self.replicas, network)
        return network

    def _bounds(self, network: Network, parts: Sequence[int]) -> tuple[int, ...]:
        """Cut built layers into stages, on all ranks alike."""
        if not isinstance(self.split, str):
            return (0, *self.split, len(network.layers))
        if self.pipeline == 1:
            return (0, len(network.layers))
        costs = np.array([float(row.multiply_adds) for row in network.summaries])
        if self.split == "measured" and os.environ.get(ROUTINES_VARIABLE) != "fixed":
            if self.communicator.rank == 0 or self.model > 1:  # layers sum over ranks
                costs = np.array(measured_costs(network))
            self.communicator.broadcast(costs)
        ends = [*parts[1:], len(costs)]
        of_parts = [sum(costs[a:b].tolist()) for a, b in zip(parts, ends, strict=True)]
        sizes = [int(np.prod(network.summaries[end - 1].shape)) for end in ends]
        cuts = stage_bounds(of_parts, self.pipeline, sizes)
        return tuple([*parts, len(costs)][cut] for cut in cuts)

    def bind(self, network: Network, optimizer: Optimizer) -> Update | LossScaling:
        """Return the update of this rank's parameters.

        Raises
        ------
        ConfigurationError
            If the optimizer needs parameters of other shards: with `clip_norm`, or as a
            `ParameterRule`.
        """
        clips = "clip_norm" in optimizer.hyperparameters
        if self.model > 1 and (clips or isinstance(optimizer, ParameterRule)):
            name = "clip_norm" if clips else type(optimizer).__name__
            message = f"mesh: {name} needs whole parameters, and a shard has slices: take"
            raise ConfigurationError(f"{message} {'clip_value' if clips else 'model=1'}")
        update = super().bind(network, optimizer)
        if clips and self.pipeline > 1:
            clip_by_norm_of_all(update, network.ops, self.line)
        return update

    def trainer(self, network: Network, task: TrainingTask) -> TrainerLike:
        """Return a trainer of a network on the mesh.

        Raises
        ------
        ConfigurationError
            With ``check_finite``, which looks at plans of one process.
        """
        if task.inspect is not None:
            raise ConfigurationError("mesh: check_finite is for one process: leave it out")
        assert isinstance(network, StageNetwork)
        return MeshTrainer(self, network, task)

    def end_epoch(self, network: Network, update: Update | LossScaling) -> None:
        """Average running statistics over all replicas."""
        self.average_states(network)

    def gathered(self, network: Network, update: Update | LossScaling) -> dict[str, Array]:
        """Return every array that training changes, by name, whole and copied to the host."""
        assert isinstance(network, StageNetwork)
        own = super().gathered(network, update)
        for name, array in own.items():
            cut = network.slices.get(_parameter_of(name))
            if cut is not None:
                own[name] = joined(self.shards, array, *cut)
        about = [(name, array.shape, array.dtype.str) for name, array in own.items()]
        found: dict[str, Array] = {}
        for stage, arrays in enumerate(self.line.gather_values(about)):
            for name, shape, dtype in arrays:
                is_here = stage == self.stage
                array = np.array(own[name]) if is_here else np.empty(shape, dtype)
                self.line.broadcast(array, stage)
                # Only stages that draw random numbers count the steps for which they are drawn.
                is_count = name == f"state/{network.step_name}" and name in found
                found[name] = np.maximum(found[name], array) if is_count else array
        return found

    def own_part(self, network: Network, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return this rank's part of arrays that `gathered` has returned."""
        assert isinstance(network, StageNetwork)
        declared = [each.node.name for layer in network.layers for each in layer.parameters]
        declared += [each.node.name for layer in network.layers for each in layer.states]
        own = {segment.name for segment in network.parameters.segments}
        elsewhere = set(declared) - own - {s.name for s in network.state_buffer.segments}
        part: dict[str, Array] = {}
        for name, array in arrays.items():
            parameter = _parameter_of(name)
            if parameter in elsewhere:
                continue
            axis, length = network.slices.get(parameter, (0, 0))
            if length and array.ndim > axis and array.shape[axis] == length:
                start, stop = even_bounds(length, self.model)[self.shard : self.shard + 2]
                array = array[(slice(None),) * axis + (slice(start, stop),)]
            part[name] = array
        return part

    def evaluate(
        self, network: Network, samples: Samples, metrics: Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Return metrics of the network; every replica evaluates all samples."""
        return evaluate(network, samples, self._replayed, metrics)

    def outputs(self, network: Network, samples: Array | Images, kind: PlanKind) -> Array:
        """Return outputs or probabilities, by `kind`, for checked samples, on every rank."""
        return outputs_of(network, samples, kind, self._replayed)

    def _replayed(
        self, network: Network, kind: PlanKind, x: Any, y: Any = None, rows: None = None
    ) -> Iterator[tuple[Array, Array]]:
        assert isinstance(network, StageNetwork)
        return replayed(self, network, kind, x, y)


def _parameter_of(name: str) -> str:
    """Return the name of the parameter to which an array of the training belongs."""
    return name.rpartition("/")[2]


def _problem_of_sizes(ranks: int, data: int | None, pipeline: int, model: int) -> str | None:
    for name, size in {"data": data, "pipeline": pipeline, "model": model}.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
            return f"mesh: {name} must be an integer of at least 1, not {size!r}"
        if size is not None and size < 1:
            return f"mesh: {name} must be at least 1, not {size}"
    line = pipeline * model
    if data is None and ranks % line:
        message = f"mesh: pipeline {pipeline} x model {model} = {line} ranks, and there are"
        return f"{message} {ranks}: take a multiple of {line} ranks"
    if data is not None and data * line != ranks:
        message = f"mesh: data {data} x pipeline {pipeline} x model {model} = {data * line}"
        return f"{message} ranks, and there are {ranks}: take as many, or change the mesh"
    return None


def _problem_of_names(schedule: str, split: str | Sequence[int]) -> str | None:
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        return str(unknown_name("schedule", schedule, SCHEDULES))
    if isinstance(split, str):
        return None if split in _SPLITS else str(unknown_name("split", split, _SPLITS))
    is_list = isinstance(split, Sequence)
    if is_list and not any(isinstance(n, bool) or not isinstance(n, Integral) for n in split):
        return None
    return f"mesh: split must be {' or '.join(_SPLITS)} or numbers of layers, not {split!r}"


def _problem_of_layers(
    layers: Sequence[Layer], pipeline: int, model: int, split: str | Sequence[int]
) -> str | None:
    parts = _parts(layers, model)
    if pipeline > len(parts):
        message = f"mesh: {pipeline} pipeline stages, and layers make {len(parts)} at most"
        return f"{message}: take fewer stages"
    if not isinstance(split, str) and (
        len(split) != pipeline - 1 or list(split) != sorted(set(split) & set(parts[1:]))
    ):
        firsts = ", ".join(map(str, parts[1:]))
        message = f"{tuple(split)} for {pipeline} stages: {pipeline - 1} numbers"
        return f"mesh: split is {message} of {firsts} are wanted"
    if model > 1 and not is_cut(layers, model):
        message = f"mesh: model {model}, and no two layers can be cut over {model} ranks"
        return f"{message} (see pairs_of in dnn.distributed.model_parallel): take model 1"
    return None


def _parts(layers: Sequence[Layer], model: int) -> list[int]:
    """Return the first layers of the parts of a network that a stage has as a whole.

    An `Input` belongs to the next layer, and an `Output` or `Activation` to the previous one; both
    layers of a pair of which ranks have shards belong together, with the layers in between.
    """
    inside = {i for first, last in pairs_of(layers, model) for i in range(first + 1, last + 1)}
    firsts = [
        i
        for i, (before, layer) in enumerate(pairwise(layers), 1)
        if i not in inside
        and not isinstance(before, Input)
        and not isinstance(layer, Output | Activation)
    ]
    return [0, *firsts]
