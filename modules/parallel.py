"""How the ranks of a copy train one network together: ``training.parallel`` of a workflow file.

::

    [module.options]
    training.parallel = "data"
    training.parallel = { scheme = "local_sgd", steps = 8 }
    training.parallel = { data = 2, pipeline = 2 }              # a mesh

The schemes are defined in dnn: a table's keys are the parameters of the scheme's class.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from diel import format_value

from .problems import meant, problem

if TYPE_CHECKING:
    from dnn import Layer

SCHEMES: Final[Mapping[str, str]] = {
    "data": "DataParallel",
    "local_sgd": "LocalSGD",
    "parameter_server": "ParameterServer",
    "asynchronous_sgd": "AsynchronousSGD",
    "mesh": "Mesh",
}
"""The class in `dnn.distributed` of each name."""
_NAME: Final = "scheme"
_OF_BATCHES: Final = ("local_sgd", "parameter_server", "asynchronous_sgd")
"""Schemes whose ranks each need a row of every batch, and none of which scales losses."""


@dataclass(frozen=True)
class Parallel:
    """A scheme of parallel training: its name, and its options in the workflow file."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, given: str | Mapping[str, Any]) -> Parallel:
        """Return the scheme that an option names; a table without a name is a mesh.

        A `PydanticCustomError` if there is no such scheme, or it has no such option.
        """
        if isinstance(given, str):
            name, options = given, {}
        else:
            options = {key: value for key, value in given.items() if key != _NAME}
            name = given.get(_NAME, "mesh")
        if not isinstance(name, str) or name not in SCHEMES:
            raise problem(f"there is no scheme {name!r}", meant(str(name), SCHEMES))
        self = cls(name, options)
        _, *known = inspect.signature(self._kind).parameters
        for key in options:
            if key not in known:
                remedy = meant(key, known) if known else "it has no options: remove it"
                raise problem(f'scheme "{name}": unknown key "{key}"', remedy)
        return self

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Parallel | None:
        """Return the scheme in the options of a trainer; None without one, or if it is invalid."""
        training = options.get("training")
        given = training.get("parallel") if isinstance(training, Mapping) else None
        if not isinstance(given, (str, Mapping)):
            return None
        try:
            return cls.of(given)
        except ValueError:  # reported when the option itself is checked
            return None

    @property
    def _kind(self) -> Any:
        from dnn import distributed

        return getattr(distributed, SCHEMES[self.name])

    def scheme(self, comm: Any) -> Any:
        """Create the scheme on the ranks of a communicator, all of which call this.

        It is for the argument ``parallel`` of `dnn.NeuralNetwork`; `comm` is of dnn, or of mpi4py.
        """
        return self._kind(comm, **self.options)

    def problem_with(self, ranks: int, layers: Sequence[Layer] | None = None) -> str:
        """Return why so many ranks cannot train a network by the scheme; empty if they can."""
        from dnn import DnnError

        try:
            self.scheme(_Ranks(ranks))
        except (DnnError, TypeError) as error:
            return str(error)
        find = getattr(self._kind, "problem", None)
        if layers is None or find is None:
            return ""
        known = inspect.signature(find).parameters
        options = {key: value for key, value in self.options.items() if key in known}
        return find(ranks, layers=layers, **options) or ""

    def problem_with_precision(self, precision: str) -> str:
        """Return why the scheme cannot train networks in a precision; empty if it can."""
        if precision != "float16":
            return ""
        text = f'scheme "{self.name}" cannot train in float16, which scales losses'
        if self.name in (*_OF_BATCHES, "mesh"):
            return text
        named = [key for key in ("sharded", "on_nan") if self.options.get(key) in (True, "skip")]
        return f"{text}, with {named[0]}" if named else ""

    def problem_with_batches(self, ranks: int, batch_size: int) -> str:
        """Return why the scheme cannot train on batches of so many rows; empty if it can."""
        workers = ranks - bool(self.options.get("dedicated"))
        if self.name not in _OF_BATCHES or batch_size >= workers:
            return ""
        return f"a batch of {batch_size} rows cannot be shared by {workers} ranks that train"


class _Ranks:
    """Stands in for the communicator of so many ranks where a scheme is only checked."""

    def __init__(self, size: int) -> None:
        self.rank, self.size, self.nodes, self.timeout_s = 0, size, (0,) * size, 0.0

    def split(self, color: int) -> _Ranks:
        return self

    def gather_values(self, value: Any) -> list[Any]:
        return [value] * self.size


class TrainingOptions(BaseModel):
    """How one network is trained."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    parallel: str | dict[str, Any] | None = Field(
        None,
        description="how the ranks of a copy (processes) train one network together: "
        f"{', '.join(SCHEMES)}; or a table of the scheme and its options, or of the sizes of a "
        "mesh: data, pipeline, model",
    )

    @field_validator("parallel", mode="before")
    @classmethod
    def _check_parallel(cls, given: Any, info: ValidationInfo) -> Any:
        if given is None:
            return None
        if not isinstance(given, (str, Mapping)):
            text = f"expected the name of a scheme or a table, got {format_value(given)}"
            raise problem(text, 'for example parallel = "data"')
        parallel = Parallel.of(given)
        if parallel.options.get("rows") == "own":
            # Each rank loads the whole data set.
            text = 'rows = "own" is for ranks that load rows of their own, and here all load all'
            raise problem(text, "leave it out: each computes a part of every batch")
        module = (info.context or {}).get("module")
        if module is None:  # while it runs
            return given
        if module.processes == 1:
            raise problem(
                f"module {module.name!r} has one process: there is nobody to train with",
                "add processes = 2 to the module, or leave out training.parallel",
            )
        if text := parallel.problem_with(module.processes):
            raise problem(text, f"processes of {module.name!r} is {module.processes}")
        return given

    @property
    def chosen(self) -> Parallel | None:
        """The scheme that the option names; None if each rank trains alone."""
        return None if self.parallel is None else Parallel.of(self.parallel)

    def scheme(self, comm: Any) -> Any:
        """Return the scheme on the ranks of a communicator; None if each rank trains alone."""
        return None if self.chosen is None else self.chosen.scheme(comm)
