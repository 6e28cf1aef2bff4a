"""Graphs of ONNX models as nodes of `dnn.graph`, for given shapes of their inputs.

Each value is known, an array of NumPy, or computed, a node. A node of ONNX whose inputs are all
known is computed at once, by the reference implementation that comes with onnx; so shapes that a
model computes from the shapes of its inputs are numbers here. Any other node becomes nodes by the
function of `OPERATORS` that has its name.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from dnn.backend import Array
from dnn.errors import CheckpointError, DnnError
from dnn.graph.node import PLACEHOLDER, Node, constant, topological_order, variable
from dnn.graph.plan import run_eagerly
from dnn.io.onnx_file import DOMAINS, OnnxFile, node_name

__all__ = [
    "OPERATORS",
    "WRONG",
    "Call",
    "FixedBatch",
    "Leaves",
    "Trace",
    "UnknownValue",
    "Value",
    "operator",
]

Value = Node | Array
"""A value of a graph of ONNX: computed, or known."""

LARGEST_BY_VALUE = 64
"""Most elements of an input of a model on whose values a plan may depend."""
LARGEST_KNOWN = 2**28
"""Most elements of a known value that is made of a shape."""
LARGEST_COMPUTED = 2**30
"""Most elements of a computed value: larger ones are no network's, but ask for all memory."""
DEEPEST = 20
"""Deepest nesting of graphs in nodes that is followed."""

OPERATORS: dict[str, Callable[[Call], Any]] = {}
"""For each operator of ONNX a function from a `Call` to its result, or a tuple of its results."""

_Function = TypeVar("_Function", bound=Callable[..., Any])
_RANDOM = ("Bernoulli", "Multinomial", "Random")
_REPEATING = ("ConstantOfShape", "Expand", "Tile")  # their results depend on the size of a batch
_SIZED = {"ConstantOfShape": 0, "Expand": 1, "OneHot": 1, "Tile": 1}
_SIZED |= {"BlackmanWindow": 0, "HammingWindow": 0, "HannWindow": 0}
_ALWAYS = ("If", "Loop", "Scan", "Shape", "Size")
"""Operators whose functions are called even if all inputs are known."""
WRONG = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError),
    *(RuntimeError, StopIteration, TypeError, ValueError),
)
"""What attributes or inputs that do not fit may raise."""


def operator(*kinds: str) -> Callable[[_Function], _Function]:
    """Enter a function in `OPERATORS` under the names of operators; used as a decorator."""

    def enter(function: _Function) -> _Function:
        for kind in kinds:
            OPERATORS[kind] = function
        return function

    return enter


class UnknownValue(Exception):
    """A number is needed, such as a length, that depends on the values of inputs.

    Attributes
    ----------
    inputs : tuple of Node
        These inputs of the graph.
    """

    def __init__(self, nodes: Sequence[Node], message: str) -> None:
        super().__init__(message)
        order = topological_order(nodes)
        self.inputs = tuple(each for each in order if each.kind == PLACEHOLDER)


class Leaves:
    """Nodes of known values, which several traces of a model share.

    Attributes
    ----------
    arrays : dict of Node to array
        Values of the nodes that are variables.
    of_file : dict of int to array
        Tensors of the file, and what is computed from them alone, by their ``id``.
    """

    def __init__(self) -> None:
        self.arrays: dict[Node, Array] = {}
        self.of_file: dict[int, Array] = {}
        self._nodes: dict[int, tuple[Array, Node]] = {}

    def node(self, name: str, array: Array, *, trained: bool) -> Node:
        """Return the node of a known value; `trained` says whether it is a weight."""
        if id(array) not in self._nodes:
            self._nodes[id(array)] = array, self.made(name, array, trained)
        return self._nodes[id(array)][1]

    def made(self, name: str, array: Array, trained: bool) -> Node:
        """Return a new node of a known value."""
        if array.size <= 16:
            return constant(array, array.dtype)
        node = variable(array.shape, array.dtype, name)
        self.arrays[node] = array
        return node


