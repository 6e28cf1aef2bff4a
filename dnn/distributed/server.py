"""A parameter server, without MPI: which gradients it applies when, and what its workers compute.

A worker computes the gradients of one batch after the other, and sends each to the server, which
moves the parameters by it and answers with the present ones::

    worker   gradients of step 0, from version 0 ->      -> gradients of step 1, from version 3
    server                        version 2 -> 3 -> parameters

`ServerCore` decides, `Server` applies decisions to a network, and `ServedTrainer` computes what a
worker sends. None of them sends anything: other modules carry the messages, over MPI, through a
tuple space or from simulated workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dnn.backend import Array
from dnn.distributed.scheme import ShardedTrainer
from dnn.errors import CommunicationError, ConfigurationError
from dnn.optimizers import Optimizer, Update
from dnn.training.epoch import TrainingTask
from dnn.training.network import Network

__all__ = [
    "Answer",
    "Apply",
    "EpochArguments",
    "Message",
    "Piece",
    "ServedTrainer",
    "Server",
    "ServerCore",
    "ServerOptions",
]


@dataclass(frozen=True)
class Piece:
    """Rows of a batch that a worker computes at once.

    Attributes
    ----------
    batch : int
        Number of the batch in the epoch.
    part : int
        Number of the part of that batch.
    """

    batch: int
    part: int


@dataclass(frozen=True)
class Apply:
    """Instruction to move the parameters by the mean gradients of some workers.

    Attributes
    ----------
    gradients : tuple of (int, Piece)
        Worker and piece of each gradient; they are added up in this order.
    staleness : int
        How often the parameters were moved since they were sent to these workers.
    """

    gradients: tuple[tuple[int, Piece], ...]
    staleness: int


@dataclass(frozen=True)
class Answer:
    """Instruction to send a worker the present parameters; its next piece is in `pieces`."""

    worker: int


class ServerCore:
    """Decides when gradients are applied in one epoch, without arrays, messages or a clock.

    Parameters
    ----------
    parts : sequence of int
        How many parts each batch has, at most one for each worker.
    workers : int
    staleness : int, optional
        How many batches a worker may be ahead of the slowest one that still works [1]_; worker w
        computes part w of each batch. With 0 the gradients of a batch are averaged when the last of
        them has arrived, with the same result in any order. With more they are applied as they
        arrive. Without a bound, if left out, any ready worker computes the next part of all.

    Attributes
    ----------
    pieces : list of Piece or None
        Piece that each worker computes at present; None while it waits, or if none is left for it.
    version : int
        Number of times that the parameters were moved.
    histogram : list of int
        At place k, the number of applied gradients that were k versions old.

    References
    ----------
    .. [1] Ho et al., More effective distributed ML via a stale synchronous parallel parameter
           server, 2013.
    """

    def __init__(self, parts: Sequence[int], workers: int, staleness: int | None = None) -> None:
        self.staleness = staleness
        self.version = 0
        self.histogram: list[int] = []
        every = [Piece(batch, part) for batch, count in enumerate(parts) for part in range(count)]
        self._left = len(every)
        if staleness is None:
            self._queues = [deque(every)] * workers  # one queue for all workers
        else:
            self._queues = [deque(x for x in every if x.part == w) for w in range(workers)]
        self.pieces = [self._next_piece(worker) for worker in range(workers)]
        self._parts = tuple(parts)
        self._sent_version = [0] * workers
        self._waiting: dict[int, Piece] = {}  # by worker, the piece of its gradients

    def _next_piece(self, worker: int) -> Piece | None:
        queue = self._queues[worker]
        return queue.popleft() if queue else None

    @property
    def is_finished(self) -> bool:
        """Whether all gradients of the epoch were received."""
        return not self._left

    def take_present(self, worker: int) -> int:
        """Note that a worker on the server's rank uses the present version, and return that."""
        self._sent_version[worker] = self.version
        return self.version

    def receive(self, worker: int, batch: int, version: int) -> list[Apply | Answer]:
        """Return the instructions, in order, that follow from the gradients of a worker.

        `version` is that of the parameters from which they were computed. The last answer of an
        epoch is sent when all are done: every worker then has the same parameters.
        `CommunicationError` if the worker was to send other gradients, or none.
        """
        piece = self.pieces[worker]
        expected = piece and piece.batch, self._sent_version[worker]
        if piece is None or (batch, version) != expected:
            raise CommunicationError(
                f"worker {worker} sent gradients of batch {batch}, computed from version {version} "
                f"of the parameters, where batch {expected[0]}, from version {expected[1]}, was to "
                "come: it may run another release of dnn"
            )
        self.pieces[worker] = None
        self._waiting[worker] = piece
        self._left -= 1
        instructions = self._applied(worker, piece)
        answered = [each for each in range(len(self.pieces)) if self._may_go_on(each)]
        for each in answered:
            self._waiting.pop(each, None)
            self.pieces[each] = self._next_piece(each)
            self._sent_version[each] = self.version
        return [*instructions, *map(Answer, answered)]

    def _applied(self, worker: int, piece: Piece) -> list[Apply | Answer]:
        gradients = [(worker, piece)]
        if self.staleness == 0:
            of_batch = [x for x in self._waiting.items() if x[1].batch == piece.batch]
            if len(of_batch) < self._parts[piece.batch]:
                return []
            gradients = sorted(of_batch, key=lambda x: x[0])
        age = self.version - self._sent_version[worker]
        self.histogram += [0] * (age + 1 - len(self.histogram))
        self.histogram[age] += len(gradients)
        self.version += 1
        return [Apply(tuple(gradients), age)]

    def _may_go_on(self, worker: int) -> bool:
        if self.is_finished:  # also workers that have had nothing to compute
            return True
        if worker not in self._waiting or not self._queues[worker]:
            return False
        if self.staleness is None:
            return True
        # The batches that workers are at, or will be.
        next_batches = [
            piece.batch if piece is not None else queue[0].batch
            for piece, queue in zip(self.pieces, self._queues, strict=True)
            if piece is not None or queue
        ]
        return self._queues[worker][0].batch - min(next_batches) <= self.staleness


