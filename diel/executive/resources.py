"""Resources that groups share, such as licences: how many are in use, what a group lacks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from diel.executive.plans import GroupPlan


class SharedResources:
    """The resources of a run, of which running groups hold a part.

    Parameters
    ----------
    total : mapping of str to int
        How many there are of each.
    holders : iterable of GroupPlan, optional
        Groups that run already.
    """

    def __init__(self, total: Mapping[str, int], holders: Iterable[GroupPlan] = ()) -> None:
        self._total = total
        self._in_use: Counter[str] = Counter()
        self._holders: dict[str, Mapping[str, int]] = {}
        for plan in holders:
            self.take(plan)

    def lacking(self, plan: GroupPlan) -> tuple[str, ...]:
        """Return the resources of which too few are free for a group."""
        if not self._total:
            return ()
        return tuple(
            name
            for name, amount in plan.resources.items()
            if amount > self._total.get(name, 0) - self._in_use[name]
        )

    def too_few(self, plan: GroupPlan) -> str:
        """Return why a group could never start, or empty text."""
        return ", ".join(
            f"{amount} {name}, and there are {self._total.get(name, 0)}"
            for name, amount in plan.resources.items()
            if amount > self._total.get(name, 0)
        )

    def take(self, plan: GroupPlan) -> None:
        """Count what a group takes as in use."""
        if plan.resources:
            self._in_use.update(plan.resources)
            self._holders[plan.name] = plan.resources

    def give_back(self, plan: GroupPlan) -> None:
        """Count what a group has taken as free again."""
        self._in_use.subtract(self._holders.pop(plan.name, {}))

    def describe(self, names: Iterable[str]) -> str:
        """Return in words how many of some resources are in use, and by which groups."""
        words = []
        for name in names:
            holders = [group for group, held in self._holders.items() if name in held]
            by = f" by group {', '.join(holders)}" if holders else ""
            words.append(f"{name}: {self._in_use[name]} of {self._total.get(name, 0)} in use{by}")
        return "; ".join(words)
