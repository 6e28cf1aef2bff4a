"""The table of passes, and running them in turn.

To add one: write a function ``(graph) -> graph``, most easily with `rewrite`, and decorate it with
`register_pass`. Passes run in the order in which they are named. `DEFAULT_PASSES` are those that
pay with any `Ops`; ``Ops.passes`` names more of them, those that pay with that class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dnn.backend import Ops
from dnn.errors import unknown_name
from dnn.graph.node import Node
from dnn.graph.passes.graph import Graph, graph_of

__all__ = [
    "PASSES",
    "Pass",
    "checking_passes",
    "default_passes",
    "explain",
    "mixed_precision_passes",
    "optimise",
    "register_pass",
]


class Pass(NamedTuple):
    """One row of the table: a name, a line that says what it does, and the function."""

    name: str
    description: str
    run: Callable[[Graph], Graph]


PASSES: dict[str, Pass] = {}

BEFORE_OWN = ("constant_folding", "common_subexpressions", "dead_code")
AFTER_OWN = ("buffer_reuse",)


def register_pass(name: str) -> Callable[[Callable[[Graph], Graph]], Callable[[Graph], Graph]]:
    """Enter a pass in the table.

    Parameters
    ----------
    name : str
        By which `optimise` and `Plan` know it.

    Returns
    -------
    decorator of a function (Graph) -> Graph
        The first line of its docstring describes the pass.
    """

    def enter(run: Callable[[Graph], Graph]) -> Callable[[Graph], Graph]:
        description = (run.__doc__ or "").strip().partition("\n")[0]
        PASSES[name] = Pass(name, description, run)
        return run

    return enter


def default_passes(ops: Ops) -> tuple[str, ...]:
    """Return the passes that a plan takes when none are named.

    Parameters
    ----------
    ops : Ops
        Whose own passes are among them.

    Returns
    -------
    tuple of str
    """
    return (*BEFORE_OWN, *ops.passes, *AFTER_OWN)


def mixed_precision_passes() -> tuple[str, ...]:
    """Return the passes for training in mixed precision.

    Returns
    -------
    tuple of str
        Without those that pay with one class of `Ops` only.
    """
    return (*BEFORE_OWN, "mixed_precision", *AFTER_OWN)


def checking_passes() -> tuple[str, ...]:
    """Return passes that keep every value until the next replay, to be looked at.

    Returns
    -------
    tuple of str
        For `Plan.first_nonfinite`.
    """
    return BEFORE_OWN


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
    names = default_passes(ops or Ops()) if passes is None else tuple(passes)
    for name in names:
        if name not in PASSES:
            raise unknown_name("pass", name, PASSES)
    graph = graph_of(outputs)
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
        For each pass its name, what it does, how many nodes it leaves, and these.

    Raises
    ------
    ConfigurationError, DtypeError
        As for `optimise`.
    """
    parts = [f"# before\n{graph_of(outputs)}"]

    def watch(done: Pass, before: Graph, after: Graph) -> None:
        counts = f"{len(before.order)} nodes -> {len(after.order)}"
        parts.append(f"# {done.name}: {done.description}\n# {counts}\n{after}")

    optimise(outputs, passes, ops, watch)
    return "\n\n".join(parts)
