"""The dependency graph of groups: cycles, orders, and how much of it can run at once.

A graph is a mapping from each group to the groups it depends on. All functions are pure and
deterministic: among equals, the first in file order wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

Depends = Mapping[str, Sequence[str]]


def find_cycle(depends: Depends) -> list[str] | None:
    """Find groups that wait for each other.

    Returns
    -------
    list of str or None
        Each group depends on the next one, and the last is the first again, as in
        ``["a", "b", "a"]``. Names that are not keys of the graph are ignored.
    """
    finished: set[str] = set()
    for start in depends:
        path: dict[str, Iterator[str]] = {}
        if start not in finished:
            path[start] = iter(depends[start])
        while path:
            group = next(reversed(path))
            following = next((needed for needed in path[group] if needed in depends), None)
            if following is None:
                finished.add(group)
                del path[group]
            elif following in path:
                names = list(path)
                return [*names[names.index(following) :], following]
            elif following not in finished:
                path[following] = iter(depends[following])
    return None


def dependency_order(depends: Depends) -> list[str]:
    """Return the groups with each after its dependencies; in file order where that allows it.

    A ValueError if groups wait for each other.
    """
    order: dict[str, None] = {}
    while len(order) < len(depends):
        ready = next(
            (
                group
                for group, needed in depends.items()
                if group not in order and all(name in order for name in needed if name in depends)
            ),
            None,
        )
        if ready is None:
            raise ValueError("groups wait for each other")
        order[ready] = None
    return list(order)


def heaviest_antichain(weights: Mapping[str, int], depends: Depends) -> tuple[int, frozenset[str]]:
    """Find the groups that may run at the same time and weigh most together.

    Parameters
    ----------
    weights : mapping from group to int, at least 0
    depends : mapping from group to the groups it depends on, without cycles

    Returns
    -------
    weight : int
        The largest sum of weights of groups none of which depends on another, not even indirectly.
    groups : frozenset of str
        Groups whose weights have that sum.

    Notes
    -----
    By Dilworth's theorem with weights, that sum is the smallest number of chains that cover each
    group as often as it weighs: the total weight minus the largest flow through a bipartite graph
    with each group on both sides and an edge wherever one comes before another. The edges from the
    right side back to the left stand for the transitive closure without building it. The groups
    themselves are read off the smallest cut.

    References
    ----------
    .. [1] D. R. Fulkerson, Note on Dilworth's decomposition theorem for partially ordered sets,
       Proceedings of the AMS 7, 1956, pages 701-702.
    .. [2] R. H. Möhring, Algorithmic aspects of comparability graphs and interval graphs, in
       Graphs and Order, 1985, pages 41-101.
    """
    number = {group: index for index, group in enumerate(weights)}
    total = sum(weights.values())
    source, sink = 2 * len(number), 2 * len(number) + 1
    network = _Network(2 * len(number) + 2)
    for group, index in number.items():
        left, right = 2 * index, 2 * index + 1
        network.connect(source, left, weights[group])
        network.connect(right, sink, weights[group])
        network.connect(right, left, total)
        for needed in depends.get(group, ()):
            if needed in number:
                network.connect(left, 2 * number[needed] + 1, total)
    flow = network.largest_flow(source, sink)
    reached = network.levels(source)
    chosen = frozenset(
        group
        for group, index in number.items()
        if weights[group] > 0 and 2 * index in reached and 2 * index + 1 not in reached
    )
    return total - flow, chosen


class _Network:
    """Edges with capacities, and Dinic's algorithm for the largest flow through them."""

    def __init__(self, nodes: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(nodes)]
        # Edge e goes to _head[e]; e ^ 1 is the same edge backwards.
        self._head: list[int] = []
        self._room: list[int] = []

    def connect(self, start: int, end: int, capacity: int) -> None:
        for node, head, room in ((start, end, capacity), (end, start, 0)):
            self._edges[node].append(len(self._head))
            self._head.append(head)
            self._room.append(room)

    def largest_flow(self, source: int, sink: int) -> int:
        flow = 0
        while sink in (level := self.levels(source)):
            untried = [list(reversed(edges)) for edges in self._edges]
            while path := self._path(source, sink, level, untried):
                pushed = min(self._room[edge] for edge in path)
                for edge in path:
                    self._room[edge] -= pushed
                    self._room[edge ^ 1] += pushed
                flow += pushed
        return flow

    def levels(self, source: int) -> dict[int, int]:
        """Return each node that can be reached over edges with capacity left, and its distance."""
        level, queue = {source: 0}, deque([source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                head = self._head[edge]
                if self._room[edge] > 0 and head not in level:
                    level[head] = level[node] + 1
                    queue.append(head)
        return level

    def _path(
        self, source: int, sink: int, level: Mapping[int, int], untried: list[list[int]]
    ) -> list[int]:
        """Find a path one level at a time; dead ends are never tried again."""
        path: list[int] = []
        node = source
        while node != sink:
            if not untried[node]:
                if not path:
                    return []
                node = self._head[path.pop() ^ 1]
                untried[node].pop()
                continue
            edge = untried[node][-1]
            head = self._head[edge]
            if self._room[edge] > 0 and level.get(head) == level[node] + 1:
                path.append(edge)
                node = head
            else:
                untried[node].pop()
        return path
