"""What is wrong with a space: its entries, and its points for the trainer of this package."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from .evaluation import TAKES, EvaluationError, check_counts, class_factors
from .hyperparameters import Hyperparameters, loss_problem, parameters_with
from .layer_list import LayerTables, layer_problems, references, rows_of, with_layers
from .networks import layers_of
from .parallel import Parallel
from .problems import at, meant
from .space import Space, SpaceError, parse_dimension
from .tabular import DataShape, is_table, known_shape

if TYPE_CHECKING:
    from dnn import Dataset

_READERS: Final[Mapping[str, tuple[str, str, str]]] = {
    "channels": ("convolutions", "images", "depth and kernel"),
    "recurrent": ("recurrent layers", "sequences", "cell and bidirectional"),
}
"""By parameter: the layers it adds, the samples that these read, and parameters that go with it."""
_VALUES_CHECKED: Final = 1000
_POINTS_CHECKED: Final = 100


def space_problems(space: dict[str, Any], columns: Collection[str]) -> Iterator[InitErrorDetails]:
    """Yield the problems of a space: names of columns, each parameter, then all together."""
    sound = True
    for name, entry in space.items():
        if name in columns:
            text = f"{name}: a column of the results; use another name"
            yield at((name,), entry, text)
        try:
            parse_dimension(entry)
        except SpaceError as error:
            sound = False
            yield at((name,), entry, error.reason)
    if sound:
        try:
            Space.parse(space)
        except SpaceError as error:
            yield at((error.parameter,) if error.parameter else (), space, error.reason)


def are_sound(layers: Any) -> bool:
    """Whether an option is a valid list of layers, as far as that can be told without a point."""
    if not isinstance(layers, list) or not all(isinstance(table, dict) for table in layers):
        return False
    return not any(layer_problems(layers))


def parameter_problems(
    space: Space,
    trainer: Mapping[str, Any] | None = None,
    shape: DataShape | None = None,
    task: str | None = None,
) -> Iterator[InitErrorDetails]:
    """Yield the problems of a space for the trainer of this package: of values, then of points.

    `trainer` are the trainer's options, and `shape` and `task` those of its data, where known.
    """
    trainer = trainer or {}
    layers = trainer.get("layers")
    known = [name for name in Hyperparameters.model_fields if name != "layers"]
    inside = [] if layers is None else references(layers)
    sound = True
    for name in inside:
        if name not in space.dimensions:
            text = f'layers of the trainer use "${name}", and the space has no such parameter'
            yield at(("space",), name, text, meant(name, list(space.dimensions), f"add {name}"))
            sound = False
    for name, dimension in space.dimensions.items():
        if name in inside:
            continue
        if name not in known:
            text = "the trainer has no such hyperparameter"
            remedy = meant(name, known, f"it knows {', '.join(known)}")
            yield at(("space", name), name, text, remedy)
            sound = False
            continue
        for value in islice(dimension.examples(), _VALUES_CHECKED):
            try:
                Hyperparameters.model_validate(parameters_with(name, value))
            except ValidationError as error:
                text = f"{value!r}: {error.errors()[0]['msg']}"
                # diel words the problem from the model that refused the value.
                context = {"text": text, "caught": error, "model": Hyperparameters}
                kind = PydanticCustomError("hyperparameter", "{text}", context)
                yield InitErrorDetails(type=kind, loc=("space", name), input=value)
                sound = False
                break
    if not sound:
        return
    freeze, head = trainer.get("freeze"), trainer.get("head")
    patterns = freeze if isinstance(freeze, list) else ()
    for text in point_problems(
        space, layers, shape, task, freeze=patterns, trains_last=head == "new"
    ):
        first = re.split("[ :]", text)[0]
        of = ("space", first) if first in space.dimensions else ("space",)
        yield at(("trainer",) if first == "freeze" else of, text, text)


def stage_problems(space: Space, trainer: Any) -> Iterator[InitErrorDetails]:
    """Yield the problems of training networks of the space on the ranks of a trainer's copy."""
    parallel = Parallel.of_options(trainer.options)
    if parallel is None or parallel.problem_with(trainer.processes):
        return  # which is said there
    for point in _drawn_points(space):
        wanted = Hyperparameters.model_validate(with_layers(point, trainer.options.get("layers")))
        # Any image and number of classes will do: the number of layers does not depend on them.
        pixels = 2 ** len(wanted.channels)
        shape = DataShape(pixels * pixels, 2, (1, pixels, pixels))
        if wanted.layers is not None:
            known = known_shape(trainer.options.get("dataset"))
            if known is None:
                return
            shape = known
        layers = layers_of(wanted, *shape)
        if text := parallel.problem_with(trainer.processes, layers):
            named = (name for name in _READERS if name in space.dimensions)
            of = next((name for name in named if getattr(wanted, name)), "hidden")
            shown = f"{of} = {getattr(wanted, of)}: {text}"
            yield at(("space", of) if of in space.dimensions else ("space",), point, shown)
            return
        if text := parallel.problem_with_batches(trainer.processes, wanted.batch_size):
            loc = ("space", "batch_size") if "batch_size" in space.dimensions else ("space",)
            yield at(loc, wanted.batch_size, text, "take larger batches, or fewer processes")
            return


