"""Data parallelism: each rank computes a part of every batch, and all make the same step.

::

    rank 0   rows 0 .. 49 of the batch  -> gradients --+
    rank 1   rows 50 .. 99              -> gradients --+-> sum -> the same update on every rank

The mean over the batch is the sum of each rank's mean, weighted by its share of the rows. So the
step is to rounding that of one process on the whole batch, whatever the number of ranks and
however uneven the parts, and the same bits for as many ranks. Gradients are summed where they lie,
in one flat buffer, which ranks of one host share where they can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from dnn.backend import Array, Ops
from dnn.distributed.communicator import Communicator
from dnn.distributed.gradient_exchange import FasterWay, GradientExchange, WayTimes
from dnn.distributed.scheme import RanksScheme, own_noise, share_gradients
from dnn.distributed.sharded_state import ShardedState, share_parameters
from dnn.errors import ConfigurationError
from dnn.graph.operation import Step
from dnn.layers import BatchNorm, Layer
from dnn.layers.basic import Nested
from dnn.losses import Loss
from dnn.metrics import of_sums
from dnn.optimizers import Optimizer, Update
from dnn.precision import Precision
from dnn.training.data import Samples
from dnn.training.epoch import Piece, Run, Stage, Trainer, TrainingTask
from dnn.training.evaluation import sums_of
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network
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
        All ranks give `fit` the same samples, and each takes its part of every batch; or each
        gives samples of its own, as many as it has, and all of them are trained on.
    on_nan : "stop" or "skip"
        What happens if the gradients of a rank contain NaN or infinity: training ends after the
        epoch, as with any network that diverges; or the step is left out on all ranks. Either way
        the history names rank, layer and step.
    batch_norm : "own" or "together"
        Whether `BatchNorm` takes mean and variance of each rank's part, or of the whole batch, as
        one process does; that exchanges them in every step, forward and backward.
    wire : "float16", optional
        Gradients are sent in that type, and added up in their own.
    sharded : bool
        Each rank moves a slice of the parameters, and keeps the optimizer's state of that slice
        alone: one of N ranks an N-th. Averages of parameters are whole. For one network on the
        host, in float32 or float64. See also Notes.
    overlap : bool, optional
        Whether sums of gradients begin while those of earlier layers are computed, or all after
        that; the results are the same. If left out, both are tried, and the faster one is taken.
        Gradients of less than 1 MiB, of GPUs, in float16 or of `accumulate` are summed after it.

    Raises
    ------
    ConfigurationError
        If an option is unknown, or does not go with another one.
    DisagreementError
        On every rank, if they give other options.

    Notes
    -----
    `batch_size` is that of all ranks together. What looks at a batch as a whole differs from one
    process: batch norm normalises each rank's part by itself, unless told otherwise, and running
    statistics become the mean of the ranks' after each epoch; dropout draws other numbers on each
    rank.

    With `sharded` the parameters of the ranks of one host are the same memory: what is changed in
    them by hand is to be changed by one rank, or set to the same values by all.
    """

    accumulates = True

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
        # Of steps with so many rows on all ranks together.
        self._way_times: WeakKeyDictionary[Network, dict[int, WayTimes]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"DataParallel({self._options})"

    def network(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        seeds: int | Sequence[int],
        precision: Precision,
        ops: Ops,
        passes: Sequence[str] | None,
    ) -> Network:
        """Build the whole network.

        Raises
        ------
        ConfigurationError
            If a step of one of K networks alone is to be left out, or gradients that are not of
            float32 are to be sent in fewer bits; if what is to be sharded are K networks, lie on a
            GPU, or are trained in float16.
        """
        with self.preparing():
            self._check(seeds, precision, ops)
        network = super().network(layers, loss, seeds, precision, ops, passes)
        share_gradients(self.communicator, network)
        if self.cuts_state:
            share_parameters(self.communicator, network)
        if self.joins:
            for layer in network.layers:
                _join(layer, self.communicator)
        return network

    def _check(self, seeds: int | Sequence[int], precision: Precision, ops: Ops) -> None:
        """Refuse what the options do not go with."""
        if self.wire is not None and precision.dtype != np.float32:
            raise ConfigurationError(f"wire={self.wire!r} is for gradients of float32")
        if self.skips and (isinstance(seeds, Sequence) or precision.scales_loss):
            what = "an Ensemble" if isinstance(seeds, Sequence) else "float16, which skips itself"
            raise ConfigurationError(f'on_nan="skip" is not for {what}')
        if self.sharded and (isinstance(seeds, Sequence) or precision.scales_loss):
            what = "an Ensemble" if isinstance(seeds, Sequence) else "float16"
            raise ConfigurationError(f"sharded=True is not for {what}")
        if self.sharded and ops.device != "cpu":
            raise ConfigurationError("sharded=True is for networks on the CPU")

    def bind(self, network: Network, optimizer: Optimizer) -> Update | LossScaling:
        """Return what moves the parameters, or this rank's slice of them; errors likewise."""
        if not self.cuts_state:
            return super().bind(network, optimizer)
        state = ShardedState(self.communicator, network, optimizer.is_elementwise)
        self._states[network] = state
        return state.bind(network.ops, optimizer)

    def common_arrays(self, network: Network, update: Update | LossScaling) -> list[Array]:
        """Return what is the same on all ranks when a fit begins: that of rank 0."""
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
        """Return what of `gathered` arrays belongs to this rank."""
        state = self._states.get(network)
        return dict(arrays) if state is None else state.own_part(network, arrays)

    def begin(self, fit: Fit) -> None:
        """Check that ranks agree, and take what training changes from rank 0; errors likewise."""
        super().begin(fit)
        if self.same_rows:
            return
        fit.networks._last = None  # another rank may have more samples than before, or fewer
        self._counts[fit.networks._network] = self.communicator.gather_values(fit.training.count)
        if fit.class_counts:
            counts = np.array(fit.class_counts)
            self.communicator.sum(counts)
            fit.class_counts = counts.tolist()

    def counts(self, network: Network, count: int) -> list[int]:
        """Return how many samples each rank has, this one having `count`."""
        if self.same_rows:
            return [count] * self.communicator.size
        counts = self._counts[network]
        if count != counts[self.communicator.rank]:
            raise ConfigurationError('DataParallel: rows="own" has no pauses within an epoch')
        return counts

    def trainer(self, network: Network, task: TrainingTask) -> TrainerLike:
        """Return what trains on this rank's part of each batch."""
        return _PartTrainer(self, network, task)

    def end_epoch(self, network: Network, update: Update | LossScaling) -> None:
        """Let running statistics be the mean of all ranks', and averages whole."""
        self.average_states(network)
        state = self._states.get(network)
        if state is not None and not isinstance(update, LossScaling):
            state.gather_averages(update)

    def validate(self, network: Network, samples: Samples) -> list[dict[str, float]]:
        """Measure each of K networks: each rank its part of the samples, or its own."""
        communicator = self.communicator
        part = samples
        if self.same_rows:
            at = _bounds(samples.count, communicator)
            part = samples.only(slice(at[communicator.rank], at[communicator.rank + 1]))
        sums = sums_of(network, part)
        communicator.sum(sums)  # float64: counts are exact
        return _results(sums, network.loss.classifies)


def _join(layer: Layer, communicator: Communicator) -> None:
    """Let a layer, or those inside it, normalise over all ranks."""
    if isinstance(layer, BatchNorm):
        layer.normalise_over(communicator)
    elif isinstance(layer, Nested):
        for each in layer.inside:
            _join(each, communicator)


def _results(sums: Array, classifies: bool) -> list[dict[str, float]]:
    losses = (sums[:, 0] / sums[:, 1]).tolist()
    results = [{"loss": loss} for loss in losses]
    if classifies:
        counts = sums[:, 2:].astype(np.int64)
        of_class, of_guess = np.split(counts[:, 1:], 2, axis=1)
        for result, score in zip(results, of_sums(counts[:, 0], of_class, of_guess), strict=True):
            result |= score
    return results


def _bounds(rows: int, communicator: Communicator) -> list[int]:
    """Return where the part of each rank begins, and the last one ends; first parts are larger."""
    least, more = divmod(rows, communicator.size)
    return [rank * least + min(rank, more) for rank in range(communicator.size + 1)]


class _PartTrainer(Trainer):
    """A `Trainer` on one rank's part of each batch, with a sum over ranks before each update."""

    def __init__(
        self,
        scheme: DataParallel,
        network: Network,
        task: TrainingTask,
    ) -> None:
        self._scheme = scheme
        self._communicator = scheme.communicator
        self._given = task.batch_size
        state = scheme._states.get(network)
        parts = None if state is None else state.parts
        self._exchange = GradientExchange(self._communicator, network, scheme.wire, parts)
        self._is_early = False  # whether sums are begun in the steps that are linked now
        self._counts = scheme.counts(network, task.samples.count)
        super().__init__(network, task)
        self._report: dict[str, Any] = {}

    def _cut(self) -> list[Run]:
        communicator = self._communicator
        if self._scheme.same_rows:
            whole, rest = self.batch_size, self.count % self.batch_size
            self._starts: list[int] = []
            runs = []
            for total, repeats in ((whole, self.count // whole), (rest, 1 if rest else 0)):
                at = _bounds(total, communicator)
                first, last = at[communicator.rank], at[communicator.rank + 1]
                self._starts.append(first)
                runs.append(Run(last - first, total, repeats))
            rows = [
                np.arange(run.repeats)[:, None] * run.total + start + np.arange(run.rows)
                for run, start in zip(runs, self._starts, strict=True)
            ]
            rows[1] += self.count - rest
            self._mine: Array | None = np.concatenate([each.reshape(-1) for each in rows])
            self._check_rows(min(run.total for run in runs if run.repeats))
            return runs
        self._mine = None
        steps = -(-sum(self._counts) // min(self._given, sum(self._counts)))
        parts = [divmod(count, steps) for count in self._counts]
        # A rank's first steps may have a row more.
        ends = sorted({steps, *(more for _, more in parts if more)})
        runs, start = [], 0
        for end in ends:
            rows_of = [least + (start < more) for least, more in parts]
            runs.append(Run(rows_of[communicator.rank], sum(rows_of), end - start))
            start = end
        self._check_rows(min(self._counts) // steps * communicator.size)
        return runs

    def _check_rows(self, least: int) -> None:
        """Refuse batches of which a rank has no row, where all have to normalise together."""
        ranks = self._communicator.size
        if self._scheme.joins and least < ranks:
            message = f"{ranks} ranks need a row each in every batch"
            raise ConfigurationError(
                f'batch_norm="together": {message}, and the smallest has fewer: take another '
                "batch_size, or leave samples out"
            )

    def _own(self, order: Array) -> Array:
        """Return this rank's part of each batch, one behind the other."""
        if self._mine is None:
            return order
        return np.ascontiguousarray(order.reshape(-1, self.count)[:, self._mine])

    def _updates_at_once(self, run: Run) -> bool:
        return self._communicator.size == 1 and super()._updates_at_once(run)

    def _assigns_late(self) -> bool:
        return self._scheme.skips or super()._assigns_late()

    def _linked(self, run: Run, stage: Stage | None) -> list[Piece]:
        """Return a whole step that sums gradients early or late, or tries which is faster."""
        late = super()._linked(run, stage)
        if not self._can_overlap(stage):
            return late
        self._is_early = True
        early = super()._linked(run, stage)
        self._is_early = False
        if self._scheme.overlap:
            return early
        ways = {"behind the backward pass": early[0].calls, "after it": late[0].calls}
        # Ranks need not agree on when a trainer is made anew: of a network that trains on, times
        # are kept, so that all of them choose at the same step, and once.
        kept = self._scheme._way_times.setdefault(self._network, {})
        way = FasterWay(self._communicator, ways, kept.setdefault(run.total, WayTimes()))
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

    def _summed(self, compute: list[Step]) -> list[Step]:
        return self._exchange.interleaved(compute) if self._is_early else compute

    def _moved(self, run: Run, late: Sequence[Step], end: Step) -> list[Step]:
        first: list[Step] = [] if run.rows else [(self._clear, ())]
        if not self._scheme.skips:
            move = [*self._update.steps, (self._exchange.share, ())]
            return [*first, (self._exchange.sum, ()), *move, *late, end]
        calls = self._ops.link([*self._update.steps, *late])
        return [*first, (self._exchange.sum_and_step, (calls,)), end]

    def _clear(self) -> None:
        """Let gradients be those of no rows."""
        flat = self._network.gradients.flat
        self._ops.load(np.zeros(flat.shape, flat.dtype), flat)

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample of all ranks once; arguments and result as for `Trainer.epoch`."""
        self._exchange.begin()
        with own_noise(self._communicator, self._network, self.steps):
            return super().epoch(order, seeds, number)

    def _means(self, losses: Array) -> list[float]:
        """Add up, over ranks, the shares in the loss and the counts of predictions."""
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
            self._all_tallies: list[list[int]] | None = counted.tolist()
        else:
            self._all_tallies = None
        self._report = {"bytes_sent": self._communicator.size * exchange.bytes_sent}
        if sums[len(losses)]:  # the losses of the last step are of before it
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

    def tallies(self) -> list[list[int]] | None:
        """Return what each network predicted in the last epoch, on all ranks together."""
        return self._all_tallies

    def exchange(self) -> dict[str, Any]:
        """Return what the last epoch cost, and which rank had NaN, as `History.exchange` has it."""
        return self._report
