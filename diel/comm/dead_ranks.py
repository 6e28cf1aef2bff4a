"""Ranks that have died while the run goes on, as an MPI with ULFM reports them.

ULFM (in Open MPI ``mpiexec --with-ft ulfm``) has calls raise that involve a dead rank. A receive
from any rank raises at each poll until this rank has acknowledged who is dead, and goes on then.
Ranks do not agree here on who is dead: each finds out for itself. Open MPI's launcher does not
report a process that has ended by itself, with a status other than 0: such ranks are found by their
processes (`diel.executive.heartbeats`). Without ULFM none of this happens: the launcher ends all
ranks when one dies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mpi4py import MPI

_EXECUTIVE_RANK: Final = 0
_EXECUTIVE_IS_LOST: Final = 1
_leave: Final = os._exit  # itself: it is replaced, to note crashes, while modules run


class DeadRanks:
    """The ranks of a communicator that have died, as far as this rank has found out."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self.ranks: set[int] = set()
        self._acknowledged = 0
        self._of_open_receive = MPI.Status()

    def note(self, error: MPI.Exception) -> None:
        """Record the ranks whose death a call of MPI has raised; raise any other error again.

        Without rank 0 there is no run: this process ends at once, as a launcher would end it.
        """
        kinds = (
            self._mpi.ERR_PROC_FAILED,
            self._mpi.ERR_PROC_FAILED_PENDING,
            self._mpi.ERR_REVOKED,
        )
        kind = error.Get_error_class()
        if kind not in (*kinds, self._mpi.ERR_IN_STATUS):
            raise error
        self.look()
        if kind not in kinds and not self.ranks:  # an error of several requests, not a dead rank
            raise error

    def add(self, ranks: Iterable[int]) -> None:
        """Record ranks as dead that MPI has not reported."""
        self.ranks.update(ranks)

    def look(self) -> set[int]:
        """Ask MPI which ranks are dead, and acknowledge them; return those that are new."""
        failed = self._comm.Get_failed()
        ours = self._comm.Get_group()
        try:
            count = failed.Get_size()
            dead = set(failed.Translate_ranks(None, ours)) if count else set()
        finally:
            failed.Free()
            ours.Free()
        if count > self._acknowledged:
            # Only these: a rank that dies meanwhile would be acknowledged without being recorded.
            self._comm.Ack_failed(count)
            self._acknowledged = count
        new = dead - self.ranks
        self.ranks |= new
        if _EXECUTIVE_RANK in new:
            print("diel: rank 0, the executive, has died", file=sys.stderr, flush=True)
            _leave(_EXECUTIVE_IS_LOST)
        return new

    def message_came(self, error: MPI.Exception, receive: MPI.Prequest, status: MPI.Status) -> bool:
        """Handle the error of a test of an open receive; return whether a message has come.

        Open MPI raises that a rank has died also where a whole message of another rank has come,
        which `status` describes then: the test has ended the receive, as a test without an error
        does. The receive is persistent, and started again where it has ended without a message.
        """
        self.note(error)
        now = self._of_open_receive
        if not receive.Get_status(now) or now.Get_source() != self._mpi.ANY_SOURCE:
            return False  # the receive is still open, or the next test ends it
        if error.Get_error_class() == self._mpi.ERR_PROC_FAILED_PENDING:
            return True
        receive.Start()  # its message was of the rank that has died
        return False

    def give_back(self, receive: MPI.Prequest) -> None:
        """Cancel an open receive and free it, even where ranks have died."""
        receive.Cancel()
        has_ended = False
        while not has_ended:
            try:
                receive.Wait()
                has_ended = True
            except self._mpi.Exception as error:
                self.note(error)  # it has ended with this, or ends now that it is acknowledged
        receive.Free()

    def is_done(self, request: MPI.Request) -> bool:
        """Whether a message to or from a certain rank is complete, or that rank has died."""
        try:
            return bool(request.Test())
        except self._mpi.Exception as error:
            self.note(error)
            return True


_keyval: list[int] = []


def attach(dead_ranks: DeadRanks, comm: MPI.Intracomm) -> None:
    """Attach dead ranks to a communicator, so that all users of the communicator share them."""
    from mpi4py import MPI

    if not _keyval:
        _keyval.append(MPI.Comm.Create_keyval())
    comm.Set_attr(_keyval[0], dead_ranks)


def dead_ranks_of(comm: MPI.Intracomm) -> DeadRanks:
    """Return the dead ranks attached to a communicator, else new ones for this caller alone."""
    found: Any = comm.Get_attr(_keyval[0]) if _keyval else None
    return found if isinstance(found, DeadRanks) else DeadRanks(comm)