class Message:
    """Parameters or gradients of a network with a header, in one block of memory to be sent.

    Parameters
    ----------
    like : array
        Array of the same shape and type of elements.

    Attributes
    ----------
    memory : array of uint8
        Whole block: a header of 64 bytes, and the values.
    values : array
        View of the values in `memory`, on the host.
    """

    def __init__(self, like: Array) -> None:
        self.memory = np.zeros(64 + like.nbytes, np.uint8)
        self._header = self.memory[:24].view(np.int64)
        self.values: Array = self.memory[64:].view(like.dtype).reshape(like.shape)

    @property
    def version(self) -> int:
        """Version of the parameters, or of those from which the gradients were computed."""
        return int(self._header[0])

    @property
    def piece(self) -> Piece | None:
        """Piece that gradients are of, or that is to be computed next; None if none is left."""
        batch, part = (int(number) for number in self._header[1:])
        return None if batch < 0 else Piece(batch, part)

    def label(self, version: int, piece: Piece | None) -> None:
        """Write the header: version of the parameters and piece."""
        self._header[:] = version, *((-1, -1) if piece is None else (piece.batch, piece.part))


class Server:
    """Moves the parameters of a network by gradients of workers.

    Parameters
    ----------
    network : Network
        Its parameters are moved.
    update : Update
        Update of the network's optimizer.
    core : ServerCore
    share : callable
        Returns, for a piece, its share of the rows of its batch.
    divides_by_staleness : bool
        Divide the learning rate of gradients that are k > 1 versions old by k [1]_.

    References
    ----------
    .. [1] Zhang et al., Staleness-aware async-SGD for distributed deep learning, 2016, section 3.
    """

    def __init__(
        self,
        network: Network,
        update: Update,
        core: ServerCore,
        share: Callable[[Piece], float],
        divides_by_staleness: bool = False,
    ) -> None:
        self.core = core
        self._network = network
        self._update = update
        self._share = share
        self._divides = divides_by_staleness
        self._gradients: dict[int, Array] = {}

    def receive(self, worker: int, message: Message) -> list[int]:
        """Take a worker's gradients, and apply all that are due; return the workers to be answered.

        The message is not to be changed until its worker is sent the parameters.
        """
        self._gradients[worker] = message.values
        piece = message.piece
        batch = -1 if piece is None else piece.batch
        answered = []
        for each in self.core.receive(worker, batch, message.version):
            if isinstance(each, Apply):
                self._apply(each)
            else:
                answered.append(each.worker)
        return answered

    def write_parameters(self, worker: int, message: Message) -> None:
        """Write the present parameters, and the next piece of a worker, into a message."""
        message.values[...] = self._network.ops.to_host(self._network.parameters.flat)
        message.label(self.core.version, self.core.pieces[worker])

    def _apply(self, instruction: Apply) -> None:
        ops, update = self._network.ops, self._update
        total = self._gradients[instruction.gradients[0][0]]
        if len(instruction.gradients) > 1:
            kind = total.dtype.type
            total = np.zeros_like(total)
            for worker, piece in instruction.gradients:
                total += self._gradients[worker] * kind(self._share(piece))
        ops.load(total, self._network.gradients.flat)
        rate = update.scalars.get("learning_rate")
        if not self._divides or instruction.staleness < 2 or rate is None:
            update.run()
            return
        full = ops.to_host(rate).copy()
        ops.load(full / full.dtype.type(instruction.staleness), rate)
        update.run()
        ops.load(full, rate)


