"""Strategies and rules by name, with the options that a workflow file may give them."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from diel.errors import PluginError

from ..space import Space
from .cross_entropy import CrossEntropy
from .optuna_search import SAMPLERS, OptunaSearch
from .stopping import Halving, Lagged, Median, StoppingRule, StrategyWithRule
from .strategy import Grid, Random, Strategy

_OPTUNA = "optuna:"
_KIND = "strategies"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GridOptions(_Table):
    """Options of ``grid``: every point once. Its order is an option of the sweep."""

    name: Literal["grid"] = "grid"


class RandomOptions(_Table):
    """Options of ``random``: each parameter uniformly; no point of a small space twice."""

    name: Literal["random"] = "random"


class CrossEntropyOptions(_Table):
    """Options of ``cross_entropy``: random, from a distribution fitted to the best trials."""

    name: Literal["cross_entropy"] = "cross_entropy"
    elite: int = Field(24, ge=2, le=1000, description="trials to which it is fitted")
    startup: int | None = Field(None, ge=1, description="trials before it is used; 3 * elite")
    explore: float = Field(0.1, ge=0, le=1, description="part of the trials drawn uniformly")


class HalvingOptions(_Table):
    """Options of ``halving``: at each rung one trial in `reduction` goes on."""

    name: Literal["halving"] = "halving"
    rule: Literal["halving"] = "halving"
    min_steps: int = Field(1, ge=1, description="the step of the first rung")
    reduction: int = Field(3, ge=2, description="the ratio of a rung's step to that before")


class MedianOptions(_Table):
    """Options of the rule ``median``: a trial below the median of completed ones is stopped."""

    rule: Literal["median"] = "median"
    startup_trials: int = Field(5, ge=1, description="completed trials before any is stopped")
    warmup_steps: int = Field(0, ge=0, description="steps before any trial is stopped")


class OptunaOptions(_Table):
    """Options of ``optuna:<sampler>``."""

    name: str
    best: int | None = Field(
        None, ge=1, le=1000, description="best trials that Optuna is told of again"
    )
    last: int | None = Field(
        None, ge=1, le=1000, description="last trials that Optuna is told of again"
    )


STRATEGIES: dict[str, type[_Table]] = {
    "grid": GridOptions,
    "random": RandomOptions,
    "cross_entropy": CrossEntropyOptions,
    "halving": HalvingOptions,
    **{f"{_OPTUNA}{sampler}": OptunaOptions for sampler in SAMPLERS},
}
RULES: dict[str, type[_Table]] = {"halving": HalvingOptions, "median": MedianOptions}


def check_strategy(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Check the options of a strategy without making it; return them with their defaults.

    The name in the table is one of `STRATEGIES`, one of an installed package, or a user's class
    beside the workflow file. A `pydantic.ValidationError` if an option is wrong, a `PluginError` if
    there is no such strategy.
    """
    name = table["name"]
    if name in STRATEGIES:
        if name.startswith(_OPTUNA) and importlib.util.find_spec("optuna") is None:
            raise PluginError(
                f'{name} needs Optuna, which is not installed: pip install "diel[optuna]"'
            )
        return STRATEGIES[name].model_validate(dict(table)).model_dump()
    from diel import load_plugin

    made = load_plugin(name, folder, _KIND)
    missing = [method for method in ("ask", "tell") if not callable(getattr(made, method, None))]
    if missing:
        raise PluginError(f"{name} has no {' and no '.join(missing)}: a strategy has both")
    options = {key: value for key, value in table.items() if key != "name"}
    try:
        inspect.signature(made).bind(None, 0, **options)
    except TypeError as error:
        raise PluginError(
            f"{name}(space, seed, ...) does not take these options: {error}"
        ) from None
    return dict(table)


def make_strategy(
    table: Mapping[str, Any],
    space: Space,
    seed: int,
    order: Any = "natural",
    folder: Path = Path(),
) -> Strategy:
    """Make a strategy from options that were checked; without its rule, if it has one."""
    name = table["name"]
    if name == "grid":
        return Grid(space, seed, order)
    if name in ("random", "halving"):
        return Random(space, seed)
    options = {key: value for key, value in table.items() if key != "name"}
    if name == "cross_entropy":
        return CrossEntropy(space, seed, **options)
    if name.startswith(_OPTUNA):
        return OptunaSearch(space, seed, name[len(_OPTUNA) :], **options)
    from diel import load_plugin

    return cast("Strategy", load_plugin(name, folder, _KIND)(space, seed, **options))


def is_known(name: str) -> bool:
    """Whether a name without a colon stands for a strategy: one of ours, or an installed one."""
    from diel import installed_plugins

    return name in STRATEGIES or name in installed_plugins(_KIND)


def make_rule(table: Mapping[str, Any]) -> StoppingRule:
    """Make a rule from options that were checked."""
    options = {key: value for key, value in table.items() if key not in ("name", "rule")}
    return Halving(**options) if table["rule"] == "halving" else Median(**options)


def with_rule(strategy: Strategy, rule: StoppingRule | None, lag: int | None) -> Strategy:
    """Wrap a strategy in a stopping rule and a lag, where there are any."""
    if lag is not None and (rule is not None or not getattr(strategy, "is_stateless", False)):
        return Lagged(strategy, lag, rule)
    return StrategyWithRule(strategy, rule) if rule is not None else strategy
