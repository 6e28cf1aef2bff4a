"""Training steps of small networks on one thread, where the overhead of a step is all that counts.

The Cleveland network, 13 inputs, five hidden layers of 16 ReLU units and 2 classes, in batches of
32, and the digits network 64-64-10; float32, SGD with a learning rate of 0.05. PyTorch takes
``SGD(fused=True)``, its fastest, with its default beside it; JAX, where it is installed, one
jitted function a step that takes the batch from the data. All start from the same parameters, visit
the samples in the same order and end with the same loss, which is checked. The data are made up.

``first_fit_s`` is what somebody waits for who starts a script: from the first import to the end of
the first epoch, 20 batches of the Cleveland network, with kernels that an earlier process compiled.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

NETS = {"small_net_step": [13, *[16] * 5, 2], "digits_net_step": [64, 64, 10]}
BATCH, RATE, SEED = 32, 0.05, 1


def write_setup(path: Path, samples: int, epochs: int) -> None:
    """Write data, first parameters and orders, from which all contenders start."""
    from dnn import batches

    generator = np.random.default_rng(SEED)
    arrays: dict[str, Any] = {}
    for net, widths in NETS.items():
        y = generator.integers(0, widths[-1], samples)
        centres = generator.normal(size=(widths[-1], widths[0]))
        arrays[f"{net}.x"] = (centres[y] + generator.normal(size=(samples, widths[0]))).astype("f4")
        arrays[f"{net}.y"] = y
        for i, (rows, units) in enumerate(itertools.pairwise(widths), start=1):
            limit = math.sqrt(6 / (rows + units))
            weight = generator.uniform(-limit, limit, (rows, units))
            arrays[f"{net}.weight.{i}"] = weight.astype("f4")
    orders = [list(batches(samples, BATCH, SEED, epoch)) for epoch in range(epochs)]
    np.savez(path, orders=np.array(orders), **arrays)


def weights_of(given: Any, net: str) -> list[Any]:
    return [given[f"{net}.weight.{i}"] for i in range(1, len(NETS[net]))]


def dnn_worker(setup: str) -> None:
    """Train with dnn: plain `fit`, one epoch a block."""
    from dnn import SGD, NeuralNetwork, mlp

    given = np.load(setup)
    models = {}
    for net, (inputs, *hidden, classes) in NETS.items():
        layers = mlp(inputs, hidden, classes, "relu")
        models[net] = NeuralNetwork(layers, optimizer=SGD(RATE), seed=SEED)
        for i, weight in enumerate(weights_of(given, net), start=1):
            models[net].parameters[f"fully_connected_{i}.weight"][...] = weight

    def work(net: str, variant: str) -> dict[str, Any]:
        x, y = given[f"{net}.x"], given[f"{net}.y"]
        history = models[net].fit(x, y, epochs=1, batch_size=BATCH)
        return {
            "us_per_step": 1e6 * history.training_time_s / history.steps,
            "loss": history.loss[0],
        }

    harness.serve(work)


def torch_worker(setup: str) -> None:
    """Train with PyTorch, one epoch a block."""
    import torch

    torch.set_num_threads(1)
    given = np.load(setup)
    orders = [[torch.from_numpy(rows) for rows in order] for order in given["orders"]]
    criterion = torch.nn.CrossEntropyLoss()
    variants = list(itertools.product(NETS, ("fused", "default")))
    modules, optimizers, done = {}, {}, dict.fromkeys(variants, 0)
    for net, variant in variants:
        layers: list[torch.nn.Module] = []
        for weight in weights_of(given, net):
            linear = torch.nn.Linear(*weight.shape)
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight.T)))
                linear.bias.zero_()
            layers += [linear, torch.nn.ReLU()]
        module = modules[net, variant] = torch.nn.Sequential(*layers[:-1])
        fused = True if variant == "fused" else None
        optimizers[net, variant] = torch.optim.SGD(module.parameters(), lr=RATE, fused=fused)

    def work(net: str, variant: str) -> dict[str, Any]:
        key = net, variant
        module, optimizer, order = modules[key], optimizers[key], orders[done[key]]
        done[key] += 1
        x, y = torch.from_numpy(given[f"{net}.x"]), torch.from_numpy(given[f"{net}.y"])
        total = torch.zeros(())
        began = time.perf_counter()
        for rows in order:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(module(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        seconds = time.perf_counter() - began
        return {"us_per_step": 1e6 * seconds / len(order), "loss": total.item() / len(order)}

    harness.serve(work)


def jax_worker(setup: str) -> None:
    """Train with JAX, one jitted call a step, one epoch a block."""
    import jax
    import jax.numpy as jnp

    given = np.load(setup)

    def loss_of(parameters: Any, x: Any, y: Any) -> Any:
        for weight, bias in parameters[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        weight, bias = parameters[-1]
        logarithms = jax.nn.log_softmax(x @ weight + bias)
        return -jnp.mean(jnp.take_along_axis(logarithms, y[:, None], 1))

    def step(parameters: Any, x: Any, y: Any, rows: Any) -> Any:
        loss, slopes = jax.value_and_grad(loss_of)(parameters, x[rows], y[rows])
        return jax.tree.map(lambda w, g: w - RATE * g, parameters, slopes), loss

    jitted = jax.jit(step, donate_argnums=0)
    orders = [[jnp.asarray(rows) for rows in order] for order in given["orders"]]
    states, done = {}, dict.fromkeys(NETS, 0)
    for net in NETS:
        weights = weights_of(given, net)
        states[net] = [(jnp.asarray(w), jnp.zeros(w.shape[1], "f4")) for w in weights]

    def work(net: str, variant: str) -> dict[str, Any]:
        x, y = jnp.asarray(given[f"{net}.x"]), jnp.asarray(given[f"{net}.y"])
        parameters, losses = states[net], []
        order = orders[done[net]]
        done[net] += 1
        began = time.perf_counter()
        for rows in order:
            parameters, loss = jitted(parameters, x, y, rows)
            losses.append(loss)
        jax.block_until_ready(parameters)
        seconds = time.perf_counter() - began
        states[net] = parameters
        return {"us_per_step": 1e6 * seconds / len(order), "loss": float(np.mean(losses))}

    harness.serve(work)


DATA = """
import time; began = time.perf_counter()
import numpy as np
generator = np.random.default_rng(1)
x, y = generator.normal(size=(640, 13)).astype("f4"), generator.integers(0, 2, 640)
"""
FIRST_FIT = {
    "dnn": f"""{DATA}
