"""Detection of deadlocks: every running module waits, and no rank is left to end a wait.

Pure: the driver passes in the reports of ranks that have waited for a while and, once all ranks
have, what the tuple servers hold. A rank that computes, waits in an MPI call of its own or runs an
executable sends no such report and so counts as working.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from diel.coupling.messages import MessageCounts
from diel.executive.messages import Waiting
from diel.executive.plans import CopyPlan
from diel.frozen import Frozen
from diel.tuples.tags import decode_tag, format_tag


class Waits(Frozen):
    """A rank that waits: its copy, its report, and when rank 0 received that."""

    plan: CopyPlan
    report: Waiting
    reported_s: float

    def describe(self, now_s: float) -> str:
        """Return a text that says which copy waits for what, and for how long."""
        waited_s = self.report.waited_s + now_s - self.reported_s
        return f"{self.plan.name} has waited {waited_s:.1f} s in {self.report.what}"


class WaitWatch:
    """Tracks which of the ranks that run modules wait, and detects deadlocks."""

    def __init__(self) -> None:
        self._waits: dict[int, Waits] = {}
        self._sent_by_ended: Counter[tuple[int, int]] = Counter()
        self._is_suspected = False

    def note(self, rank: int, plan: CopyPlan, report: Waiting, now_s: float) -> None:
        """Record that a rank has waited for a while."""
        self._waits[rank] = Waits(plan, report, now_s)

    def forget(self, rank: int) -> None:
        """Record that a rank no longer waits, or has been ordered to leave its copy."""
        self._waits.pop(rank, None)

    @property
    def waits(self) -> Mapping[int, Waits]:
        """The reported waits that are not over, by rank."""
        return self._waits

    def note_end(self, rank: int, serial: int, counts: MessageCounts) -> None:
        """Record that a rank's part of a copy has ended, and how many messages it had sent."""
        self.forget(rank)
        self._sent_by_ended.pop((serial, rank), None)  # counts messages to this part, now useless
        self._sent_by_ended.update(counts.sent)

    def search(
        self, running: Collection[int], survey: Callable[[], Sequence[Mapping[str, Any]]]
    ) -> Sequence[Mapping[str, Any]] | None:
        """Search for a deadlock; return what the servers hold if two searches in a row found one.

        If all ranks that run modules wait, `survey` is called: it asks every server what it holds.
        """
        surveys = survey() if self.all_wait(running) else None
        was_suspected = self._is_suspected
        self._is_suspected = surveys is not None and self.servers_confirm_deadlock(running, surveys)
        return surveys if was_suspected and self._is_suspected else None

    def all_wait(self, running: Collection[int]) -> bool:
        """Whether every rank that runs a module has reported a wait without a timeout."""
        return bool(running) and all(
            rank in self._waits and not self._waits[rank].report.has_timeout for rank in running
        )

    def servers_confirm_deadlock(
        self, running: Iterable[int], surveys: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Whether what the servers hold confirms that no wait can end any more.

        That is so if each rank's latest request is pending at a server, or the rank waits for other
        ranks; every put that a rank had sent when it began to wait has been applied; and every
        message to a rank that waits for a message has arrived: nothing is in flight.

        Notes
        -----
        A report may be out of date, since the news that a wait is over may still be on its way. It
        is enough that no rank can have been the first to go on. A rank that waited at a server
        would have another request there, or none. A rank that waited for a message would have
        received it from a rank that sent it before its own report, and then the counts differ, or
        from a rank that went on earlier. The same holds for a payload that waits for its receiver.
        """
        ranks = set(running)
        waiting = {
            (client, request_id) for survey in surveys for client, request_id in survey["waiting"]
        }
        for rank in ranks:
            report = self._waits[rank].report
            applied = [survey["puts_applied"].get(str(rank), 0) for survey in surveys]
            if report.at_server:
                if (rank, report.request) not in waiting or applied != list(report.puts):
                    return False
            elif not self._waits_in_vain(rank, report, ranks):
                return False
        return True

    def _waits_in_vain(self, rank: int, report: Waiting, running: set[int]) -> bool:
        """Whether no message is in flight that could end a wait for other ranks."""
        counts = report.counts
        if counts.waits_for == "message":
            waiter = (report.serial, rank)
            sent = [self._waits[rank].report.counts.sent.get(waiter, 0) for rank in running]
            return sum(sent) + self._sent_by_ended[waiter] == counts.arrived
        if counts.waits_for == "receipt":
            waiter = (report.serial, rank)
            return bool(counts.receivers) and all(
                receiver in running
                and self._has_received_no_more(receiver, waiter, counts.delivered.get(place, 0))
                for place in counts.receivers
                for receiver in place[1:]
            )
        return True  # it waits for the end of its copy's other ranks

    def _has_received_no_more(self, receiver: int, sender: tuple[int, int], left: int) -> bool:
        """Whether a rank has received only those payloads that the sender knows to be delivered."""
        report = self._waits[receiver].report
        # A rank whose function has returned receives and drops all messages to it.
        is_in_function = report.at_server or bool(report.counts.waits_for)
        return is_in_function and report.counts.received.get(sender, 0) == left

    def explain(
        self,
        running: Iterable[int],
        surveys: Sequence[Mapping[str, Any]],
        *,
        ended: Iterable[str],
        groups_to_come: Sequence[str],
        skipped: Sequence[str] = (),
        now_s: float,
    ) -> str:
        """Return a text: the waits, tags that nearly match, and which copies could have put them.

        Parameters
        ----------
        running : iterable of int
            Ranks that run modules.
        surveys : sequence of mapping
            What each server holds.
        ended : iterable of str
            Copies that have ended.
        groups_to_come : sequence of str
            Groups that wait for other groups or for ranks, or would run again.
        skipped : sequence of str, optional
            Groups that were skipped, each with its condition.
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
        lines += [
            f"a tuple server is full and cannot move tuples to the disk: {survey['spill_error']}"
            for survey in surveys
            if survey.get("spill_error")
        ]
        if not held:
            lines.append("the tuple space is empty")
        waiting = {self._waits[rank].plan.name for rank in running}
        ended = [name for name in ended if name not in waiting]
        if ended:
            lines.append(f"ended, and could have put it: {', '.join(ended)}")
        if groups_to_come:
            lines.append(f"yet to start, and cannot: group {', '.join(groups_to_come)}")
        lines += [f"skipped, and so put nothing: group {each}" for each in skipped]
        return "\n".join(lines)
