"""When every running module waits for a tuple that nobody is left to put.

Pure: the driver feeds it the reports of ranks that have waited for a while, and, once all of them
have, what the tuple servers hold. A rank that computes, waits in an MPI call of its own or runs an
executable reports nothing and so counts as working.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diel.executive.messages import Waiting
from diel.executive.plans import CopyPlan
from diel.tuples.tags import decode_tag, format_tag


@dataclass(frozen=True)
class Waits:
    """A rank that waits, as rank 0 knows it."""

    plan: CopyPlan
    report: Waiting
    reported_s: float

    def describe(self, now_s: float) -> str:
        """Say in words who waits for what, and since when."""
        waited_s = self.report.waited_s + now_s - self.reported_s
        return f"{self.plan.name} has waited {waited_s:.1f} s in {self.report.what}"


class WaitWatch:
    """Who waits, among the ranks that run modules."""

    def __init__(self) -> None:
        self._waits: dict[int, Waits] = {}

    def note(self, rank: int, plan: CopyPlan, report: Waiting, now_s: float) -> None:
        """Take in that a rank has waited for a while."""
        self._waits[rank] = Waits(plan, report, now_s)

    def forget(self, rank: int) -> None:
        """Take in that a rank goes on, or shall."""
        self._waits.pop(rank, None)

    @property
    def waits(self) -> Mapping[int, Waits]:
        """Who waits, by rank, as far as ranks have told."""
        return self._waits

    def all_wait(self, running: Collection[int]) -> bool:
        """Whether every rank that runs a module has reported a wait without a timeout."""
        return bool(running) and all(
            rank in self._waits and not self._waits[rank].report.has_timeout for rank in running
        )

    def is_deadlock(self, running: Iterable[int], surveys: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the servers confirm that nothing can happen any more.

        Each rank's request lies at a server, or the rank waits for others of its module, and every
        put that a rank had sent when it began to wait has been applied: no message is under way.
        """
        waiting = {client for survey in surveys for client in survey["waiting"]}
        for rank in running:
            report = self._waits[rank].report
            applied = [survey["puts_applied"].get(str(rank), 0) for survey in surveys]
            if report.at_server and (rank not in waiting or applied != list(report.puts)):
                return False
        return True

    def explain(
        self,
        running: Iterable[int],
        surveys: Sequence[Mapping[str, Any]],
        *,
        ended: Iterable[str],
        groups_to_come: Sequence[str],
        now_s: float,
    ) -> str:
        """Say who waits for what, which tags nearly match, and who could have put them.

        Parameters
        ----------
        running : iterable of int
            Ranks.
        surveys : sequence of mapping
            What each server holds.
        ended : iterable of str
            Copies that have ended.
        groups_to_come : sequence of str
            Groups that wait for others or for ranks, or would run again.
        now_s : float, seconds
        """
        held = {
            format_tag(decode_tag(bytes.fromhex(key))): count
            for survey in surveys
            for key, count in survey["tags"]
            if not bytes.fromhex(key).startswith(b"p")
        }
        lines = []
        running = sorted(running)
        for rank in running:
            waits = self._waits[rank]
            line = f"{waits.describe(now_s)} (rank {rank})"
            near = difflib.get_close_matches(waits.report.tag, held, n=3, cutoff=0.6)
            if near and waits.report.at_server:
                found = ", ".join(f"{tag} x {held[tag]}" for tag in near)
                line += f"; tags there that nearly match: {found}"
            lines.append(line)
        if not held:
            lines.append("the tuple space is empty")
        waiting = {self._waits[rank].plan.name for rank in running}
        ended = [name for name in ended if name not in waiting]
        if ended:
            lines.append(f"ended, and could have put it: {', '.join(ended)}")
        if groups_to_come:
            lines.append(f"yet to start, and cannot: group {', '.join(groups_to_come)}")
        return "\n".join(lines)
