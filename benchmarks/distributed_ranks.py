"""What a rank of each contender of `distributed` does, and how its ranks are started.

``dnn``
    `dnn.NeuralNetwork` with ``parallel=DataParallel(..., sharded=True)`` under mpiexec.
``torch``
    ``DistributedDataParallel`` with gloo under torchrun.
``mpi``
    ``Allreduce`` of mpi4py under mpiexec, and nothing else.

Each is there with two ranks, and ``dnn`` and ``torch`` with one, which trains alone. A rank waits
for its next task on a socket, so whoever does not have its turn takes no processor time. All
arrays are of float32, and a rank has one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import conv_nets
import launching
import numpy as np
import relay

BATCH = 100
"""Rows of a rank in a step."""
_MLP: list[conv_nets.Item] = [*(("dense", 528), ("sigmoid",)) * 4, ("dense", 10)]
NETS: Mapping[str, conv_nets.Net] = {
    "mlp": conv_nets.Net((784,), BATCH, _MLP, 0.005, 20),
    "lenet": replace(conv_nets.NETS["lenet5_step"], steps=20),
}


def command(name: str, ranks: int, setup: str, folder: Path) -> list[str | Path]:
    """Return the line that starts the ranks of a contender, as its users start them."""
    script = Path(__file__).with_name("distributed.py")
    line = [sys.executable]
    if ranks > 1 and name == "torch":
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        line = [*line, *run]
    elif ranks > 1:
        line = [*launching.mpiexec(ranks), *line]
    given = f"{setup}:{folder / relay.SOCKET}"
    return [*line, script, "--worker", f"rank {name} {ranks}", "--setup", given]


def be_rank(name: str, ranks: int, setup: str, socket: str) -> None:
    """Be a rank of a contender until there are no more tasks."""
    rank = {"dnn": DnnRank, "torch": TorchRank, "mpi": MpiRank}[name](ranks, setup)

    def work(task: str, **given: Any) -> dict[str, Any]:
        return {"seconds": 0.0} if task == "begin" else getattr(rank, task)(**given)

    relay.answer(socket, work)
    rank.close()


def timed_exchange(exchange: Callable[[Any], object], size: int, times: int) -> dict[str, Any]:
    """Time an exchange that adds up an array of so many bytes in place; check it first.

    The arrays are zeros: sums of anything else would grow from one time to the next.
    """
    array = np.ones(size // 4, "f4")
    exchange(array)  # it also lets the ranks begin together
    if not (array == array[0]).all() or array[0] < 2:
        raise RuntimeError(f"the sum over the ranks of ones is {array}")
    array[...] = 0
    exchange(array)
    began = time.perf_counter()
    for _ in range(times):
        exchange(array)
    return {"seconds": (time.perf_counter() - began) / times}


class DnnRank:
    """Trains with dnn."""

    def __init__(self, ranks: int, setup: str) -> None:
        self.ranks = ranks
        self.given = np.load(setup)
        self.models: dict[tuple[str, str, int], Any] = {}
        self.communicator = None
        if ranks > 1:
            from mpi4py import MPI

            from dnn.distributed import communicator_of

            self.communicator = communicator_of(MPI.COMM_WORLD)

    def schemes(self) -> Mapping[str, Callable[[], Any]]:
        """Return what makes each scheme by name; None is one rank by itself."""
        from dnn.distributed import DataParallel, Mesh

        comm = self.communicator
        return {
            "data": lambda: DataParallel(comm, sharded=True),
            "early": lambda: DataParallel(comm, overlap=True),
            "late": lambda: DataParallel(comm, overlap=False),
            "pipeline": lambda: Mesh(comm, pipeline=2),
            "model": lambda: Mesh(comm, model=2),
            "alone": lambda: None,
        }

    def train(self, net: str, scheme: str = "data", rows: int = 0) -> dict[str, Any]:
        """Train an epoch, in batches of so many rows: 100 of each rank that takes part by default.

        On a mesh, and alone with other rows, parameters begin as dnn draws them.
        """
        known = NETS[net]
        key = net, scheme, rows
        scheme = scheme if self.ranks > 1 else "alone"
        if key not in self.models:
            given = None if rows else self.given
            parallel = self.schemes()[scheme]()
            self.models[key] = conv_nets.dnn_model(known, given, net, parallel=parallel)
        size = rows or BATCH * (1 if scheme == "alone" else self.ranks)
        x, y = (self.given[f"{net}.{name}"][: size * known.steps] for name in "xy")
        history = self.models[key].fit(x, y, epochs=1, batch_size=size, progress=False)
        seconds = history.training_time_s / history.steps
        return {"seconds": seconds, "loss": history.loss[-1]}

    def exchange(self, size: int, times: int) -> dict[str, Any]:
        assert self.communicator is not None
        return timed_exchange(self.communicator.sum, size, times)

    def traffic(self, local_steps: int) -> dict[str, Any]:
        """Train the digits; return what all ranks have sent, and the accuracy on held-out ones.

        After so many steps of each rank its parameters are averaged: after each one, that is data
        parallelism.
        """
        import dnn
        from dnn.distributed import LocalSGD

        train, held_out = dnn.train_validation_split(dnn.load_digits(), 0.25, seed=conv_nets.SEED)
        train, held_out = dnn.standardise(train, held_out)
        scheme = LocalSGD(self.communicator, local_steps)
        network = dnn.NeuralNetwork(
            dnn.mlp(64, [64], 10), optimizer=dnn.SGD(0.05), seed=conv_nets.SEED, parallel=scheme
        )
        history = network.fit(train.x, train.y, epochs=15, batch_size=12, progress=False)
        return {
            "seconds": history.training_time_s,
            "steps": history.steps,
            "bytes": sum(each["bytes_sent"] for each in history.exchange),
            "accuracy": network.evaluate(held_out.x, held_out.y)["accuracy"],
        }

    def close(self) -> None:
        pass


class TorchRank:
    """Trains with PyTorch."""

    def __init__(self, ranks: int, setup: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.ranks, self.rank = ranks, 0
        self.given = np.load(setup)
        self.modules: dict[str, tuple[Any, Any]] = {}
        self.epochs: dict[str, int] = {}
        if ranks > 1:
            torch.distributed.init_process_group("gloo")
            self.rank = torch.distributed.get_rank()

    def train(self, net: str, scheme: str = "data") -> dict[str, Any]:
        """Train an epoch, with the exchange of gradients beside it, at its end, or without any."""
        import contextlib

        import torch

        from dnn import batches

        known = NETS[net]
        if net not in self.modules:
            module = conv_nets.torch_module(known, self.given, net)
            if self.ranks > 1:
                module = torch.nn.parallel.DistributedDataParallel(module)
            optimizer = torch.optim.SGD(module.parameters(), known.rate, momentum=0.9, fused=True)
            self.modules[net] = module, optimizer
        module, optimizer = self.modules[net]
        epoch = self.epochs.get(net, 0)
        self.epochs[net] = epoch + 1
        x = torch.from_numpy(self.given[f"{net}.x"])
        y = torch.from_numpy(self.given[f"{net}.y"])
        mine = slice(self.rank * BATCH, (self.rank + 1) * BATCH)
        samples, size = known.steps * self.ranks * BATCH, self.ranks * BATCH
        orders = [
            torch.from_numpy(rows[mine]) for rows in batches(samples, size, conv_nets.SEED, epoch)
        ]
        criterion = torch.nn.CrossEntropyLoss()
        total = torch.zeros(())
        exchanging = contextlib.nullcontext
        if self.ranks > 1 and scheme in ("late", "alone"):
            exchanging = module.no_sync
        began = time.perf_counter()
        for rows in orders:
            optimizer.zero_grad(set_to_none=True)
            with exchanging():
                loss = criterion(module(x[rows]), y[rows])
                loss.backward()
            if scheme == "late" and self.ranks > 1:
                self.average([each.grad for each in module.parameters()])
            optimizer.step()
            total += loss.detach()
        seconds = time.perf_counter() - began
        return {"seconds": seconds / len(orders), "loss": total.item() / len(orders)}

    def average(self, gradients: Sequence[Any]) -> None:
        """Let gradients be the mean of all ranks', exchanged in one piece."""
        import torch

        flat = torch.cat([each.reshape(-1) for each in gradients])
        torch.distributed.all_reduce(flat)
        flat /= self.ranks
        parts = flat.split([each.numel() for each in gradients])
        for each, part in zip(gradients, parts, strict=True):
            each.copy_(part.reshape(each.shape))

    def exchange(self, size: int, times: int) -> dict[str, Any]:
        import torch

        def sum_up(array: Any) -> None:
            torch.distributed.all_reduce(torch.from_numpy(array))

        return timed_exchange(sum_up, size, times)

    def close(self) -> None:
        import torch

        if self.ranks > 1:
            torch.distributed.destroy_process_group()


class MpiRank:
    """Adds up arrays with MPI's own routine."""

    def __init__(self, ranks: int, setup: str) -> None:
        del ranks, setup
        from mpi4py import MPI

        self.comm, self.in_place = MPI.COMM_WORLD, MPI.IN_PLACE

    def exchange(self, size: int, times: int) -> dict[str, Any]:
        return timed_exchange(lambda array: self.comm.Allreduce(self.in_place, array), size, times)

    def close(self) -> None:
        pass