def data_problems(
    space: Mapping[str, Any], name: str, trainer: Mapping[str, Any]
) -> Iterator[InitErrorDetails]:
    """Yield which parameters of a space do not go with the data of the trainer of that name."""
    dataset, reading = trainer.get("dataset"), trainer.get("reading")
    is_sequence = isinstance(reading, Mapping) and reading.get("lengths") is not None
    kind = "a table" if is_table(dataset) else "sequences" if is_sequence else ""
    for parameter, (readers, wanted, related) in _READERS.items():
        if parameter in space and kind and kind != wanted:
            yield at(
                ("space", parameter),
                space[parameter],
                f"{readers} are of {wanted}, and {name} trains on {dataset}: {kind}",
                f"leave out {parameter}, {related}",
            )
    if "class_weight" in space and trainer.get("class_weight") is not None:
        yield at(
            ("space", "class_weight"),
            space["class_weight"],
            f"{name} has a class_weight too",
            "leave one of them out",
        )
    watched = trainer.get("watch") if trainer.get("patience") else None
    losses = repr(space.get("loss"))
    if "pinball" in (watched, *(trainer.get("metrics") or ())) and "quantile" not in losses:
        yield at(
            ("space",),
            space,
            f"{name} measures pinball, and no network predicts quantiles",
            'add loss = "quantile"',
        )
    if is_sequence and "recurrent" not in space:
        yield at(
            ("space",),
            space,
            f"{name} trains on sequences, and no layer reads them",
            "add recurrent = [[32]], the units of each recurrent layer",
        )


def _drawn_points(space: Space) -> Iterator[dict[str, Any]]:
    draw = Random(0)
    for _ in range(_POINTS_CHECKED):
        yield space.sample(lambda name: draw.random())


