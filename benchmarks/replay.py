"""Which part of a search loses: searches replayed on recorded curves, free of the machine's noise.

Every policy has the same space, two workers and the same clock, which follows from what an epoch
costs; its unit is an average full training of the space (30 epochs of a network alone).

    replay.py [--quick] [--json PATH] [--task TASK] [--only TEXT] [--seeds N]

What lies between recorded points is predicted by a Gaussian process, and each trial has the noise
of a recorded one nearby; with ``--snaps`` it is the nearest recorded point itself, one of its
structure that the search has not had.

For each policy: the best validation accuracy of a finished trial after 2.5, 5, 10 and 20 units, in
percent, the test accuracy of that trial, the mean of the best validation accuracy over the time,
and how that differs from the policy it is compared with: means over seeds with an interval of 95 %
by the bootstrap. Rows that the file at ``--json`` has already are not computed again.
"""

from __future__ import annotations

import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from harness import REPOSITORY, machine, parser
from replay_search import Policy, Search, area, best_at
from replay_table import Curves

TIMES = (2.5, 5, 10, 20)
TASKS = ("digits", "table")
TODAY = Policy("ours today", "ours:optuna:tpe", "fail", "halving")
RAY_RANDOM = Policy("Ray Tune, ASHA, random", "random", "fail", "ray")
RAY = Policy("Ray Tune, ASHA, Optuna's search", "optuna:tpe", "last", "ray")
OPTUNA = Policy("Optuna, TPE, Hyperband", "optuna:tpe_liar", "curve", "hyperband")
DRAWN = Policy("random, halving", "random", "fail", "halving")
FUSED = Policy("random, rungs in plans, cohorts of 16", "random", "fail", "rungs", cohort=16)
TAUGHT = replace(TODAY, name="tpe of modules, told curves", model="ours:tpe", told="curve")
FUSED_TAUGHT = replace(
    FUSED, name="tpe, alike 8", model="ours:tpe", told="curve", cohort=8, alike=True
)
COUNTED = replace(FUSED_TAUGHT, name="tpe, 30 trials", trials=30)

