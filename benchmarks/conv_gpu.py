"""Training steps of networks of images and of sequences on a GPU, against PyTorch's.

The networks of `conv`: LeNet-5 in batches of 100, VGG-16 and ResNet-18 for CIFAR in batches of 32,
with batch norm, and an LSTM of 128 units over 28 steps; float32 without TF32, SGD with momentum.
Both sides start from the same parameters, visit the same made-up samples in the same order, and
reach the same losses, which is checked of the first three blocks. PyTorch runs eagerly, with cuDNN,
which tries its own routines first, and channels last.

``conv..._<kind>_<routine>`` is one convolution by each routine, against the fastest of them, which
is what the table of routines chooses. Needs a GPU, CuPy for this interpreter and a PyTorch with
CUDA for the peer's.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import conv_nets
import conv_routines
import harness
import numpy as np

NETS = ("resnet18_cifar_step", "lstm_step", "lenet5_step", "vgg16_cifar_step")
"""Those first that matter most, where time runs out."""
_ALIKE = 3
"""Blocks after which losses of both sides have to be alike."""


def dnn_worker(setup: str) -> None:
    """Train with dnn, all samples on the GPU: so many steps a block."""
    from dnn import DeviceData

    given, kept = np.load(setup), {}

    def work(net: str) -> dict[str, Any]:
        if net not in kept:
            of = conv_nets.NETS[net]
            data = DeviceData(given[f"{net}.x"], given[f"{net}.y"])
            kept[net] = conv_nets.dnn_model(of, given, net, device="cuda"), data, of.batch
        model, data, batch = kept[net]
        history = model.fit(data, epochs=1, batch_size=batch, progress=False)
        return {"ms": 1e3 * history.training_time_s / history.steps, "loss": history.loss[-1]}

    harness.serve(work)


def torch_worker(setup: str) -> None:
    """Train with PyTorch, all samples on the GPU: so many steps a block."""
    import torch

    from dnn import batches

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    given, kept = np.load(setup), {}

    def start(net: str) -> Any:
        of = conv_nets.NETS[net]
        module = conv_nets.torch_module(of, given, net).to("cuda")
        x, y = (torch.from_numpy(given[f"{net}.{name}"]).to("cuda") for name in ("x", "y"))
        if x.ndim == 4:
            module, x = (each.to(memory_format=torch.channels_last) for each in (module, x))
        optimizer = torch.optim.SGD(module.parameters(), lr=of.rate, momentum=0.9, fused=True)
        return module, x, y, optimizer, itertools.count()

    def work(net: str) -> dict[str, Any]:
        if net not in kept:
            kept[net] = start(net)
        module, x, y, optimizer, epochs = kept[net]
        batch = conv_nets.NETS[net].batch
        orders = batches(len(x), batch, conv_nets.SEED, next(epochs))
        order = [torch.from_numpy(rows).to("cuda") for rows in orders]
        total = torch.zeros((), device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        for rows in order:
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(module(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        loss = total.item() / len(order)
        return {"ms": 1e3 * (time.perf_counter() - began) / len(order), "loss": loss}

    harness.serve(work)


WORKERS = {"dnn": dnn_worker, "torch": torch_worker}


def steps(
    setup: str, pythons: dict[str, str], version: str | None, nets: list[str], blocks: int
) -> Iterator[harness.Result]:
    """Let both train in turn; the first block of a network warms up."""
    with contextlib.ExitStack() as stack:
        contenders = [
            stack.enter_context(harness.Worker(__file__, name, python, 2, setup))
            for name, python in pythons.items()
        ]
        for net in nets:
            times: dict[str, list[float]] = {}
            for block in range(1 + blocks):
                answers = {each.name: each.ask(net=net) for each in contenders}
                losses = [answer["loss"] for answer in answers.values()]
                # Later a difference in the last bit has grown: LeNet-5's fourth loss changes by 5 %
                # where its first weights change by a millionth, in float32 on a processor, too.
                if block < _ALIKE and not math.isclose(max(losses), min(losses), rel_tol=5e-2):
                    raise RuntimeError(f"{net}: the losses differ: {losses}")
                if block:
                    for name, answer in answers.items():
                        times.setdefault(name, []).append(answer["ms"])
            peer = f"PyTorch {version}, eager"
            yield harness.compare(net, times["dnn"], times.get("torch"), peer, "ms a step")


def routines(names: list[str]) -> Iterator[harness.Result]:
    """Time each routine of some convolutions, NHWC, against the fastest one."""
    from dnn import ops_for
    from dnn.backend.routines import measure_convolution

    ops = ops_for("cuda")
    for name in names:
        for kind in conv_routines.SHAPES[name].kinds:
            problem = conv_routines.problem_of(name, kind)._replace(layout="NHWC")
            found = measure_convolution(ops, problem)
            best = found["ms"][found["routine"]]
            for routine, ms in found["ms"].items():
                row = f"{name}_{kind}_{routine}"
                yield harness.compare(row, [ms], [best], found["routine"], "ms")


def main() -> None:
    options = harness.gpu_parser(__doc__).parse_args()
    sys.path.insert(0, str(harness.REPOSITORY))
    if options.worker:
        WORKERS[options.worker](options.setup)
        return
    harness.require_gpu("conv_gpu")
    nets, shapes = list(NETS), list(conv_routines.SHAPES)
    blocks, samples = (3 if options.quick else 7), 0
    if options.quick:
        shapes = [name for name in shapes if conv_routines.SHAPES[name].quick]
    if options.tiny:
        nets, shapes, blocks, samples = ["lenet5_step"], [], 1, 100
    pythons = {"dnn": sys.executable}
    version = harness.version_of("torch", options.peer_python)
    if version and harness.torch_finds_gpu(options.peer_python):
        pythons["torch"] = options.peer_python
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.npz"
        conv_nets.write_setup(setup, samples, {name: conv_nets.NETS[name] for name in nets})
        rows = steps(str(setup), pythons, version, nets, blocks)
        harness.report(itertools.chain(rows, routines(shapes)), options.json, **harness.gpu())


if __name__ == "__main__":
    main()
