"""Training with a parameter server: synchronous, with bounded staleness, or asynchronous.

::

    rank 0     the server, and a worker as well unless it is dedicated
    rank r     a worker: computes gradients of its rows, sends them, receives new parameters

Rank 0 looks for gradients of other ranks between its own batches. An epoch ends when all its
batches are applied; all ranks then have the same parameters, state of the optimizer and history.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from dnn.backend import Array
from dnn.distributed.communicator import Request, Transfer
from dnn.distributed.messages import MessageCommunicator
from dnn.distributed.scheme import (
    EpochTotals,
    RanksScheme,
    average,
    leaving_frozen,
    on_host,
    own_noise,
)
from dnn.distributed.server import EpochArguments, ServedTrainer, ServerOptions
from dnn.errors import ConfigurationError, explains_arguments
from dnn.optimizers import Optimizer, Update
from dnn.training.epoch import TrainingTask
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network
from dnn.training.parallel import TrainerLike

__all__ = ["AsynchronousSGD", "ParameterServer"]

# Tags of messages to and from the server.
_GRADIENTS = 1
_PARAMETERS = 2

_LOOK_FOR_FAILURES_EVERY_S = 0.2


class ParameterServer(RanksScheme):
    """A server on rank 0 to which the ranks that train send gradients, with bounded staleness.

    Parameters
    ----------
    communicator : Communicator or mpi4py.MPI.Intracomm
    staleness : int, optional
        How many batches a rank may be ahead of the slowest one. With 0 the parameters move by the
        mean gradients of all ranks when all have arrived: they are added in the order of ranks, so
        that results have the same bits for the same ranks, and equal those of one process to
        rounding. With more they move by the gradients of each rank as they arrive: a batch moves
        them as often as it has ranks, each time by gradients of its part. Without a bound, if None,
        a rank that is ready computes the next part of all, so that a slow rank computes fewer.
    dedicated : bool
        Rank 0 is only the server, and the other ranks train. If not, it trains too, and looks for
        gradients of other ranks between its own batches: all ranks compute, and some wait a little.
    divide_by_staleness : bool
        Divide the learning rate of gradients that are k > 1 versions old by k.

    Raises
    ------
    ConfigurationError
        If `staleness` is no such number, or no rank would train.
    DisagreementError
        On every rank, if they give other options.

    Notes
    -----
    The server has the optimizer. Running statistics are of each rank's own rows, and averaged after
    each epoch; from then on parameters, averages and the state of the optimizer are the same on all
    ranks. With a staleness other than 0 the results depend on which rank was faster;
    `SimulatedWorkers` repeats them.
    """

    @explains_arguments
    def __init__(
        self,
        communicator: Any,
        staleness: int | None = 0,
        *,
        dedicated: bool = False,
        divide_by_staleness: bool = False,
    ) -> None:
        super().__init__(communicator)
        with self.agreeing():
            self.options = ServerOptions(staleness, bool(divide_by_staleness))
            self.dedicated = bool(dedicated)
            if dedicated and self.communicator.size < 2:
                message = "dedicated: there is one rank, and nobody to train beside it"
                raise ConfigurationError(message)

    def __repr__(self) -> str:
        options = f"staleness={self.options.staleness}, dedicated={self.dedicated}"
        divides = self.options.divide_by_staleness
        return f"{type(self).__name__}({options}, divide_by_staleness={divides})"

    @property
    def trainers(self) -> int:
        """Number of ranks that train."""
        return int(self.communicator.size) - self.dedicated

    def bind(self, network: Network, optimizer: Optimizer) -> Update | LossScaling:
        """Return the update of the parameters, which runs on rank 0 only."""
        self.options.check(network, optimizer)
        return super().bind(network, optimizer)

    def trainer(self, network: Network, task: TrainingTask) -> TrainerLike:
        """Return a trainer of a network; the batch size is that of all ranks together."""
        return _RankTrainer(self, network, task)

    def end_epoch(self, network: Network, update: Update | LossScaling) -> None:
        """Send the optimizer state, which only the server has updated, to all ranks."""
        for buffer in update.state.values():
            with on_host(network.ops, buffer.flat) as host:
                self.communicator.broadcast(host)


class AsynchronousSGD(ParameterServer):
    """Asynchronous SGD: gradients of each rank move the parameters as they arrive, at any age.

    A `ParameterServer` without a bound on staleness: a rank that is ready computes the next part of
    a batch, and a slow rank computes fewer. `History.staleness` says how old the gradients were.

    Parameters
    ----------
    communicator : Communicator or mpi4py.MPI.Intracomm
    dedicated, divide_by_staleness : bool
        As for `ParameterServer`.

    References
    ----------
    .. [1] Dean et al., Large scale distributed deep networks, 2012, section 4.1.
    """

    @explains_arguments
    def __init__(
        self, communicator: Any, *, dedicated: bool = False, divide_by_staleness: bool = False
    ) -> None:
        super().__init__(
            communicator, None, dedicated=dedicated, divide_by_staleness=divide_by_staleness
        )


class _RankTrainer(ServedTrainer):
    """Trainer of one rank, which is a worker, the server, or both."""

    def __init__(self, scheme: ParameterServer, network: Network, task: TrainingTask) -> None:
        # Its waits are used, which the protocol of communicators does not have.
        self._communicator = communicator = cast(MessageCommunicator, scheme.communicator)
        self._first = int(scheme.dedicated)  # the rank of worker 0
        workers = scheme.trainers
        super().__init__(scheme.options, workers, network, task)
        # Messages of each worker that is another rank.
        remote = [w for w in range(workers) if communicator.rank == 0 and w + self._first]
        self._inbox = {worker: self._new_message() for worker in remote}
        self._outbox = {worker: self._new_message() for worker in remote}
        self._own_message, self._answer = self._new_message(), self._new_message()

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample once; arguments and result as for `Trainer.epoch`."""
        self._begin()
        epoch = order.reshape(-1, self.count), seeds, number
        with own_noise(self._communicator, self._network, self._shards.batches):
            sent = self._serve(epoch) if self._communicator.rank == 0 else self._work(epoch)
        if self._communicator.rank:
            self._update.steps_done += self.steps
        states = self._network.state_buffer.flat
        if states.size:
            share = self._runner.rows / self.count
            leaving = leaving_frozen(self._network, self._update)
            with leaving, on_host(self._network.ops, states) as host:
                sent_together = average(self._communicator, host, share)
            sent += sent_together if self._communicator.rank == 0 else 0
        fact = [sent, self._core.histogram]
        self._totals = EpochTotals.of(self._communicator, self._runner, self.count, fact)
        return self._totals.losses

    def exchange(self) -> dict[str, Any] | None:
        """Return exchange statistics of the last epoch, as in `History.exchange`."""
        if self._totals is None:
            return None
        sent, histograms = zip(*self._totals.facts, strict=True)
        return {"bytes_sent": sum(sent), "staleness": histograms[0]}

    def _work(self, epoch: EpochArguments) -> int:
        """Compute and send gradients until no piece is left for this rank; return bytes sent."""
        worker = self._communicator.rank - self._first
        mine, sent = self._own_message, 0
        piece, version = self._core.pieces[worker], 0
        while piece is not None:
            mine.label(version, piece)
            self._compute(piece, epoch, mine)
            sending = self._communicator.send(mine.memory, 0, _GRADIENTS)
            self._take_answer()
            sending.wait()
            sent += mine.memory.nbytes
            piece, version = self._answer.piece, self._answer.version
        if not sent:
            self._take_answer()
        return sent

    def _take_answer(self) -> None:
        self._communicator.receive(self._answer.memory, 0, _PARAMETERS).wait()
        self._network.ops.load(self._answer.values, self._network.parameters.flat)

    def _serve(self, epoch: EpochArguments) -> int:
        """Apply gradients until those of the whole epoch are applied; return the bytes sent."""
        communicator, core, server = self._communicator, self._core, self._server
        first = self._first
        coming: dict[int, Request] = {}
        going: dict[int, Request] = {}
        sent = 0

        def expect(worker: int) -> None:
            if core.pieces[worker] is not None:
                memory = self._inbox[worker].memory
                coming[worker] = communicator.receive(memory, worker + first, _GRADIENTS)

        def answer(workers: Sequence[int]) -> None:
            nonlocal sent
            for worker in workers:
                if worker not in self._outbox:  # a worker on this rank
                    continue
                if worker in going:
                    going.pop(worker).wait()
                message = self._outbox[worker]
                server.write_parameters(worker, message)
                going[worker] = communicator.send(message.memory, worker + first, _PARAMETERS)
                sent += message.memory.nbytes
                expect(worker)

        for worker in self._inbox:
            expect(worker)
        next_look_s = time.perf_counter()
        while not core.is_finished:
            if time.perf_counter() >= next_look_s:  # this rank may never wait
                communicator.raise_failure()
                next_look_s = time.perf_counter() + _LOOK_FOR_FAILURES_EVERY_S
            arrived = [worker for worker, request in coming.items() if request.test()]
            for worker in arrived:
                del coming[worker]
                answer(server.receive(worker, self._inbox[worker]))
            own = None if first else core.pieces[0]
            if own is not None:
                self._own_message.label(core.take_present(0), own)
                self._compute(own, epoch, self._own_message)
                answer(server.receive(0, self._own_message))
            elif not arrived:
                self._wait_for_any(coming)
        for request in going.values():
            request.wait()
        return sent

    def _wait_for_any(self, coming: dict[int, Request]) -> None:
        ranks = ", ".join(str(worker + self._first) for worker in coming)
        text = f"gradients of ranks {ranks}"
        requests = coming.values()
        Transfer(lambda: any(x.test() for x in requests), text, self._communicator).wait()
