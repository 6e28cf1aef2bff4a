"""Nodes of the graph: each is an operation on other nodes, or a value from outside.

A node has an operation, inputs, a shape and a type of elements. It holds no result. The three
kinds without inputs differ in where their array comes from: a placeholder is filled before each
replay, a variable (a parameter) is bound to an array when a plan is compiled, a constant brings its
own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from dnn.arrays import dtype_of
from dnn.backend import Array
from dnn.errors import ConfigurationError, DtypeError, ShapeError
from dnn.graph.arguments import numbers_of, shape_of
from dnn.initializers import Initializer, initializer_of
from dnn.seeds import stream

if TYPE_CHECKING:
    from dnn.graph.operation import Operation

__all__ = [
    "Node",
    "Shape",
    "called_by_nodes",
    "check_nodes",
    "constant",
    "fed",
    "nodes_of",
    "placeholder",
    "topological_order",
    "var",
    "variable",
]

Shape = tuple[int, ...]

PLACEHOLDER = "placeholder"
VARIABLE = "variable"
CONSTANT = "constant"

_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def called_by_nodes(function: _Function) -> _Function:
    """Let the methods of `Node` call a function by its name; used as a decorator.

    These functions are written with nodes, in modules that import this one, which cannot import
    them in turn.
    """
    _FUNCTIONS[function.__name__] = function
    return function


_Operator = Callable[["Node", "Operand"], "Node"]


def _operator(kind: str) -> tuple[_Operator, _Operator]:
    """Return the methods of an operator for which a node stands on the left, and on the right."""

    def left(node: Node, other: Operand) -> Node:
        return _apply(kind, node, other)

    def right(node: Node, other: Operand) -> Node:
        return _apply(kind, other, node)

    return left, right


class Node:
    """A value of the graph: the result of an operation, a placeholder, a variable or a constant.

    Attributes
    ----------
    kind : str
        Name of the operation, or ``"placeholder"``, ``"variable"``, ``"constant"``.
    inputs : tuple of Node
    attributes : dict
        Settings of the operation besides its inputs, such as axes.
    shape : tuple of int
    dtype : numpy.dtype
    name : str
        For messages; empty for most nodes.
    operation : Operation or None
        None for a node without inputs.
    """

    __slots__ = ("attributes", "dtype", "inputs", "kind", "name", "operation", "shape")

    # NumPy arrays leave `array + node` to the node.
    __array_ufunc__ = None

    def __init__(
        self,
        kind: str,
        shape: Shape,
        dtype: npt.DTypeLike,
        inputs: Sequence[Node] = (),
        attributes: dict[str, Any] | None = None,
        name: str = "",
        operation: Operation | None = None,
    ) -> None:
        self.kind = kind
        self.shape = tuple(int(length) for length in shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.inputs = tuple(inputs)
        self.attributes = attributes or {}
        self.name = name
        self.operation = operation

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{self.kind}{name} {self.shape} {self.dtype}>"

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")
    __matmul__, __rmatmul__ = _operator("matmul")
    __rpow__ = _operator("power")[1]

    def __pow__(self, exponent: Operand) -> Node:
        return _called("power", self, exponent)

    def __neg__(self) -> Node:
        return _apply("negative", self)

    def __abs__(self) -> Node:
        return _apply("abs", self)

    # `==` and `!=` compare nodes, which are keys of dictionaries, and not their values. An array on
    # the left, which compares too, leaves that to the node.
    __gt__, __lt__ = _operator("greater")
    __ge__, __le__ = _operator("greater_equal")

    def __bool__(self) -> bool:
        raise DtypeError(f"{self!r} has no truth value before it is computed: see where(...)")

    def __getitem__(self, key: Any) -> Node:
        return _called("part", self, key)

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len", f"{self!r} has no axis", self.shape)
        return self.shape[0]

    def __iter__(self) -> Iterator[Node]:
        return (self[i] for i in range(len(self)))

    def eval(
        self, feeds: Mapping[Node, npt.ArrayLike] | None = None, *, eager: bool = False
    ) -> Array:
        """Compute this node now.

        Parameters
        ----------
        feeds : mapping of Node to array, optional
            A value for each placeholder, and for each variable that has none of its own.
        eager : bool
            Node by node, for debugging, instead of as a compiled plan.

        Returns
        -------
        array of NumPy, of the node's shape and type

        Raises
        ------
        ConfigurationError, ShapeError, DtypeError, DataError
            As for `evaluate`.
        """
        function = _FUNCTIONS["run_eagerly" if eager else "evaluate"]
        (value,) = function([self], feeds or {})
        found: Array = value
        return found

    @property
    def T(self) -> Node:
        """The node with its last two axes exchanged."""
        return _called("transpose", self)


def check_nodes(kind: str, *inputs: object) -> None:
    """Raise `DtypeError` if an input of an operation is not a node."""
    for x in inputs:
        if not isinstance(x, Node):
            given = "an array" if isinstance(x, np.ndarray) else repr(x)
            raise DtypeError(f"{kind}: {given} is no node; dnn.graph.constant makes one of numbers")


def nodes_of(kind: str, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return a sequence of nodes as a tuple; `DtypeError` if a member is no node.

    A single node is refused too: it would be taken for the sequence of its rows.
    """
    if isinstance(nodes, Node):
        raise DtypeError(f"{kind}: {nodes!r} is one node, and not a sequence of nodes")
    several = tuple(nodes)
    check_nodes(kind, *several)
    return several


