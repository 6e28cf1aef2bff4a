"""The base class of operations, `OPERATIONS`, the table of them, and graphs for K models at once.

To add one: subclass `Operation`, write forward and gradient side by side, decorate with
`register`. The tests walk through the table, so an operation without a gradient check fails them.

A graph that is written for one model is rewritten for K of them at once by `with_models`. Every
node that depends on something of which each model has its own, such as its parameters, gets a
leading axis of length K; other nodes stay as they are and serve all models. Each operation defines
how, beside its forward and its gradient. Layers, losses and gradients are written without that
axis, and results equal those of K single graphs bit for bit, as long as one thread computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from inspect import cleandoc
from textwrap import indent
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from dnn.backend import Array, Ops, Step, empty
from dnn.errors import ConfigurationError
from dnn.graph.node import CONSTANT, Node, Shape, called_by_nodes, check_nodes, topological_order

__all__ = [
    "OPERATIONS",
    "Arrays",
    "Operation",
    "StackedOperation",
    "Step",
    "aligned",
    "apply",
    "compute",
    "documented",
    "register",
    "reshaped",
    "stack_all",
    "with_models",
]


class Arrays(NamedTuple):
    """The arrays that an operation is bound to: of its inputs, its result and its workspace."""

    inputs: Sequence[Array]
    out: Array
    workspace: Sequence[Array]


class Operation:
    """Base class of operations: shapes, forward calls and gradient, for the table `OPERATIONS`.

    Attributes
    ----------
    name : str
        Its key in the table.
    overwrites : tuple of int
        Inputs whose memory the result may take, if no node reads that input afterwards and shape
        and type agree.
    view : bool
        The result is a view of input 0 wherever that input is contiguous or `view_of_any`.
    view_of_any : bool
        The result is a view of input 0 even if that is not contiguous.
    assigns : bool
        The result stands in the array of input 0, a variable, and is written after all else.
    contiguous : tuple of int
        Inputs whose elements have to stand one behind the other, but for the axis of models of a
        variable: such an input is no view of a transpose or a slice.
    pure : bool
        It only writes its result, so passes may leave it out, or compute it once for two nodes.
    """

    name: ClassVar[str]
    overwrites: ClassVar[tuple[int, ...]] = ()
    view: ClassVar[bool] = False
    view_of_any: ClassVar[bool] = False
    assigns: ClassVar[bool] = False
    contiguous: ClassVar[tuple[int, ...]] = ()
    pure: ClassVar[bool] = True

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and type of the result; called when a node is made.

        `attributes` are as they were given to `apply`. Inputs that do not fit are a `ShapeError` or
        a `DtypeError`.
        """
        raise NotImplementedError

    def multiply_adds(self, node: Node) -> int:
        """Return the number of multiply-adds of a node: products of two numbers, added to a sum.

        Matrix products, convolutions and recurrent cells have them, counted for their usual form;
        elementwise operations count as 0.
        """
        return 0

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Return shapes and types of the arrays that the operation needs only while it runs.

        `ops` is of the device that is to compute it.
        """
        return ()

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the calls that write the result; called when a plan is compiled.

        The arrays are bound for good: the calls are replayed with them, and allocate no others.
        """
        raise NotImplementedError

    def as_view(self, node: Node, array: Array) -> Array:
        """Return the result as a view of input 0; only called where `view` holds."""
        raise NotImplementedError

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        """Return the gradient of each input from `dy`, that of the result; None without one.

        A gradient may keep the shape that broadcasting gave its input: the caller sums it back to
        the shape of the input.
        """
        raise NotImplementedError

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        """Return the node that computes `node` for several models at once.

        Parameters
        ----------
        node : Node
            As written for one model.
        inputs : sequence of Node
            Its inputs for all models.
        stacked : sequence of bool
            Which of `inputs` have a leading axis of length `models`, at least one; other inputs
            serve all models alike.
        models : int

        Returns
        -------
        Node, shape (models, *node.shape)
            This default serves any operation, one model after the other.
        """
        results = []
        for k in range(models):
            of_model = [
                reshaped(apply("slice", x, index=((k, k + 1, 1),)), x.shape[1:]) if has else x
                for x, has in zip(inputs, stacked, strict=True)
            ]
            y = apply(self.name, *of_model, **node.attributes)
            results.append(reshaped(y, (1, *y.shape)))
        return apply("concat", *results, axis=0)


class StackedOperation(Operation):
    """Base class of operations for which all inputs get the axis of models, as the result does."""

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        """Return the node for K models, with inputs that all of them share repeated."""
        return apply(self.name, *stack_all(inputs, stacked, models), **node.attributes)


def reshaped(x: Node, shape: Shape) -> Node:
    """Return the elements of `x` in a shape of the same size; `x` itself if it has that shape."""
    return x if x.shape == shape else apply("reshape", x, shape=shape)


