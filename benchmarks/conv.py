"""Training steps of networks of images and of sequences on the CPU, against PyTorch.

LeNet-5 in batches of 100, VGG-16 and ResNet-18 for CIFAR in batches of 32, with batch norm; an LSTM
of 128 units that reads MNIST's images row by row, in batches of 100;
float32, SGD with momentum, two threads. The data have the shape of MNIST and CIFAR and are made
up. Both sides start from the same parameters, visit the samples in the same order, gather each
batch from the whole data and reach the same losses, which is checked. PyTorch takes
``SGD(fused=True)`` and channels-last or contiguous images, whichever is faster.

``vgg16_first_step_s`` is what somebody waits for who starts a script: from the start of the process
to the end of the first step, with kernels and choices that an earlier process left.
``peak_memory_vgg16_vs_pytorch`` is by how much a process grows in three steps.
``conv3x3_<channels>_<size>_<kind>`` is one convolution: what the table of routines chose, and each
routine, against PyTorch; ``_choice`` sets the choice against the fastest routine.
``mnist_99_s`` and ``cifar10_90_s`` are those of `image_training`, with the data in ``$DIEL_DATA``;
the second is measured with ``--only cifar10_90_s`` alone, since it takes most of an hour. With
``--quick`` these, ``fused_lenet_sweep_vmap``, most convolutions and each single routine are left
out.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import conv_lenet
import conv_nets
import conv_routines
import harness
import image_training
import numpy as np

THREADS = 2
FORMATS = ("channels_last", "contiguous")
VGG = "vgg16_cifar_step"
Times = dict[tuple[str, str], list[float]]


def resident_bytes(field: str) -> int:
    """Return ``VmRSS`` or ``VmHWM``, the largest so far, of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


class DnnContender:
    """Trains with dnn: plain `fit`."""

    variants = ("dnn",)

    def __init__(self, setup: str) -> None:
        import dnn

        del dnn
        self.given = np.load(setup)
        self.models: dict[str, Any] = {}

    def train(self, net: str, variant: str, steps: int) -> tuple[float, float]:
        """Train so many steps, 0 for all; return seconds and mean loss of a step."""
        if net not in self.models:
            self.models[net] = conv_nets.dnn_model(conv_nets.NETS[net], self.given, net)
        rows = slice(None, steps * conv_nets.NETS[net].batch or None)
        x, y = self.given[f"{net}.x"][rows], self.given[f"{net}.y"][rows]
        history = self.models[net].fit(
            x, y, epochs=1, batch_size=conv_nets.NETS[net].batch, progress=False
        )
        return history.training_time_s / history.steps, history.loss[-1]


