"""The parameter server: whose gradients are applied when, and who goes on with which parameters.

A worker computes the gradients of one batch after the other, and sends each to the server, which
moves the parameters by it and answers with the present ones::

    worker   gradients of step 0, from version 0 ->      -> gradients of step 1, from version 3
    server                        version 2 -> 3 -> parameters

`ServerCore` decides, `Server` does it to a network, and neither sends anything: what brings the
messages, over MPI, through a tuple space or from simulated workers, is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnn.backend import Array
from dnn.errors import CommunicationError
from dnn.optimizers import Update
from dnn.training.network import Network

__all__ = ["Answer", "Apply", "Message", "Server", "ServerCore"]


@dataclass(frozen=True)
class Apply:
    """Move the parameters by the mean gradients of some workers.

    Attributes
    ----------
    workers : tuple of int
        Ascending; gradients are added up in this order.
    step : int
        Which of their batches the gradients are of.
    staleness : int
        How often the parameters were moved since they were sent to these workers.
    """

    workers: tuple[int, ...]
    step: int
    staleness: int


@dataclass(frozen=True)
class Answer:
    """Send a worker the present parameters."""

    worker: int


class ServerCore:
    """Which gradients are applied when, in one epoch: no arrays, no messages and no clock.

    Parameters
    ----------
    steps : sequence of int
        How many batches each worker has.
    staleness : int, optional
        How many steps a worker may be ahead of the slowest one that still works [1]_. With 0 the
        gradients of a step are averaged when the last of them is there: the same numbers whatever
        arrived first. With more, or without a bound if left out, they are applied as they arrive.

    Attributes
    ----------
    version : int
        How often the parameters were moved.
    done : list of int
        The steps of each worker whose gradients were received.
    histogram : list of int
        How many gradients were applied that were k versions old, at place k.

    References
    ----------
    .. [1] Ho et al., More effective distributed ML via a stale synchronous parallel parameter
           server, 2013.
    """

    def __init__(self, steps: Sequence[int], staleness: int | None = None) -> None:
        self.steps = tuple(steps)
        self.staleness = staleness
        self.version = 0
        self.done = [0] * len(self.steps)
        self.histogram: list[int] = []
        self._sent_version = [0] * len(self.steps)
        self._waiting: set[int] = set()

    @property
    def is_finished(self) -> bool:
        """Whether all gradients of the epoch were received."""
        return tuple(self.done) == self.steps

    def may_send(self, worker: int) -> bool:
        """Whether a worker has the parameters for a batch whose gradients it has not sent."""
        return worker not in self._waiting and self.done[worker] < self.steps[worker]

    def take_present(self, worker: int) -> int:
        """Let a worker beside the server compute from the present version, and return it."""
        self._sent_version[worker] = self.version
        return self.version

    def receive(self, worker: int, step: int, version: int) -> list[Apply | Answer]:
        """Return what to do, in this order, now that the gradients of a worker are there.

        The last answer of an epoch is sent when all are done: every worker then has the same
        parameters.

        Parameters
        ----------
        worker : int
        step : int
            Which of its batches they are of, from 0.
        version : int
            Of the parameters that they were computed from.

        Returns
        -------
        list of Apply and Answer

        Raises
        ------
        CommunicationError
            If the worker was not to send this.
        """
        expected = self.done[worker], self._sent_version[worker]
        if not self.may_send(worker) or (step, version) != expected:
            raise CommunicationError(
                f"worker {worker} sent gradients of its step {step}, computed from version "
                f"{version} of the parameters, but step {expected[0]} of {self.steps[worker]}, "
                f"from version {expected[1]}, was to come: it may run another release of dnn"
            )
        self.done[worker] += 1
        self._waiting.add(worker)
        instructions = self._applied(worker, step)
        answered = [each for each in range(len(self.steps)) if self._may_go_on(each)]
        for each in answered:
            self._waiting.discard(each)
            self._sent_version[each] = self.version
        return [*instructions, *map(Answer, answered)]

    def _applied(self, worker: int, step: int) -> list[Apply | Answer]:
        workers: tuple[int, ...] = (worker,)
        if self.staleness == 0:
            workers = tuple(w for w, steps in enumerate(self.steps) if steps > step)
            if any(self.done[w] <= step for w in workers):
                return []
        age = self.version - self._sent_version[worker]
        self.histogram += [0] * (age + 1 - len(self.histogram))
        self.histogram[age] += len(workers)
        self.version += 1
        return [Apply(workers, step, age)]

    def _may_go_on(self, worker: int) -> bool:
        if self.is_finished:  # those without a single batch too
            return True
        done = self.done[worker]
        if worker not in self._waiting or done == self.steps[worker]:
            return False
        pairs = zip(self.done, self.steps, strict=True)
        slowest = min(each for each, steps in pairs if each < steps)
        return self.staleness is None or done - slowest <= self.staleness


class Message:
    """Parameters or gradients of a network as they are sent: one piece of memory.

    Parameters
    ----------
    like : array
        Of the same shape and type of elements.

    Attributes
    ----------
    memory : array of uint8
        All of it: a header of 64 bytes, and the values.
    values : array
        Part of it, on the host.
    """

    def __init__(self, like: Array) -> None:
        self.memory = np.zeros(64 + like.nbytes, np.uint8)
        self._header = self.memory[:16].view(np.int64)
        self.values: Array = self.memory[64:].view(like.dtype).reshape(like.shape)

    @property
    def step(self) -> int:
        """Which batch of the worker gradients are of, or parameters are for."""
        return int(self._header[0])

    @property
    def version(self) -> int:
        """Of the parameters, or of those that gradients were computed from."""
        return int(self._header[1])

    def number(self, step: int, version: int) -> None:
        """Write the header."""
        self._header[:] = step, version


class Server:
    """Moves the parameters of a network by gradients of workers.

    Parameters
    ----------
    network : Network
        Whose parameters they are.
    update : Update
        Of the network's optimizer.
    core : ServerCore
    shares : sequence of sequence of float
        For each worker which part of the rows of a step is its own, for each of its steps.
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
        shares: Sequence[Sequence[float]],
        divides_by_staleness: bool = False,
    ) -> None:
        self.core = core
        self._network = network
        self._update = update
        self._shares = shares
        self._divides = divides_by_staleness
        self._gradients: dict[int, Array] = {}

    def receive(self, worker: int, message: Message) -> list[int]:
        """Take the gradients of a worker, and apply what is to be applied.

        Parameters
        ----------
        worker : int
        message : Message
            It stays as it is until the worker is answered.

        Returns
        -------
        list of int
            The workers that are to be sent the parameters.
        """
        self._gradients[worker] = message.values
        answered = []
        for each in self.core.receive(worker, message.step, message.version):
            if isinstance(each, Apply):
                self._apply(each)
            else:
                answered.append(each.worker)
        return answered

    def write_parameters(self, worker: int, message: Message) -> None:
        """Write the present parameters into an answer."""
        message.values[...] = self._network.ops.to_host(self._network.parameters.flat)
        message.number(self.core.done[worker], self.core.version)

    def _apply(self, what: Apply) -> None:
        total = self._gradients[what.workers[0]]
        if len(what.workers) > 1:
            kind = total.dtype.type
            total = np.zeros_like(total)
            for worker in what.workers:
                total += self._gradients[worker] * kind(self._shares[worker][what.step])
        self._network.ops.load(total, self._network.gradients.flat)
        rate = self._update.scalars.get("learning_rate")
        if not self._divides or what.staleness < 2 or rate is None:
            self._update.run()
            return
        full = rate.copy()
        rate[...] = full / rate.dtype.type(what.staleness)
        self._update.run()
        rate[...] = full