import dnn
model = dnn.NeuralNetwork(dnn.mlp(13, [16] * 5, 2, "relu"), optimizer=dnn.SGD(0.05), seed=1)
model.fit(x, y, batch_size=32, progress=False)
print(time.perf_counter() - began)
""",
    "torch": f"""{DATA}
import torch
torch.set_num_threads(1)
layers = []
for inputs, units in zip([13, *[16] * 5], [*[16] * 5, 2]):
    layers += [torch.nn.Linear(inputs, units), torch.nn.ReLU()]
module = torch.nn.Sequential(*layers[:-1])
optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
x, y = torch.from_numpy(x), torch.from_numpy(y)
for rows in torch.randperm(640).split(32):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
    optimizer.step()
print(time.perf_counter() - began)
""",
}


def first_fits(pythons: dict[str, str], restarts: int) -> dict[str, list[float]]:
    """Start processes that train for one epoch, in turn; return the seconds that each took."""
    seconds: dict[str, list[float]] = {}
    environment = {
        **os.environ,
        **dict.fromkeys(harness.THREAD_VARIABLES, "1"),
        "PYTHONPATH": str(harness.REPOSITORY),
    }
    for restart in range(1 + restarts):  # the first compiles what is stored, and reads files
        for name, python in pythons.items():
            if name in FIRST_FIT:
                line = [python, "-c", FIRST_FIT[name]]
                done = subprocess.run(
                    line, env=environment, stdout=subprocess.PIPE, text=True, check=True
                )
                if restart:
                    seconds.setdefault(name, []).append(float(done.stdout))
    return seconds


Times = dict[tuple[str, str], list[float]]


def measure(setup: str, pythons: dict[str, str], restarts: int, blocks: int) -> Times:
    """Let the contenders train in turn; return microseconds a step of each block."""
    variants = {"dnn": ["dnn"], "torch": ["fused", "default"], "jax": ["jax"]}
    single = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    times: Times = {}
    for _ in range(restarts):
        with contextlib.ExitStack() as stack:
            contenders = [
                stack.enter_context(
                    harness.Worker(__file__, name, python, 1, setup, environment=single)
                )
                for name, python in pythons.items()
            ]
            for net in NETS:
                losses: dict[str, float] = {}
                for block in range(1 + blocks):  # the first warms up
                    for contender in contenders:
                        for variant in variants[contender.name]:
                            answer = contender.ask(net=net, variant=variant)
                            losses[variant] = answer["loss"]
                            if block:
                                times.setdefault((net, variant), []).append(answer["us_per_step"])
                if not math.isclose(max(losses.values()), min(losses.values()), rel_tol=1e-3):
                    raise RuntimeError(f"{net}: the losses differ: {losses}")
    return times


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--jax-python", metavar="PATH", help="the interpreter that has JAX (default: the peer's)"
    )
    options = parser.parse_args()
    if options.worker:
        workers = {"dnn": dnn_worker, "torch": torch_worker, "jax": jax_worker}
        workers[options.worker](options.setup)
        return
    sys.path.insert(0, str(harness.REPOSITORY))
    restarts, blocks, samples = (3, 4, 4000) if options.quick else (5, 10, 16000)
    pythons = {"dnn": sys.executable}
    names = {}
    for package, title, python in (
        ("torch", "PyTorch", options.peer_python),
        ("jax", "JAX", options.jax_python or options.peer_python),
    ):
        version = harness.version_of(package, python)
        names[package] = f"{title} {version}" if version else title
        if version:
            pythons[package] = python
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.npz"
        write_setup(setup, samples, 1 + blocks)
        times = measure(str(setup), pythons, restarts, blocks)
    starts = first_fits(pythons, restarts)
    peers = {
        "": ("fused", f"{names['torch']}, SGD(fused=True)"),
        "_vs_default": ("default", f"{names['torch']}, its default"),
        "_vs_jax": ("jax", f"{names['jax']}, jax.jit"),
    }
    rows = [
        harness.compare(
            f"{net}{suffix}", times[net, "dnn"], times.get((net, variant)), peer, "us per step"
        )
        for net in NETS
        for suffix, (variant, peer) in peers.items()
    ]
    rows.append(
        harness.compare("first_fit_s", starts["dnn"], starts.get("torch"), names["torch"], "s")
    )
    harness.report(rows, options.json)


if __name__ == "__main__":
    main()