def aligned(x: Node, is_stacked: bool, ndim: int) -> Node:
    """Insert axes behind the axis of models, so that each model broadcasts as it does alone.

    `ndim` is the number of axes of the result of one model. An input that is not stacked stays as
    it is.
    """
    missing = ndim - (x.ndim - 1)
    if not is_stacked or missing <= 0:
        return x
    return reshaped(x, (x.shape[0], *(1,) * missing, *x.shape[1:]))


def stack_all(inputs: Sequence[Node], stacked: Sequence[bool], models: int) -> list[Node]:
    """Repeat inputs that all models share, so that every input has the axis of models."""
    return [
        x if has else apply("broadcast_to", x, shape=(models, *x.shape))
        for x, has in zip(inputs, stacked, strict=True)
    ]


def with_models(
    outputs: Sequence[Node], models: int, per_model: Collection[Node]
) -> dict[Node, Node]:
    """Rewrite a graph for several models at once.

    Parameters
    ----------
    outputs : sequence of Node
        As written for one model.
    models : int, at least 1
    per_model : collection of Node
        Placeholders and variables of which each model has its own.

    Returns
    -------
    dict of Node to Node
        The new node for every node that `outputs` need. Nodes of `per_model`, and all `outputs`
        that are computed, have shape (models, *shape); outputs that are the same for all models
        are repeated, but an assignment that is the same for all models is done once.
    """
    if models < 1:
        raise ConfigurationError(f"the number of models must be at least 1, not {models}")
    for node in per_model:
        if node.operation is not None:
            raise ConfigurationError(f"with_models: {node!r} is computed and cannot be per model")
    now: dict[Node, Node] = {}
    stacked: set[Node] = set()
    for node in topological_order(outputs):
        if node.operation is None:
            new = node
            if node in per_model:
                new = Node(node.kind, (models, *node.shape), node.dtype, name=node.name)
        elif any(x in stacked for x in node.inputs):
            inputs = [now[x] for x in node.inputs]
            new = node.operation.with_models(
                node, inputs, [x in stacked for x in node.inputs], models
            )
            new.name = new.name or node.name
            assert (new.shape, new.dtype) == ((models, *node.shape), node.dtype), (node, new)
        else:  # no input has the axis of models, so that none has changed
            new = node
        if new is not node:
            stacked.add(node)
        now[node] = new
    for node in outputs:
        is_value = node.kind == CONSTANT if node.operation is None else node.operation.pure
        if node not in stacked and is_value:
            (now[node],) = stack_all([node], [False], models)
    return now


OPERATIONS: dict[str, Operation] = {}

_Kind = TypeVar("_Kind", bound=type[Operation])


def register(kind: _Kind) -> _Kind:
    """Enter an operation in `OPERATIONS` under its name; used as a decorator."""
    OPERATIONS[kind.name] = kind()
    return kind


_Function = TypeVar("_Function", bound=Callable[..., Node])


def documented(
    function: _Function, operation: type[Operation], parameters: str, returns: str, raises: str
) -> _Function:
    """Give a function the name and the documentation of the operation that it applies.

    The first line of the operation's docstring says what the function returns; the paragraphs after
    that say more of the result. The sections are in NumPy style.
    """
    summary, _, more = cleandoc(operation.__doc__ or "").partition("\n\n")
    sections = {
        "Parameters": parameters,
        "Returns": f"{returns}\n{indent(more, '    ')}".rstrip(),
        "Raises": raises,
    }
    text = [f"Return {summary[:1].lower()}{summary[1:]}"]
    text += [f"{name}\n{'-' * len(name)}\n{body}" for name, body in sections.items() if body]
    function.__doc__ = "\n\n".join(text) + "\n"
    function.__name__ = function.__qualname__ = operation.name
    function.__module__ = operation.__module__
    return function


@called_by_nodes
def apply(kind: str, *inputs: Node, **attributes: Any) -> Node:
    """Return a node that applies an operation to its inputs.

    Parameters
    ----------
    kind : str
        A name in the table.
    *inputs : Node
    **attributes
        Settings of the operation besides its inputs, such as axes.

    Raises
    ------
    ShapeError
        If the shapes do not fit; it names the operation and the shapes.
    DtypeError
        If the types of elements do not fit, or an input is no node.
    """
    check_nodes(kind, *inputs)
    operation = OPERATIONS[kind]
    shape, dtype = operation.infer(*inputs, **attributes)
    return Node(kind, shape, dtype, inputs, attributes, operation=operation)


def compute(node: Node, inputs: Sequence[Array], ops: Ops | None = None) -> Array:
    """Return the value of a node, in new memory, from those of its inputs; NumPy without `ops`."""
    ops = ops or Ops()
    assert node.operation is not None
    out = empty(ops, node.shape, node.dtype)
    workspace = [empty(ops, *wanted) for wanted in node.operation.workspace(node, ops)]
    for function, arguments in node.operation.forward(ops, node, Arrays(inputs, out, workspace)):
        function(*arguments)
    return out
