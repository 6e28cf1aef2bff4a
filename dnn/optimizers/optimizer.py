"""`Optimizer`, the base class of optimizers: hyperparameters, and how they become an update.

An optimizer holds hyperparameters only, so one object can train any number of networks. Bound to
a network's buffers it becomes an `Update`. An optimizer of one's own states its state buffers and
the function that moves a block of the parameters::

    def sign_step(w, g, v, learning_rate, momentum, moved):
        np.multiply(v, momentum, v)
        np.add(v, g, v)
        np.sign(v, moved)
        np.multiply(moved, learning_rate, moved)
        np.subtract(w, moved, w)

    class SignDescent(Optimizer):
        state_names = ("velocity",)
        workspaces = 1

        def __init__(self, learning_rate=0.01, momentum=0.9, **options):
            super().__init__(learning_rate, **options)
            self.hyperparameter("momentum", momentum, 0, below=1)

        def step(self, ops, block, scalars):
            (v,) = block.state
            rate, momentum = scalars["learning_rate"], scalars["momentum"]
            return sign_step, (block.w, block.g, v, rate, momentum, *block.workspace)

Hyperparameters are arrays, of shape () or, for K networks, (K, 1), so that they broadcast against
a block of shape (n,) or (K, n). `dnn.optimizers.rule` has another way: a formula, as nodes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dnn.arrays import is_numbers
from dnn.backend import ALIGNMENT_BYTES, Array, Formula, Ops, empty
from dnn.errors import ConfigurationError, ShapeError, explains_arguments
from dnn.graph.node import Node
from dnn.graph.operation import Step
from dnn.graph.operations.arithmetic import Multiply, Negative
from dnn.graph.operations.comparisons import Clip
from dnn.optimizers.minimization import Minimization
from dnn.parameters import FlatBuffer, Segment

if TYPE_CHECKING:
    from dnn.optimizers.schedules import Schedule

__all__ = [
    "BLOCK",
    "CLIPPED_COLUMNS",
    "Block",
    "Hyperparameter",
    "Optimizer",
    "Update",
    "clip_steps",
]

# Elements that an update takes at a time: each ufunc finds the results of the last in the cache.
# On 1.3 million parameters that halves the time; 32 and 64 Ki differ by 5%.


class Update:
    """An optimizer's step as a list of (function, arrays), which `run` replays like a plan.

    Parameters
    ----------
    steps : sequence of (function, arrays)
    scalars : dict of str to array of shape () or (K,)
        The hyperparameters, to be changed between steps: ``scalars["learning_rate"][...] = 0.01``.
        A part of the step that a value of 0 switched off when bound, such as weight decay, stays
        off.
    state : dict of str to FlatBuffer
        State of the optimizer, such as velocities.
    ops : Ops
        Of the device where the arrays lie.
    gradients : array
        The gradients that the steps read.

    Attributes
    ----------
    steps_done : int
        Number of updates of the parameters so far.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        scalars: dict[str, Array],
        state: dict[str, FlatBuffer],
        ops: Ops,
        gradients: Array,
    ) -> None:
        self.steps = list(steps)
        self.gradients = gradients
        self.ops = ops
        self.scalars = scalars
        self.state = state
        self.steps_done = 0

    @cached_property
    def _calls(self) -> list[Step]:
        # Linked at the first run, as in `Plan`.
        return self.ops.link(self.steps)

    def run(self) -> None:
        """Move the parameters by one step."""
        for function, arguments in self._calls:
            function(*arguments)
        self.steps_done += 1

    def __len__(self) -> int:
        return len(self.steps)

    def snapshot(self) -> dict[str, Array]:
        """Return a copy of all that the next steps depend on besides parameters and gradients.

        On the host: ``state.NAME`` for each buffer, ``scalar.NAME`` for each hyperparameter, and
        ``steps_done``.
        """
        arrays = {f"state.{name}": buffer.flat for name, buffer in self.state.items()}
        arrays |= {f"scalar.{name}": array for name, array in self.scalars.items()}
        copies = {name: self.ops.to_host(array).copy() for name, array in arrays.items()}
        return copies | {"steps_done": np.array(self.steps_done, np.int64)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Go back to a snapshot, in place; further steps repeat the steps after it bit for bit.

        Raises
        ------
        ShapeError
            If it is not a snapshot of the same optimizer on a network of the same shapes; then
            nothing was changed.
        """
        present = self.snapshot()
        if set(arrays) != set(present):
            different = ", ".join(sorted(set(arrays) ^ set(present)))
            raise ShapeError("optimizer", f"another one's state was given: {different} differ")
        for name, array in present.items():
            given = arrays[name]
            if (given.shape, given.dtype) != (array.shape, array.dtype):
                message = f"{name} is {array.shape} {array.dtype}, given {given.shape} "
                message += f"{given.dtype}"
                raise ShapeError("optimizer", message, array.shape, given.shape)
        for name, buffer in self.state.items():
            self.ops.load(arrays[f"state.{name}"], buffer.flat)
        for name, scalar in self.scalars.items():
            self.ops.load(arrays[f"scalar.{name}"], scalar)
        self.steps_done = int(arrays["steps_done"])


BLOCK = 65536

# Elements of one network that are clipped at a time. Unlike the blocks of an update it does not
# depend on K, so that the sums of K networks have the bits of those of single networks.
CLIPPED_COLUMNS = 16384

Hyperparameter = float | Sequence[float] | npt.NDArray[Any]
"""A number, or one number for each of K networks."""


class Block(NamedTuple):
    """A part of the buffers; each array has shape (n,) or (K, n).

    `weight_decay` is None where there is none; `state` and `workspace` are as many arrays as the
    optimizer asked for.
    """

    w: Array
    g: Array
    state: tuple[Array, ...]
    weight_decay: Array | None
    workspace: tuple[Array, ...]


class Optimizer:
    """Base class of optimizers, which compute the next parameters from gradients.

    Parameters
    ----------
    learning_rate : float, positive
        This and every other hyperparameter: one number, or one for each of K networks.
    weight_decay : float, not negative
    no_decay : sequence of str
        Parameters without weight decay, by the last part of their name, such as ``["bias"]``.
    schedule : str or schedule, optional
        Factor of the learning rate in each step, see `dnn.optimizers.schedules`.
    clip_value : float, positive, optional
        Every element of the gradients is first clipped to ``-clip_value .. clip_value``.
    clip_norm : float, positive, optional
        After that, gradients whose norm is larger are scaled down to it; the norm is that of all
        gradients of one network together.
    average : float, above 0 and below 1, optional
        Keep an average of the parameters beside them, ``a <- average a + (1 - average) w`` after
        each step and ``w`` after the first. Networks predict and are evaluated with the average.

    Attributes
    ----------
    state_names : tuple of str
        Names of buffers like the parameters', zero at first, such as velocities.
    workspaces : int
        Number of temporary arrays of a block's shape that a step needs.
    is_elementwise : bool
        Whether parameters may be cut anywhere, since no element's step depends on another's.
    hyperparameters : dict of str to float or tuple of float

    Raises
    ------
    ConfigurationError
        If a hyperparameter is out of its range; when bound, if it has values for another number of
        networks.
    """

    state_names: tuple[str, ...] = ()
    workspaces: int = 0
    is_elementwise = True

    @explains_arguments
    def __init__(
        self,
        learning_rate: Hyperparameter,
        weight_decay: Hyperparameter = 0.0,
        *,
        no_decay: Sequence[str] = (),
        schedule: str | Schedule | None = None,
        clip_value: Hyperparameter | None = None,
        clip_norm: Hyperparameter | None = None,
        average: Hyperparameter | None = None,
    ) -> None:
        self.hyperparameters: dict[str, float | tuple[float, ...]] = {}
        self._bounds: dict[str, tuple[float, float, float]] = {}
        self.hyperparameter("learning_rate", learning_rate, above=0.0)
        self.hyperparameter("weight_decay", weight_decay, 0.0)
        self.no_decay = tuple(no_decay)
        self.schedule: Schedule | None = None
        if schedule is not None:
            from dnn.optimizers.schedules import schedule_of

            self.schedule = schedule_of(schedule)
        for name, limit in (("clip_value", clip_value), ("clip_norm", clip_norm)):
            if limit is not None:
                self.hyperparameter(name, limit, above=0.0)
        if average is not None:
            self.hyperparameter("average", average, above=0.0, below=1.0)

    def hyperparameter(
        self,
        name: str,
        value: Hyperparameter,
        least: float = -math.inf,
        *,
        above: float = -math.inf,
        below: float = math.inf,
    ) -> None:
        """Declare a hyperparameter that may change between steps.

        It is a number, or one for each of K networks; ``least <= value`` and ``above < value <
        below`` must hold, else it is a `ConfigurationError`.
        """
        values = np.full(1, np.nan)
        if is_numbers(value):
            values = np.atleast_1d(np.asarray(value, np.float64))
        self._bounds[name] = (least, above, below)
        if values.ndim != 1 or not values.size or not self._fit(name, values).all():
            raise ConfigurationError(
                f"{type(self).__name__}: {name} must be {self._allowed(name)}, not {value!r}"
            )
        # Python floats: a float64 scalar of NumPy would promote the arrays it meets.
        numbers = tuple(float(number) for number in values)
        self.hyperparameters[name] = numbers[0] if np.ndim(value) == 0 else numbers

    def _fit(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which values are finite and in the range of a hyperparameter."""
        least, above, below = self._bounds[name]
        fits = np.isfinite(values) & (values >= least) & (values > above) & (values < below)
        return np.asarray(fits)

    def _allowed(self, name: str) -> str:
        bounds = zip(("at least", "above", "below"), self._bounds[name], strict=True)
        limits = [f"{word} {x:g}" for word, x in bounds if math.isfinite(x)]
        return " and ".join(limits) or "a finite number"

    def is_on(self, name: str) -> bool:
        """Say whether a hyperparameter differs from 0, in any network."""
        return bool(np.any(self.hyperparameters[name]))

    def compiles_like(self, other: Optimizer) -> bool:
        """Say whether another optimizer compiles to the same steps, but for values of scalars."""
        if self is other:
            return True
        mine, theirs = vars(self), vars(other)
        return (
            type(self) is type(other)
            and list(mine) == list(theirs)
            and all(_alike(mine[name], theirs[name]) for name in mine if name != "hyperparameters")
            and list(self.hyperparameters) == list(other.hyperparameters)
            and all(self.is_on(name) == other.is_on(name) for name in self.hyperparameters)
        )

    def for_networks(self, indices: Sequence[int]) -> Optimizer:
        """Return a copy for some of the K networks, with their values of the hyperparameters.

        Without `indices` it has the hyperparameters of all networks.
        """
        chosen = copy.copy(self)
        if indices:
            chosen.hyperparameters = {
                name: tuple(value[k] for k in indices) if isinstance(value, tuple) else value
                for name, value in self.hyperparameters.items()
            }
        return chosen

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.hyperparameters.items())
        return f"{type(self).__name__}({values})"

    def bind(
        self,
        ops: Ops,
        parameters: FlatBuffer,
        gradients: FlatBuffer,
        segments: Sequence[Segment] | None = None,
    ) -> Update:
        """Compile the update of a network, or of K networks in one buffer.

        Parameters and gradients have the same segments, of which some may be chosen: those of the
        gradients that are trained, if left out.

        Raises
        ------
        ConfigurationError
            If a hyperparameter has values for another number of networks, or is out of its range
            once it is rounded to the parameters' type of elements.
        """
        models, dtype = parameters.models, parameters.flat.dtype
        scalars = {
            name: ops.asarray(self._per_model(name, value, models, dtype))
            for name, value in self.hyperparameters.items()
        }
        columns = {name: x if models is None else x[:, None] for name, x in scalars.items()}
        state = {
            name: FlatBuffer(parameters.segments, dtype, ops, models) for name in self.state_names
        }
        # NumPy's sums depend on their length: of K networks the padding of a row is left out.
        end = gradients.segments[-1].stop if ops.in_blocks and gradients.segments else None
        steps = clip_steps(ops, gradients.flat[..., :end], columns)
        if self.schedule is not None:
            from dnn.optimizers.schedules import schedule_steps

            steps += schedule_steps(ops, self.schedule, columns, state)
        own = {name: state[name] for name in self.state_names}
        buffers = {"w": parameters, "g": gradients, **own}
        steps += self.prepare(ops, columns, state)
        chosen = gradients.trained if segments is None else segments
        steps += self.parameter_steps(ops, buffers, columns, chosen)
        if "average" in columns:
            steps += _average_steps(ops, parameters, gradients.trained_ranges, columns, state)
        return Update(steps, scalars, state, ops, gradients.flat)

    def parameter_steps(
        self,
        ops: Ops,
        buffers: Mapping[str, FlatBuffer],
        scalars: Mapping[str, Array],
        segments: Sequence[Segment],
    ) -> list[Step]:
        """Return the calls that move parameters: `step` of each block.

        `buffers` are the parameters ``w``, the gradients ``g`` and those of `state_names`, and
        `scalars` the hyperparameters and what `prepare` has added, of shape () or (K, 1).
        """
        w, g = buffers["w"].flat, buffers["g"].flat
        width = _width(w, w.dtype) if ops.in_blocks else w.shape[-1]
        spaces = [empty(ops, (*w.shape[:-1], width), w.dtype) for _ in range(self.workspaces)]
        steps = []
        every = buffers["w"].segments
        for start, stop, decays in _blocks(every, segments, self._decays, width):
            part = np.s_[..., start:stop]
            block = Block(
                w[part],
                g[part],
                tuple(buffers[name].flat[part] for name in self.state_names),
                scalars["weight_decay"] if decays else None,
                tuple(space[..., : stop - start] for space in spaces),
            )
            steps.append(self.step(ops, block, scalars))
        return steps

    def minimize(
        self, loss: Node, variables: Collection[Node] | None = None, ops: Ops | None = None
    ) -> Minimization:
        """Compile a loss, its gradients and the update of its variables, as `dnn.minimize` does.

        Parameters
        ----------
        loss : Node
            A scalar.
        variables : collection of Node, optional
            The variables to be changed; all that `loss` depends on if left out.
        ops : Ops, optional
            Of the device to compute on, see `dnn.ops_for`; NumPy's if left out.

        Returns
        -------
        Minimization
            Its method `step` moves the variables.

        Raises
        ------
        ConfigurationError, ShapeError, DtypeError
            As for `dnn.minimize`.
        """
        return Minimization(loss, self, variables, ops)

    def prepare(
        self, ops: Ops, scalars: dict[str, Array], state: dict[str, FlatBuffer]
    ) -> list[Step]:
        """Return the calls that are made once in each step, before those of all blocks.

        `scalars` are the hyperparameters by name, of shape () or (K, 1), and `state` the state
        buffers by name; further numbers for `step`, and further buffers, may be added.
        """
        return []

    def step(self, ops: Ops, block: Block, scalars: Mapping[str, Array]) -> Step:
        """Return the function that moves one block, with its arguments.

        The block is of shape (n,) or (K, n); `scalars` are hyperparameters by name, and what
        `prepare` has added, of shape () or (K, 1). The function writes the new parameters and state
        in place.
        """
        raise NotImplementedError

    def _decays(self, segment: Segment) -> bool:
        return self.is_on("weight_decay") and segment.name.rsplit(".", 1)[-1] not in self.no_decay

    def _per_model(
        self,
        name: str,
        value: float | tuple[float, ...],
        models: int | None,
        dtype: np.dtype[Any],
    ) -> npt.NDArray[Any]:
        given = np.asarray(value, np.float64)
        shape = () if models is None else (models,)
        if given.shape not in ((), shape):
            networks = "one network" if models is None else f"{models} networks"
            kind = type(self).__name__
            raise ConfigurationError(f"{kind}: {name} has {given.size} values for {networks}")
        with np.errstate(over="ignore", under="ignore"):
            rounded = np.broadcast_to(given, shape).astype(dtype)
        wrong = ~self._fit(name, rounded)
        if wrong.any():
            number = float(np.broadcast_to(given, shape)[wrong][0])
            message = f"{name} must be {self._allowed(name)}, but {number!r} is"
            message += f" {rounded[wrong][0]:g} in {dtype}"
            raise ConfigurationError(f"{type(self).__name__}: {message}")
        return rounded


