"""Asynchronous workers simulated on one rank: for a seed the same losses every time.

The server and the gradients are real, and only time is simulated. Each worker computes a batch from
the parameters that it was sent; when that is done, by a clock that the seed determines, the server
receives its gradients. So staleness, slow workers and their effect on a training can be studied and
tested with any number of workers, and no time is spent waiting.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dnn.backend import Array
from dnn.distributed.scheme import leaving_frozen
from dnn.distributed.server import ServedTrainer, ServerOptions
from dnn.errors import ConfigurationError, check_count, explains_arguments
from dnn.optimizers import Optimizer, Update
from dnn.seeds import stream
from dnn.training.epoch import TrainingTask
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network
from dnn.training.parallel import Scheme, TrainerLike

__all__ = ["SimulatedWorkers"]


class SimulatedWorkers(Scheme):
    """Workers of a parameter server, simulated one after the other in this process.

    Parameters
    ----------
    workers : int, at least 1
        Number of workers. They share each batch: `batch_size` is that of all together.
    staleness : int, optional
        As for `ParameterServer`; without a bound if left out.
    divide_by_staleness : bool
        As for `ParameterServer`.
    batch_s : float, seconds, positive
        Mean time that a worker takes for a batch.
    spread : float, not negative
        Standard deviation of the logarithm of these times, which are log-normal.
    slow : mapping of int to float
        For slow workers, counted from 0, the factor by which their batches take longer.
    exchange_s : float, seconds, not negative
        From the end of a batch until the server has its gradients, and again until the worker has
        the parameters.
    seed : int
        Seed of the random times.

    Raises
    ------
    ConfigurationError
        If a number is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from dnn import SGD, NeuralNetwork, mlp
    >>> from dnn.distributed import SimulatedWorkers
    >>> scheme = SimulatedWorkers(3, slow={2: 2.0})
    >>> model = NeuralNetwork(mlp(2, [4], 2), optimizer=SGD(0.1), parallel=scheme)
    >>> x = np.arange(36).reshape(18, 2) / 36
    >>> history = model.fit(x, [0, 1] * 9, batch_size=6, progress=False)
    >>> history.staleness, history.exchange[0]["simulated_s"]
    ([1, 4, 2, 1, 1], 4.0)
    """

    accumulates = False

    @explains_arguments
    def __init__(
        self,
        workers: int,
        staleness: int | None = None,
        *,
        divide_by_staleness: bool = False,
        batch_s: float = 1.0,
        spread: float = 0.0,
        slow: Mapping[int, float] | None = None,
        exchange_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.workers = check_count("workers", workers)
        self.options = ServerOptions(staleness, divide_by_staleness)
        self.batch_s = batch_s
        self.spread = spread
        self.slow = dict(slow or {})
        self.exchange_s = exchange_s
        self.seed = seed
        stream(seed)  # which checks it
        for name, number in (("spread", spread), ("exchange_s", exchange_s)):
            if not 0 <= number < math.inf:
                raise ConfigurationError(f"{name} must be a number of at least 0, not {number!r}")
        for name, number in (("batch_s", batch_s), *(("slow", x) for x in self.slow.values())):
            if not 0 < number < math.inf:
                raise ConfigurationError(f"{name} must be above 0, not {number!r}")
        unknown = [worker for worker in self.slow if worker not in range(workers)]
        if unknown:
            message = f"slow: there is no worker {unknown[0]!r}, they are 0 to {workers - 1}"
            raise ConfigurationError(message)

    def batch_times_s(self, worker: int, epoch: int) -> Iterator[float]:
        """Yield the seconds of each batch of a worker in an epoch, the same in every simulation."""
        generator = stream(self.seed, "time of batches", worker, epoch)
        mean_s = self.batch_s * self.slow.get(worker, 1.0)
        while True:
            # The mean of exp(spread * normal) is exp(spread^2 / 2).
            yield mean_s * math.exp(self.spread * (generator.normal() - self.spread / 2))

    def bind(self, network: Network, optimizer: Optimizer) -> Update | LossScaling:
        """Return the update of the parameters, if the optimizer goes with a server."""
        self.options.check(network, optimizer)
        return super().bind(network, optimizer)

    def trainer(self, network: Network, task: TrainingTask) -> TrainerLike:
        """Return a trainer of a network; the batch size is that of all workers together."""
        return _SimulatedTrainer(self, network, task)


class _SimulatedTrainer(ServedTrainer):
    """Trainer of server and workers: gradients arrive in the order of their simulated times."""

    def __init__(self, scheme: SimulatedWorkers, network: Network, task: TrainingTask) -> None:
        workers = scheme.workers
        super().__init__(scheme.options, workers, network, task)
        self._scheme = scheme
        self._messages = [self._new_message() for _ in range(workers)]
        self._simulated_s = 0.0

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample once; arguments and result as for `Trainer.epoch`."""
        self._begin()
        epoch = order.reshape(-1, self.count), seeds, number
        scheme, core, messages = self._scheme, self._core, self._messages
        workers = range(len(messages))
        clocks = [scheme.batch_times_s(worker, number) for worker in workers]
        ops, states = self._network.ops, self._network.state_buffer.flat
        states_of = [ops.to_host(states).copy() for _ in workers]
        rows_of = [0] * len(messages)
        arrivals: list[tuple[float, int]] = []  # of gradients: time and worker

        def start(worker: int, now_s: float) -> None:
            """Let a worker that was just sent the parameters compute its next batch."""
            piece = core.pieces[worker]
            if piece is None:
                return
            messages[worker].label(core.version, piece)
            # Computed now, as long as the network has these parameters.
            ops.load(states_of[worker], states)
            rows = self._runner.rows
            self._compute(piece, epoch, messages[worker])
            rows_of[worker] += self._runner.rows - rows
            states_of[worker][...] = ops.to_host(states)
            heapq.heappush(arrivals, (now_s + next(clocks[worker]) + scheme.exchange_s, worker))

        for worker in workers:
            start(worker, 0.0)
        now_s = 0.0
        while arrivals:
            now_s, worker = heapq.heappop(arrivals)
            for each in self._server.receive(worker, messages[worker]):
                start(each, now_s + scheme.exchange_s)
        self._simulated_s = now_s + scheme.exchange_s
        shares = np.array(rows_of) / self.count
        with leaving_frozen(self._network, self._update):
            ops.load(np.tensordot(shares.astype(states.dtype), np.array(states_of), 1), states)
        means: list[float] = (self._runner.losses / self.count).tolist()
        return means

    def tallies(self) -> Array | None:
        """Return counts of predictions of each network, as `Trainer.tallies` does."""
        return self._runner.tallies

    def exchange(self) -> dict[str, Any]:
        """Return simulated exchange statistics of the last epoch, as in `History.exchange`."""
        # An exchange is gradients to the server, and parameters back.
        sent = 2 * sum(self._parts) * self._messages[0].memory.nbytes
        staleness = list(self._core.histogram)
        return {"bytes_sent": sent, "staleness": staleness, "simulated_s": self._simulated_s}
