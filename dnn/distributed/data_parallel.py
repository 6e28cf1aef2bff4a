"""Data parallelism: each rank computes a part of every batch, and all make the same step.

::

    rank 0   rows 0 .. 49 of the batch  -> gradients --+
    rank 1   rows 50 .. 99              -> gradients --+-> sum -> the same update on every rank

The mean over the batch is the sum of each rank's mean, weighted by its share of the rows. So the
step equals that of one process on the whole batch, to rounding, for any number of ranks and any
sizes of parts, and has the same bits for the same number of ranks. Gradients are summed in place,
in one flat buffer, which ranks of one host share where they can.

The optimizer's state may be cut over ranks: each keeps the state of its slice of the parameters::

    gradients of rank 0  | slice 0 | slice 1 |      rank 0 sums slice 0 of all ranks' gradients,
    gradients of rank 1  | slice 0 | slice 1 |      moves slice 0 of the parameters, and so on
    parameters           | slice 0 | slice 1 |      then every rank takes the slices of all others

Where an update is elementwise, slices may begin within a parameter; otherwise they begin at
parameters. It is the first stage of [1]_: parameters and gradients remain whole.

References
----------
.. [1] Rajbhandari, Rasley, Ruwase and He, ZeRO: Memory optimizations toward training trillion
       parameter models, 2020, section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from dnn.backend import Array, Ops
from dnn.distributed.allreduce import parts_of
from dnn.distributed.communicator import Communicator
from dnn.distributed.gradient_exchange import GradientExchange, StepTimes, TimedChoice
from dnn.distributed.partition import even_bounds
from dnn.distributed.scheme import RanksScheme, clip_by_norm_of_all, own_noise, share_gradients
from dnn.errors import ConfigurationError, explains_arguments
from dnn.graph.operation import Step
from dnn.layers import BatchNorm, Layer
from dnn.layers.nested import Nested
from dnn.optimizers import Optimizer, Update
from dnn.parameters import BufferSlice, FlatBuffer, Segment
from dnn.training.data import Samples
from dnn.training.epoch import Stage, StepPiece, StepRun, Trainer, TrainingTask
from dnn.training.evaluation import OF_SUMS, results_of, sums_of
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network, NetworkArguments
from dnn.training.parallel import TrainerLike

if TYPE_CHECKING:
    from dnn.training.networks import Fit

__all__ = ["DataParallel"]


class DataParallel(RanksScheme):
    """Every rank has the whole network, and computes a part of every batch.

    Parameters
    ----------
    comm : mpi4py communicator or Communicator
    rows : "shared" or "own"
        With "shared" all ranks give `fit` the same samples, and each takes its part of every
        batch. With "own" each gives samples of its own, of any number; all of them are trained on.
    on_nan : "stop" or "skip"
        What happens if the gradients of a rank contain NaN or infinity: training ends after the
        epoch, as with any network that diverges; or the step is left out on all ranks. Either way
        the history names rank, layer and step.
    batch_norm : "own" or "together"
        Whether `BatchNorm` takes mean and variance of each rank's part, or of the whole batch, as
        one process does; that exchanges them in every step, forward and backward.
    wire : "float16", optional
        Type in which gradients are sent; they are added up in their own type.
    sharded : bool
        Each rank moves a slice of the parameters, and keeps the optimizer's state of that slice
        only: each of N ranks an N-th. Averages of parameters are whole on each rank. For one
        network on the host, in float32 or float64. See also Notes.
    overlap : bool, optional
        Whether sums of gradients begin while those of earlier layers are computed, or after all
        are; the results are the same. If left out, both are timed, and the faster way is taken.
        Gradients of less than 1 MiB, of GPUs, in float16 or of `accumulate` are summed after all
        are computed.

    Raises
    ------
    ConfigurationError
        If an option is unknown, or does not go with another one.
    DisagreementError
        On every rank, if they give other options.

    Notes
    -----
    `batch_size` is that of all ranks together. Layers that use a batch as a whole differ from one
    process: batch norm normalises each rank's part by itself, unless ``"together"``, and running
    statistics become the mean of the ranks' after each epoch; dropout draws other numbers on each
    rank.

    With `sharded` the parameters of the ranks of one host are the same memory: what is changed in
    them by hand is to be changed by one rank, or set to the same values by all.
    """

    accumulates = True

    @explains_arguments
    def __init__(
        self,
        comm: Any,
        *,
        rows: Literal["shared", "own"] = "shared",
        on_nan: Literal["stop", "skip"] = "stop",
        batch_norm: Literal["own", "together"] = "own",
        wire: Literal["float16"] | None = None,
        sharded: bool = False,
        overlap: bool | None = None,
    ) -> None:
        super().__init__(comm)
        with self.agreeing():
            for name, value, known in (
                ("rows", rows, ("shared", "own")),
                ("on_nan", on_nan, ("stop", "skip")),
                ("batch_norm", batch_norm, ("own", "together")),
                ("wire", wire, ("float16", None)),
                ("overlap", overlap, (True, False, None)),
            ):
                if value not in known:
                    allowed = " or ".join(repr(each) for each in known)
                    message = f"DataParallel: {name} must be {allowed}, not {value!r}"
                    raise ConfigurationError(message)
            if sharded and wire is not None:
                message = "sharded gradients are sent as they are: no wire"
                raise ConfigurationError(f"DataParallel: {message}")
            self._options = f"{rows=}, {on_nan=}, {batch_norm=}, {wire=}, {overlap=}"
            self._options += f", sharded={bool(sharded)}"
        self.same_rows = rows == "shared"
        # Samples of each rank in the last fit of a network, where each has its own.
        self._counts: WeakKeyDictionary[Network, list[int]] = WeakKeyDictionary()
        self.skips = on_nan == "skip"
        self.joins = batch_norm == "together"
        self.wire = wire
        self.overlap = overlap
        self.sharded = sharded
        self.cuts_state = sharded and self.communicator.size > 1
        self._states: WeakKeyDictionary[Network, ShardedState] = WeakKeyDictionary()
        # By the number of rows on all ranks together, times of a step with so many.
        self._way_times: WeakKeyDictionary[Network, dict[int, StepTimes]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"DataParallel({self._options})"

    def network(self, given: NetworkArguments) -> Network:
        """Build the whole network, with gradients (and parameters) in memory that ranks share.

        Raises
        ------
        ConfigurationError
            If a step of one of K networks alone is to be left out, or gradients that are not of
            float32 are to be sent in fewer bits; with `sharded`, for K networks, on a GPU, or in
            float16.
        """
        with self.preparing():
            self._check(given)
        network = super().network(given)
        share_gradients(self.communicator, network)
        if self.cuts_state:
            share_parameters(self.communicator, network)
        if self.joins:
            for layer in network.layers:
                _join(layer, self.communicator)
        return network

    def _check(self, given: NetworkArguments) -> None:
        """Raise `ConfigurationError` if the options do not go with a network."""
        precision, several = given.precision, isinstance(given.seeds, Sequence)
        if self.wire is not None and precision.dtype != np.float32:
            raise ConfigurationError(f"wire={self.wire!r} is for gradients of float32")
        if self.skips and (several or precision.scales_loss):
            case = "an Ensemble" if several else "float16, which skips itself"
            raise ConfigurationError(f'on_nan="skip" is not for {case}')
        if self.sharded and (several or precision.scales_loss):
            case = "an Ensemble" if several else "float16"
            raise ConfigurationError(f"sharded=True is not for {case}")
        if self.sharded and given.ops.device != "cpu":
            raise ConfigurationError("sharded=True is for networks on the CPU")

    def bind(self, network: Network, optimizer: Optimizer) -> Update | LossScaling:
        """Return the update of all parameters or this rank's slice; errors as in `Scheme.bind`."""
        if not self.cuts_state:
            return super().bind(network, optimizer)
        state = ShardedState(self.communicator, network, optimizer.is_elementwise)
        self._states[network] = state
        return state.bind(network.ops, optimizer)

    def common_arrays(self, network: Network, update: Update | LossScaling) -> list[Array]:
        """Return arrays that all ranks take from rank 0 when a fit begins: no slices of state."""
        every = super().common_arrays(network, update)
        state = self._states.get(network)
        if state is None:
            return every
        cut = {id(x.flat) for name, x in update.state.items() if state.is_cut(name, x)}
        return [array for array in every if id(array) not in cut]

    def gathered(self, network: Network, update: Update | LossScaling) -> dict[str, Array]:
        """Return every array that training changes, by name, whole and copied to the host."""
        own, state = super().gathered(network, update), self._states.get(network)
        if state is None or isinstance(update, LossScaling):
            return own
        return state.gathered(network, update, own)

    def own_part(self, network: Network, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return this rank's part of arrays that `gathered` has returned."""
        state = self._states.get(network)
        return dict(arrays) if state is None else state.own_part(network, arrays)

    def begin(self, fit: Fit) -> None:
        """Check that ranks agree, and take state from rank 0; errors as in `Scheme.begin`."""
        super().begin(fit)
        if self.same_rows:
            return
        fit.networks._last = None  # another rank may have more samples than before, or fewer
        self._counts[fit.networks._network] = self.communicator.gather_values(fit.training.count)
        if fit.class_counts is not None:
            self.communicator.sum(fit.class_counts)

    def counts(self, network: Network, count: int) -> list[int]:
        """Return how many samples each rank has, where this rank has `count`."""
        if self.same_rows:
            return [count] * self.communicator.size
        counts = self._counts[network]
        if count != counts[self.communicator.rank]:
            raise ConfigurationError('DataParallel: rows="own" has no pauses within an epoch')
        return counts

    def trainer(self, network: Network, task: TrainingTask) -> TrainerLike:
        """Return a trainer on this rank's part of each batch."""
        return _PartTrainer(self, network, task)

    def end_epoch(self, network: Network, update: Update | LossScaling) -> None:
        """Average running statistics over all ranks, and gather averages of parameters."""
        self.average_states(network)
        state = self._states.get(network)
        if state is not None and not isinstance(update, LossScaling):
            state.gather_averages(update)

    def validate(
        self, network: Network, samples: Samples, metrics: Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Return metrics of each of K networks; each rank evaluates its part or its own samples.

        Most metrics are no sums over parts: for these each rank evaluates all samples.
        """
        communicator = self.communicator
        if whole := [name for name in metrics if name not in OF_SUMS]:
            if self.same_rows:
                return self.evaluate(network, samples, metrics)
            message = f"{whole[0]} is of all samples, and each rank has its own"
            raise ConfigurationError(f"validation_metrics: {message}: leave it out")
        part = samples
        if self.same_rows:
            at = even_bounds(samples.count, communicator.size)
            part = samples.only(slice(at[communicator.rank], at[communicator.rank + 1]))
        sums = sums_of(network, part)
        communicator.sum(sums)  # float64: counts are exact
        return results_of(network, sums)


def _join(layer: Layer, communicator: Communicator) -> None:
    """Make a batch norm, or those inside a layer, normalise over all ranks."""
    if isinstance(layer, BatchNorm):
        layer.normalise_over(communicator)
    elif isinstance(layer, Nested):
        for each in layer.inside:
            _join(each, communicator)


_AVERAGE = "average"  # whole on every rank, since predictions use it


def share_parameters(communicator: Communicator, network: Network) -> None:
    """Put the parameters of rank 0 into memory that all ranks share, if they are on one host.

    All ranks call it for the same networks in the same order, before an update is bound to them.
    """
    flat = network.parameters.flat
    memory = communicator.common_memory(flat.nbytes)
    if memory is None:
        return
    values = memory.view(flat.dtype)
    if communicator.rank == 0:
        network.parameters.move_to(values)
    communicator.gather_values(None)  # rank 0 has written them
    if communicator.rank != 0:
        network.parameters.move_to(values, keeps=False)


class ShardedState:
    """Slice of a network's parameters that each rank moves, with the optimizer state of it.

    Parameters
    ----------
    communicator : Communicator
    network : Network
        A single network on the host.
    is_elementwise : bool
        Whether slices may begin within a parameter.

    Attributes
    ----------
    parts : list of slice
        Slice of each rank.
    """

    def __init__(self, communicator: Communicator, network: Network, is_elementwise: bool) -> None:
        self._communicator = communicator
        flat = network.parameters.flat
        self.parts = parts_of(flat, communicator.size)
        if not is_elementwise:
            self.parts = _between_segments(network.parameters.segments, self.parts)
        own = self.parts[communicator.rank]
        self._own_parameters = BufferSlice(network.parameters, own.start, own.stop)
        self._own_gradients = BufferSlice(network.gradients, own.start, own.stop)

    def bind(self, ops: Ops, optimizer: Optimizer) -> Update:
        """Return the update of this rank's slice; a norm of gradients is that of all slices."""
        update = optimizer.bind(ops, self._own_parameters, self._own_gradients)
        clip_by_norm_of_all(update, ops, self._communicator, np.dtype(np.float64))
        return update

    def is_cut(self, name: str, buffer: FlatBuffer) -> bool:
        """Whether a buffer of optimizer state holds only this rank's slice."""
        return name != _AVERAGE and buffer.segments == self._own_parameters.segments

    def gather_averages(self, update: Update) -> None:
        """Gather averages of the parameters, so that they are whole on every rank."""
        if _AVERAGE in update.state:
            self._communicator.allgather(update.state[_AVERAGE].flat, self.parts)

    def gathered(
        self, network: Network, update: Update, arrays: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return arrays with optimizer state gathered from all ranks; all of them call it."""
        kinds = [kind for kind, buffer in update.state.items() if self.is_cut(kind, buffer)]
        whole = {
            name: array
            for name, array in arrays.items()
            if not name.startswith(tuple(f"optimizer/{kind}/" for kind in kinds))
        }
        parameters = network.parameters
        for kind in kinds:
            flat = np.zeros(parameters.flat.shape, parameters.flat.dtype)
            mine, first = update.state[kind].flat, self.parts[self._communicator.rank].start
            flat[first : first + mine.size] = mine
            self._communicator.allgather(flat, self.parts)
            for segment in parameters.segments:
                values = flat[segment.start : segment.stop].reshape(segment.shape)
                whole[f"optimizer/{kind}/{segment.name}"] = values
        return whole

    def own_part(self, network: Network, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return this rank's part of arrays that `gathered` has returned."""
        own = self.parts[self._communicator.rank]
        mine = {segment.name: segment for segment in self._own_parameters.segments}
        segments = {segment.name: segment for segment in network.parameters.segments}
        found: dict[str, Array] = {}
        for name, array in arrays.items():
            place, _, rest = name.partition("/")
            kind, _, parameter = rest.partition("/")
            segment = segments.get(parameter)
            if place != "optimizer" or kind == _AVERAGE or segment is None:
                found[name] = array
            elif array.shape != segment.shape:
                found[name] = array  # to be refused for its shape
            elif parameter in mine:
                first = max(own.start - segment.start, 0)
                part = array.reshape(-1)[first : first + mine[parameter].size]
                found[name] = part.reshape(mine[parameter].shape)
        return found


def _between_segments(segments: Sequence[Segment], parts: Sequence[slice]) -> list[slice]:
    """Return parts with their ends moved to the nearest beginnings of segments."""
    end = parts[-1].stop
    starts = [*(segment.start for segment in segments), end]
    inner = [min(starts, key=lambda start: abs(start - part.stop)) for part in parts[:-1]]
    return [slice(*pair) for pair in pairwise([0, *inner, end])]


class _PartTrainer(Trainer):
    """Trainer on one rank's part of each batch, with a sum over ranks before each update."""

    def __init__(self, scheme: DataParallel, network: Network, task: TrainingTask) -> None:
        self._scheme = scheme
        self._communicator = scheme.communicator
        self._given_batch_size = task.batch_size
        state = scheme._states.get(network)
        parts = None if state is None else state.parts
        self._exchange = GradientExchange(self._communicator, network, scheme.wire, parts)
        self._is_early = False  # whether steps being linked begin sums early
        self._counts = scheme.counts(network, task.samples.count)
        super().__init__(network, task)
        self._report: dict[str, Any] = {}

    def _cut(self) -> list[StepRun]:
        communicator = self._communicator
        if self._scheme.same_rows:
            whole, rest = self.batch_size, self.count % self.batch_size
            self._starts: list[int] = []
            runs = []
            for total, repeats in ((whole, self.count // whole), (rest, 1 if rest else 0)):
                at = even_bounds(total, communicator.size)
                first, last = at[communicator.rank], at[communicator.rank + 1]
                self._starts.append(first)
                runs.append(StepRun(last - first, total, repeats))
            rows = [
                np.arange(run.repeats)[:, None] * run.total + start + np.arange(run.rows)
                for run, start in zip(runs, self._starts, strict=True)
            ]
            rows[1] += self.count - rest
            self._own_places: Array | None = np.concatenate([each.reshape(-1) for each in rows])
            self._check_rows(min(run.total for run in runs if run.repeats))
            return runs
        self._own_places = None
        steps = -(-sum(self._counts) // min(self._given_batch_size, sum(self._counts)))
        parts = [divmod(count, steps) for count in self._counts]
        # The first steps of a rank may have one row more than its others.
        ends = sorted({steps, *(more for _, more in parts if more)})
        runs, start = [], 0
        for end in ends:
            rows_of = [least + (start < more) for least, more in parts]
            runs.append(StepRun(rows_of[communicator.rank], sum(rows_of), end - start))
            start = end
        self._check_rows(min(self._counts) // steps * communicator.size)
        return runs

    def _check_rows(self, least: int) -> None:
        """Refuse batches of which a rank has no row, if all ranks have to normalise together."""
        ranks = self._communicator.size
        if self._scheme.joins and least < ranks:
            message = f"{ranks} ranks need a row each in every batch"
            raise ConfigurationError(
                f'batch_norm="together": {message}, and the smallest has fewer: take another '
                "batch_size, or leave samples out"
            )

    def _own_order(self, order: Array) -> Array:
        """Return this rank's part of the order of an epoch: its rows of each batch in sequence."""
        if self._own_places is None:
            return order
        return np.ascontiguousarray(order.reshape(-1, self.count)[:, self._own_places])

    def _updates_at_once(self, run: StepRun) -> bool:
        return self._communicator.size == 1 and super()._updates_at_once(run)

    def _assigns_late(self) -> bool:
        return self._scheme.skips or super()._assigns_late()

    def _linked(self, run: StepRun, stage: Stage | None) -> list[StepPiece]:
        """Return a whole step that sums gradients early or late, or times both ways."""
        late = super()._linked(run, stage)
        if not self._can_overlap(stage):
            return late
        self._is_early = True
        early = super()._linked(run, stage)
        self._is_early = False
        if self._scheme.overlap:
            return early
        ways = {"behind the backward pass": early[0].calls, "after it": late[0].calls}
        # Ranks may make a new trainer at different times. Times are kept with the network, so that
        # all ranks choose at the same step, and once.
        kept = self._scheme._way_times.setdefault(self._network, {})
        way = TimedChoice(self._communicator, ways, kept.setdefault(run.total, StepTimes()))
        return [late[0]._replace(calls=[(way, ())])]

    def _can_overlap(self, stage: Stage | None) -> bool:
        """Whether gradients are final before the end of a step, on all ranks alike."""
        return (
            self._scheme.overlap is not False
            and self._communicator.size > 1
            and len(self._exchange.buckets) > 1
            and self.accumulate == 1
            and not isinstance(self._update, LossScaling)
            and self._inspect is None
            and stage is None
            and self._ops.device == "cpu"
        )

    def _with_sums(self, compute: list[Step]) -> list[Step]:
        return self._exchange.interleaved(compute) if self._is_early else compute

    def _update_steps(self, run: StepRun, late: Sequence[Step], end: Step) -> list[Step]:
        first: list[Step] = [] if run.rows else [(self._clear, ())]
        if not self._scheme.skips:
            move = [*self._update.steps, (self._exchange.share, ())]
            return [*first, (self._exchange.sum, ()), *move, *late, end]
        calls = self._ops.link([*self._update.steps, *late])
        return [*first, (self._exchange.sum_and_step, (calls,)), end]

    def _clear(self) -> None:
        """Set gradients to zero, for a batch of which this rank has no rows."""
        flat = self._network.gradients.flat
        self._ops.load(np.zeros(flat.shape, flat.dtype), flat)

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample of all ranks once; arguments and result as for `Trainer.epoch`."""
        self._exchange.begin()
        with own_noise(self._communicator, self._network, self.steps):
            return super().epoch(order, seeds, number)

    def _means(self, losses: Array) -> list[float]:
        """Return mean losses over all ranks; counts of predictions are summed for `tallies`."""
        exchange, mine = self._exchange, [losses.astype(np.float64)]
        own = super().tallies()
        mine.append(np.array([exchange.found is not None], np.float64))
        if own is not None:
            mine.append(np.array(own, np.float64).reshape(-1))
        sums = np.concatenate(mine)
        self._communicator.sum(sums)
        means: list[float] = sums[: len(losses)].tolist()
        if own is not None:
            counted = sums[len(losses) + 1 :].reshape(len(losses), -1).astype(np.int64)
            self._all_tallies: Array | None = counted
        else:
            self._all_tallies = None
        self._report = {"bytes_sent": self._communicator.size * exchange.bytes_sent}
        if sums[len(losses)]:  # losses are of before each step: they miss the last
            first = self._communicator.gather_values(exchange.found)
            found = [each for each in first if each is not None]
            # A sum is not finite either where a rank's own gradients are not.
            ranks = self._communicator.size
            self._report["nan"] = min(
                found, key=lambda each: (each["step"], each.get("rank", ranks))
            )
        if exchange.skipped:
            self._report["skipped_steps"] = exchange.skipped
        return means

    def tallies(self) -> Array | None:
        """Return counts of predictions in the last epoch, of all ranks together."""
        return self._all_tallies

    def exchange(self) -> dict[str, Any]:
        """Return exchange statistics of the last epoch, with a rank that had NaN, if any."""
        return self._report