_MOVING_AVERAGE = Formula("moving_average", "a w past", "past * a + (1 - past) * w")


def _average_steps(
    ops: Ops,
    parameters: FlatBuffer,
    ranges: Sequence[slice],
    scalars: dict[str, Array],
    state: dict[str, FlatBuffer],
) -> list[Step]:
    """Return the calls that update the average of the parameters, ``state["average"]``.

    In the first step it becomes the parameters themselves. The last calls are one for each range
    of parameters that are trained.
    """
    from dnn.optimizers.schedules import schedule_steps

    steps = schedule_steps(ops, _has_past, scalars, state, "average", "averaging")
    w = parameters.flat
    # The whole network's, even if `parameters` are a part: predictions are made with it.
    buffer = FlatBuffer(parameters.all_segments, w.dtype, ops, parameters.models)
    state["average"] = buffer
    average = parameters.cut(buffer.flat)
    spaces = [empty(ops, w.shape, dtype) for dtype in _MOVING_AVERAGE.workspace(w.dtype)]
    for part in ranges:
        at = (..., part)
        inputs, places = (average[at], w[at], scalars["average"]), [space[at] for space in spaces]
        steps.append(ops.elementwise(_MOVING_AVERAGE, inputs, average[at], places))
    return steps


def _has_past(step: int) -> float:
    return float(step > 0)