def topological_order(outputs: Sequence[Node], done: Collection[Node] = ()) -> list[Node]:
    """Return all nodes that `outputs` depend on, inputs before consumers.

    Nodes that are `done` are left out, together with nodes that only they need.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    # A stack and not recursion: a deep network is deeper than Python's call stack.
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            order.append(node)
        elif node not in seen and node not in done:
            seen.add(node)
            stack.append((node, True))
            stack.extend((x, False) for x in reversed(node.inputs) if x not in seen)
    return order


def fed(where: str, node: Node, value: npt.ArrayLike) -> Array:
    """Return the value of a placeholder or a variable as an array of the node's shape and dtype.

    `where` names the function that was given the value, for the message. A value that is such an
    array is returned as it is.

    Raises
    ------
    ConfigurationError
        If the node is computed or a constant, so that the value would not be read.
    ShapeError
        If it has another shape: a value that would have to be broadcast was hardly meant.
    DataError, DtypeError
        If it is no array, not of numbers, or of numbers that the node's type cannot hold.
    """
    if not isinstance(node, Node) or node.kind not in (PLACEHOLDER, VARIABLE):
        raise ConfigurationError(f"{where}: {node!r} is neither a placeholder nor a variable")
    array = numbers_of(f"{where}: {node!r}", value, node.dtype, copy=False)
    if array.shape != node.shape:
        message = f"{node!r} was given a value of shape {array.shape}"
        raise ShapeError(where, message, node.shape, array.shape)
    return array


Operand = Node | float | Array


def _apply(kind: str, *operands: Operand) -> Node:
    return _called("apply", kind, *as_nodes(kind, *operands))


def _called(function: str, *arguments: Any) -> Node:
    node: Node = _FUNCTIONS[function](*arguments)
    return node


def as_nodes(kind: str, *operands: Operand) -> tuple[Node, ...]:
    """Turn numbers and arrays beside a node into constants of that node's type of elements.

    Raises
    ------
    DtypeError
        If none is a node, or that type cannot hold a value.
    DataError
        If one is no array.
    """
    dtype = next((operand.dtype for operand in operands if isinstance(operand, Node)), None)
    if dtype is None:
        raise DtypeError(f"{kind}: no operand is a node; dnn.graph.constant makes one of a number")
    return tuple(
        operand if isinstance(operand, Node) else _constant(numbers_of(kind, operand, dtype))
        for operand in operands
    )


def placeholder(shape: Shape, dtype: npt.DTypeLike = np.float32, name: str = "") -> Node:
    """Return an input node: the plan owns its array and the caller fills it before each replay.

    Parameters
    ----------
    shape : tuple of int
    dtype : type of elements
    name : str, optional

    Returns
    -------
    Node

    Raises
    ------
    ShapeError
        If a length is negative: the shape of a graph is fixed, and each size of batch has a plan.
    DtypeError
        If elements of that type are no real numbers.
    """
    lengths = shape_of(PLACEHOLDER, shape)
    return Node(PLACEHOLDER, lengths, dtype_of(PLACEHOLDER, dtype), name=name)


def variable(
    shape: Shape | None = None,
    dtype: npt.DTypeLike = np.float32,
    name: str = "",
    *,
    value: npt.ArrayLike | None = None,
) -> Node:
    """Return a node of a parameter, whose array is bound to plans and outlives them.

    Parameters
    ----------
    shape : tuple of int, optional
        That of `value` if left out.
    dtype : type of elements
    name : str, optional
    value : array_like, optional
        Its first value. A plan that is given no other array uses a copy of this one, and
        `dnn.minimize` changes it; it stands in ``node.attributes["value"]``.

    Returns
    -------
    Node

    Raises
    ------
    ShapeError
        If `value` has another shape, both are left out, or a length is negative.
    DtypeError
        If elements of that type, or those of `value`, are no real numbers, or an integer type
        cannot hold them.
    DataError
        If `value` is no array.
    """
    lengths = None if shape is None else shape_of(VARIABLE, shape)
    kind = dtype_of(VARIABLE, dtype)
    if value is None:
        if lengths is None:
            raise ShapeError(VARIABLE, "it needs a shape or a value")
        return Node(VARIABLE, lengths, kind, name=name)
    array = numbers_of(VARIABLE, value, kind)
    if lengths is not None and array.shape != lengths:
        message = f"a value {array.shape} was given for a variable {lengths}"
        raise ShapeError(VARIABLE, message, array.shape, lengths)
    return Node(VARIABLE, array.shape, kind, attributes={"value": array}, name=name)


_created = itertools.count()


def var(
    name: str,
    shape: Shape,
    initializer: str | float | Initializer = "zero",
    *,
    dtype: npt.DTypeLike = np.float32,
    seed: int | None = None,
) -> Node:
    """Return a variable with a value that an initializer makes.

    Parameters
    ----------
    name : str
    shape : tuple of int
    initializer : str, number or Initializer
        As for `dnn.Tensor`: ``"glorot"``, ``0.5``, or one of `dnn.initializers`.
    dtype : type of elements
    seed : int, optional
        Of a random initializer: the same seed and name give the same value. Left out, the n-th
        variable that this process creates draws from a stream of its own.

    Returns
    -------
    Node
        A `variable`.

    Raises
    ------
    ConfigurationError
        If there is no initializer of that name, or the seed is no integer of at least 0.
    ShapeError
        If a length is negative, or the initializer does not fit the shape.
    DtypeError
        If elements of that type are no real numbers.
    """
    number = next(_created)
    generator = stream(seed or 0, "variable", name if seed is not None else number)
    lengths, kind = shape_of(VARIABLE, shape), dtype_of(VARIABLE, dtype)
    value = initializer_of(initializer)(generator, lengths, kind)
    return variable(lengths, kind, name, value=value)


def constant(value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> Node:
    """Return a node of a fixed value.

    Operators and most functions make one of a number or an array beside a node, and it takes the
    type of that node: float32 stays float32.

    Parameters
    ----------
    value : array_like
    dtype : type of elements

    Returns
    -------
    Node, of the shape of `value`
        With a copy of the value.

    Raises
    ------
    DtypeError
        If the value is complex, an object or text, or `dtype` is, or an integer type cannot hold
        the value.
    DataError
        If the value is no array.
    """
    return _constant(numbers_of(CONSTANT, value, dtype_of(CONSTANT, dtype)))


def _constant(array: Array) -> Node:
    return Node(CONSTANT, array.shape, array.dtype, attributes={"value": array})
