"""The main function of a rank that serves tuples."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from diel.comm.meter import ServerMeter
from diel.executive.messages import ForgetRanks, Goodbye, Leave, Order, ServerStatus, Welcome
from diel.executive.rank_times import SpanRecorder
from diel.run.directory import RunDirectory

if TYPE_CHECKING:
    from diel.comm.mailbox import Mailbox
    from diel.comm.parent import Parent
    from diel.tuples.replication import ReplicatedStores
    from diel.tuples.store import TupleStore

GOODBYE_TIMEOUT_S: Final = 1.0
_TELL_STATUS_EVERY_S: Final = 0.5


def serve_tuples(parent: Parent, mailbox: Mailbox[Order], welcome: Welcome) -> int:
    """Serve tuples until rank 0 dismisses this rank; return the exit code of the run."""
    from diel.tuples.server import TupleServer
    from diel.tuples.store import SpillFolder, TupleStore

    plan, directory = welcome.plan, RunDirectory(welcome.run_dir)

    def make_store(server: int) -> TupleStore:
        # In a folder of this session: no file of an earlier one, nor a server of it, is in the way.
        folder = directory.spill / welcome.session / f"server-{parent.rank}" / str(server)
        spill = SpillFolder(folder) if plan.spill else None
        return TupleStore(plan.server_memory_bytes, plan.refuse_when_full, spill)

    store: TupleStore | ReplicatedStores
    if plan.tail_ranks:
        from diel.tuples.replication import ReplicatedStores

        store = ReplicatedStores(
            parent.rank,
            plan.server_ranks,
            plan.tail_ranks,
            make_store,
            lambda rank, message, payload: server.forward(rank, message, payload),
        )
    else:
        store = make_store(plan.server_ranks.index(parent.rank))
    meter = ServerMeter(keeps_short_waits=welcome.traces_all)
    spans = SpanRecorder(directory, parent.rank, meter)
    server = TupleServer(parent.comm, store, meter=meter)
    final_orders: list[Order] = []
    sent, next_s = ServerStatus(0, 0, plan.server_memory_bytes), 0.0

    def report_status() -> None:
        nonlocal sent, next_s
        if (now_s := time.monotonic()) < next_s:
            return
        next_s = now_s + _TELL_STATUS_EVERY_S
        status = ServerStatus(store.tuples_held, store.held_bytes, store.capacity_bytes)
        if status != sent:
            sent = status
            mailbox.send(status, parent.EXECUTIVE_RANK)
        spans.save_if_due()

    def should_leave() -> bool:
        # A stop is sent to the pool alone: the server goes on until all modules have ended.
        arrival = mailbox.poll()
        if arrival is None:
            return False
        if isinstance(arrival[1], ForgetRanks):
            parent.dead_ranks.add(arrival[1].ranks)
            return False
        final_orders.append(arrival[1])
        return True

    server.serve(should_leave, report_status)
    goodbye = Goodbye(tuples_left=store.tuples_held, times=spans.close())
    mailbox.send(goodbye, parent.EXECUTIVE_RANK)
    mailbox.flush(GOODBYE_TIMEOUT_S)
    order = final_orders[0]
    assert isinstance(order, Leave)
    parent.dead_ranks.add(order.dead)
    return order.exit_code
