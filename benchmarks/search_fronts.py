"""What searches for several objectives find: the hypervolume of the front after 150 and 500 points.

front_<function>_<n evaluations> (hypervolume)
    The median over seeds of the volume between the front and a reference point. The peer is the
    best of Optuna's samplers: its TPE of several objectives, parameters one by one or together
    (in groups where the space has conditions), and NSGA-II.
front_<function>_<n evaluations>_nsga2 (hypervolume)
    Our genetic search, beside the same peer.

ZDT1 to 3 [1]_ have two objectives of ten numbers, DTLZ2 [2]_ three; ``branches`` has two, of a
space
with choices, integers and parameters that exist with one choice only.

References
----------
.. [1] Zitzler, Deb, Thiele, Comparison of multiobjective evolutionary algorithms: empirical
   results, Evolutionary Computation 8, 2000.
.. [2] Deb, Thiele, Laumanns, Zitzler, Scalable test problems for evolutionary multiobjective
   optimization, 2005.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Result, compare, parser, report
from search import Optuna
from search_functions import Problem, reals

MARKS = (150, 500)
QUICK = ["zdt1", "branches"]
NUMBERS = reals(10)

Losses = tuple[float, ...]


@dataclass(frozen=True)
class Front:
    """Functions to minimise together."""

    space: dict[str, Any]
    losses: Callable[[Mapping[str, Any]], Losses]
    reference: Losses
    """Volumes are measured from here: worse than this is worth nothing."""


def zdt(second: Callable[[float, float], float]) -> Front:
    def losses(point: Mapping[str, Any]) -> Losses:
        first, *others = (point[name] for name in NUMBERS)
        g = 1 + 9 * sum(others) / len(others)
        return first, g * second(first, first / g)

    return Front(NUMBERS, losses, (1.1, 8.0))


def dtlz2(point: Mapping[str, Any]) -> Losses:
    x = [point[name] for name in NUMBERS]
    radius = 1 + sum((each - 0.5) ** 2 for each in x[2:])
    first, second = (each * math.pi / 2 for each in x[:2])
    return (
        radius * math.cos(first) * math.cos(second),
        radius * math.cos(first) * math.sin(second),
        radius * math.sin(first),
    )


BRANCHES = {
    "kind": ["wide", "deep"],
    "width": {"from": 8, "to": 512, "scale": "log", "if": {"kind": "wide"}},
    "depth": {"from": 1, "to": 12, "step": 1, "if": {"kind": "deep"}},
    "skips": {"choices": [False, True], "if": {"depth": {"at_least": 5}}},
    "rate": {"from": 1e-5, "to": 1e-1, "scale": "log"},
    "batch": [16, 32, 64, 128],
}


def branches(point: Mapping[str, Any]) -> Losses:
    """Return an error and a cost like those of a network: the larger, the better and the dearer."""
    rate, batch = math.log10(point["rate"]), math.log2(point["batch"])
    if point["kind"] == "wide":
        size, best = math.log2(point["width"] / 8) / 6, -2.0
    else:
        size, best = point["depth"] / 12, -3.0
        size *= 1.15 if point.get("skips") else 0.9
    miss = (rate - best - 0.15 * (batch - 5)) ** 2
    error = 0.05 + 0.5 * math.exp(-2.5 * size) + 0.1 * min(miss, 3.0)
    return error, size**1.5 + 0.3 * (7 - batch) / 3


FRONTS = {
    "zdt1": zdt(lambda first, share: 1 - math.sqrt(share)),
    "zdt2": zdt(lambda first, share: 1 - share**2),
    "zdt3": zdt(lambda first, share: 1 - math.sqrt(share) - share * math.sin(10 * math.pi * first)),
    "dtlz2": Front(NUMBERS, dtlz2, (1.5, 1.5, 1.5)),
    "branches": Front(BRANCHES, branches, (0.9, 1.6)),
}


def volume(points: Sequence[Losses], reference: Losses) -> float:
    """Return the volume that points dominate, up to a reference point: slice by slice."""
    inside = sorted(
        (point for point in points if all(map(float.__lt__, point, reference))),
        key=lambda point: point[-1],
    )
    if len(reference) == 1:
        return reference[0] - inside[0][0] if inside else 0.0
    found, front = 0.0, []
    for place, point in enumerate(inside):
        # Only what adds something to a slice stays: the others are dominated in all later ones.
        below = [kept for kept in front if not all(map(float.__le__, point[:-1], kept))]
        if len(below) < len(front) or not any(all(map(float.__le__, k, point)) for k in front):
            front = [*below, point[:-1]]
        upper = inside[place + 1][-1] if place + 1 < len(inside) else reference[-1]
        if upper > point[-1]:
            found += (upper - point[-1]) * volume(front, reference[:-1])
    return found


def ours(name: str, front: Front, seed: int, most: int) -> list[Losses]:
    """Return what a strategy of a sweep tries."""
    from modules.space import Space
    from modules.strategies import make_strategy

    strategy, found = make_strategy({"name": name}, Space.parse(front.space), seed), []
    for trial in range(most):
        point = strategy.ask(trial)
        assert isinstance(point, dict)
        found.append(front.losses(point))
        strategy.tell(trial, point, tuple(-loss for loss in found[-1]))  # type: ignore[arg-type]
    return found


def optunas(kind: str, front: Front, seed: int, most: int) -> list[Losses]:
    """Return what a sampler of Optuna tries."""
    import optuna

    made = Optuna(Problem(front.space, lambda point, seed: 0.0), seed)
    options: dict[str, Any] = {"multivariate": True, "group": "kind" in front.space}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = {
            "univariate": lambda: optuna.samplers.TPESampler(seed=seed),
            "multivariate": lambda: optuna.samplers.TPESampler(seed=seed, **options),
            "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=seed),
        }[kind]()
    directions = ["minimize"] * len(front.reference)
    made._study = optuna.create_study(directions=directions, sampler=sampler)
    found = []
    for trial in range(most):
        point = made.ask(trial)
        found.append(front.losses(point))
        made.tell(trial, point, found[-1])  # type: ignore[arg-type]
    return found


CONTENDERS: dict[str, Callable[[Front, int, int], list[Losses]]] = {
    "tpe": lambda *given: ours("tpe", *given),
    "nsga2": lambda *given: ours("nsga2", *given),
    "random": lambda *given: ours("random", *given),
    "optuna_univariate": lambda *given: optunas("univariate", *given),
    "optuna_multivariate": lambda *given: optunas("multivariate", *given),
    "optuna_nsga2": lambda *given: optunas("nsga2", *given),
}


def volumes(name: str, function: str, seeds: range, most: int, kept: Path | None) -> Any:
    """Return the volume of each seed at each mark; `kept` is a file of those that are known."""
    known = {}
    if kept is not None and kept.exists():
        known = dict(json.loads(line) for line in kept.read_text().splitlines())
    found = []
    for seed in seeds:
        key = f"{name}/{function}/{seed}/{most}"
        if key not in known:
            front = FRONTS[function]
            losses = CONTENDERS[name](front, seed, most)
            marks = [mark for mark in MARKS if mark <= most]
            known[key] = [volume(losses[:mark], front.reference) for mark in marks]
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps([key, known[key]]) + "\n")
        found.append(known[key])
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--functions", nargs="*", choices=list(FRONTS), metavar="FUNCTION")
    options.add_argument("--seeds", type=int, default=None)
    options.add_argument("--keep", type=Path, default=None)
    given = options.parse_args()
    functions = given.functions or (QUICK if given.quick else list(FRONTS))
    seeds = range(given.seeds or (2 if given.quick else 5))
    most = MARKS[0] if given.quick else MARKS[-1]
    has_optuna = importlib.util.find_spec("optuna") is not None
    names = [name for name in CONTENDERS if has_optuna or not name.startswith("optuna")]

    def rows() -> Iterator[Result]:
        for function in functions:
            found = {name: volumes(name, function, seeds, most, given.keep) for name in names}
            for place, mark in enumerate(mark for mark in MARKS if mark <= most):
                at = {name: [seed[place] for seed in found[name]] for name in names}
                peers = {name: at[name] for name in names if name.startswith("optuna")}
                best = max(peers, key=lambda name: statistics.median(peers[name]), default="")
                for name, end in (("tpe", ""), ("nsga2", "_nsga2")):
                    yield compare(
                        f"front_{function}_{mark}{end}",
                        at[name],
                        peers.get(best),
                        best or "optuna, not installed",
                        "hypervolume",
                        more_is_better=True,
                    )

    report(rows(), given.json, seeds=str(len(seeds)))


if __name__ == "__main__":
    main()