EpochArguments = tuple[Array, Sequence[int], int]
"""Order of the samples, of shape (K, count), seeds and number, as in `Trainer.epoch`."""


@dataclass(frozen=True)
class ServerOptions:
    """Options by which a server applies gradients.

    Parameters
    ----------
    staleness : int, not negative, optional
        As for `ServerCore`.
    divide_by_staleness : bool
        As for `Server`.

    Raises
    ------
    ConfigurationError
        If the staleness is neither None nor an integer of at least 0.
    """

    staleness: int | None
    divide_by_staleness: bool

    def __post_init__(self) -> None:
        given = self.staleness
        if given is not None and (type(given) is not int or given < 0):
            message = f"staleness must be an integer of at least 0, or None, not {given!r}"
            raise ConfigurationError(message)

    def check(self, network: Network, optimizer: Optimizer) -> None:
        """Raise `ConfigurationError` if a server cannot train a network with an optimizer."""
        if network.precision.scales_loss:
            raise ConfigurationError(
                "a parameter server takes gradients as they are, and those of float16 are scaled "
                "by each worker on its own: take dtype='bfloat16' or 'float32'"
            )
        if self.divide_by_staleness and "learning_rate" not in optimizer.hyperparameters:
            kind = type(optimizer).__name__
            raise ConfigurationError(f"divide_by_staleness: {kind} has no learning_rate")


class ServedTrainer(ShardedTrainer):
    """Trainer by workers that send gradients to a server; subclasses decide where workers run.

    Parameters as for `ShardedTrainer`, and `options`.
    """

    def __init__(
        self, options: ServerOptions, workers: int, network: Network, task: TrainingTask
    ) -> None:
        gradients = network.gradients.flat
        self._computed: Array = gradients.copy()
        copying = [(network.ops.copy, (gradients, self._computed))]
        ends_with = Update(copying, {}, {}, network.ops, gradients)
        super().__init__(network, task, workers, ends_with)
        self._options = options
        shards = self._shards
        self._parts = [
            sum(bool(shards.rows(worker, batch)) for worker in range(workers))
            for batch in range(shards.batches)
        ]
        if options.staleness != 0:
            self.steps = sum(self._parts)
        self._begin()

    def _begin(self) -> None:
        """Make a new server, and reset sums, for an epoch."""
        self._runner.begin()
        shards, options = self._shards, self._options
        self._core = ServerCore(self._parts, shards.workers, options.staleness)
        self._server = Server(
            self._network,
            self._update,
            self._core,
            lambda piece: shards.share(piece.part, piece.batch),
            options.divide_by_staleness,
        )

    def _new_message(self) -> Message:
        return Message(self._computed)

    def _compute(self, piece: Piece, epoch: EpochArguments, message: Message) -> None:
        """Compute gradients of a piece with the network's parameters; write them to `message`."""
        order, seeds, number = epoch
        places = self._shards.rows(piece.part, piece.batch)
        rows = order[:, places.start : places.stop]
        self._runner.run(rows, rows.shape[1], seeds, number)
        message.values[...] = self._network.ops.to_host(self._computed)
