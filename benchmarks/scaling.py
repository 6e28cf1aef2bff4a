"""How well training scales to 10,000 ranks: measures what `scaling_model` needs, and draws it.

On this machine: the time of a step of one rank with one thread, and how much it varies; what a
message between two ranks costs; how fast a rank adds arrays. ``--hosts COMMAND`` says how two ranks
are started on two hosts, as ``mpiexec -n 2 --host a,b``; without it the link between nodes is taken
to be that within one.

``--figures FOLDER`` writes ``scaling-here.svg``, efficiency against ranks for each scheme, and
``scaling-published.svg``, the model beside the points that Horovod's authors published.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import conv_nets
import distributed_ranks
import harness
import launching
import numpy as np
import scaling_model as model

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10_000)
NODE_RANKS = 8
"""Assumed: of the machine that is drawn."""
NET = "mlp"
HIDDEN_UNITS = 528


# -- measured -------------------------------------------------------------------------------------


def be_link_rank(repeat: int) -> None:
    """Be one of two ranks: print, on rank 0, what messages between them cost."""
    from mpi4py import MPI

    from dnn.distributed import communicator_of

    communicator = communicator_of(MPI.COMM_WORLD)
    other = 1 - communicator.rank

    def one_way_s(size: int, times: int) -> float:
        array = np.zeros(size // 4, "f4")
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(times):
                if communicator.rank == 0:
                    communicator.send(array, other).wait()
                    communicator.receive(array, other).wait()
                else:
                    communicator.receive(array, other).wait()
                    communicator.send(array, other).wait()
            taken.append((time.perf_counter() - began) / (2 * times))
        return statistics.median(taken)

    small, large = 8, 2**24
    latency_s = one_way_s(small, 100 * repeat)
    large_s = one_way_s(large, repeat)
    if communicator.rank == 0:
        link = model.Link(latency_s, large / (large_s - latency_s))
        print(json.dumps({**asdict(link), "hosts": len(set(communicator.nodes))}))


def measured_link(launcher: Sequence[str], repeat: int) -> tuple[model.Link, int]:
    """Return what messages cost between two ranks, and on how many hosts these are."""
    line = [*launcher, sys.executable, Path(__file__).resolve(), "--worker", f"link {repeat}"]
    found = json.loads(launching.output_of(line).splitlines()[-1])
    hosts = found.pop("hosts")
    return model.Link(**found), hosts


def be_step() -> None:
    """Print the seconds of single steps of one rank, each an epoch of one batch."""
    import tempfile

    known = distributed_ranks.NETS[NET]
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.npz"
        conv_nets.write_setup(setup, known.batch, {NET: known})
        given = np.load(setup)
        network = conv_nets.dnn_model(known, given, NET)
        x, y = given[f"{NET}.x"], given[f"{NET}.y"]
        network.fit(x, y, epochs=20, batch_size=known.batch, progress=False)
        history = network.fit(x, y, epochs=200, batch_size=known.batch, progress=False)
    print(json.dumps(history.epoch_times_s))


def measured_training(quick: bool) -> model.Training:
    """Return what a rank computes in a step, of the network of `distributed`."""
    import os

    os.environ.update(dict.fromkeys(harness.THREAD_VARIABLES, "1"))
    line = [sys.executable, Path(__file__).resolve(), "--worker", "step"]
    times: list[float] = []
    for _ in range(1 if quick else 5):
        times += json.loads(launching.output_of(line).splitlines()[-1])
    logarithms = np.log(times)
    # From quantiles: a rank that was put aside once for 100 ms says nothing of all others.
    low, high = np.quantile(logarithms, [0.16, 0.84])
    net = distributed_ranks.NETS[NET]
    return model.Training(
        step_s=statistics.median(times),
        spread=float(high - low) / 2,
        size=conv_nets.bytes_of(net),
        edge=4 * net.batch * HIDDEN_UNITS,
    )


def measured_additions() -> float:
    """Return how many bytes a second of an array are added to another."""
    a, b = np.ones(2**20, "f4"), np.ones(2**20, "f4")
    taken = []
    for _ in range(30):
        began = time.perf_counter()
        np.add(a, b, a)
        taken.append(time.perf_counter() - began)
    return a.nbytes / statistics.median(taken)


# -- drawn ----------------------------------------------------------------------------------------

# Okabe and Ito's colours, which those who see fewer can tell apart, and dashes besides.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("none", "6 3", "2 3")
# Of the classes that a plot gives to its parts: not every viewer of pictures reads style sheets.
ATTRIBUTES = {
    "grid": 'stroke="#ddd"',
    "axis": 'stroke="#444"',
    "tick end halo": 'text-anchor="end"',
    "tick middle halo": 'text-anchor="middle"',
    "name middle halo": 'text-anchor="middle"',
    "name halo": 'font-weight="bold"',
}
Curves = Mapping[str, Sequence[tuple[float, float]]]


def draw(curves: Curves, points: Curves, label: str) -> str:
    """Return an SVG: efficiency against ranks, each curve named where it ends."""
    from modules.report.markup import tag
    from modules.report.panels import LinearScale, LogScale
    from modules.report.svg import Frame, text

    class Ranks(LogScale):
        def ticks(self, count: int) -> list[tuple[float, str]]:
            return [(where, f"{float(label):,.0f}") for where, label in super().ticks(count)]

    plot = Frame(860, 420, Ranks(1, RANKS[-1]), LinearScale(0, 1), right=240)
    drawn, ends = [], []
    for number, (name, curve) in enumerate(curves.items()):
        style = {
            "stroke": COLOURS[number % len(COLOURS)],
            "stroke_dasharray": DASHES[number // len(COLOURS)],
            "stroke_width": 2,
            "fill": "none",
        }
        places = [place for x, y in curve if (place := plot.at(x, y)) is not None]
        written = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(tag("polyline", points=written, **style))
        for x, y in points.get(name, ()):
            place = plot.at(x, y)
            assert place is not None
            drawn.append(tag("circle", cx=place[0], cy=place[1], r=5, fill=style["stroke"]))
        ends.append((places[-1][1], name, style))
    # Names beside the ends of their curves, one below the other where these meet.
    edge, below = plot.width - plot.right, -1e9
    lowest = plot.height - plot.bottom - 15 * (len(ends) - 1)
    for i, (y, name, style) in enumerate(sorted(ends, key=lambda end: end[0])):
        below = min(max(y, below + 15), lowest + 15 * i)
        path = f"M{edge + 2:.1f},{y:.1f}L{edge + 16:.1f},{below:.1f}h22"
        drawn.append(tag("path", d=path, **style))
        drawn.append(text(edge + 44, below + 4, name, "label"))
    svg = plot.draw(drawn, ("ranks", "efficiency"), (6, 5), aria_label=label)
    for kind, attributes in ATTRIBUTES.items():
        svg = svg.replace(f'class="{kind}"', attributes)
    # Alone in a file it needs its name space, and lies on white whatever the page's colour is.
    start, rest = svg.split(">", 1)
    font = 'font-family="sans-serif" font-size="12" fill="#222"'
    white = '<rect width="100%" height="100%" fill="white"/>'
    return f'{start} xmlns="http://www.w3.org/2000/svg" {font}>{white}{rest}\n'


def efficiencies(training: model.Training, machine: model.Machine) -> Curves:
    """Return for each scheme how efficiency goes with the number of ranks."""
    return {
        name: [(ranks, model.efficiency(scheme, training, machine, ranks)) for ranks in RANKS]
        for name, scheme in model.SCHEMES.items()
    }


def published() -> tuple[Curves, Curves]:
    """Return what the model says to each published network, and the published points."""
    ring = model.data_parallel(model.ring)
    curves, points = {}, {}
    for point in model.HOROVOD:
        name = f"{point.name}: model"
        curves[name] = [
            (ranks, model.efficiency(ring, point.training, model.PASCAL_CLUSTER, ranks))
            for ranks in RANKS
        ]
        points[name] = [(point.ranks, point.efficiency)]
    return curves, points


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--hosts", metavar="COMMAND", help="starts two ranks on two hosts")
    parser.add_argument("--figures", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.worker:
        kind, *given = options.worker.split()
        workers: Mapping[str, Callable[..., None]] = {"link": be_link_rank, "step": be_step}
        workers[kind](*map(int, given))
        return
    sys.path.insert(0, str(harness.REPOSITORY))
    repeat = 5 if options.quick else 20
    inside, _ = measured_link(launching.mpiexec(2), repeat)
    between, hosts = inside, 1
    if options.hosts:
        between, hosts = measured_link(shlex.split(options.hosts), repeat)
        if hosts != 2:
            sys.exit(f"scaling: {options.hosts!r} has started both ranks on one host")
    machine = model.Machine(inside, between, NODE_RANKS, measured_additions())
    training = measured_training(options.quick)
    costs: dict[str, Any] = {"machine": asdict(machine), "training": asdict(training)}
    costs["machine"]["hosts"] = hosts
    print(json.dumps(costs, indent=1))
    curves = efficiencies(training, machine)
    shown = [ranks for ranks in RANKS if ranks in (2, 8, 16, 128, 1024, 10_000)]
    print(f"{'efficiency at ranks':28s}" + "".join(f"{ranks:8d}" for ranks in shown))
    for name, curve in curves.items():
        found = dict(curve)
        print(f"{name:28s}" + "".join(f"{found[ranks]:8.3f}" for ranks in shown))
    for point in model.HOROVOD:
        print(
            f"{point.name} on {point.ranks} GPUs: published {point.efficiency:.2f}, "
            f"model {model.predicted(point):.2f}"
        )
    if options.figures:
        label = "Efficiency against ranks"
        here = draw(curves, {}, f"{label} of each scheme, computed")
        (options.figures / "scaling-here.svg").write_text(here)
        beside = draw(*published(), label=f"{label}, computed, and published points")
        (options.figures / "scaling-published.svg").write_text(beside)
    if options.json:
        told = {"costs": costs, "efficiency": {name: dict(c) for name, c in curves.items()}}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
