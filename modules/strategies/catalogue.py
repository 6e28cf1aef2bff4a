"""`@strategy` and `@stopping_rule` enter a class under a name; options are checked, objects made.

Each stands in its own file, which may be any of this package, with its name and its options::

    @strategy("annealing")
    class Annealing:
        def __init__(
            self,
            space: Space,
            seed: int,
            start: Annotated[float, Field(gt=0, description="the first temperature")] = 1.0,
        ) -> None: ...

The parameters that are annotated with a ``Field`` are its options in the file.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_origin

from pydantic import BaseModel, ConfigDict, create_model

from diel.errors import PluginError

if TYPE_CHECKING:
    from ..space import Space
    from .stopping import StoppingRule
    from .strategy import Strategy

_KIND = "strategies"
_Class = TypeVar("_Class", bound=type)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True)
class Named:
    """A row of `STRATEGIES` or `RULES`: a class, and what its name stands for."""

    kind: Any
    tags: Mapping[str, str]
    """Keys of the table that say which row it means: ``name``, ``rule``."""
    arguments: Mapping[str, Any]
    """Arguments of the class that follow from the name."""
    needs: str = ""
    """A package that has to be installed, as it is imported."""
    reads_scores: bool = False
    """Whether it models scores, where others go by their ranks alone."""

    @property
    def rule(self) -> str:
        """The name of the rule; empty for a strategy that comes without one."""
        return self.tags.get("rule", "")

    @cached_property
    def options(self) -> type[BaseModel]:
        """The model of its table: the tags, and the options of the class, and of the rule's."""
        fields: dict[str, Any] = {tag: (Literal[name], name) for tag, name in self.tags.items()}
        for kind in (self.kind, RULES[self.rule].kind if self.rule else self.kind):
            # Not get_type_hints: Python 3.10 makes another type of one whose default is None.
            hints = inspect.get_annotations(kind.__init__, eval_str=True)
            for name, parameter in inspect.signature(kind).parameters.items():
                if get_origin(hints.get(name)) is Annotated:
                    is_needed = parameter.default is parameter.empty
                    fields[name] = (hints[name], ... if is_needed else parameter.default)
        return create_model(f"{self.kind.__name__}Options", __base__=_Table, **fields)

    def options_in(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the class alone, from a table that has been checked."""
        known = inspect.signature(self.kind).parameters
        return {name: value for name, value in table.items() if name in known}


STRATEGIES: dict[str, Named] = {}
RULES: dict[str, Named] = {}


def strategy(
    name: str, *, rule: str = "", needs: str = "", reads_scores: bool = False, **arguments: Any
) -> Callable[[_Class], _Class]:
    """Enter a class in `STRATEGIES`, made with these arguments; used as a decorator.

    `rule` is the name of a rule that it comes with, `needs` a package that has to be installed: by
    an extra that is called like the strategy, up to a colon. `reads_scores` says that it does not
    go by ranks alone, which constraints need.
    """

    def enter(kind: _Class) -> _Class:
        tags = {"name": name, **({"rule": rule} if rule else {})}
        STRATEGIES[name] = Named(kind, tags, arguments, needs, reads_scores)
        return kind

    return enter


def stopping_rule(name: str) -> Callable[[_Class], _Class]:
    """Enter a class in `RULES`; used as a decorator."""

    def enter(kind: _Class) -> _Class:
        RULES[name] = Named(kind, {"rule": name}, {})
        return kind

    return enter


def check_strategy(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Check the options of a strategy without making it; return them with their defaults.

    The name in the table is one of `STRATEGIES`, one of an installed package, or a user's class
    beside the workflow file. A `pydantic.ValidationError` if an option is wrong, a `PluginError` if
    there is no such strategy.
    """
    name = table["name"]
    if (ours := STRATEGIES.get(name)) is not None:
        if ours.needs and importlib.util.find_spec(ours.needs.lower()) is None:
            extra = name.partition(":")[0]
            raise PluginError(
                f'{name} needs {ours.needs}, which is not installed: pip install "diel[{extra}]"'
            )
        return ours.options.model_validate(dict(table)).model_dump()
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
    free: Collection[str] = (),
    objectives: Mapping[str, bool] | None = None,
) -> Strategy:
    """Make a strategy from options that were checked; without its rule, if it has one.

    `free` are the parameters in which networks of one plan may differ; `objectives` are the names
    of the objectives, and whether more of each is better.
    """
    name = table["name"]
    if (ours := STRATEGIES.get(name)) is not None:
        of_sweep = {"order": order, "folder": folder, "free": free, "objectives": objectives}
        given = ours.options_in({**of_sweep, **table})
        return cast("Strategy", ours.kind(space, seed, **ours.arguments, **given))
    from diel import load_plugin

    options = {key: value for key, value in table.items() if key != "name"}
    return cast("Strategy", load_plugin(name, folder, _KIND)(space, seed, **options))


def is_known(name: str) -> bool:
    """Whether a name without a colon stands for a strategy: one of ours, or an installed one."""
    from diel import installed_plugins

    return name in STRATEGIES or name in installed_plugins(_KIND)


def make_rule(table: Mapping[str, Any]) -> StoppingRule:
    """Make a rule from options that were checked."""
    ours = RULES[table["rule"]]
    return cast("StoppingRule", ours.kind(**ours.options_in(table)))