def _alike(a: object, b: object) -> bool:
    if isinstance(a, Optimizer) and isinstance(b, Optimizer):
        return a.compiles_like(b)
    return a == b


def _width(flat: Array, dtype: np.dtype[Any]) -> int:
    """Return how many columns a block has: whole cache lines, BLOCK elements over all networks."""
    line = ALIGNMENT_BYTES // dtype.itemsize
    models = flat.shape[0] if flat.ndim == 2 else 1
    return int(min(max(line, BLOCK // models // line * line), flat.shape[-1]))


def _blocks(
    segments: Sequence[Segment],
    chosen: Collection[Segment],
    decays: Callable[[Segment], bool],
    width: int,
) -> Iterator[tuple[int, int, bool]]:
    """Yield start, stop and `decays` of blocks that fit the cache; like neighbours are joined."""
    pieces: list[tuple[int, int, bool]] = []
    is_next = False
    for segment in segments:
        if segment not in chosen:
            is_next = False
            continue
        if is_next and pieces[-1][2] == decays(segment):
            pieces[-1] = (pieces[-1][0], segment.stop, pieces[-1][2])
        else:
            pieces.append((segment.start, segment.stop, decays(segment)))
        is_next = True
    for start, stop, decaying in pieces:
        for at in range(start, stop, width):
            yield at, min(at + width, stop), decaying


def clip_steps(ops: Ops, gradients: Array, scalars: Mapping[str, Array]) -> list[Step]:
    """Return the steps that clip gradients in place: by value, then by the norm of all together.

    Gradients are of shape (P,) or (K, P). `scalars` has ``clip_value`` and ``clip_norm``, of shape
    () or (K, 1), if they are to be clipped so.

    References
    ----------
    .. [1] Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks,
       2013, algorithm 1.
    """
    dtype, size = gradients.dtype, gradients.shape[-1]
    columns = CLIPPED_COLUMNS if ops.in_blocks else max(1, size)
    parts = [gradients[..., at : at + columns] for at in range(0, size, columns)]
    steps: list[Step] = []
    if "clip_value" in scalars:
        limit = scalars["clip_value"]
        lowest = ops.asarray(np.zeros(limit.shape, dtype))
        steps.append(ops.elementwise(Negative.formula, (limit,), lowest))
        steps += [ops.elementwise(Clip.formula, (part, lowest, limit), part) for part in parts]
    if "clip_norm" in scalars:
        leading = gradients.shape[:-1]
        squares = empty(ops, (*leading, min(columns, size)), dtype)
        sums = empty(ops, (*leading, len(parts)), dtype)
        factor = empty(ops, (*leading, 1), dtype)
        for i, part in enumerate(parts):
            space = squares[..., : part.shape[-1]]
            steps.append((ops.sum_of_squares, (part, space, sums[..., i : i + 1])))
        steps.append((ops.clip_factor, (sums, scalars["clip_norm"], factor)))
        steps += [ops.elementwise(Multiply.formula, (part, factor), part) for part in parts]
    return steps
