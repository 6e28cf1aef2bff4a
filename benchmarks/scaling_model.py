"""How well training on many ranks scales: computed from what was measured on few.

`scaling` measures the costs and draws what follows from them. A step of N ranks, each with as many
rows as one alone, takes as long as the slowest of N computes, and what of the exchange does not go
on behind that. Costs of an exchange are those of the usual model of messages, in which one of n
bytes takes ``latency + n / bandwidth``; ranks of one node share one link to the others.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH,
2005: trees, recursive doubling and halving, the ring.
A. Sergeev, M. Del Balso, Horovod, 2018: the published points.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Link:
    """What a message costs: seconds, and bytes a second."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, size: float) -> float:
        return self.latency_s + size / self.bytes_per_s


@dataclass(frozen=True)
class Machine:
    """Nodes of equal size.

    Attributes
    ----------
    inside, between : Link
        Of two ranks of a node, and of two nodes.
    node_ranks : int
    added_bytes_per_s : float
        Bytes of an array that a rank adds to another in a second.
    """

    inside: Link
    between: Link
    node_ranks: int
    added_bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Training:
    """What a rank computes in a step.

    Attributes
    ----------
    step_s : float
        Of one rank alone: the median.
    spread : float
        Standard deviation of the logarithm of a step's time: some take longer.
    size : float
        Bytes of all gradients.
    behind : float
        The part of `step_s` in which an exchange may go on: up to the backward pass, about 2/3.
    edge : float
        Bytes of the activations of a rank's rows between two stages of a pipeline.
    """

    step_s: float
    spread: float
    size: float
    behind: float = 0.0
    edge: float = 0.0


def slowest(ranks: int, spread: float) -> float:
    """Return how many times the median the largest of N step times is to be expected.

    Of a log-normal distribution, with Blom's approximation of the largest of N normal values.
    """
    return math.exp(spread * _largest_normal(ranks))


def _largest_normal(ranks: int) -> float:
    return statistics.NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


# -- sums over all ranks --------------------------------------------------------------------------


