"""The graph that passes rewrite, the table of passes, and functions that run them in turn.

To add one: write a function ``(graph) -> graph``, most easily with `rewrite`, and decorate it with
`register_pass`. Passes run in the order in which they are named. `default_passes` are those that
pay with any `Ops`, and those that ``Ops.passes`` names, which pay with that class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dnn.backend import Ops
from dnn.errors import unknown_name
from dnn.graph.node import CONSTANT, PLACEHOLDER, VARIABLE, Node, nodes_of, topological_order
from dnn.precision import Precision

__all__ = [
    "PASSES",
    "Graph",
    "Pass",
    "Rule",
    "checking_passes",
    "default_passes",
    "explain",
    "graph_of",
    "optimise",
    "precision_passes",
    "register_pass",
    "rewrite",
    "with_inputs",
]

Rule = Callable[[Node, tuple[Node, ...]], Node | None]
"""From a node and its rewritten inputs to the node that replaces it; None: only inputs change."""


@dataclass(frozen=True)
class Graph:
    """A graph as passes take and return it: outputs, nodes in order, and replaced nodes.

    Attributes
    ----------
    outputs : tuple of Node
        The nodes to be computed, in the order in which they were given.
    order : tuple of Node
        Every node that is computed, inputs before their consumers. A pass that replaces a node
        leaves behind nodes that only that node needed, until the pass `dead_code` removes them.
    mapping : mapping of Node to Node
        From nodes as they were before the first pass to nodes that hold the same values now. A
        node that is not in it has not changed.
    reuses_buffers : bool
        Memory whose last reader has run may be taken by another node.
    ops : Ops
        The `Ops` that will compute the graph; some passes depend on it.
    """

    outputs: tuple[Node, ...]
    order: tuple[Node, ...]
    mapping: Mapping[Node, Node] = field(default_factory=dict)
    reuses_buffers: bool = False
    ops: Ops = field(default_factory=Ops, compare=False)

    def __getitem__(self, node: Node) -> Node:
        """Return the node that now holds the value of a node of the first graph."""
        return self.mapping.get(node, node)

    def readers(self) -> Counter[Node]:
        """Count how often each node is read.

        Returns
        -------
        Counter of Node
            Being wanted as an output counts too.
        """
        count = Counter(self.outputs)
        for node in self.order:
            count.update(node.inputs)
        return count

    def __str__(self) -> str:
        names = _names(self.order)
        wanted = set(self.outputs)
        lines = []
        for node in self.order:
            if node.kind == CONSTANT and node.size == 1:
                continue  # its value stands where it is read
            inputs = [names[x] for x in node.inputs]
            attributes = [f"{key}={_short(value)}" for key, value in node.attributes.items()]
            inside = "" if node.operation is None else f"({', '.join(inputs + attributes)})"
            star = "*" if node in wanted else " "
            text = f"{star}{names[node]} = {node.kind}{inside}"
            lines.append(f"{text:60s}  {node.shape} {node.dtype}")
        return "\n".join(lines)

    def dot(self) -> str:
        """Return the graph in the language of Graphviz.

        Returns
        -------
        str
            Operations are boxes, and nodes without inputs are round; outputs have two borders.
        """
        number = {node: i for i, node in enumerate(self.order)}
        names = _names(self.order)
        wanted = set(self.outputs)
        lines = ["digraph {", "  rankdir = TB;"]
        for node in self.order:
            title = node.kind if node.operation is not None else f"{names[node]}\\n{node.kind}"
            label = f"{title}\\n{node.shape} {node.dtype}".replace('"', "'")
            shape = "box" if node.operation is not None else "ellipse"
            borders = ", peripheries=2" if node in wanted else ""
            lines.append(f'  n{number[node]} [label="{label}", shape={shape}{borders}];')
            lines += [f"  n{number[x]} -> n{number[node]};" for x in node.inputs]
        return "\n".join([*lines, "}"])


def graph_of(outputs: Sequence[Node]) -> Graph:
    """Return the graph of nodes to be computed, before any pass.

    Parameters
    ----------
    outputs : sequence of Node

    Returns
    -------
    Graph
        ``print`` shows it, a line for each node; its method `dot` draws it.

    Raises
    ------
    DtypeError
        If `outputs` is no sequence of nodes.
    """
    wanted = nodes_of("graph_of", outputs)
    return Graph(wanted, tuple(topological_order(wanted)))


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Replace nodes one by one, inputs before their consumers.

    `rule` is called for every node, with the node's rewritten inputs. A node that it returns has
    the same shape and type; nodes that are needed for it and not yet in the graph are entered
    before it. A node returned for a placeholder or a variable is read in its place: the placeholder
    or variable itself stays, for its array comes from outside.
    """
    now: dict[Node, Node] = {}
    order: list[Node] = []
    entered: set[Node] = set()
    for node in graph.order:
        inputs = tuple(now[x] for x in node.inputs)
        new = rule(node, inputs)
        if new is None:
            new = node if inputs == node.inputs else with_inputs(node, inputs)
        now[node] = new
        if new not in entered:
            # Mostly there is nothing before it that is not yet in the graph.
            known = entered.issuperset(new.inputs)
            needed = [new] if known else topological_order([new], entered)
            entered.update(needed)
            order += needed
    mapping = {first: now.get(last, last) for first, last in graph.mapping.items()}
    for node, new in now.items():
        if new is not node and not _is_from_outside(node):
            mapping.setdefault(node, new)
    outputs = tuple(node if _is_from_outside(node) else now[node] for node in graph.outputs)
    return replace(graph, outputs=outputs, order=tuple(order), mapping=mapping)


