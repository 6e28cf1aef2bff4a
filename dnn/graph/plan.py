"""Plans: a graph bound to arrays, to be replayed; and eager mode, for debugging.

Compiling asks the operations for their calls once. What remains is a list of (function, arrays),
and replaying it allocates no array and looks nothing up.

In eager mode nodes are computed one by one, each into a new array that can be looked at. The
functions are those that a plan is compiled from, so with NumPy's the numbers are the same, bit for
bit. Compiled kernels leave arrays of some strides to NumPy, and here there are no views: the last
digit may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dnn.backend import Array, Ops
from dnn.backend.rounding import BFLOAT16, SINGLE, widen
from dnn.errors import ConfigurationError, DtypeError, ShapeError
from dnn.graph.layout import Layout, lay_out
from dnn.graph.node import (
    CONSTANT,
    PLACEHOLDER,
    VARIABLE,
    Node,
    Shape,
    called_by_nodes,
    fed,
    nodes_of,
    topological_order,
)
from dnn.graph.operation import Arrays, Step, compute
from dnn.graph.passes import optimise
from dnn.graph.passes.precision import MADE_BY_PRECISION

__all__ = ["Arena", "Plan", "evaluate", "run_eagerly"]


class Arena:
    """One piece of memory that plans share, as long as they are not replayed at the same time.

    A plan for a partial batch uses the beginning of the memory of the plan for a whole batch.

    Parameters
    ----------
    ops : Ops
        Of the device where the memory lies.
    """

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.size_bytes = 0
        self._memory = ops.memory(0)

    def reserve(self, size_bytes: int) -> None:
        """Make the memory larger if needed; plans compiled earlier keep the memory they have.

        Parameters
        ----------
        size_bytes : int
            The least size.
        """
        if size_bytes > self.size_bytes:
            self._memory = self.ops.memory(size_bytes)
            self.size_bytes = size_bytes

    def array(self, offset: int, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Return a part of the memory as an array.

        Parameters
        ----------
        offset : int, bytes
        shape : tuple of int
        dtype : type of elements

        Returns
        -------
        array, of `shape` and `dtype`
            Not initialised.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return self._memory[offset : offset + size].view(dtype).reshape(shape)


class Plan:
    """A graph compiled to a list of calls on arrays, which `run` replays.

    Parameters
    ----------
    outputs : sequence of Node
        The nodes to be computed.
    ops : Ops
        Called for functions now, and at the first run to link them; not when replaying.
    variables : mapping of Node to array
        The array of each variable that `outputs` depend on.
    into : sequence of (Node, array), optional
        Outputs that are to be written into given arrays, such as segments of a gradient buffer.
    arena : Arena, optional
        Memory to share with other plans; else the plan has its own.
    passes : sequence of str, optional
        Names of the passes that rewrite the graph before it is compiled, see `dnn.graph.passes`;
        if left out, those that pay with `ops`.

    Raises
    ------
    ShapeError
        If an array does not have its node's shape and type.
    ConfigurationError
        If a variable has no array, there is no pass of a name, or a node reads what is assigned.
    DtypeError
        If something is no array, or `outputs` is no sequence of nodes.

    Notes
    -----
    ``plan[node]`` is the array of a placeholder or of an output; it stays the same array.
    ``print(plan)`` shows the steps and what they take at most, ``print(plan.graph)`` the graph
    after all passes. ``plan.size_bytes`` is that peak, with what routines need besides results.
    """

    def __init__(
        self,
        outputs: Sequence[Node],
        ops: Ops,
        variables: Mapping[Node, Array] | None = None,
        into: Sequence[tuple[Node, Array]] = (),
        arena: Arena | None = None,
        passes: Sequence[str] | None = None,
    ) -> None:
        given = dict(variables or {})
        outputs = nodes_of("plan", outputs)
        for node, array in (*given.items(), *into):
            _check_array(node, array)
        graph = optimise([*outputs, *(node for node, _ in into)], passes, ops)
        into = [(graph[node], array) for node, array in into]
        for node, array in into:
            if node.operation is not None:  # computed right where it is wanted
                given.setdefault(node, array)
        given |= {
            node: given[node.inputs[0]]
            for node in graph.order
            if node.operation is not None and node.operation.assigns and node.inputs[0] in given
        }
        strided = [node for node, array in given.items() if not array.flags.c_contiguous]
        layout = lay_out(
            graph.outputs, given.keys(), graph.order, graph.reuses_buffers, strided, ops
        )
        arena = arena or Arena(ops)
        arena.reserve(layout.size_bytes)
        self.size_bytes = layout.size_bytes
        self.graph = graph
        self._ops = ops
        self._arrays: dict[Node, Array] = {}
        self._steps: list[Step] = []
        self._kinds: list[str] = []
        self._first_steps: dict[Node, int] = {}
        for node in layout.order:
            self._first_steps[node] = len(self._steps)
            self._place(node, layout, arena, given)
            if node.operation is not None and node not in layout.views:
                self._bind(node, layout, arena, ops)
        for node, array in into:
            if self._arrays[node] is not array:  # a constant, or wanted in two places
                self._add("copy", [(ops.copy, (self._arrays[node], array))])

    @cached_property
    def _calls(self) -> list[Step]:
        # Linked at the first run: training links a plan's steps together with the optimizer's.
        return self._ops.link(self._steps)

    def _place(self, node: Node, layout: Layout, arena: Arena, given: Mapping[Node, Array]) -> None:
        if node in given:
            array = given[node]
        elif node in layout.offsets:
            array = arena.array(layout.offsets[node], node.shape, node.dtype)
        elif node.operation is not None:
            array = node.operation.as_view(node, self._arrays[node.inputs[0]])
        elif "value" in node.attributes:  # a constant, or a variable that brings its own
            array = arena.ops.asarray(node.attributes["value"])
        else:
            raise ConfigurationError(f"plan: no array was given for {node!r}")
        self._arrays[node] = array

    def _bind(self, node: Node, layout: Layout, arena: Arena, ops: Ops) -> None:
        assert node.operation is not None
        wanted = node.operation.workspace(node, ops)
        workspace = [
            arena.array(offset, shape, dtype)
            for offset, (shape, dtype) in zip(layout.workspaces[node], wanted, strict=True)
        ]
        inputs = [self._arrays[x] for x in node.inputs]
        arrays = Arrays(inputs, self._arrays[node], workspace)
        self._add(node.kind, node.operation.forward(ops, node, arrays))

    def _add(self, kind: str, steps: Sequence[Step]) -> None:
        self._steps.extend(steps)
        self._kinds.extend([kind] * len(steps))

    def __getitem__(self, node: Node) -> Array:
        # Callers fill the placeholder itself, even if a pass lets its readers read another node.
        return self._arrays[node if node.kind == PLACEHOLDER else self.graph[node]]

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def steps(self) -> Sequence[Step]:
        """The calls in order, each a function and its arguments, as operations returned them."""
        return self._steps

    def split_assignments(self) -> tuple[list[Step], list[Step]]:
        """Return `steps` in two parts: calls that compute, and calls that assign to variables.

        Returns
        -------
        tuple of two lists of (function, arguments)
        """
        parts: tuple[list[Step], list[Step]] = ([], [])
        for kind, step in zip(self._kinds, self._steps, strict=True):
            parts[kind == "assign"].append(step)
        return parts

    def split_at(self, node: Node) -> tuple[list[Step], list[Step]]:
        """Return `steps` in two parts, the second from the first step on that depends on a node.

        Parameters
        ----------
        node : Node
            A placeholder or a variable; where nothing depends on it, the second part is empty.

        Returns
        -------
        tuple of two lists of (function, arguments)
        """
        later = {node}
        for each in self.graph.order:
            if any(x in later for x in each.inputs):
                later.add(each)
        cut = min((self._first_steps[each] for each in later - {node}), default=len(self))
        return self._steps[:cut], self._steps[cut:]

    def __str__(self) -> str:
        lines = []
        for kind, (_, arguments) in zip(self._kinds, self._steps, strict=True):
            shapes = [str(x.shape) for x in arguments if hasattr(x, "dtype")]
            lines.append(f"{kind:24s}{' '.join(shapes[:-1])} -> {shapes[-1]}")
        lines.append(f"at most {self.size_bytes:,} bytes at once, besides variables and constants")
        return "\n".join(lines)

    def first_nonfinite(self, model: int | None = None) -> Node | None:
        """Return the first node whose value is NaN or infinite since the last `run`.

        Parameters
        ----------
        model : int, optional
            Look at this model of K alone; all nodes but constants then begin with the models' axis.

        Returns
        -------
        Node or None
            In the order of computation, beginning with placeholders and variables. It is a node
            of ``plan.graph``.

        Raises
        ------
        ConfigurationError
            If the plan uses memory again, so that values are gone: compile it without the pass
            ``buffer_reuse``.
        """
        if self.graph.reuses_buffers:
            message = "values are gone in a plan that was compiled with the pass buffer_reuse"
            raise ConfigurationError(f"first_nonfinite: {message}")
        for node in self.graph.order:
            if model is not None and (node.kind == CONSTANT or not node.ndim):
                continue
            is_bfloat16 = node.dtype == BFLOAT16 and node.kind in MADE_BY_PRECISION
            if node.dtype.kind != "f" and not is_bfloat16:
                continue
            array = self._arrays[node] if model is None else self._arrays[node][model]
            value = self._ops.to_host(array)
            if is_bfloat16:
                bits, value = value, np.empty(value.shape, SINGLE)
                widen(bits, value)
            if not np.isfinite(value).all():
                return node
        return None

    def run(self) -> None:
        """Compute the outputs from the present values of placeholders and variables."""
        for function, arguments in self._calls:
            function(*arguments)


def _check_array(node: Node, array: Array) -> None:
    """Raise an error unless an array can hold a node's value."""
    if not hasattr(array, "dtype"):
        raise DtypeError(f"plan: a {type(array).__name__}, no array, was given for {node!r}")
    if array.shape != node.shape or array.dtype != node.dtype:
        message = f"an array {array.shape} {array.dtype} was given for {node!r}"
        raise ShapeError("plan", message, array.shape, node.shape)


