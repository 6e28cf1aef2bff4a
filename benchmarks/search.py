"""What searches find: the best of 50, 100 and 200 points, ours beside Optuna's TPE and CMA-ES.

search_<function>_<n in flight>_<n evaluations> (distance from the optimum)
    The median over seeds of how far the best point is from the best that there is. The peer is
    the variant of Optuna's TPE whose median is the least: parameters one by one, together (its
    default), or together in groups where a space has conditions. Told are losses, with noise
    where the function has some; what counts is the loss without noise of the best told.
search_rank_<n in flight>_<n evaluations> (mean rank)
    Of all contenders on all functions; the peer is the best other one.
ask_us_tpe_<n> (us)
    One ask after 100, 1,000 and 10,000 trials of ten parameters.

With eight in flight a trial takes a time that follows from the seed, and the next point is asked
for when the first of eight has ended.

``--functions``, ``--contenders``, ``--seeds`` and ``--keep PATH`` (a file of results that a later
call goes on from) are for longer measurements. At the end there is a table with the bootstrapped
95 % interval of the difference to the peer. Tables of scikit-learn: ``search_tables.py``.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from harness import Result, compare, parser, report
from search_functions import PROBLEMS, Problem

MARKS = (50, 100, 200)
IN_FLIGHT = (1, 8)
QUICK = ["sphere", "mixed", "optimizers"]


class Contender(Protocol):
    def ask(self, trial: int) -> dict[str, Any]: ...

    def tell(self, trial: int, point: dict[str, Any], loss: float) -> None: ...


class Ours:
    """A strategy of a sweep."""

    def __init__(self, problem: Problem, seed: int, name: str = "tpe", **options: Any) -> None:
        from modules.space import Space
        from modules.strategies import make_strategy

        self._strategy = make_strategy({"name": name, **options}, Space.parse(problem.space), seed)

    def ask(self, trial: int) -> dict[str, Any]:
        return self._strategy.ask(trial)  # type: ignore[return-value]

    def tell(self, trial: int, point: dict[str, Any], loss: float) -> None:
        self._strategy.tell(trial, point, -loss)


class Optuna:
    """A study, asked in the way that its documentation shows."""

    def __init__(self, problem: Problem, seed: int, **arguments: Any) -> None:
        import optuna

        from modules.space import Space

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = Space.parse(problem.space)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(seed=seed, **arguments)
        self._study = optuna.create_study(sampler=sampler)
        self._asked: dict[int, Any] = {}

    def ask(self, trial: int) -> dict[str, Any]:
        asked = self._asked[trial] = self._study.ask()
        return self._space.build(lambda name: self._suggest(asked, name))

    def _suggest(self, asked: Any, name: str) -> Any:
        from modules.space import Choices, Finite, LogIntegers, Range

        dimension = self._space.dimensions[name]
        if isinstance(dimension, Choices):
            return dimension[asked.suggest_categorical(name, range(len(dimension)))]
        if isinstance(dimension, Finite):
            return dimension[asked.suggest_int(name, 0, len(dimension) - 1)]
        assert isinstance(dimension, (LogIntegers, Range))
        if isinstance(dimension, LogIntegers):
            return asked.suggest_int(name, dimension.start, dimension.stop, log=True)
        return asked.suggest_float(name, dimension.start, dimension.stop, log=dimension.is_log)

    def tell(self, trial: int, point: dict[str, Any], loss: float) -> None:
        self._study.tell(self._asked.pop(trial), loss)


class Cmaes:
    """CMA-ES, started in the middle; a generation is asked for when all of the last are told."""

    def __init__(self, problem: Problem, seed: int) -> None:
        from cmaes import CMA

        from modules.space import Space

        self._space = Space.parse(problem.space)
        count = len(self._space.dimensions)
        bounds = np.array([[0.0, 1.0]] * count)
        self._cma = CMA(np.full(count, 0.5), 0.3, bounds=bounds, seed=seed + 1)
        self._told: list[Any] = []
        self._asked: dict[int, Any] = {}

    def ask(self, trial: int) -> dict[str, Any]:
        self._asked[trial] = shares = self._cma.ask()
        pairs = zip(self._space.dimensions.items(), shares, strict=True)
        return {name: dimension.at(float(share)) for (name, dimension), share in pairs}

    def tell(self, trial: int, point: dict[str, Any], loss: float) -> None:
        self._told.append((self._asked.pop(trial), loss))
        if len(self._told) == self._cma.population_size:
            self._cma.tell(self._told)
            self._told = []


CONTENDERS: dict[str, Callable[[Problem, int], Contender]] = {
    "ours": Ours,
    "optuna_univariate": lambda problem, seed: Optuna(problem, seed, multivariate=False),
    "optuna_multivariate": lambda problem, seed: Optuna(problem, seed, multivariate=True),
    "optuna_group": lambda problem, seed: Optuna(problem, seed, multivariate=True, group=True),
    "cmaes": Cmaes,
    "random": lambda problem, seed: Ours(problem, seed, "random"),
}


def takes_part(name: str, problem: Problem) -> bool:
    """Whether a contender can do a function, and does not do the same as another there."""
    entries = problem.space.values()
    if name == "cmaes":
        return all(isinstance(one, dict) and isinstance(one["from"], float) for one in entries)
    return name != "optuna_group" or any(isinstance(one, dict) and "if" in one for one in entries)


def found(
    make: Callable[[Problem, int], Contender],
    problem: Problem,
    seed: int,
    in_flight: int,
    most: int,
) -> list[float]:
    """Return the distance from the optimum of the best told, after each evaluation."""
    contender = make(problem, seed)
    noise = random.Random(seed)
    lasts = random.Random(seed + 1)
    under_way: list[tuple[float, int, dict[str, Any]]] = []
    best_told, best, way = math.inf, math.inf, []
    now, trial = 0.0, 0
    while len(way) < most:
        while len(under_way) < in_flight:
            point = contender.ask(trial)
            heappush(under_way, (now + lasts.lognormvariate(0.0, 0.5), trial, point))
            trial += 1
        now, ended, point = heappop(under_way)
        loss = problem.loss(point, seed) - problem.least
        told = loss + problem.noise * noise.gauss(0, 1)
        contender.tell(ended, point, told)
        if told < best_told:
            best_told, best = told, loss
        way.append(best)
    return way


class Kept:
    """Results by contender, function, number in flight and seed; in a file, if there is a path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: dict[str, list[float]] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                key, values = json.loads(line)
                self.rows[key] = values

    def found(self, name: str, function: str, in_flight: int, seed: int, most: int) -> list[float]:
        key = f"{name}/{function}/{in_flight}/{seed}/{most}"
        if key not in self.rows:
            way = found(CONTENDERS[name], PROBLEMS[function], seed, in_flight, most)
            self.rows[key] = [way[mark - 1] for mark in MARKS if mark <= most]
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps([key, self.rows[key]]) + "\n")
        return self.rows[key]


