"""What one ask of a strategy costs after ever more trials."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from harness import Result, compare, version_of

STRATEGIES = {
    # name: how many trials it was told of, with --quick, and without
    "grid": ((100, 1_000_000), (100, 10_000, 1_000_000)),
    "random": ((100, 1_000_000), (100, 10_000, 1_000_000)),
    "cross_entropy": ((100, 10_000), (100, 10_000, 1_000_000)),
    "halving": ((100, 10_000), (100, 10_000, 1_000_000)),
    "optuna:tpe": ((100, 1_000, 2_000), (100, 1_000, 2_000, 4_000)),
}
ASK_SPACE = {
    "a": {"from": 0, "to": 9999, "step": 1},
    "b": {"from": 1e-5, "to": 1e-1, "log_steps": 50},
    "c": {"from": 0.0, "to": 0.9, "step": 0.1},
    "d": ["x", "y", "z"],
    "e": {"from": 0, "to": 9, "step": 1},
}


def ask_rows(*, quick: bool) -> list[Result]:
    """Time one ask of each strategy after ever more trials; the peer is itself after 100."""
    rows = []
    for name, (few, many) in STRATEGIES.items():
        if name.startswith("optuna") and version_of("optuna", sys.executable) is None:
            rows.append(Result(f"ask_us_{name}", None, None, "optuna, not installed", "us", None))
            continue
        counts = few if quick else many
        times = {count: ask_s(name, count) * 1e6 for count in counts}
        for count in counts[1:]:
            title = f"ask_us_{name}_{count}"
            rows.append(
                compare(title, [times[count]], [times[counts[0]]], "itself after 100", "us")
            )
    return rows


def ask_s(name: str, told: int) -> float:
    """Return the seconds of one ask of a strategy that was told of so many trials."""
    from modules.options import SweepOptions
    from modules.search import Search

    table: dict[str, Any] = {"space": ASK_SPACE, "strategy": name, "objective": "accuracy"}
    if name == "grid":
        table["order"] = "shuffled"
    else:
        table["trials"] = 10 * told + 10_000
    strategy = Search(SweepOptions.model_validate(table)).strategy
    drawn = Search(
        SweepOptions.model_validate({"space": ASK_SPACE, "strategy": "random", "trials": 1000})
    )
    points = [drawn.strategy.ask(trial) for trial in range(1000)]
    if not getattr(strategy, "is_stateless", False) or hasattr(strategy, "report"):
        hears = getattr(strategy, "report", None)
        for trial in range(told):
            point = points[trial % len(points)]
            score = -abs(point["a"] - 5000.0) - trial * 1e-9
            if hears is not None:
                hears(trial, 1, score)
            strategy.tell(trial, point, score)
    times = []
    for trial in range(told, told + (20 if name.startswith("optuna") else 500)):
        started_s = time.perf_counter()
        strategy.ask(trial)
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)
