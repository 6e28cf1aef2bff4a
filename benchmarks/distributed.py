"""One network on two ranks, against PyTorch's DistributedDataParallel and MPI's Allreduce.

A rank has one thread and takes 100 rows a step; float32, SGD with momentum; the data are made up.
PyTorch runs with gloo under torchrun, the others under mpiexec. All contenders that train start
from the same parameters, visit the samples in the same order and reach the same losses, which is
checked; a step takes as long as that of the slower rank.

``ddp_mlp_2ranks``, ``ddp_lenet_2ranks``
    A step of 784-528x4-10 with sigmoid units, and of LeNet-5.
``overlap_percent``
    Of the time of the exchange alone, the share that a step of the first does not take longer than
    the same step without an exchange, on both ranks at once: what goes on behind the computation.
``weak_scaling_2ranks``, ``weak_scaling_lenet_2ranks``
    A step of one rank alone with 100 rows over the step of two with 100 each.
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
from collections.abc import Callable, Iterator
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
OVERLAP, TRAFFIC = "overlap_percent", "local_sgd_traffic"
LOCAL_STEPS = 128
"""More than an epoch has."""


class Contenders:
    """Started when they are first asked, and ended together."""

    def __init__(self, setup: str, peer_python: str, version: str | None) -> None:
        self.version = version
        self._setup = setup
        self._pythons = {"dnn": sys.executable, "mpi": sys.executable, "torch": peer_python}
        self._workers: dict[tuple[str, int], harness.Worker] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    def ask(self, name: str, ranks: int, task: str, **given: Any) -> dict[str, Any]:
        """Let the ranks of a contender do a task; return the answer of the slowest."""
        if (name, ranks) not in self._workers:
            worker = harness.Worker(
                __file__, f"relay {name} {ranks}", self._pythons[name], 1, self._setup
            )
            self._workers[name, ranks] = self._stack.enter_context(worker)
        answer = self._workers[name, ranks].ask(task=task, **given)
        answers = answer.get("ranks", [answer])
        slowest: dict[str, Any] = max(answers, key=lambda one: one["seconds"])
        if "loss" in slowest and name == "torch":  # each rank has the loss of its own rows
            slowest["loss"] = statistics.fmean(one["loss"] for one in answers)
        return slowest

    def names(self) -> list[str]:
        return ["dnn", "torch"] if self.version else ["dnn"]


def training_times(
    contenders: Contenders, net: str, blocks: int, alone: bool, overlap: bool
) -> Times:
    """Let the contenders train in turn; return the seconds of a step of each block.

    Of each contender ``"together"``; ``"alone"``, one rank; ``"apart"``, two without an exchange,
    and ``"exchange"`` of as many bytes.
    """
    times: Times = {}
    losses: dict[str, float] = {}
    size = conv_nets.bytes_of(distributed_ranks.NETS[net])
    for block in range(1 + blocks):  # the first warms up
        for name in contenders.names():
            found = {"together": contenders.ask(name, 2, "train", net=net)}
            losses[name] = found["together"]["loss"]
            if alone:
                found["alone"] = contenders.ask(name, 1, "train", net=net)
            if overlap:
                found["exchange"] = contenders.ask(name, 2, "exchange", size=size, times=20)
            for kind, answer in found.items():
                if block:
                    times.setdefault((name, kind), []).append(answer["seconds"])
        # Roundings grow from epoch to epoch.
        near = 1e-2 if block else 1e-3
        if not math.isclose(max(losses.values()), min(losses.values()), rel_tol=near):
            raise RuntimeError(f"{net}: the losses differ: {losses}")
    # At the end, since the parameters of the ranks then differ.
    for block in range(1 + blocks if overlap else 0):
        for name in contenders.names():
            answer = contenders.ask(name, 2, "train", net=net, together=False)
            if block:
                times.setdefault((name, "apart"), []).append(answer["seconds"])
    return times


def training_rows(
    contenders: Contenders, blocks: int, wanted: Callable[[str], bool], title: str
) -> Iterator[harness.Result]:
    """Measure what trains two networks on two ranks."""
    for row, net in TRAINING.items():
        scaling = next(name for name, one in SCALING.items() if one == net)
        alone, overlap = wanted(scaling), net == "mlp" and wanted(OVERLAP)
        if not (wanted(row) or alone or overlap):
            continue
        times = training_times(contenders, net, blocks, alone, overlap)
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
        if overlap:
            hidden = {name: hidden_percent(times, name) for name in contenders.names()}
            # No ratio: either may be nothing, or less.
            yield harness.Result(OVERLAP, hidden["dnn"], hidden.get("torch"), title, "%", None)


def _ratios(times: Times, name: str, kind: str) -> list[float]:
    """Return of each block what a kind took over the whole step."""
    pairs = zip(times.get((name, kind), []), times.get((name, "together"), []), strict=True)
    return [part / whole for part, whole in pairs]


def hidden_percent(times: Times, name: str) -> float:
    """Return how much of an exchange a step does not wait for, by the medians of a contender."""
    together, apart, exchange = (
        statistics.median(times[name, kind]) for kind in ("together", "apart", "exchange")
    )
    return 100 * (1 - (together - apart) / exchange)


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
        blocks = 3 if options.quick else 9
        results: list[harness.Result] = [
            *training_rows(contenders, blocks, wanted, title),
            *allreduce_rows(contenders, 1 + blocks, 0.1 if options.quick else 0.5, wanted, title),
            *([traffic_row(contenders)] if wanted(TRAFFIC) else []),
        ]
    harness.report(results, options.json)


if __name__ == "__main__":
    main()
