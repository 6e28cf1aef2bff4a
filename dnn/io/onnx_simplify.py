"""Graphs of ONNX in the few forms that the reader of layers knows, judged by what nodes compute.

The graph is followed for two sizes of batch. Values that are known and the same in both become
constants, nodes that return what they are given are left out, shapes are written as those of
samples, and elementwise nodes that together compute an activation of dnn, on a grid of numbers,
become one node of that activation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnn.backend import Array
from dnn.errors import DnnError
from dnn.graph.node import Node, placeholder
from dnn.graph.operations.activations import ACTIVATIONS
from dnn.graph.plan import run_eagerly
from dnn.io.onnx_elements import ELEMENTWISE
from dnn.io.onnx_file import OnnxFile
from dnn.io.onnx_trace import OPERATORS, Call, FixedBatch, Leaves, Trace, UnknownValue, needed
from dnn.io.onnx_windows import pool_windows, windows_of

__all__ = ["ACTIVATION", "simplified"]

ACTIVATION = "Activation"
"""Operator of the nodes that are an activation of dnn: its name is their attribute ``function``."""

MOST_NODES = 32
"""Most nodes that may be one activation together; `exact_gelu` takes 5."""

GRID = np.linspace(-12.0, 12.0, 97, dtype=np.float32)
"""Numbers on which functions are compared."""

_SHAPES = ("Expand", "Flatten", "Reshape", "Squeeze", "Unsqueeze")
_RECURRENT = ("GRU", "LSTM", "RNN")
_MOVES = ("Reshape", "Squeeze", "Transpose")


def simplified(
    file: OnnxFile, given: Any, shape: Sequence[int], batch: int
) -> tuple[Any, dict[str, Array]]:
    """Return the main graph of a file in simpler form, and the known values that its nodes read.

    `given` is its only input, `shape` that of a sample, and `batch` the number of samples that the
    file states, 0 for any. A `CheckpointError` names a node that cannot be followed.
    """
    dtype = file.dtype(given.type.tensor_type.elem_type)
    several = []
    for count in [batch] if batch else [2, 3]:
        trace = Trace(file, Leaves())
        trace.graph(file.graph, {given.name: placeholder((count, *shape), dtype)})
        several.append((count, trace.values))
    return _Simplifier(file, given.name, several).graph()


class _Simplifier:
    """Rewriting of one graph, from the values that were found for some sizes of batch."""

    def __init__(
        self, file: OnnxFile, given: str, several: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> None:
        self.file = file
        self.given = given
        self.batches = [count for count, _ in several]
        self.values = [values for _, values in several]
        self.trace = Trace(file, Leaves())
        self.nodes = needed(file.graph)
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.constants: dict[str, Array] = {}
        self.same: dict[str, str] = {}
        self.sources: dict[str, list[str]] = {}
        self.copies: dict[str, Any] = {}

    def graph(self) -> tuple[Any, dict[str, Array]]:
        """Return the graph, and the known values that it reads."""
        helper = self.file.onnx.helper
        made = []
        for node in self.nodes:
            if all(self.known(name) is not None for name in node.output if name):
                continue
            if node.op_type != "Dropout" and (same := self.same_input(node)):
                self.same[node.output[0]] = same
                continue
            made.append(self.rewritten(node))
            self.copies[node.output[0]] = made[-1]
        outputs = [self.renamed(each.name) for each in self.file.graph.output]
        info = [each for each in self.file.graph.input if each.name == self.given]
        ends = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.with_activations(made), "simplified", info, ends)
        kept = needed(graph)
        del graph.node[:]
        graph.node.extend(kept)
        read = {name for node in kept for name in node.input if name}
        found = {name: self.known(name) for name in read}
        return graph, {name: value for name, value in found.items() if value is not None}

    def known(self, name: str) -> Array | None:
        """Return a value that is known and the same for all sizes of batch."""
        if name in self.constants:
            return self.constants[name]
        found = self.arrays(name)
        if not found or any(not np.array_equal(each, found[0]) for each in found[1:]):
            return None
        return found[0]

    def arrays(self, name: str) -> list[Array]:
        """Return a known value for each size of batch; none if it is computed."""
        found = [values.get(name) for values in self.values] if name else []
        known = [each for each in found if isinstance(each, np.ndarray)]
        return known if len(known) == len(found) else []

    def renamed(self, name: str) -> str:
        while name in self.same:
            name = self.same[name]
        return name

    def same_input(self, node: Any) -> str:
        """Return the input that a node returns as it is, "" if it computes something."""
        for name in node.input:
            if name and all(
                isinstance(values.get(name), Node) and values.get(node.output[0]) is values[name]
                for values in self.values
            ):
                return str(name)
        return ""

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        return [tuple(values[name].shape) for values in self.values]

    def constant(self, node: Any, label: str, value: Any) -> str:
        name = f"{node.output[0]}/{label}"
        self.constants[name] = np.asarray(value)
        return name

    def made(self, kind: str, node: Any, inputs: Sequence[str], **attributes: Any) -> Any:
        """Return a node in place of another one."""
        name = node.name or node.output[0]
        make = self.file.onnx.helper.make_node
        return make(kind, list(inputs), list(node.output), name=name, **attributes)

    # -- single nodes ------------------------------------------------------------------------------

    def rewritten(self, node: Any) -> Any:
        """Return a node in the form that the reader knows."""
        kind = node.op_type
        inputs = [self.renamed(name) for name in node.input]
        copy = type(node)()
        copy.CopyFrom(node)
        copy.input[:] = inputs
        if kind in _SHAPES:
            return self.reshaped(node, copy)
        if kind in _RECURRENT:
            self.leave_out(copy)
        elif kind in ("Softmax", "LogSoftmax", "Hardmax"):
            self.set_axis(copy, len(self.shapes(node.output[0])[0]))
        elif kind in ("Conv", "MaxPool", "AveragePool"):
            self.set_pads(copy)
        elif kind in ("Gather", "Slice"):
            return self.last_step(node, copy)
        return copy

    def leave_out(self, copy: Any) -> None:
        """Leave out first states of a recurrent node that are 0, and lengths that are whole."""
        steps = self.shapes(copy.input[0])[0][0]
        for i, name in enumerate(copy.input):
            found = self.arrays(name)
            is_zero = i in (5, 6) and not any(each.any() for each in found)
            if found and (is_zero or (i == 4 and all((each == steps).all() for each in found))):
                copy.input[i] = ""

    def reshaped(self, node: Any, copy: Any) -> Any:
        """Return a node that changes the shape of samples, by the shape that they get."""
        source = self.producer.get(copy.input[0])
        while source is not None and source.op_type == "Transpose":
            source = self.producer.get(self.renamed(source.input[0]))
        if source is not None and source.op_type in _RECURRENT:
            return self.of_states(node, copy)
        before, after = self.shapes(node.input[0]), self.shapes(node.output[0])
        if any([s[:1] for s in each] != [(n,) for n in self.batches] for each in (before, after)):
            return copy
        if len({t[1:] for t in after}) > 1 or node.op_type == "Expand":
            return copy
        if len(after[0]) == 2:
            return self.made("Flatten", node, copy.input[:1], axis=1)
        shape = self.constant(node, "shape", np.array([-1, *after[0][1:]]))
        return self.made("Reshape", node, [copy.input[0], shape])

    def of_states(self, node: Any, copy: Any) -> Any:
        """Return a node that puts states of both directions side by side, or drops their axis."""
        before, after = self.shapes(node.input[0]), self.shapes(node.output[0])
        dropped = [
            axis
            for axis in (0, 1)
            if all(
                s[axis] == 1 and (*s[:axis], *s[axis + 1 :]) == t
                for s, t in zip(before, after, strict=True)
            )
        ]
        if dropped:
            names = self.producer[node.input[0]].output
            axis = dropped[0] if len(dropped) == 1 or node.input[0] != names[0] else 1
            return self.made("Squeeze", node, [copy.input[0], self.constant(node, "axes", [axis])])
        kept = len(after[0]) - 1
        if all(s[:kept] == t[:kept] for s, t in zip(before, after, strict=True)):
            shape = self.constant(node, "shape", np.array([*([0] * kept), -1]))
            return self.made("Reshape", node, [copy.input[0], shape])
        return copy

    def set_axis(self, copy: Any, ndim: int) -> None:
        """Count the axis of a softmax from the end; older opsets meant all axes from it on."""
        call = Call(self.trace, copy, [None] * len(copy.input))
        axis = int(call.get("axis", -1 if call.opset >= 13 else 1)) % ndim
        if axis == ndim - 1:
            self.set(copy, axis=-1)

    def set_pads(self, copy: Any) -> None:
        """State the padding of windows for the size of the images at hand."""
        call = Call(self.trace, copy, [None] * len(copy.input))
        lengths = self.shapes(copy.input[0])[0][2:]
        if copy.op_type == "Conv":
            weight = self.known(copy.input[1])
            if weight is None:
                return
            windows, reaches = windows_of(call, weight.shape[2:], lengths), False
        else:
            windows, reaches = pool_windows(call, lengths)
        if reaches and call.get("count_include_pad", 0):
            return
        pads = [pad[i] for i in (0, 1) for pad in windows.pads]
        self.set(copy, auto_pad="NOTSET", ceil_mode=0, pads=pads)
        if set(windows.dilation) == {1}:
            self.set(copy, dilations=list(windows.dilation))

    def set(self, node: Any, **attributes: Any) -> None:
        kept = [each for each in node.attribute if each.name not in attributes]
        del node.attribute[:]
        if node.op_type == "Conv":
            attributes.pop("ceil_mode", None)
        node.attribute.extend(kept)
        helper = self.file.onnx.helper
        node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())

    def last_step(self, node: Any, copy: Any) -> Any:
        """Return a node that takes the last state of a recurrent node, in place of one of all."""
        before, after = self.shapes(node.input[0]), self.shapes(node.output[0])
        if len(before[0]) != 3 or len(after[0]) != 2:
            return copy
        name = copy.input[0]
        while name in self.producer and self.producer[name].op_type in _MOVES:
            name = self.renamed(self.producer[name].input[0])
        source = self.producer.get(name)
        if source is None or source.op_type not in _RECURRENT:
            return copy
        call = Call(self.trace, source, [None] * len(source.input))
        if call.get("direction", "forward") != "forward":
            return copy
        axis = 1  # of time steps
        if name != source.output[0]:
            axis = 0  # of directions
            if name != source.output[1]:  # the last cell
                return copy
        wanted = [(*s[:axis], *s[axis + 1 :]) for s in before]
        if after != wanted or self.taken(node, axis) != before[0][axis] - 1:
            return copy
        axes = self.constant(node, "axes", [0])
        return self.made("Squeeze", node, [self.last_state(source), axes])

    def last_state(self, source: Any) -> str:
        """Return the name of the last state of a recurrent node; it gets one if it has none."""
        copy = self.copies[source.output[0]]
        if len(copy.output) < 2:
            copy.output.append(f"{source.output[0]}/last")
        elif not copy.output[1]:
            copy.output[1] = f"{source.output[0]}/last"
        return str(copy.output[1])

    def taken(self, node: Any, axis: int) -> int | None:
        """Return the place along an axis that a Gather or a Slice takes, None if several."""
        shape = self.shapes(node.input[0])[0]
        x = placeholder(shape, np.float32)
        known = [self.values[0].get(name) if name else None for name in node.input]
        y = OPERATORS[node.op_type](Call(self.trace, node, [x, *known[1:]]))
        lengths = [n if i == axis else 1 for i, n in enumerate(shape)]
        places = np.arange(shape[axis], dtype=np.float32).reshape(lengths)
        (found,) = run_eagerly([y], {x: np.broadcast_to(places, shape)})
        steps = set(found.ravel().tolist())
        return int(steps.pop()) if len(steps) == 1 else None

    # -- activations -------------------------------------------------------------------------------

    def with_activations(self, nodes: Sequence[Any]) -> list[Any]:
        """Return nodes in which those that compute an activation are one node of it."""
        producer = {name: node for node in nodes for name in node.output if name}
        found = []
        for node in nodes:
            name = node.output[0] if node.output else ""
            self.sources[name] = [name, *self.common_sources(node)][:MOST_NODES]
            if len(self.sources[name]) > 1 and self.is_float(name):
                activation = self.activation_of(producer, name)
                if activation is not None:
                    source, function = activation
                    node = self.made(ACTIVATION, node, [source], function=function)
            found.append(node)
        return found

    def is_float(self, name: str) -> bool:
        return all(values[name].dtype.kind == "f" for values in self.values)

    def common_sources(self, node: Any) -> list[str]:
        """Return the values of which a node's result is a function, element by element."""
        if node.op_type not in ELEMENTWISE or len(node.output) != 1:
            return []
        common: list[str] | None = None
        shape = self.shapes(node.output[0])
        for name in node.input:
            value = self.known(name) if name else None
            if not name or (value is not None and value.size == 1):
                continue
            if value is not None or self.shapes(name) != shape:
                return []
            own = self.sources.get(name, [name])
            common = own if common is None else [each for each in common if each in own]
        return common or []

    def activation_of(self, producer: Mapping[str, Any], name: str) -> tuple[str, str] | None:
        """Return source and name of the activation that a value is; the furthest source first."""
        for source in self.sources[name][:0:-1]:
            x = placeholder(GRID.shape, GRID.dtype)
            try:
                y = self.function_of(producer, name, {source: x})
                if y is None:
                    continue
                with np.errstate(all="ignore"):  # outside of where a function is defined
                    (found,) = run_eagerly([y], {x: GRID})
            except (DnnError, FixedBatch, UnknownValue):
                continue
            for function, expected in _on_grid().items():
                if np.allclose(found, expected, rtol=3e-6, atol=3e-6):
                    return source, function
        return None

    def function_of(
        self, producer: Mapping[str, Any], name: str, done: dict[str, Any]
    ) -> Node | None:
        """Return a value as a function of its source, given in `done` as numbers of one axis.

        None if it is that of too many nodes.
        """
        order, stack = [], [name]
        while stack:
            each = stack.pop()
            if each in done or self.known(each) is not None or each not in producer:
                continue
            order.append(producer[each])
            if len(order) > MOST_NODES:
                return None
            stack += [x for x in producer[each].input if x]
        values = dict(done)
        seen = set()
        for node in reversed(order):
            if node.output[0] in seen:
                continue
            for x in node.input:
                known = self.known(x) if x else None
                if known is not None:
                    values[x] = known.reshape(())
            seen.add(node.output[0])
            self.trace.follow(node, values)
        result: Node = values[name]
        return result


_EXPECTED: dict[str, Array] = {}


def _on_grid() -> dict[str, Array]:
    """Return the values on the grid of each activation of single elements."""
    if not _EXPECTED:
        x = placeholder(GRID.shape, GRID.dtype)
        names = [name for name in ACTIVATIONS if name != "softmax"]
        found = run_eagerly([ACTIVATIONS[name](x) for name in names], {x: GRID})
        _EXPECTED.update(zip(names, found, strict=True))
    return _EXPECTED