def _levels(machine: Machine, ranks: int) -> tuple[int, int]:
    """Return how many ranks of a node take part, and how many nodes."""
    inside = min(machine.node_ranks, ranks)
    return inside, -(-ranks // inside)


def _rounds(ranks: int) -> int:
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


def tree(size: float, machine: Machine, ranks: int) -> float:
    """Seconds of a reduction to one rank and a broadcast, each along a binomial tree."""
    inside, nodes = (_rounds(count) for count in _levels(machine, ranks))
    sent = inside * machine.inside.seconds(size) + nodes * machine.between.seconds(size)
    return 2 * sent + (inside + nodes) * size / machine.added_bytes_per_s


def doubling(size: float, machine: Machine, ranks: int) -> float:
    """Seconds of recursive doubling: in each round all exchange the whole array."""
    together, nodes = _levels(machine, ranks)
    inside = _rounds(together) * machine.inside.seconds(size)
    between = _rounds(nodes) * machine.between.seconds(together * size)
    return inside + between + _rounds(ranks) * size / machine.added_bytes_per_s


def halving(size: float, machine: Machine, ranks: int) -> float:
    """Seconds of Rabenseifner's: recursive halving, then recursive doubling of what was summed.

    The neighbours of the first rounds, which exchange the most, are those of a node.
    """
    together, nodes = _levels(machine, ranks)
    seconds, part = 0.0, size
    for _ in range(_rounds(together)):
        part /= 2
        seconds += 2 * machine.inside.seconds(part)
    for _ in range(_rounds(nodes)):
        part /= 2
        seconds += 2 * machine.between.seconds(together * part)
    return seconds + _added_once(size, machine, ranks)


def ring(size: float, machine: Machine, ranks: int) -> float:
    """Seconds of the ring, in each of whose rounds every rank sends 1/N to the next one."""
    slow = machine.between if _levels(machine, ranks)[1] > 1 else machine.inside
    return 2 * (ranks - 1) * slow.seconds(size / ranks) + _added_once(size, machine, ranks)


def fastest(size: float, machine: Machine, ranks: int) -> float:
    """Seconds of the best of doubling, halving and the ring, as MPI libraries choose."""
    return min(routine(size, machine, ranks) for routine in (doubling, halving, ring))


def hierarchical(size: float, machine: Machine, ranks: int) -> float:
    """Seconds of a sum in two levels: rings within nodes, and what is fastest between them."""
    together, nodes = _levels(machine, ranks)
    node = 2 * (together - 1) * machine.inside.seconds(size / together)
    # All ranks of a node at once, each on its part: they share the link, and the additions.
    added = together * machine.added_bytes_per_s
    flat = Machine(machine.between, machine.between, 1, added)
    between = fastest(size, flat, nodes) if nodes > 1 else 0.0
    return node + _added_once(size, machine, together) + between


def _added_once(size: float, machine: Machine, ranks: int) -> float:
    return (ranks - 1) / ranks * size / machine.added_bytes_per_s


# -- schemes --------------------------------------------------------------------------------------

Exchange = Callable[[float, Machine, int], float]
Scheme = Callable[[Training, Machine, int], float]
"""``training, machine, ranks -> seconds of a step``."""
LOCAL_STEPS, STAGES, MICRO_BATCHES = 100, 4, 32


def data_parallel(exchange: Exchange) -> Scheme:
    """Return the scheme that adds up gradients in each step by this routine."""

    def step_s(training: Training, machine: Machine, ranks: int) -> float:
        visible = exchange(training.size, machine, ranks) - training.behind * training.step_s
        return training.step_s * slowest(ranks, training.spread) + max(0.0, visible)

    return step_s


def sharded(training: Training, machine: Machine, ranks: int) -> float:
    """Optimizer state in N parts: gradients travel behind the step, new parameters after it."""
    half = fastest(training.size, machine, ranks) / 2
    visible = max(0.0, half - training.behind * training.step_s) + half
    return training.step_s * slowest(ranks, training.spread) + visible


def _through_server(training: Training, machine: Machine, ranks: int) -> float:
    """Seconds in which one server receives all gradients and sends all parameters."""
    link = machine.inside if _levels(machine, ranks)[1] == 1 else machine.between
    return 2 * link.latency_s + 2 * (ranks - 1) * training.size / link.bytes_per_s


def server(training: Training, machine: Machine, ranks: int) -> float:
    """One server that waits for all gradients."""
    slow_s = training.step_s * slowest(ranks, training.spread)
    return slow_s + _through_server(training, machine, ranks)


def asynchronous(training: Training, machine: Machine, ranks: int) -> float:
    """One server that waits for nobody: whichever takes longer, a worker's cycle or the server's.

    Only how many rows are computed in a second; that gradients are of older parameters is not in
    it.
    """
    mean_s = training.step_s * math.exp(training.spread**2 / 2)
    worker_s = mean_s + (_through_server(training, machine, 2) if ranks > 1 else 0.0)
    return max(worker_s, _through_server(training, machine, ranks))


def local_sgd(training: Training, machine: Machine, ranks: int) -> float:
    """`LOCAL_STEPS` steps of each rank, then an average of the parameters."""
    count, step_s = LOCAL_STEPS, training.step_s
    if ranks == 1:
        return step_s
    # The sum of many steps is nearly normal: slow ones and fast ones even out.
    late = step_s * training.spread * math.sqrt(count) * _largest_normal(ranks)
    return step_s + (late + fastest(training.size, machine, ranks)) / count


def pipeline(training: Training, machine: Machine, ranks: int) -> float:
    """`STAGES` stages with `MICRO_BATCHES` micro-batches, and data parallelism over pipelines."""
    stages = min(STAGES, ranks)
    # A rank has 1/stages of the layers, for stages times as many rows.
    rounds = (MICRO_BATCHES + stages - 1) / MICRO_BATCHES
    seconds = training.step_s * slowest(ranks, training.spread) * rounds
    if stages > 1:  # forth and back
        edge = stages * training.edge / MICRO_BATCHES
        seconds += 2 * (MICRO_BATCHES + stages - 1) * machine.inside.seconds(edge)
    # Ranks of a node are stages of one pipeline: each exchanges with other nodes.
    copies, others = -(-ranks // stages), replace(machine, inside=machine.between, node_ranks=1)
    if copies > 1:
        exchange_s = fastest(training.size, others, copies)
        seconds += max(0.0, exchange_s - training.behind * training.step_s)
    return seconds


SCHEMES: Mapping[str, Scheme] = {
    "data, MPI's allreduce": data_parallel(fastest),
    "data, ring": data_parallel(ring),
    "data, recursive halving": data_parallel(halving),
    "data, tree": data_parallel(tree),
    "data, hierarchical": data_parallel(hierarchical),
    "data, sharded optimizer": sharded,
    "parameter server": server,
    "asynchronous server": asynchronous,
    f"local SGD, {LOCAL_STEPS} steps": local_sgd,
    f"pipeline of {STAGES} x data": pipeline,
}


def efficiency(scheme: Scheme, training: Training, machine: Machine, ranks: int) -> float:
    """Return rows a second of N ranks over N times those of one."""
    return training.step_s / scheme(training, machine, ranks)


# -- published points -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """An efficiency that somebody measured."""

    name: str
    training: Training
    ranks: int
    efficiency: float


PASCAL_CLUSTER = Machine(
    # 4 GPUs a server; PCIe between them, RoCE at 25 Gbit/s between servers, at its full rate.
    inside=Link(10e-6, 10e9),
    between=Link(20e-6, 25e9 / 8),
    node_ranks=4,
    added_bytes_per_s=200e9,
)
"""On which Horovod's authors measured, with what they do not say assumed."""


def _images(parameters: float, images_per_s: float) -> Training:
    """Return the training of a batch of 64 images, of a network with so many parameters.

    Steps of GPUs spread little: 3% is assumed; and the backward pass takes two thirds of a step.
    """
    return Training(64 / images_per_s, 0.03, 4 * parameters, behind=2 / 3)


# Images a second of one Pascal GPU with tf_cnn_benchmarks, as published with it and by Horovod.
HOROVOD = (
    Published("ResNet-101", _images(44.5e6, 104), 512, 0.90),
    Published("VGG-16", _images(138.4e6, 154), 512, 0.68),
)


def predicted(point: Published) -> float:
    """Return what the model says to a published point, for the ring that Horovod uses."""
    return efficiency(data_parallel(ring), point.training, PASCAL_CLUSTER, point.ranks)
