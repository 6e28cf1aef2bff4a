"""`OnnxGraph`: the graph of an ONNX model as one layer, where layers cannot express it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import CheckpointError, DataError, ShapeError
from dnn.graph import operations
from dnn.graph.node import Node, Shape, constant, placeholder
from dnn.io import onnx_control, onnx_recurrence, onnx_windows  # noqa: F401
from dnn.io.onnx_file import OnnxFile
from dnn.io.onnx_trace import FixedBatch, Leaves, Trace, UnknownValue
from dnn.layers import Layer

__all__ = ["OnnxGraph", "check_range"]


def check_range(where: str, indices: Array, least: int, most: int) -> None:
    """Raise `DataError` if an index is out of its range."""
    wrong = indices[(indices < least) | (indices > most)]
    if wrong.size:
        raise DataError(f"{where}: {wrong[0]} is not in {least} .. {most}")


class OnnxGraph(Layer):
    """A graph of ONNX as one layer, whose weights are trained.

    Weights are the tensors of floats that the file brings, as its nodes read them. In training the
    layer computes what it does in a prediction: statistics of batch norms stay as they are, and
    nothing is dropped.

    Parameters
    ----------
    file : OnnxFile
        With one input and one output, whose first axes are those of the samples.

    Raises
    ------
    CheckpointError
        When the network is built: if an operator is not supported; it names the node.
    """

    def __init__(self, file: OnnxFile) -> None:
        super().__init__()
        self.file = file

    @property
    def kept_bytes(self) -> bytes:  # type: ignore[override]
        """The model, with its tensors as the file has them."""
        made: bytes = self.file.made.SerializeToString()
        return made

    def build(self, shape: Shape) -> None:
        """Declare the weights, with the values of the file."""
        self._weights: dict[str, tuple[Array, Node]] = {}
        self._ranges: list[tuple[int, int]] = []
        dtype = self.file.dtype(self._input.type.tensor_type.elem_type)
        batch = self._stated or 1
        self._traced(placeholder((batch, *shape), dtype), _Weights(self, declares=True))

    def check_samples(self, name: str, samples: Array) -> Array:
        """Raise `DataError` if a sample has an index that is out of its range."""
        for least, most in self._ranges:
            check_range(f"{self.name}: {name}", samples, least, most)
        return samples

    @property
    def _input(self) -> Any:
        (given,) = self.file.inputs
        return given

    @property
    def _stated(self) -> int:
        """Number of samples that the file states, 0 where it may be any."""
        batch: int = self._input.type.tensor_type.shape.dim[0].dim_value
        return batch

    def forward(self, x: Node) -> Node:
        """Return the output of the graph."""
        stated, samples = self._stated, x.shape[0]
        try:
            batch = (stated, samples) if stated else None
            return self._traced(x, _Weights(self, declares=False), batch)
        except (CheckpointError, FixedBatch, ShapeError):
            if stated in (0, samples):
                raise
        # One graph for each batch of the stated size; what is missing in the last is any sample.
        missing = -samples % stated
        if missing:
            rest = operations.broadcast_to(x[-1:], (missing, *x.shape[1:]))
            x = operations.concat([x, rest])
        parts = [x[i : i + stated] for i in range(0, x.shape[0], stated)]
        leaves = _Weights(self, declares=False)
        return operations.concat([self._traced(each, leaves) for each in parts])[:samples]

    def _traced(self, x: Node, leaves: Leaves, batch: tuple[int, int] | None = None) -> Node:
        given = self._input
        dtype = self.file.dtype(given.type.tensor_type.elem_type)
        try:
            first = {given.name: operations.cast(x, dtype)}
            trace = Trace(self.file, leaves, batch)
            (y,) = trace.graph(self.file.graph, first)
            self._ranges = self._ranges or [(least, most) for _, least, most in trace.ranges]
        except UnknownValue as error:
            raise CheckpointError(f"{self.file.path}: {error}") from None
        if not isinstance(y, Node) or y.shape[:1] != x.shape[:1] or y.dtype.kind != "f":
            found = f"{y.shape} of {y.dtype}"
            message = f"for samples {x.shape} the output is {found}, and not a row for each"
            raise ShapeError(self.file.path, message, x.shape, y.shape)
        return operations.cast(y, self.dtype)

    def weight(self, name: str, array: Array) -> Node | None:
        """Return the node of a weight; None if there is none of that name and value."""
        found = self._weights.get(name)
        if found is None or not np.array_equal(found[0], array):
            return None
        return operations.cast(found[1], array.dtype)

    def declare(self, name: str, array: Array) -> None:
        """Declare a weight."""
        if name in self._weights:
            return

        def initial(generator: np.random.Generator, shape: Shape, dtype: npt.DTypeLike) -> Array:
            return array.astype(dtype)

        own = name.replace(".", "_")  # the names of layers and parameters have dots between
        taken = {node.name.rpartition(".")[2] for _, node in self._weights.values()}
        own = f"{own}_{len(taken)}" if own in taken else own
        node = self.parameter(own, array.shape, initial)
        self._weights[name] = array, node


class _Weights(Leaves):
    """Nodes of known values: weights are parameters of a layer, others are constants."""

    def __init__(self, layer: OnnxGraph, declares: bool) -> None:
        super().__init__()
        self.layer = layer
        self.declares = declares

    def made(self, name: str, array: Array, trained: bool) -> Node:
        """Return the node of a known value."""
        if trained and array.dtype.kind == "f" and array.ndim and array.size > 1:
            if self.declares and id(array) in self.of_file:
                self.layer.declare(name, array)
            node = self.layer.weight(name, array)
            if node is not None:
                return node
        return constant(array, array.dtype)
