"""Parts of a workflow: some of its groups, as ``--only GROUP`` and ``--from GROUP`` choose them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from diel.errors import LaunchError
from diel.frozen import Frozen
from diel.run.records import RunStarted
from diel.text import did_you_mean, some_of


class Part(Frozen):
    """Which groups of a workflow run; all of them, unless some are named.

    Attributes
    ----------
    only : sequence of str
        Groups that run alone, with the groups inside them.
    from_groups : sequence of str
        Groups that run, and all that depend on them, directly or not.
    """

    only: Sequence[str] = ()
    from_groups: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.only or self.from_groups)

    @property
    def flags(self) -> str:
        """The options of ``diel run`` that choose this part; empty for the whole."""
        return shlex.join(words_of_choices(part=self))


def words_of_choices(
    given: Iterable[str] = (), part: Part | None = None, *, force: bool = False
) -> list[str]:
    """Return the words of ``diel run`` that give it settings, a part, and ``--force``."""
    part = part or Part()
    options = (("--set", given), ("--only", part.only), ("--from", part.from_groups))
    words = [word for option, values in options for each in values for word in (option, each)]
    return [*words, "--force"] if force else words


class GroupLinks(Frozen):
    """How groups are connected: names in the order of the file, and what each depends on.

    Attributes
    ----------
    names : sequence of str
    depends : mapping of str to sequence of str
    inside : mapping of str to str
        The enclosing group, by group.
    repeating : collection of str
        Groups that may run more than once in a row.
    """

    names: Sequence[str] = ()
    depends: Mapping[str, Sequence[str]] = {}
    inside: Mapping[str, str] = {}
    repeating: Collection[str] = ()

    @cached_property
    def inner(self) -> dict[str, list[str]]:
        """The groups right inside each group of groups."""
        found: dict[str, list[str]] = {}
        for name, outer in self.inside.items():
            found.setdefault(outer, []).append(name)
        return found

    @cached_property
    def dependants(self) -> dict[str, list[str]]:
        """The groups that depend on each group."""
        found: dict[str, list[str]] = {}
        for name, others in self.depends.items():
            for other in others:
                found.setdefault(other, []).append(name)
        return found

    @classmethod
    def of_run(cls, started: RunStarted) -> GroupLinks:
        """Return how the groups of a run are connected."""
        repeating = {name for name, most in started.iterations.items() if most != 1}
        return cls(started.groups, started.depends, started.inside, repeating.union(started.until))

    def following(self, name: str) -> set[str]:
        """Return the groups that begin only after a group has finished, directly or not."""
        return _reached([name], self, follow=True) - _reached([name], self, follow=False)

    def inside_of(self, name: str) -> set[str]:
        """Return the groups inside a group, directly or not."""
        return _reached([name], self, follow=False) - {name}

    def around(self, name: str) -> list[str]:
        """Return the groups that a group is in, from the innermost to the outermost."""
        found: list[str] = []
        while (name := self.inside.get(name, "")) and name not in found:
            found.append(name)
        return found


def groups_of(part: Part, links: GroupLinks) -> tuple[set[str], set[str]]:
    """Return the groups that a part runs, and the groups that these are in but which run in part.

    A LaunchError if a group is unknown, or is in one that repeats: then a pass of that begins
    anew, and there is no part of it that could be run by itself.
    """
    if part.only and part.from_groups:
        raise LaunchError(f"{part.flags}: --only runs groups alone, so leave out one of the two")
    named = [*part.only, *part.from_groups]
    for name in named:
        if name not in links.names:
            near = did_you_mean(name, links.names)
            hint = f"did you mean {near}?" if near else f"groups: {some_of(links.names)}"
            option = "--only" if part.only else "--from"
            raise LaunchError(f"{option} {name}: there is no such group; {hint}")
    chosen = _reached(named, links, follow=bool(part.from_groups))
    around = {outer for name in chosen for outer in links.around(name)} - chosen
    for name in named:
        for outer in links.around(name):
            if outer in links.repeating and outer in around:
                raise LaunchError(
                    f"group {name} is inside {outer}, which runs it again and again: name {outer}"
                )
    return chosen, around


def _reached(names: Iterable[str], links: GroupLinks, *, follow: bool) -> set[str]:
    """Return groups with all that is inside them, and with what follows them if that is asked."""
    inner, dependants = links.inner, links.dependants
    chosen: set[str] = set()
    to_do = list(names)
    while to_do:
        name = to_do.pop()
        if name in chosen:
            continue
        chosen.add(name)
        to_do += inner.get(name, ())
        if follow:
            for before in (name, *links.around(name)):
                to_do += dependants.get(before, ())
    return chosen