@called_by_nodes
def evaluate(
    outputs: Sequence[Node],
    feeds: Mapping[Node, npt.ArrayLike],
    ops: Ops | None = None,
    passes: Sequence[str] | None = None,
) -> list[Array]:
    """Compute nodes once, for a test or at a prompt.

    Parameters
    ----------
    outputs : sequence of Node
    feeds : mapping of Node to array
        A value for each placeholder and variable that they depend on.
    ops : Ops, optional
        NumPy's if left out.
    passes : sequence of str, optional
        As for `Plan`.

    Returns
    -------
    list of array
        New arrays.

    Raises
    ------
    ConfigurationError
        If a value is missing, given for a node that is computed or a constant, or there is no
        pass of a name.
    ShapeError
        If a value has not its node's shape.
    DataError, DtypeError
        If a value is no array of numbers, or of numbers that the node's type cannot hold, or
        `outputs` is no sequence of nodes.
    """
    ops = ops or Ops()
    outputs = nodes_of("evaluate", outputs)
    arrays = {node: fed("evaluate", node, value) for node, value in feeds.items()}
    variables = {
        node: ops.asarray(array) for node, array in arrays.items() if node.kind == VARIABLE
    }
    plan = Plan(outputs, ops, variables, passes=passes)
    for node in plan.graph.order:
        if node.kind == PLACEHOLDER:
            if node not in arrays:
                raise ConfigurationError(f"evaluate: no value was given for {node!r}")
            ops.load(arrays[node], plan[node])
    plan.run()
    return [ops.to_host(plan[node]).copy() for node in outputs]


