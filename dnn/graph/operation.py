"""What an operation is, and the one table of them.

To add one: subclass `Operation`, write forward and gradient side by side, decorate with
`register`. The tests walk through the table, so an operation without a gradient check fails them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import cleandoc
from textwrap import indent
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from dnn.backend import Array, Ops, Step
from dnn.graph.node import Node, Shape, called_by_nodes, check_nodes

__all__ = [
    "OPERATIONS",
    "Arrays",
    "Operation",
    "Step",
    "aligned",
    "apply",
    "documented",
    "register",
    "reshaped",
    "stack_all",
]


class Arrays(NamedTuple):
    """The arrays that an operation is bound to: of its inputs, its result and its workspace."""

    inputs: Sequence[Array]
    out: Array
    workspace: Sequence[Array]


class Operation:
    """One row of the table.

    Attributes
    ----------
    name : str
        Its key in the table.
    overwrites : tuple of int
        Inputs whose memory the result may take, if nobody reads that input afterwards and shape
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
        It does nothing but write its result, so passes may leave it out or do it once for two.
    """

    name: ClassVar[str]
    overwrites: ClassVar[tuple[int, ...]] = ()
    view: ClassVar[bool] = False
    view_of_any: ClassVar[bool] = False
    assigns: ClassVar[bool] = False
    contiguous: ClassVar[tuple[int, ...]] = ()
    pure: ClassVar[bool] = True

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and type of the result; asked when a node is made.

        `attributes` are as they were given to `apply`. Inputs that do not fit are a `ShapeError` or
        a `DtypeError`.
        """
        raise NotImplementedError

    def multiply_adds(self, node: Node) -> int:
        """Return how many products of two numbers, each added to a sum, a node takes.

        Those of matrix products and what is alike, in their usual form: what is computed element by
        element counts as nothing.
        """
        return 0

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Return shapes and types of the arrays that the operation needs only while it runs.

        `ops` is of the device that is to compute it.
        """
        return ()

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        """Return the calls that write the result; asked when a plan is compiled.

        The arrays are bound for good: the calls are replayed with them, and make none.
        """
        raise NotImplementedError

    def as_view(self, node: Node, array: Array) -> Array:
        """Return the result as a view of input 0; only asked where `view` holds."""
        raise NotImplementedError

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        """Return ``dy -> dx`` for each input, None where there is no gradient.

        A gradient may keep the shape that broadcasting gave its input: whoever asks sums it back to
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
            Which of `inputs` have a leading axis of length `models`, at least one; the others serve
            all models alike.
        models : int

        Returns
        -------
        Node, shape (models, *node.shape)
            This default serves any operation, one model after the other.
        """
        alone = []
        for k in range(models):
            of_model = [
                reshaped(apply("slice", x, index=((k, k + 1, 1),)), x.shape[1:]) if has else x
                for x, has in zip(inputs, stacked, strict=True)
            ]
            y = apply(self.name, *of_model, **node.attributes)
            alone.append(reshaped(y, (1, *y.shape)))
        return apply("concat", *alone, axis=0)


def reshaped(x: Node, shape: Shape) -> Node:
    """Return the elements of `x` in another shape of the same size; `x` itself if it has that."""
    return x if x.shape == shape else apply("reshape", x, shape=shape)


def aligned(x: Node, is_stacked: bool, ndim: int) -> Node:
    """Insert axes behind that of the models, so that models broadcast as one does.

    `ndim` is how many axes the result of one model has. What is not stacked stays as it is.
    """
    missing = ndim - (x.ndim - 1)
    if not is_stacked or missing <= 0:
        return x
    return reshaped(x, (x.shape[0], *(1,) * missing, *x.shape[1:]))


def stack_all(inputs: Sequence[Node], stacked: Sequence[bool], models: int) -> list[Node]:
    """Repeat what serves all models, so that every input has the axis of the models."""
    return [
        x if has else apply("broadcast_to", x, shape=(models, *x.shape))
        for x, has in zip(inputs, stacked, strict=True)
    ]


OPERATIONS: dict[str, Operation] = {}

_Kind = TypeVar("_Kind", bound=type[Operation])


def register(kind: _Kind) -> _Kind:
    """Enter an operation in the table, under its name; it is a decorator."""
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
    """Make the node of an operation.

    Parameters
    ----------
    kind : str
        A name in the table.
    *inputs : Node
    **attributes
        What the operation needs besides.

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
