"""One network on two ranks, against PyTorch's DistributedDataParallel and MPI's Allreduce.

A rank has one thread and takes 100 rows a step; float32, SGD with momentum; the data are made up.
PyTorch runs with gloo under torchrun, the others under mpiexec. All contenders that train start
from the same parameters, visit the samples in the same order and reach the same losses, which is
checked; a step takes as long as that of the slower rank.

``ddp_mlp_2ranks``, ``ddp_lenet_2ranks``
    A step of 784-528x4-10 with sigmoid units, and of LeNet-5.
``overlap_percent``
    The share of the exchange that the first of them hides behind its backward pass, without sharded
    state: what a step takes less than one that exchanges all gradients at its end, over what that
    one takes more than a step without any exchange, on both ranks at once.
``weak_scaling_2ranks``, ``weak_scaling_lenet_2ranks``
    A step of one rank alone with 100 rows over the step of two with 100 each.
``pipeline_mlp_2ranks``, ``model_mlp_2ranks``
    A step of 200 rows of the first network, its layers or its units cut over both ranks, against
    one rank that has all of it.
``allreduce_<size>``
    The sum of an array over both ranks, in place, against MPI's; ``_vs_gloo`` against gloo's.
``local_sgd_traffic``
    MiB that ranks send while they learn the digits with an average after every `LOCAL_STEPS` steps
    of each, against data parallelism: as many epochs, and the same accuracy within a hundredth.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import conv_nets
import distributed_ranks
import harness
import relay

Times = dict[tuple[str, ...], list[float]]
SIZES = {
    "4KiB": 2**12,
    "64KiB": 2**16,
    "1MiB": 2**20,
    "4MiB": 2**22,
    "16MiB": 2**24,
    "64MiB": 2**26,
}
TRAINING = {"ddp_mlp_2ranks": "mlp", "ddp_lenet_2ranks": "lenet"}
SCALING = {"weak_scaling_2ranks": "mlp", "weak_scaling_lenet_2ranks": "lenet"}
MESHES = {"pipeline_mlp_2ranks": "pipeline", "model_mlp_2ranks": "model"}
OVERLAP, TRAFFIC = "overlap_percent", "local_sgd_traffic"
LOCAL_STEPS = 128
"""More than an epoch has."""


class Contenders:
    """Started together, ended together, and asked in turn."""

    def __init__(self, setup: str, peer_python: str, version: str | None) -> None:
        self.version = version
        self._setup = setup
        self._pythons = {"dnn": sys.executable, "mpi": sys.executable, "torch": peer_python}
        self._workers: dict[tuple[str, int], harness.Worker] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, *exception: Any) -> None:
        for worker in self._workers.values():
            worker.end()  # all at once: each takes a second
        self._stack.close()

    def start(self, contenders: Iterable[tuple[str, int]]) -> None:
        """Start contenders with so many ranks, and wait until all are there."""
        for name, ranks in contenders:
            worker = harness.Worker(
                __file__, f"relay {name} {ranks}", self._pythons[name], 1, self._setup
            )
            self._workers[name, ranks] = self._stack.enter_context(worker)
        for worker in self._workers.values():
            worker.ask(task="begin")

    def ask(self, name: str, ranks: int, task: str, **given: Any) -> dict[str, Any]:
        """Let the ranks of a contender do a task; return the answer of the slowest."""
        answer = self._workers[name, ranks].ask(task=task, **given)
        answers = answer.get("ranks", [answer])
        slowest: dict[str, Any] = max(answers, key=lambda answer: answer["seconds"])
        if "loss" in slowest and name == "torch":  # each rank has the loss of its own rows
            slowest["loss"] = statistics.fmean(one["loss"] for one in answers)
        return slowest

    def names(self) -> list[str]:
        return ["dnn", "torch"] if self.version else ["dnn"]


def check_losses(what: str, losses: Iterable[float], tolerance: float) -> None:
    """Refuse to compare what learns differently."""
    found = list(losses)
    if not math.isclose(max(found), min(found), rel_tol=tolerance):
        raise RuntimeError(f"{what}: the losses differ: {found}")


def training_times(contenders: Contenders, net: str, blocks: int, alone: bool) -> Times:
    """Let the contenders train in turn; return the seconds of a step of each block.

    Of each contender ``"together"``, and ``"alone"``, one rank.
    """
    times: Times = {}
    for block in range(1 + blocks):  # the first warms up
        losses = []
        for name in contenders.names():
            found = {"together": contenders.ask(name, 2, "train", net=net)}
            losses.append(found["together"]["loss"])
            if alone:
                found["alone"] = contenders.ask(name, 1, "train", net=net)
            for kind, answer in found.items():
                if block:
                    times.setdefault((name, kind), []).append(answer["seconds"])
        check_losses(net, losses, 5e-3 * (1 + block) if block else 1e-3)  # roundings grow
    return times


def training_rows(
    contenders: Contenders, blocks: int, wanted: Callable[[str], bool], title: str
) -> Iterator[harness.Result]:
    """Measure what trains two networks on two ranks."""
    for row, net in TRAINING.items():
        scaling = next(name for name, one in SCALING.items() if one == net)
        alone = wanted(scaling)
        if not (wanted(row) or alone):
            continue
        times = training_times(contenders, net, blocks, alone)
        steps = {
            name: [1e3 * seconds for seconds in times.get((name, "together"), [])]
            for name in ("dnn", "torch")
        }
        if wanted(row):
            yield harness.compare(row, steps["dnn"], steps["torch"] or None, title, "ms per step")
        if alone:
            shares = {name: _ratios(times, name, "alone") for name in ("dnn", "torch")}
            yield harness.compare(
                scaling, shares["dnn"], shares["torch"] or None, title, "of 1", more_is_better=True
            )


def _ratios(times: Times, name: str, kind: str) -> list[float]:
    """Return of each block what a kind took over the whole step."""
    pairs = zip(times.get((name, kind), []), times.get((name, "together"), []), strict=True)
    return [part / whole for part, whole in pairs]


def overlap_row(contenders: Contenders, blocks: int, title: str) -> harness.Result:
    """Measure how much of the exchange of gradients is hidden behind the backward pass."""
    hidden: dict[str, float | None] = {}
    for name in contenders.names():
        took: dict[str, list[float]] = {"early": [], "late": [], "alone": []}
        for block in range(1 + blocks):
            for scheme, times in took.items():
                answer = contenders.ask(name, 2, "train", net="mlp", scheme=scheme)
                if block:
                    times.append(answer["seconds"])
        early, late, alone = map(statistics.median, took.values())
        hidden[name] = 100 * (late - early) / (late - alone) if late > alone else None
    # No ratio: either may be nothing, or less.
    return harness.Result(OVERLAP, hidden["dnn"], hidden.get("torch"), title, "%", None)


def mesh_row(contenders: Contenders, blocks: int, row: str, scheme: str) -> harness.Result:
    """Measure a network cut over two ranks against one rank."""
    steps: dict[int, list[float]] = {2: [], 1: []}
    for block in range(1 + blocks):
        losses = []
        for ranks, times in steps.items():
            rows = 2 * distributed_ranks.BATCH
            answer = contenders.ask("dnn", ranks, "train", net="mlp", scheme=scheme, rows=rows)
            losses.append(answer["loss"])
            if block:
                times.append(1e3 * answer["seconds"])
        check_losses(row, losses, 1e-2)
    return harness.compare(row, steps[2], steps[1], "one rank, the same rows", "ms per step")


def allreduce_rows(
    contenders: Contenders, blocks: int, block_s: float, wanted: Callable[[str], bool], title: str
) -> Iterator[harness.Result]:
    """Measure the sum of arrays over two ranks."""
    peers = {"": ("mpi", "MPI's Allreduce")}
    if contenders.version:
        peers["_vs_gloo"] = ("torch", f"gloo of {title}")
    for label, size in SIZES.items():
        rows = {f"allreduce_{label}{suffix}": peer for suffix, peer in peers.items()}
        rows = {row: peer for row, peer in rows.items() if wanted(row)}
        if not rows:
            continue
        names = ["dnn", *(name for name, _ in rows.values())]
        ask = {name: functools.partial(contenders.ask, name, 2, "exchange") for name in names}
        times: dict[str, list[float]] = {name: [] for name in names}
        counts = {}
        for name in names:
            first_s = ask[name](size=size, times=2)["seconds"]
            counts[name] = max(1, round(block_s / first_s))
        for _ in range(blocks):
            for name in names:
                answer = ask[name](size=size, times=counts[name])
                times[name].append(1e3 * answer["seconds"])
        for row, (name, peer) in rows.items():
            yield harness.compare(row, times["dnn"], times[name], peer, "ms")


def traffic_row(contenders: Contenders) -> harness.Result:
    """Measure what local SGD sends against data parallelism."""
    local, data = (contenders.ask("dnn", 2, "traffic", local_steps=k) for k in (LOCAL_STEPS, 1))
    if abs(local["accuracy"] - data["accuracy"]) > 0.01:
        raise RuntimeError(f"local SGD and data parallelism learn differently: {local}, {data}")
    sizes = ([one["bytes"] / 2**20] for one in (local, data))
    return harness.compare(TRAFFIC, *sizes, "data parallelism", "MiB")


def needed(wanted: Callable[[str], bool], names: Sequence[str]) -> list[tuple[str, int]]:
    """Return which contenders the wanted rows need, with how many ranks."""
    both = [(name, 2) for name in names]
    ranks_of = dict.fromkeys((*TRAINING, OVERLAP), both)
    ranks_of |= {row: [*both, *((name, 1) for name in names)] for row in SCALING}
    ranks_of |= {row: [("dnn", 2), ("dnn", 1)] for row in MESHES}
    ranks_of |= {f"allreduce_{size}": [("dnn", 2), ("mpi", 2)] for size in SIZES}
    if len(names) > 1:
        ranks_of |= {f"allreduce_{size}_vs_gloo": both for size in SIZES}
    ranks_of[TRAFFIC] = [("dnn", 2)]
    every = (one for row, ones in ranks_of.items() if wanted(row) for one in ones)
    return list(dict.fromkeys(every))


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--only", metavar="NAME", help="rows whose names begin like this")
    options = parser.parse_args()
    if options.worker:
        kind, name, ranks = options.worker.split()
        if kind == "rank":
            setup, _, socket = options.setup.rpartition(":")
            distributed_ranks.be_rank(name, int(ranks), setup, socket)
        else:
            command = functools.partial(distributed_ranks.command, name, int(ranks), options.setup)
            relay.relay(command, int(ranks))
        return
    sys.path.insert(0, str(harness.REPOSITORY))
    version = harness.version_of("torch", options.peer_python)
    title = f"PyTorch {version}" if version else "PyTorch"

    def wanted(row: str) -> bool:
        return row.startswith(options.only or "")

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        setup = str(Path(folder) / "setup.npz")
        rows = (
            2 * distributed_ranks.BATCH * max(net.steps for net in distributed_ranks.NETS.values())
        )
        conv_nets.write_setup(setup, rows, distributed_ranks.NETS)
        contenders = stack.enter_context(Contenders(setup, options.peer_python, version))
        contenders.start(needed(wanted, contenders.names()))
        blocks = 2 if options.quick else 9
        results: list[harness.Result] = [
            *training_rows(contenders, blocks, wanted, title),
            *([overlap_row(contenders, blocks, title)] if wanted(OVERLAP) else []),
            *(
                mesh_row(contenders, blocks, row, scheme)
                for row, scheme in MESHES.items()
                if wanted(row)
            ),
            *allreduce_rows(contenders, 1 + blocks, 0.1 if options.quick else 0.5, wanted, title),
            *([traffic_row(contenders)] if wanted(TRAFFIC) else []),
        ]
    harness.report(results, options.json)


if __name__ == "__main__":
    main()