@called_by_nodes
def run_eagerly(
    outputs: Sequence[Node],
    feeds: Mapping[Node, npt.ArrayLike],
    ops: Ops | None = None,
    watch: Callable[[Node, Array], object] | None = None,
) -> list[Array]:
    """Compute nodes one after the other, for debugging.

    Parameters
    ----------
    outputs : sequence of Node
    feeds : mapping of Node to array
        A value for each placeholder and variable that they depend on.
    ops : Ops, optional
        NumPy's if left out.
    watch : function (node, array), optional
        Called with each node and its value as soon as it is computed.

    Returns
    -------
    list of array

    Raises
    ------
    ConfigurationError, ShapeError, DataError, DtypeError
        As for `evaluate`.
    """
    ops = ops or Ops()
    outputs = nodes_of("eager", outputs)
    given = {node: fed("eager", node, value) for node, value in feeds.items()}
    values: dict[Node, Array] = {}
    for node in topological_order(outputs):
        if node.operation is not None:
            values[node] = compute(node, [values[x] for x in node.inputs], ops)
        elif node in given:
            values[node] = ops.asarray(given[node])
        elif "value" in node.attributes:  # a constant, or a variable that brings its own
            values[node] = ops.asarray(node.attributes["value"])
        else:
            raise ConfigurationError(f"eager: no value was given for {node!r}")
        if watch is not None:
            watch(node, values[node])
    return [values[node] for node in outputs]
