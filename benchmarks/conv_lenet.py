"""Small convolutional networks of a sweep: some at once, against PyTorch one by one and with vmap.

16 networks of the layers of LeNet-5, in batches of 32, each with its own learning rate and its own
order of the samples; float32, SGD with momentum, two threads. Here 4 are one `dnn.Ensemble`: the
images of more do not stay in the cache. With `torch.func.vmap` all are one. All contenders start
from the same parameters and reach the same losses, which is checked.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import conv_nets
import harness
import numpy as np

NETWORKS, AT_ONCE, BATCH, SAMPLES, THREADS = 16, 4, 32, 640, 2
NET = conv_nets.NETS["lenet5_step"]
RATES = [0.002 + 0.0005 * k for k in range(NETWORKS)]
PEERS = {"fused_lenet_sweep": "torch", "fused_lenet_sweep_vmap": "vmap"}


def _given() -> tuple[Any, Any, list[Any]]:
    """Return made-up images, labels, and the first parameters of all networks."""
    generator = np.random.default_rng(conv_nets.SEED)
    y = generator.integers(0, 10, SAMPLES)
    centres = generator.normal(size=(10, *NET.shape))
    x = (0.5 * centres[y] + generator.normal(size=(SAMPLES, *NET.shape))).astype("f4")
    parameters = []
    for kind, shape in conv_nets.shapes_of(NET):
        inputs = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        scale = np.sqrt(2 / inputs) if kind == "weight" else 0.0
        parameters.append((scale * generator.normal(size=(NETWORKS, *shape))).astype("f4"))
    return x, y, parameters


def _orders(epoch: int) -> list[Any]:
    """Return for each step the rows of each network, of shape (K, batch)."""
    from dnn import batches

    by_network = [list(batches(SAMPLES, BATCH, seed, epoch)) for seed in range(NETWORKS)]
    return [np.stack(rows) for rows in zip(*by_network, strict=True)]


def _dnn() -> Callable[[], list[float]]:
    import dnn

    x, y, parameters = _given()
    groups = []
    for first in range(0, NETWORKS, AT_ONCE):
        some = slice(first, first + AT_ONCE)
        optimizer = dnn.SGD(RATES[some], momentum=0.9)
        seeds = range(NETWORKS)[some]
        networks = dnn.Ensemble(conv_nets.dnn_layers(NET), optimizer=optimizer, seeds=seeds)
        for mine, value in zip(networks.parameters.values(), parameters, strict=True):
            mine[...] = value[some]
        groups.append(networks)

    def epoch() -> list[float]:
        return [
            history.loss[-1]
            for networks in groups
            for history in networks.fit(x, y, epochs=1, batch_size=BATCH)
        ]

    return epoch


def _torch_given() -> tuple[Any, Any, list[Any]]:
    """Return what `_given` does as tensors, weights of dense layers as PyTorch has them."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    x, y, parameters = _given()
    turned = [w.swapaxes(1, 2).copy() if w.ndim == 3 else w for w in parameters]
    return torch.from_numpy(x), torch.from_numpy(y), [torch.from_numpy(w) for w in turned]


def _torch() -> Callable[[], list[float]]:
    """Train one network after the other."""
    import torch

    x, y, parameters = _torch_given()
    criterion = torch.nn.CrossEntropyLoss()
    pairs = []
    for k, rate in enumerate(RATES):
        module = conv_nets.torch_layers(NET)
        with torch.no_grad():
            for mine, value in zip(module.parameters(), parameters, strict=True):
                mine.copy_(value[k])
        pairs.append(
            (module, torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9, fused=True))
        )
    done = [0]

    def epoch() -> list[float]:
        orders = [torch.from_numpy(rows) for rows in _orders(done[0])]
        done[0] += 1
        losses = []
        for k, (module, optimizer) in enumerate(pairs):
            total = torch.zeros(())
            for order in orders:
                rows = order[k]
                optimizer.zero_grad(set_to_none=True)
                loss = criterion(module(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
                total += loss.detach()
            losses.append(total.item() / len(orders))
        return losses

    return epoch


def _vmap() -> Callable[[], list[float]]:
    """Train all in one, by `torch.func.vmap`."""
    import torch

    x, y, parameters = _torch_given()
    module = conv_nets.torch_layers(NET)
    names = [name for name, _ in module.named_parameters()]
    state = dict(zip(names, parameters, strict=True))
    speeds = {name: torch.zeros_like(value) for name, value in state.items()}
    rates = {
        name: torch.tensor(RATES).reshape(-1, *[1] * (value.ndim - 1))
        for name, value in state.items()
    }

    def loss_of(one: Any, images: Any, labels: Any) -> Any:
        found = torch.func.functional_call(module, one, (images,))
        return torch.nn.functional.cross_entropy(found, labels)

    step = torch.func.vmap(torch.func.grad_and_value(loss_of))
    done = [0]

    def epoch() -> list[float]:
        orders = [torch.from_numpy(rows) for rows in _orders(done[0])]
        done[0] += 1
        total = torch.zeros(NETWORKS)
        for rows in orders:
            slopes, losses = step(state, x[rows], y[rows])
            with torch.no_grad():
                for name, value in state.items():
                    speeds[name].mul_(0.9).add_(slopes[name])
                    value.sub_(rates[name] * speeds[name])
            total += losses
        return (total / len(orders)).tolist()

    return epoch


def worker(contender: str, setup: str) -> None:
    """Be one contender: train an epoch a block."""
    del setup
    epoch = {"dnn": _dnn, "torch": _torch, "vmap": _vmap}[contender]()

    def work() -> dict[str, Any]:
        began = time.perf_counter()
        losses = epoch()
        seconds = time.perf_counter() - began
        return {"ms": 1e3 * seconds / (NETWORKS * SAMPLES // BATCH), "losses": losses}

    harness.serve(work)


def rows(
    script: str,
    pythons: dict[str, str],
    title: str,
    quick: bool,
    wanted: Callable[[str], bool],
) -> Iterator[harness.Result]:
    """Measure the contenders in turn; the unit is the time of a step of one network."""
    names = [name for name in PEERS if wanted(name) and not (quick and PEERS[name] == "vmap")]
    if not names:
        return
    contenders = ["dnn"]
    if "torch" in pythons:
        contenders += [PEERS[name] for name in names]
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                harness.Worker(
                    script, f"sweep {name}", pythons["dnn" if name == "dnn" else "torch"], THREADS
                )
            )
            for name in contenders
        }
        first = {name: one.ask()["losses"] for name, one in workers.items()}
        for name, losses in first.items():
            if not np.allclose(losses, first["dnn"], rtol=1e-3):
                raise RuntimeError(f"the losses differ: {name} {losses}, dnn {first['dnn']}")
        for _ in range(3 if quick else 10):
            for name, one in workers.items():
                times[name].append(one.ask()["ms"])
    for name in names:
        peer = PEERS[name]
        yield harness.compare(
            name,
            times["dnn"],
            times.get(peer),
            f"{title}, {'vmap' if peer == 'vmap' else 'one by one'}",
            "ms per step of one",
        )