POLICIES: dict[str, tuple[Policy, list[Policy]]] = {
    # group: what its policies are compared with, and they
    "as they are": (
        TODAY,
        [
            TODAY,
            RAY_RANDOM,
            RAY,
            OPTUNA,
            Policy("random, no rule"),
            replace(RAY, name="Ray Tune, Optuna's search, PyTorch's epochs", engine="torch"),
            replace(OPTUNA, name="Optuna, PyTorch's epochs", engine="torch"),
        ],
    ),
    "what the model is told": (
        TODAY,
        [
            replace(TODAY, name="ours, last score of stopped", told="last"),
            replace(TODAY, name="ours, model random", model="random"),
            replace(RAY, name="Ray Tune's rule, told fail", told="fail"),
            replace(RAY, name="Ray Tune's rule, told curves", told="curve"),
            replace(TODAY, name="halving, TPE told curves", model="optuna:tpe", told="curve"),
        ],
    ),
    "the model": (
        TODAY,
        [
            replace(
                TODAY, name="halving, multivariate", model="optuna:tpe_multivariate", told="curve"
            ),
            replace(TODAY, name="cross_entropy, last", model="ours:cross_entropy", told="last"),
            Policy("TPE, no rule", "optuna:tpe_liar"),
            replace(TODAY, name="tpe of modules, told fail", model="ours:tpe"),
            replace(TODAY, name="tpe of modules, last score", model="ours:tpe", told="last"),
            TAUGHT,
            replace(TAUGHT, name="tpe of modules, told curves, Ray's rule", rule="ray"),
            replace(TAUGHT, name="tpe of modules, told curves, by 2", reduction=2),
            replace(TAUGHT, name="tpe of modules, told curves, to epoch 9", top=9),
            replace(TAUGHT, name="tpe of modules, told curves, 64 ahead", ahead=64),
            Policy("tpe of modules, no rule", "ours:tpe"),
        ],
    ),
    "points ahead": (
        TODAY,
        [replace(TODAY, name=f"{ahead} ahead", ahead=ahead) for ahead in (8, 64)],
    ),
    "the rule, random points": (
        DRAWN,
        [
            DRAWN,
            *(
                replace(DRAWN, name=f"halving by {by}, from {first}", reduction=by, grace=first)
                for by, first in ((2, 1), (4, 1), (2, 2), (3, 2), (3, 4), (4, 2), (2, 4))
            ),
            replace(DRAWN, name="halving by 3, to epoch 9", top=9),
            replace(DRAWN, name="halving by 2, to epoch 8", top=8, reduction=2),
            replace(DRAWN, name="median", rule="median"),
            replace(DRAWN, name="promoted, begun anew", rule="restart"),
            replace(DRAWN, name="promoted, goes on", rule="promote"),
            replace(DRAWN, name="promoted by 4, goes on", rule="promote", reduction=4),
            replace(DRAWN, name="promoted by 2, goes on", rule="promote", reduction=2),
        ],
    ),
    "cohorts in plans, random points": (
        DRAWN,
        [
            replace(FUSED, name=f"{kind} {size}, {judged}", cohort=size, alike=alike, rule=rule)
            for kind, alike in (("mixed", False), ("alike", True))
            for size in (4, 16, 64)
            for judged, rule in (("by rungs", "rungs"), ("by cohort", "cohort"))
        ],
    ),
    "cohorts in plans, tpe of modules": (
        TAUGHT,
        [
            replace(FUSED_TAUGHT, name=f"tpe, {kind} {size}", cohort=size, alike=kind == "alike")
            for size in (4, 8, 16, 64)
            for kind in ("mixed", "alike")
        ]
        + [
            replace(FUSED_TAUGHT, name=f"tpe, alike 8, by {by}, to {top}", reduction=by, top=top)
            for by, top in ((3, 9), (2, 16), (2, 8), (4, 16))
        ],
    ),
    "a number of trials": (
        COUNTED,
        [
            replace(COUNTED, name=f"tpe, {count} trials{text}", rule=rule, trials=count)
            for count in (30, 60, 120, 300)
            for rule, text in (("rungs", ""), ("none", ", no rule"))
        ],
    ),
    "cohorts in plans, rungs": (
        DRAWN,
        [
            replace(FUSED, name=f"mixed 16, by {by}, from {first}", reduction=by, grace=first)
            for by, first in ((2, 1), (4, 1), (2, 2), (4, 2))
        ],
    ),
}


@lru_cache
def curves_of(task: str) -> Curves:
    """Return the curves of a task."""
    return Curves(task)


def times_of(until: float) -> list[float]:
    """Return when a search is looked at that goes on until a time."""
    return [*(time for time in TIMES if time < until), until]


def simulate(task: str, policy: Policy, seed: int, until: float, snaps: bool) -> dict[str, Any]:
    """Run one search; return what it has to show at each time."""
    sys.path.append(str(REPOSITORY))
    curves = curves_of(task)
    found = Search(policy, curves, seed, snaps=snaps).run(until)
    bests = [best_at(found, time) for time in times_of(until)]
    return {
        "val": [val for val, _ in bests],
        "test": [test for _, test in bests],
        "area": area(found, until, 0.1 if task == "digits" else 1 / 7),
        "begun": found.begun,
        "finished": len(found.finished),
        "off": float(np.mean([off for off in found.off if off < 10] or [math.nan])),
        "moved": float(np.mean([off >= 10 for off in found.off])),
        "at_top": found.at_top_s / (2 * until * curves.unit_s),
    }


def interval(values: Any) -> tuple[float, float, float]:
    """Return the mean of some values, and the ends of its interval of 95 % by the bootstrap."""
    values = np.asarray(values, float)
    draws = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
    means = values[draws].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def difference(values: Any, base: Any) -> tuple[float, float, float]:
    """Return how the mean of some values differs from that of others, with its interval."""
    values, base = np.asarray(values, float), np.asarray(base, float)
    random = np.random.default_rng(0)
    means = [
        each[random.integers(len(each), size=(2000, len(each)))].mean(1) for each in (values, base)
    ]
    low, high = np.quantile(means[0] - means[1], (0.025, 0.975))
    return float(values.mean() - base.mean()), float(low), float(high)