def interval(ours: list[float], peer: list[float]) -> tuple[float, float]:
    """Return the bootstrapped 95 % interval of the difference of medians, over pairs of a seed."""
    generator = np.random.default_rng(0)
    picked = generator.integers(0, len(ours), (2000, len(ours)))
    drawn = np.median(np.array(ours)[picked], axis=1) - np.median(np.array(peer)[picked], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


class Scores:
    """Medians, ranks and rows of what was kept."""

    def __init__(self, kept: Kept, contenders: list[str], seeds: range, most: int) -> None:
        self._kept, self._contenders, self._seeds = kept, contenders, seeds
        self._most = most
        self.marks = [mark for mark in MARKS if mark <= most]

    def of(self, function: str, in_flight: int) -> dict[str, list[list[float]]]:
        """Return what each contender found, of each seed at each mark."""
        return {
            name: [
                self._kept.found(name, function, in_flight, seed, self._most)
                for seed in self._seeds
            ]
            for name in self._contenders
            if takes_part(name, PROBLEMS[function])
        }

    def rows(self, function: str, in_flight: int) -> Iterator[Result]:
        """Yield a row for each mark."""
        scores = self.of(function, in_flight)
        for place, mark in enumerate(self.marks):
            ours = [seed[place] for seed in scores["ours"]]
            name, peer = self.peer(scores, place)
            title = f"search_{function}_{in_flight}_{mark}"
            if statistics.median(ours) > 0:
                yield compare(title, ours, peer, name, "from optimum")
            else:  # there is no better one
                theirs = statistics.median(peer) if peer else None
                yield Result(title, 0.0, theirs, name, "from optimum", None)

    def peer(
        self, scores: dict[str, list[list[float]]], place: int
    ) -> tuple[str, list[float] | None]:
        """Return the variant of Optuna's TPE with the least median at a mark."""
        peers = {
            name: [seed[place] for seed in found]
            for name, found in scores.items()
            if name.startswith("optuna")
        }
        if not peers:
            return "optuna, not installed", None
        best = min(peers, key=lambda name: statistics.median(peers[name]))
        return best, peers[best]

    def rank_rows(self, functions: list[str], in_flight: int) -> Iterator[Result]:
        """Yield the mean rank over functions and seeds; of equals each has the mean rank."""
        for place, mark in enumerate(self.marks):
            ranks: dict[str, list[float]] = {}
            for function in functions:
                scores = self.of(function, in_flight)
                for seed in range(len(self._seeds)):
                    found = {name: scores[name][seed][place] for name in scores}
                    for name, own in found.items():
                        better = sum(other < own for other in found.values())
                        equal = sum(other == own for other in found.values())
                        rank = better + (equal + 1) / 2
                        ranks.setdefault(name, []).append(rank)
            means = {name: statistics.fmean(all_of_it) for name, all_of_it in ranks.items()}
            ours = means.pop("ours")
            best = min(means, key=lambda name: means[name])
            title = f"search_rank_{in_flight}_{mark}"
            yield compare(title, [ours], [means[best]], best, "mean rank")

    def table(self, functions: list[str], in_flight: int) -> Iterator[str]:
        """Yield the lines of a table of medians at the last mark."""
        yield f"after {self.marks[-1]} evaluations, {in_flight} in flight, {len(self._seeds)} seeds"
        yield "| function | " + " | ".join(self._contenders) + " | ours - best of Optuna |"
        yield "|---" * (len(self._contenders) + 2) + "|"
        for function in functions:
            scores = self.of(function, in_flight)
            last = {name: [seed[-1] for seed in found] for name, found in scores.items()}
            cells = [
                f"{statistics.median(last[name]):.2g}" if name in last else ""
                for name in self._contenders
            ]
            _, peer = self.peer(scores, -1)
            low, high = interval(last["ours"], peer) if peer else (math.nan, math.nan)
            mark = " *" if PROBLEMS[function].is_held_out else ""
            yield f"| {function}{mark} | " + " | ".join(cells) + f" | {low:.2g} to {high:.2g} |"


def ask_rows() -> Iterator[Result]:
    """Time an ask with the tell that follows it; the peer is itself after 100 trials."""
    numbers = {f"x{index}": {"from": 0.0, "to": 1.0} for index in range(5)}
    counted = {"n": {"from": 1, "to": 512, "scale": "log"}, "s": {"from": 0, "to": 20}}
    space = {**numbers, **counted, "rate": {"from": 1e-5, "to": 0.1, "scale": "log"}}
    problem = Problem({**space, "a": list("wxyz"), "b": list("wxyz")}, lambda point, seed: 0.0)
    first: float | None = None
    for told in (100, 1_000, 10_000):
        ours, drawn, generator = Ours(problem, 0), Ours(problem, 0, "random"), random.Random(0)
        for trial in range(told):
            ours.tell(trial, drawn.ask(trial), generator.random())
        times = []
        for trial in range(told, told + 200):
            started_s = time.perf_counter()
            point = ours.ask(trial)
            times.append((time.perf_counter() - started_s) * 1e6)
            ours.tell(trial, point, generator.random())
        first = first or statistics.median(times)
        yield compare(f"ask_us_tpe_{told}", times, [first], "itself after 100", "us")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--functions", nargs="*", choices=list(PROBLEMS), metavar="FUNCTION")
    options.add_argument("--contenders", nargs="*", choices=list(CONTENDERS))
    options.add_argument("--seeds", type=int, default=None)
    options.add_argument("--keep", type=Path, default=None)
    given = options.parse_args()
    functions = given.functions or (list(PROBLEMS) if not given.quick else QUICK)
    known = [name for name in CONTENDERS if is_installed(name)]
    contenders = given.contenders or known
    contenders = list(dict.fromkeys(["ours", *contenders]))
    seeds = range(given.seeds or (3 if given.quick else 30))
    scores = Scores(Kept(given.keep), contenders, seeds, 100 if given.quick else 200)

    def rows() -> Iterator[Result]:
        yield from ask_rows()
        for in_flight in IN_FLIGHT:
            for function in functions:
                yield from scores.rows(function, in_flight)
            yield from scores.rank_rows(functions, in_flight)

    report(rows(), given.json, seeds=str(len(seeds)))
    for in_flight in IN_FLIGHT:
        print("", *scores.table(functions, in_flight), sep="\n")


def is_installed(contender: str) -> bool:
    """Whether a contender's package is."""
    package = contender.partition("_")[0]
    return package not in ("optuna", "cmaes") or importlib.util.find_spec(package) is not None


if __name__ == "__main__":
    main()