class Call:
    """A node of ONNX with the values of its inputs, as functions of `OPERATORS` are given it.

    Attributes
    ----------
    inputs : sequence of Value or None
    values : mapping of str to Value
        All values of the graph so far, which graphs among the attributes may read.
    """

    def __init__(
        self,
        trace: Trace,
        node: Any,
        inputs: Sequence[Any],
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.trace = trace
        self.onnx_node = node
        self.values = values or {}
        self.names: Sequence[str] = list(node.input)
        self.inputs = inputs
        self.opset = trace.opset
        get = trace.file.onnx.helper.get_attribute_value
        self.attributes: dict[str, Any] = {}
        for each in node.attribute:
            self.attributes[each.name] = _text(get(each))

    @property
    def kind(self) -> str:
        """The operator."""
        return str(self.onnx_node.op_type)

    @property
    def results(self) -> Sequence[str]:
        """The names of its results."""
        return list(self.onnx_node.output)

    def has(self, index: int) -> bool:
        """Whether there is an input of that number."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def _input(self, index: int) -> Value:
        if not self.has(index):
            raise ValueError(f"its input {index} is left out")
        value: Value = self.inputs[index]
        return value

    def node(self, index: int = 0, *, trained: bool = True) -> Node:
        """Return an input as a node; `trained` is False for statistics, which are no weights."""
        value = self._input(index)
        if isinstance(value, Node):
            return value
        return self.trace.leaves.node(self.names[index], _plain(value), trained=trained)

    def nodes(self) -> list[Node]:
        """Return all inputs as nodes."""
        return [self.node(i) for i in range(len(self.inputs)) if self.has(i)]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input."""
        return tuple(self._input(index).shape)

    def is_known(self, index: int) -> bool:
        """Whether an input is there and known."""
        return self.has(index) and not isinstance(self.inputs[index], Node)

    def known(self, index: int) -> Array:
        """Return a known input; `UnknownValue` if it depends on inputs of the graph."""
        value = self._input(index)
        if isinstance(value, Node):
            message = f"its input {self.names[index]!r} must be known when a plan is compiled"
            raise UnknownValue([value], f"{node_name(self.onnx_node)}: {message}")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or a default."""
        return self.attributes.get(name, default)

    def integers(self, name: str, index: int) -> list[int] | None:
        """Return integers that are an attribute in older opsets, an input in newer ones."""
        if name in self.attributes:
            return [int(n) for n in np.ravel(self.attributes[name])]
        return [int(n) for n in self.known(index).ravel()] if self.has(index) else None

    def number(self, name: str, index: int, default: float | None = None) -> float | None:
        """Return a number that is an attribute in older opsets, an input in newer ones."""
        if name in self.attributes:
            return float(self.attributes[name])
        return self.known(index).item() if self.has(index) else default

    def axis(self, default: int, index: int = 0, name: str = "axis") -> int:
        """Return an attribute that is the number of an axis, counted from 0."""
        axis, ndim = int(self.get(name, default)), len(self.shape(index))
        if not -ndim <= axis < ndim:
            raise ValueError(f"{name} = {axis} of a value of {ndim} axes")
        return axis % ndim

    def refuse(self, message: str) -> NoReturn:
        """Raise `CheckpointError`, with the name of the node."""
        self.trace.file.refuse(self.onnx_node, message)


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [each.decode(errors="replace") for each in value]
    return value


def is_usual(dtype: np.dtype[Any]) -> bool:
    """Whether a type of elements is one of NumPy's own; those of 8 bits and bfloat16 are not."""
    return dtype.isbuiltin == 1 and dtype.kind in "fiub" and dtype.itemsize <= 8


def _plain(array: Array) -> Array:
    """Return numbers in a type that NumPy has; bfloat16 and narrower floats become float32."""
    if is_usual(array.dtype):
        return array
    return array.astype(np.float32)


class FixedBatch(Exception):
    """A model that states the size of its batch cannot be followed for another one."""


class Trace:
    """Follows a graph of ONNX from its inputs to its outputs.

    Parameters
    ----------
    file : OnnxFile
    leaves : Leaves
    batch : pair of int, optional
        Number of samples that the file states, and of those that are given instead.

    Attributes
    ----------
    values : dict of str to Value
        All values of the main graph.
    calls : list of Call
        Nodes of the main graph that have been followed.
    ranges : list of (Node, int, int)
        Inputs that are indices, with the least and the largest that there may be.
    """

    def __init__(
        self, file: OnnxFile, leaves: Leaves, batch: tuple[int, int] | None = None
    ) -> None:
        self.file = file
        self.leaves = leaves
        self.batch = batch
        self.values: dict[str, Any] = {}
        self.calls: list[Call] = []
        self.ranges: list[tuple[Node, int, int]] = []
        self.depth = 0
        self.opset = file.opset

    def for_batch(self, x: Node, shape: Sequence[int]) -> list[int]:
        """Return a shape of the file for the number of samples at hand, along the first axis."""
        stated, given = self.batch or (1, 1)
        if stated == given or -1 in shape or math.prod(shape) == x.size:
            return list(shape)
        if x.shape[:1] != (given,) or list(shape[:1]) != [stated]:
            raise FixedBatch
        return [given, *shape[1:]]

    def graph(
        self, graph: Any, given: Mapping[str, Any], outer: Mapping[str, Any] | None = None
    ) -> list[Value]:
        """Return the outputs of a graph.

        Parameters
        ----------
        graph : GraphProto
        given : mapping of str to Value
            Its inputs.
        outer : mapping of str to Value, optional
            Values around it, where it is an attribute of a node.
        """
        if self.depth > DEEPEST:
            raise CheckpointError(f"{self.file.path}: graphs in graphs, more than {DEEPEST} deep")
        self.depth += 1
        if self.depth == 1:
            self.calls = []
        tensors = self.file.arrays(graph)
        self.leaves.of_file |= {id(each): each for each in tensors.values()}
        values = {**(outer or {}), **tensors, **given}
        for node in needed(graph):
            self.follow(node, values)
        self.depth -= 1
        if not self.depth:
            self.values = values
        for each in graph.output:
            if each.name not in values:
                message = f"its output {each.name!r} is nothing that is computed"
                raise CheckpointError(f"{self.file.path}: {message}")
        return [values[each.name] for each in graph.output]

    def follow(self, node: Any, values: dict[str, Any]) -> None:
        """Add the results of a node to `values`, in which those of its inputs stand."""
        if node.domain not in DOMAINS:
            self.file.refuse(node, "no operator of ONNX itself, and only those are read")
        missing = next((name for name in node.input if name and name not in values), None)
        if missing is not None:
            self.file.refuse(node, f"its input {missing!r} is nothing that is computed before it")
        inputs = [values[name] if name else None for name in node.input]
        call = Call(self, node, inputs, values)
        if self.depth == 1:
            self.calls.append(call)
        try:
            results = self._results(call)
        except (CheckpointError, FixedBatch, UnknownValue):
            raise
        except DnnError as error:
            self.file.refuse(node, str(error))
        except WRONG as error:
            text = str(error) or type(error).__name__
            self.file.refuse(node, f"its inputs or attributes do not fit: {text}")
        several = results if isinstance(results, tuple | list) else (results,)
        for result in several:
            if isinstance(result, Node) and result.size > LARGEST_COMPUTED:
                shape = f"a result of shape {result.shape}"
                self.file.refuse(node, f"{shape}, of more than {LARGEST_COMPUTED} elements")
        for name, result in zip(node.output, several, strict=False):
            if name and result is not None:
                values[name] = result

    def _results(self, call: Call) -> Any:
        kind = call.kind
        if kind in _ALWAYS:
            return OPERATORS[kind](call)
        if kind == "Constant":
            return self._constant(call)
        if any(isinstance(x, Node) for x in call.inputs):
            function = OPERATORS.get(kind)
            return self._expanded(call) if function is None else function(call)
        if kind in ("Identity", "Dropout"):
            return call.inputs[0]
        return self._folded(call)

    def _expanded(self, call: Call) -> list[Value | None]:
        """Return the results of an operator that onnx defines as a function of other operators."""
        body = self._body(call)
        given = {each.name: each for each in call.onnx_node.attribute}
        for each in self.file.onnx.defs.get_schema(call.kind, self.opset).attributes.values():
            if each.default_value.name:
                given.setdefault(each.name, each.default_value)
        values = {
            name: x for name, x in zip(body.input, call.inputs, strict=False) if x is not None
        }
        outer, self.opset = self.opset, body.opset_import[0].version
        self.depth += 1
        try:
            for node in body.node:
                self.follow(_with_attributes(node, given), values)
        finally:
            self.depth -= 1
            self.opset = outer
        return [values.get(name) for name in body.output]

    def _body(self, call: Call) -> Any:
        """Return the function of an operator; `CheckpointError` if there is none."""
        onnx, node = self.file.onnx, call.onnx_node
        try:
            schema = onnx.defs.get_schema(call.kind, self.opset)
        except onnx.defs.SchemaError:
            self._unknown(call)
        fixed = schema.function_opset_versions
        versions = [*fixed, *schema.context_dependent_function_opset_versions]
        # What a later function of the same operator computes is the same.
        fitting = [each for each in versions if each <= self.opset] or sorted(versions)[:1]
        if fitting and self.depth <= DEEPEST:
            version = max(fitting)
            if version in fixed:
                raw = schema.get_function_with_opset_version(version)
            else:
                types = [_type_of(onnx, x).SerializeToString() for x in call.inputs]
                raw = schema.get_context_dependent_function_with_opset_version(
                    version, node.SerializeToString(), types
                )
            body = onnx.FunctionProto.FromString(raw)
            if body.node:
                return body
        self._unknown(call)

    def _unknown(self, call: Call) -> NoReturn:
        """Refuse a node; if its inputs can be known, it may be computed when a plan is compiled."""
        message = "this operator is not supported"
        computed = [x for x in call.inputs if isinstance(x, Node)]
        if computed and not call.kind.startswith(_RANDOM):
            raise UnknownValue(computed, f"{node_name(call.onnx_node)}: {message}")
        call.refuse(message)

    def _constant(self, call: Call) -> Value:
        ((name, value),) = call.attributes.items()
        if name == "value":
            tensor = self.file.value(value)
            self.leaves.of_file[id(tensor)] = tensor
            return tensor
        kinds = {"value_float": "f4", "value_floats": "f4", "value_int": "i8", "value_ints": "i8"}
        if name not in kinds:
            call.refuse(f"a constant by {name!r} is not read")
        return np.array(value, kinds[name])

    def _folded(self, call: Call) -> Any:
        """Compute a node whose inputs are all known."""
        node, file = call.onnx_node, self.file
        kind = node.op_type
        if kind.startswith(_RANDOM):
            call.refuse("random numbers are not supported")
        if self._count(call) > LARGEST_KNOWN:
            call.refuse(f"a value of more than {LARGEST_KNOWN} elements")
        ops = importlib.import_module("onnx.reference.ops")
        opsets = {**file.opsets, "": self.opset}
        settings = {"log": _silent, "opsets": opsets, "verbose": 0, "new_ops": None}
        try:
            reference = ops.load_op("", kind, self.opset)
        except Exception:  # it raises errors of its own for operators that it does not know
            if kind not in OPERATORS:
                self._unknown(call)
            results = self._eagerly(call)
        else:
            try:
                with np.errstate(all="ignore"):
                    results = reference(node, settings).run(*call.inputs)
            except Exception as error:  # of the library, for anything that does not fit
                call.refuse(f"it cannot be computed: {error}")
        arrays = tuple(None if each is None else np.asarray(each) for each in results)
        of_file = self.leaves.of_file
        if kind not in _REPEATING and any(id(each) in of_file for each in call.inputs):
            of_file |= {id(each): each for each in arrays if each is not None}
        return arrays

    def _count(self, call: Call) -> float:
        """Return at least how many elements a known value has that is made of numbers."""
        if call.kind == "Range":
            start, limit, delta = (float(call.known(i).item()) for i in range(3))
            return abs(limit - start) / abs(delta) if delta else 0.0
        if call.kind not in _SIZED:
            return 0.0
        repeated = math.prod(call.shape()) if call.kind == "Tile" else 1
        return float(repeated * math.prod(call.known(_SIZED[call.kind]).ravel().tolist()))

    def _eagerly(self, call: Call) -> Sequence[Array]:
        """Compute a node whose inputs are all known by its function among `OPERATORS`."""
        trace = Trace(self.file, Leaves())
        trace.opset = self.opset
        found = OPERATORS[call.kind](Call(trace, call.onnx_node, call.inputs, call.values))
        several = found if isinstance(found, tuple | list) else [found]
        return run_eagerly(several, trace.leaves.arrays)


def _silent(*_: object) -> None:
    """Log nothing."""


def _type_of(onnx: Any, x: Value | None) -> Any:
    """Return the type of a value, an empty one for none."""
    if x is None:
        return onnx.TypeProto()
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    return onnx.helper.make_tensor_type_proto(kind, x.shape)


def _with_attributes(node: Any, given: Mapping[str, Any]) -> Any:
    """Return a node of a function, with the attributes that it takes from those of its call."""
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for each in node.attribute:
        if not each.ref_attr_name:
            copy.attribute.append(each)
        elif each.ref_attr_name in given:
            copy.attribute.append(given[each.ref_attr_name])
            copy.attribute[-1].name = each.name
    return copy


def needed(graph: Any) -> list[Any]:
    """Return the nodes of a graph on which its outputs depend, in order."""
    wanted = {each.name for each in graph.output}
    found = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(read_names(node))
    return found[::-1]


def read_names(node: Any) -> set[str]:
    """Return the names of values that a node reads, in graphs among its attributes too."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            names |= {each.name for each in graph.output}
            names |= {name for inner in graph.node for name in read_names(inner)}
    return names