def line(policy: Policy, runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> str:
    """Return a policy's row as text: of each number the mean, in percent."""
    cells = []
    for at in range(len(runs[0]["val"])):
        val = [run["val"][at] for run in runs if not math.isnan(run["val"][at])]
        test = [run["test"][at] for run in runs if not math.isnan(run["test"][at])]
        few = "" if len(val) == len(runs) else f"({len(val)})"
        cells.append(f"{100 * np.mean(val):.2f}/{100 * np.mean(test):.2f}{few}" if val else "-")
    shown = "".join(f"{cell:>16s}" for cell in cells)
    mean, low, high = (100 * value for value in interval([run["area"] for run in runs]))
    text = f"{policy.name:44s}{shown}  {mean:6.2f} [{low:.2f}, {high:.2f}]"
    if base and base is not runs:
        gain, low, high = (
            100 * value
            for value in difference([run["area"] for run in runs], [run["area"] for run in base])
        )
        text += f"  {gain:+.2f} [{low:+.2f}, {high:+.2f}]"
    begun, finished = (np.mean([run[key] for run in runs]) for key in ("begun", "finished"))
    return f"{text}  {finished:.0f}/{begun:.0f}"


def chosen(only: str, quick: bool) -> list[tuple[str, Policy]]:
    """Return the policies to run, each with its group; the first of a group's is its base."""
    names: set[str] = set()
    rows = []
    for group, (base, policies) in POLICIES.items():
        wanted = [each for each in policies if only.lower() in f"{group}: {each.name}".lower()]
        if quick:
            quick_ones = (TODAY, RAY_RANDOM, RAY, DRAWN, TAUGHT, FUSED_TAUGHT)
            wanted = [each for each in wanted if each in quick_ones]
        for policy in [base, *wanted] if wanted else []:
            if policy.name not in names:
                names.add(policy.name)
                rows.append((group, policy))
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--task", choices=TASKS, help="one of them alone")
    options.add_argument("--only", default="", help="policies and groups whose names contain this")
    options.add_argument("--seeds", type=int)
    options.add_argument("--until", type=float, default=max(TIMES), help="units of time")
    options.add_argument("--snaps", action="store_true", help="nearest recorded points alone")
    options.add_argument("--processes", type=int, default=2)
    given = options.parse_args()
    seeds = given.seeds or (6 if given.quick else 20)
    until = 10 if given.quick else given.until
    tasks = [given.task] if given.task else ["digits"] if given.quick else list(TASKS)
    kept = _kept(given.json)
    rows = chosen(given.only, given.quick)
    for task in tasks:
        curves = curves_of(task)
        print(
            f"\n{task}: {len(curves)} points, best validation accuracy "
            f"{100 * curves.val[:, -1].max():.2f}, a unit is {curves.unit_s:.2f} s"
        )
        head = "".join(f"{f'at {time:g}':>16s}" for time in times_of(until))
        print(f"{'policy':44s}{head}  over the time, gain on the base, finished/begun")
        with ProcessPoolExecutor(given.processes) as pool:
            results: dict[str, list[dict[str, Any]]] = {}
            for group, policy in rows:
                if not _is_there(policy.model):
                    print(f"{policy.name:44s}  missing: there is no strategy {policy.model[5:]}")
                    continue
                key = f"{task}{' snapped' * given.snaps}: {policy.name}: {until:g} units"
                runs = results[policy.name] = kept.setdefault(key, [])[:seeds]
                jobs = [
                    pool.submit(simulate, task, policy, seed, until, given.snaps)
                    for seed in range(len(runs), seeds)
                ]
                runs += [job.result() for job in jobs]
                kept[key] = runs
                base = results.get(POLICIES[group][0].name, [])
                print(line(policy, runs, base), flush=True)
                _keep(given.json, kept)


def _is_there(model: str) -> bool:
    """Whether a model is one that can be asked; a strategy of `modules` may not be registered."""
    if not model.startswith("ours:"):
        return True
    from modules.strategies import STRATEGIES

    return model.removeprefix("ours:") in STRATEGIES


def _kept(path: Path | None) -> dict[str, list[dict[str, Any]]]:
    if path is None or not path.exists():
        return {}
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())["searches"]
    return found


def _keep(path: Path | None, searches: dict[str, list[dict[str, Any]]]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps({"machine": machine(), "searches": searches}) + "\n")
        part.replace(path)


if __name__ == "__main__":
    main()