class TorchContender:
    """Trains with PyTorch, images in one of its two formats."""

    variants = FORMATS

    def __init__(self, setup: str) -> None:
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self.given = np.load(setup)
        self.modules: dict[tuple[str, str], Any] = {}
        self.epochs: dict[tuple[str, str], int] = {}

    def train(self, net: str, variant: str, steps: int) -> tuple[float, float]:
        """Train so many steps, 0 for all; return seconds and mean loss of a step."""
        import torch

        known, key = conv_nets.NETS[net], (net, variant)
        if len(known.shape) != 3:  # sequences have one format
            variant = "contiguous"
        form = getattr(torch, f"{variant}_format" if variant == "contiguous" else variant)
        if key not in self.modules:
            module = conv_nets.torch_module(known, self.given, net).to(memory_format=form)
            fused = torch.optim.SGD(module.parameters(), known.rate, momentum=0.9, fused=True)
            self.modules[key] = module, fused
        module, optimizer = self.modules[key]
        rows = slice(None, steps * known.batch or None)
        x = torch.from_numpy(self.given[f"{net}.x"][rows]).contiguous(memory_format=form)
        y = torch.from_numpy(self.given[f"{net}.y"][rows])
        epoch = self.epochs.get(key, 0)
        self.epochs[key] = epoch + 1
        order = [torch.from_numpy(rows) for rows in _order(len(x), known.batch, epoch)]
        criterion = torch.nn.CrossEntropyLoss()
        total = torch.zeros(())
        began = time.perf_counter()
        for rows in order:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(module(x[rows].contiguous(memory_format=form)), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        seconds = time.perf_counter() - began
        return seconds / len(order), total.item() / len(order)


def _order(samples: int, batch: int, epoch: int) -> list[Any]:
    from dnn import batches

    return list(batches(samples, batch, conv_nets.SEED, epoch))


CONTENDERS: dict[str, Any] = {"dnn": DnnContender, "torch": TorchContender}


def train_worker(contender: str, setup: str) -> None:
    """Train, one epoch a block."""
    one = CONTENDERS[contender](setup)

    def work(net: str, variant: str) -> dict[str, Any]:
        seconds, loss = one.train(net, variant, 0)
        return {"ms_per_step": 1e3 * seconds, "loss": loss}

    harness.serve(work)


def once_worker(contender: str, setup: str) -> None:
    """Train VGG-16 in a process of its own: say when the first step ends, and how it grew."""
    one = CONTENDERS[contender](setup)
    before = resident_bytes("VmRSS")
    one.train(VGG, one.variants[0], 1)
    print("first", flush=True)
    one.train(VGG, one.variants[0], 3)
    print(resident_bytes("VmHWM") - before, flush=True)


def measure_steps(
    setup: str, pythons: dict[str, str], nets: list[str], restarts: int, blocks: int
) -> Times:
    """Let the contenders train in turn; return milliseconds a step of each block."""
    times: Times = {}
    for _ in range(restarts):
        with contextlib.ExitStack() as stack:
            contenders = [
                stack.enter_context(
                    harness.Worker(__file__, f"train {name}", python, THREADS, setup)
                )
                for name, python in pythons.items()
            ]
            for net in nets:
                first: dict[tuple[str, str], dict[str, float]] = {}
                for contender in contenders:  # which warms up, and says which format is faster
                    name = contender.name.split()[1]
                    for variant in CONTENDERS[name].variants:
                        first[name, variant] = contender.ask(net=net, variant=variant)
                losses = {key: answer["loss"] for key, answer in first.items()}
                if not math.isclose(max(losses.values()), min(losses.values()), rel_tol=1e-3):
                    raise RuntimeError(f"{net}: the losses differ: {losses}")
                for _ in range(blocks):
                    for contender in contenders:
                        name = contender.name.split()[1]
                        mine = [key for key in first if key[0] == name]
                        _, variant = min(mine, key=lambda key: first[key]["ms_per_step"])
                        answer = contender.ask(net=net, variant=variant)
                        times.setdefault((net, name), []).append(answer["ms_per_step"])
    return times


def measure_once(setup: str, pythons: dict[str, str], restarts: int, warm: bool) -> Times:
    """Start processes that train VGG-16, in turn; return seconds to the first step, and MiB.

    Unless `warm`, which says that others have, the first processes compile what is stored.
    """
    times: Times = {}
    environment = {
        **os.environ,
        **dict.fromkeys(harness.THREAD_VARIABLES, str(THREADS)),
        "PYTHONPATH": str(harness.REPOSITORY),
    }
    for restart in range(0 if warm else -1, restarts):
        for name, python in pythons.items():
            began = time.perf_counter()
            line = [python, __file__, "--worker", f"once {name}", "--setup", setup]
            with subprocess.Popen(
                line, env=environment, stdout=subprocess.PIPE, text=True
            ) as worker:
                assert worker.stdout is not None
                if worker.stdout.readline() != "first\n":
                    raise RuntimeError(f"{line} ended: {worker.wait()}")
                passed_s = time.perf_counter() - began
                grown = int(worker.stdout.readline())
            if restart >= 0:
                times.setdefault(("first", name), []).append(passed_s)
                times.setdefault(("memory", name), []).append(grown / 2**20)
    return times


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose names begin so")
    parser.add_argument(
        "--choices", action="store_true", help="print which routine is the fastest of which shape"
    )
    options = parser.parse_args()
    sys.path.insert(0, str(harness.REPOSITORY))
    if options.choices:
        for line in conv_routines.choices(__file__, sys.executable):
            print(line, flush=True)
        return
    if options.worker:
        role, name = options.worker.split()
        workers = {"train": train_worker, "once": once_worker}
        workers |= {"routines": conv_routines.worker, "sweep": conv_lenet.worker}
        workers[role](name, options.setup)
        return

    def wanted(name: str) -> bool:
        return name.startswith(options.only)

    restarts, blocks = (1, 2) if options.quick else (3, 6)
    pythons = {"dnn": sys.executable}
    title = "PyTorch"
    if version := harness.version_of("torch", options.peer_python):
        pythons["torch"] = options.peer_python
        title = f"PyTorch {version}"
    rows: list[harness.Result] = []
    with tempfile.TemporaryDirectory() as folder:
        setup = str(Path(folder) / "setup.npz")
        nets = [name for name in conv_nets.NETS if wanted(name)]
        conv_nets.write_setup(setup, 0, {net: conv_nets.NETS[net] for net in sorted({*nets, VGG})})
        if nets:
            times = measure_steps(setup, pythons, nets, restarts, blocks)
            rows += [
                harness.compare(
                    net, times[net, "dnn"], times.get((net, "torch")), title, "ms per step"
                )
                for net in nets
            ]
        single = {"first": ("vgg16_first_step_s", "s"),
                  "memory": ("peak_memory_vgg16_vs_pytorch", "MiB")}  # fmt: skip
        if any(wanted(name) for name, _ in single.values()):
            times = measure_once(setup, pythons, restarts, VGG in nets)
            rows += [
                harness.compare(name, times[what, "dnn"], times.get((what, "torch")), title, unit)
                for what, (name, unit) in single.items()
            ]
    rows += conv_lenet.rows(__file__, pythons, title, options.quick, wanted)
    rows += conv_routines.rows(__file__, pythons, title, options.quick, wanted)
    if not options.quick:
        rows += image_training.rows(pythons.get("torch"), options.only)
    harness.report(rows, options.json)


if __name__ == "__main__":
    main()