def point_problems(
    space: Space,
    layers: LayerTables | None = None,
    shape: DataShape | None = None,
    task: str | None = None,
    data: Dataset | None = None,
    freeze: Sequence[str] = (),
    *,
    trains_last: bool = False,
) -> list[str]:
    """Return each problem of parameters in combination once, as drawn points show it.

    What the trainer's options say is in `layers`, `freeze`, and in `trains_last`, whether its head
    is new; `shape` and `task` are those of the data, and `data` these themselves, where known.
    """
    texts: dict[str, None] = {}
    if data is not None:
        shape, task = shape or DataShape.of(data), data.task
    outputs = None if shape is None else shape.outputs
    tried: set[tuple[Any, ...]] = set()
    of_layers: dict[str, list[str]] = {}
    for point in _drawn_points(space):
        try:
            wanted = Hyperparameters.model_validate(with_layers(point, layers))
        except ValidationError as error:
            texts[error.errors()[0]["msg"].removeprefix("Value error, ")] = None
            continue
        except ValueError as error:  # a parameter that is absent in this point
            texts[str(error)] = None
            continue
        unfit = "" if task is None else loss_problem(wanted, TAKES[task], outputs)
        if not unfit and data is not None:
            unfit = _problem_with_targets(wanted, data)
        if not unfit and (shape or freeze) and (key := wanted.network_key) not in tried:
            tried.add(key)
            shapes = [shape] if shape is not None else _possible_shapes(wanted)
            found = [_problem_with_network(wanted, each, freeze, trains_last) for each in shapes]
            if shape is None:  # the samples may be those that the layers take
                found = [text for text in found if not text or text.startswith("freeze")]
            unfit = found[0] if found and all(found) else ""
            if unfit.startswith("freeze"):
                freeze = ()  # said once, although other networks have other layers
            elif unfit and layers is not None:
                shown = ", ".join(f"{name} = {point[name]}" for name in references(layers))
                of_layers.setdefault(unfit, []).append(shown)
                continue
        if unfit:
            texts[unfit] = None
    for text, (shown, *others) in of_layers.items():
        points = f" with {shown}" if shown else ""
        more = f", as at {len(others)} more of {len(tried)} points" if others else ""
        texts[f"layers{points}: {text}{more}"] = None
    return [*texts]


def remarks_on_points(
    space: Space, layers: LayerTables | None, patience: int | None, data: Dataset | None
) -> Iterator[str]:
    """Yield a line for people if patience ends no training of a space, or counts are fractions."""
    epochs, are_counts = 0, False
    for point in _drawn_points(space):
        with contextlib.suppress(ValueError):  # which is told of elsewhere
            wanted = Hyperparameters.model_validate(with_layers(point, layers))
            epochs = max(epochs, wanted.epochs)
            are_counts = are_counts or wanted.are_counts
    if patience is not None and 0 < epochs <= patience:
        yield (
            f"patience is {patience}, and no training has more than {epochs} epochs, so none ends "
            "early: take a smaller patience, or more epochs"
        )
    if are_counts and data is not None and (data.y >= 0).all() and (data.y % 1).any():
        yield (
            f"{data.name}: loss 'poisson' is of counts, and some targets are no whole numbers: "
            "right if these are rates, such as counts by time"
        )


def _possible_shapes(wanted: Hyperparameters) -> list[DataShape]:
    """Return shapes of data of each kind, where none is known: names of layers do not depend on it.

    Only whether columns are embedded adds a layer with parameters.
    """
    pixels = max(32, 2 ** len(wanted.channels))
    images = [DataShape(pixels**2 * n, 2, (n, pixels, pixels)) for n in (1, 3)]
    return [DataShape(64, 2), DataShape(64, 2, None, (3,)), DataShape(512, 2, (64, 8)), *images]


def _problem_with_network(
    wanted: Hyperparameters, shape: DataShape, freeze: Sequence[str], trains_last: bool
) -> str:
    """Return why a network cannot be built for data, or nothing of it frozen; empty if it can."""
    from dnn import DnnError, frozen_parameters

    try:
        layers = layers_of(wanted, *shape)
        if wanted.layers is not None and (problem := rows_of(layers)[-1].get("problem")):
            return str(problem)
        if freeze:
            frozen_parameters(layers, freeze, trains_last=trains_last)
    except (DnnError, ValueError) as error:
        return str(error)
    return ""


def _problem_with_targets(wanted: Hyperparameters, data: Dataset) -> str:
    """Return why the loss does not fit these targets, or its weights these classes, or ""."""
    try:
        class_factors(wanted.class_weight, data)
        if wanted.are_counts:
            check_counts(data)
    except EvaluationError as error:
        return str(error)
    return ""