def _is_from_outside(node: Node) -> bool:
    return node.kind in (PLACEHOLDER, VARIABLE)


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Return a node of the same operation on other inputs of the same shapes and types."""
    return Node(
        node.kind, node.shape, node.dtype, inputs, node.attributes, node.name, node.operation
    )


def _names(order: Sequence[Node]) -> dict[Node, str]:
    """Return names of nodes: their own, the value of a single number, or their place."""
    names: dict[Node, str] = {}
    taken: set[str] = set()
    for i, node in enumerate(order):
        name = node.name
        if node.kind == CONSTANT and node.size == 1:
            names[node] = f"{node.attributes['value'].item():g}"
            continue
        if not name or name in taken:
            name = f"{name}%{i}"
        taken.add(name)
        names[node] = name
    return names


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array{value.shape}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


class Pass(NamedTuple):
    """A pass in the table `PASSES`: its name, a line of description, and its function."""

    name: str
    description: str
    run: Callable[[Graph], Graph]


PASSES: dict[str, Pass] = {}

PASSES_BEFORE_DEVICE = (
    *("constant_folding", "pooling_relu", "common_subexpressions", "dead_code"),
    *("batch_norm_folding", "image_layout", "convolution_relu"),
)
PASSES_AFTER_DEVICE = ("buffer_reuse",)

PASSES_BEFORE_ROUNDING = ("batch_norm_sums",)
"""Passes of a device that look for nodes which passes that round change."""


def register_pass(name: str) -> Callable[[Callable[[Graph], Graph]], Callable[[Graph], Graph]]:
    """Enter a pass in `PASSES`, under the name that `optimise` and `Plan` take.

    Used as a decorator; the first line of the function's docstring describes the pass.
    """

    def enter(run: Callable[[Graph], Graph]) -> Callable[[Graph], Graph]:
        description = (run.__doc__ or "").strip().partition("\n")[0]
        PASSES[name] = Pass(name, description, run)
        return run

    return enter


def default_passes(ops: Ops) -> tuple[str, ...]:
    """Return the names of the passes that a plan runs by default, those of `ops` among them."""
    return (*PASSES_BEFORE_DEVICE, *ops.passes, *PASSES_AFTER_DEVICE)


def precision_passes(precision: Precision, ops: Ops, recompute: bool = False) -> tuple[str, ...]:
    """Return the names of the passes for training in a precision.

    Passes that round stand before those of `ops`, but for `PASSES_BEFORE_ROUNDING`. They are the
    same on every device, so that rounding is at the same places. With `recompute` cheap results
    are not kept, see `recomputation`.
    """
    rounding = precision.passes or ()
    first = (name for name in ops.passes if name in PASSES_BEFORE_ROUNDING)
    own = (name for name in ops.passes if name not in (*PASSES_BEFORE_ROUNDING, *rounding))
    last = ("recomputation",) if recompute else ()
    return (*PASSES_BEFORE_DEVICE, *first, *rounding, *own, *last, *PASSES_AFTER_DEVICE)


def checking_passes() -> tuple[str, ...]:
    """Return names of passes that keep every value to the next replay: `Plan.first_nonfinite`."""
    return PASSES_BEFORE_DEVICE


def optimise(
    outputs: Sequence[Node],
    passes: Sequence[str] | None = None,
    ops: Ops | None = None,
    watch: Callable[[Pass, Graph, Graph], object] | None = None,
) -> Graph:
    """Rewrite a graph so that it computes the same in less time or memory.

    Parameters
    ----------
    outputs : sequence of Node
    passes : sequence of str, optional
        Names, in the order in which they are to run; `default_passes` if left out.
    ops : Ops, optional
        Whose own passes the default includes; NumPy's if left out.
    watch : function (pass, graph before, graph after), optional
        Called after each pass.

    Returns
    -------
    Graph
        ``graph[node]`` is what a node of the given graph has become.

    Raises
    ------
    ConfigurationError
        If there is no pass of a name.
    DtypeError
        If `outputs` is no sequence of nodes.
    """
    ops = ops or Ops()
    names = default_passes(ops) if passes is None else tuple(passes)
    for name in names:
        if name not in PASSES:
            raise unknown_name("pass", name, PASSES)
    graph = replace(graph_of(outputs), ops=ops)
    for name in names:
        before, graph = graph, PASSES[name].run(graph)
        if watch is not None:
            watch(PASSES[name], before, graph)
    return graph


def explain(
    outputs: Sequence[Node], passes: Sequence[str] | None = None, ops: Ops | None = None
) -> str:
    """Return the graph as text before the first pass and after each.

    Parameters
    ----------
    outputs : sequence of Node
    passes : sequence of str, optional
        Names, in the order in which they are to run; `default_passes` if left out.
    ops : Ops, optional
        Whose own passes the default includes; NumPy's if left out.

    Returns
    -------
    str
        For each pass its name, its description, the number of nodes that it leaves, and the nodes;
        then the passes of the table that were not run.

    Raises
    ------
    ConfigurationError, DtypeError
        As for `optimise`.
    """
    parts = [f"# before\n{graph_of(outputs)}"]
    left_out = dict.fromkeys(PASSES)

    def watch(done: Pass, before: Graph, after: Graph) -> None:
        left_out.pop(done.name, None)
        counts = f"{len(before.order)} nodes -> {len(after.order)}"
        parts.append(f"# {done.name}: {done.description}\n# {counts}\n{after}")

    optimise(outputs, passes, ops, watch)
    remedy = "" if passes or ops else '; ops=dnn.ops_for("cpu") adds those of networks on the CPU'
    return "\n\n".join([*parts, f"# not run: {', '.join(left_out)}{remedy}"])
