"""`OnnxModel`: an ONNX model for inference, with any number of named inputs and outputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of
from dnn.backend import Array, ops_for
from dnn.errors import (
    CheckpointError,
    ConfigurationError,
    ShapeError,
    explains_arguments,
    unknown_name,
)
from dnn.graph.arguments import numbers_of
from dnn.graph.node import Node, placeholder
from dnn.graph.plan import Arena, Plan
from dnn.io import onnx_control, onnx_recurrence, onnx_windows  # noqa: F401
from dnn.io.onnx_file import DOMAINS, OnnxFile, read_onnx
from dnn.io.onnx_layer import check_range
from dnn.io.onnx_trace import LARGEST_BY_VALUE, Leaves, Trace, UnknownValue, Value, is_usual, needed

__all__ = ["OnnxModel", "ValueInfo"]

MOST_PLANS = 16
"""Plans that a model keeps, each for shapes of its inputs; the one longest not used goes first."""


class ValueInfo(NamedTuple):
    """An input or an output of a model.

    Attributes
    ----------
    shape : tuple of int or str, or None
        A length that may be any is a name, or ``"?"``; None where the file does not say.
    dtype : numpy.dtype
    """

    shape: tuple[int | str, ...] | None
    dtype: np.dtype[Any]


class _Compiled(NamedTuple):
    plan: Plan | None
    inputs: dict[str, Node]
    outputs: list[Value]
    ranges: list[tuple[str, int, int]]


class OnnxModel:
    """An ONNX model that is run as it is, whatever its graph.

    Parameters
    ----------
    path : path
        Of the file; tensors in other files are read from its folder and nowhere else.
    device : str
        As for `NeuralNetwork`.

    Attributes
    ----------
    inputs, outputs : dict of str to ValueInfo
        Shape and type of elements of each, by name, in the order of the file.

    Raises
    ------
    CheckpointError
        If a file cannot be read or is no valid model; or for an operator that is not supported: it
        names operator and node.
    MissingDependencyError
        If onnx is not installed.

    Examples
    --------
    >>> import dnn
    >>> model = dnn.OnnxModel("detector.onnx")  # doctest: +SKIP
    >>> model.run(image=image)["boxes"].shape  # doctest: +SKIP
    (1, 100, 4)
    """

    @explains_arguments
    def __init__(self, path: str | PathLike[str], *, device: str = "cpu") -> None:
        self._ops = ops_for(device)
        self._file = read_onnx(path)
        graph = self._file.graph
        self.inputs = {each.name: _info(self._file, each) for each in self._file.inputs}
        self.outputs = {each.name: _info(self._file, each) for each in graph.output}
        self._batch = self._stated_batch()
        self._leaves = Leaves()
        self._arena = Arena(self._ops)
        self._on_device: dict[Node, Array] = {}
        self._by_value: set[str] = set()
        self._plans: OrderedDict[Any, _Compiled] = OrderedDict()
        for node in needed(graph):
            if node.domain not in DOMAINS:
                self._file.refuse(node, "no operator of ONNX itself, and only those are read")

    def __repr__(self) -> str:
        names = f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"
        return f"OnnxModel({self._file.path!r}: {names})"

    def _stated_batch(self) -> int | None:
        """Return the number of samples that all inputs and outputs state as their first length."""
        shapes = [each.shape for each in (*self.inputs.values(), *self.outputs.values())]
        firsts = {shape[0] if shape else None for shape in shapes}
        (first,) = firsts if len(firsts) == 1 and self.inputs else (None,)
        return first if isinstance(first, int) else None

    def __call__(self, *arrays: npt.ArrayLike, **named: npt.ArrayLike) -> Any:
        """Return the output for inputs in the order of `inputs`, or by name.

        Parameters
        ----------
        *arrays, **named : array_like
            As for `run`.

        Returns
        -------
        array, or tuple of array where there are several outputs
        """
        if len(arrays) > len(self.inputs):
            message = f"{len(arrays)} arrays for {len(self.inputs)} inputs"
            raise ConfigurationError(f"{self._file.path}: {message}")
        found = self._run({**dict(zip(self.inputs, arrays, strict=False)), **named})
        return found[0] if len(found) == 1 else tuple(found)

    def run(self, **arrays: npt.ArrayLike) -> dict[str, Array]:
        """Compute the outputs.

        Parameters
        ----------
        **arrays : array_like
            Each input, by name. A plan is compiled when shapes are given for the first time, and
            those of 16 sets of shapes are kept.

        Returns
        -------
        dict of str to array

        Raises
        ------
        ConfigurationError
            If an input is missing, or there is none of a name.
        ShapeError, DtypeError, DataError
            If an array does not fit.
        CheckpointError
            If a node cannot be computed for these shapes; it names operator and node.
        """
        return dict(zip(self.outputs, self._run(arrays), strict=True))

    def _run(self, given: Mapping[str, npt.ArrayLike]) -> list[Array]:
        arrays = self._checked(given)
        samples = self._samples(arrays)
        if self._batch is None or samples == self._batch:
            return self._once(arrays)
        # The file states how many samples there are: as many at a time, the last ones repeated.
        several = []
        for first in range(0, samples, self._batch):
            rows = np.minimum(np.arange(first, first + self._batch), samples - 1)
            several.append(self._once({name: each[rows] for name, each in arrays.items()}))
        return [np.concatenate(parts)[:samples] for parts in zip(*several, strict=True)]

    def _samples(self, arrays: Mapping[str, Array]) -> int:
        """Return the number of samples, if the file states one; `ShapeError` if they differ."""
        counts = {len(each) for each in arrays.values()} if self._batch is not None else {0}
        if len(counts) != 1 or (self._batch is not None and counts == {0}):
            shapes = ", ".join(f"{name} {each.shape}" for name, each in arrays.items())
            raise ShapeError(self._file.path, f"inputs of one number of samples: {shapes}")
        return counts.pop()

    def _once(self, arrays: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for inputs that have been checked."""
        while True:
            key = tuple(
                (each.shape, each.tobytes() if name in self._by_value else b"")
                for name, each in arrays.items()
            )
            if key in self._plans:
                self._plans.move_to_end(key)
                break
            try:
                self._plans[key] = self._compile(arrays)
            except UnknownValue as unknown:
                self._learn(unknown, arrays)
            if len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)
        plan, inputs, outputs, ranges = self._plans[key]
        for name, least, most in ranges:
            check_range(f"{self._file.path}: input {name!r}", arrays[name], least, most)
        if plan is None:
            return [np.array(each) for each in outputs]
        for name, node in inputs.items():
            self._ops.load(arrays[name], plan[node])
        with np.errstate(all="ignore"):  # what is no number is so in the outputs
            plan.run()
        return [
            self._ops.to_host(plan[each]).copy() if isinstance(each, Node) else np.array(each)
            for each in outputs
        ]

    def _checked(self, given: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """Return the inputs as arrays, in the order of `inputs`."""
        for name in given:
            if name not in self.inputs:
                raise unknown_name(f"input of {self._file.path}", name, list(self.inputs))
        found = {}
        for name, info in self.inputs.items():
            if name not in given:
                raise ConfigurationError(f"{self._file.path}: its input {name!r} is missing")
            where = f"{self._file.path}: input {name!r}"
            array = array_of(where, given[name])
            found[name] = numbers_of(where, array, info.dtype, copy=False)
            if info.shape is None:
                continue
            if array.ndim != len(info.shape) or any(
                isinstance(wanted, int) and n != wanted and (i or self._batch is None)
                for i, (n, wanted) in enumerate(zip(array.shape, info.shape, strict=True))
            ):
                wanted = "(" + ", ".join(map(str, info.shape)) + ")"
                raise ShapeError(
                    where, f"of shape {array.shape}, and {wanted} is wanted", array.shape
                )
        return found

    def _learn(self, unknown: UnknownValue, arrays: Mapping[str, Array]) -> None:
        """Let plans depend on the values of the inputs that decide a shape or a branch."""
        names = [each.name for each in unknown.inputs]
        for name in names:
            if name in self._by_value or arrays[name].size > LARGEST_BY_VALUE:
                message = f"{unknown}: it depends on the values of its input {name!r}"
                raise CheckpointError(f"{self._file.path}: {message}") from None
        if not names:
            raise CheckpointError(f"{self._file.path}: {unknown}") from None
        self._by_value.update(names)

    def _compile(self, arrays: Mapping[str, Array]) -> _Compiled:
        nodes: dict[str, Node] = {}
        given: dict[str, Value] = {}
        for name, array in arrays.items():
            if name in self._by_value:
                given[name] = array.copy()
            else:
                given[name] = nodes[name] = placeholder(array.shape, array.dtype, name)
        trace = Trace(self._file, self._leaves)
        outputs = trace.graph(self._file.graph, given)
        computed = [each for each in outputs if isinstance(each, Node)]
        if not computed:
            return _Compiled(None, {}, outputs, [])
        for node, array in self._leaves.arrays.items():
            if node not in self._on_device:
                self._on_device[node] = self._ops.asarray(array)
        plan = Plan(computed, self._ops, self._on_device, arena=self._arena)
        read = {name: node for name, node in nodes.items() if node in plan.graph.order}
        ranges = [(node.name, least, most) for node, least, most in trace.ranges]
        return _Compiled(plan, read, outputs, ranges)


def _info(file: OnnxFile, given: Any) -> ValueInfo:
    """Return shape and type of elements of an input or output."""
    if not given.type.HasField("tensor_type"):
        raise CheckpointError(f"{file.path}: its value {given.name!r} is no tensor")
    tensor = given.type.tensor_type
    try:
        dtype = file.dtype(tensor.elem_type)
    except (KeyError, TypeError):
        raise CheckpointError(
            f"{file.path}: the type of its value {given.name!r} is unknown"
        ) from None
    if not is_usual(dtype):
        raise CheckpointError(f"{file.path}: its value {given.name!r} is of {dtype}")
    if not tensor.HasField("shape"):
        return ValueInfo(None, dtype)
    lengths = [
        each.dim_value if each.dim_value > 0 else each.dim_param or "?" for each in tensor.shape.dim
    ]
    return ValueInfo(tuple(lengths), dtype)
