"""When is it a deadlock, and what is said about it."""

from __future__ import annotations

import math
from typing import Any

from diel.coupling.messages import MessageCounts
from diel.executive.deadlock import WaitWatch
from diel.executive.messages import Waiting
from diel.executive.plans import CopyPlan
from diel.tuples.tags import ANY, encode_tag, format_tag


def plan(module: str, *ranks: int) -> CopyPlan:
    return CopyPlan(1, "g", module, 0, 1, ranks, 2, ranks)


def waiting(tag: object, *, timeout_s: float = math.inf, puts: int = 0, **more: Any) -> Waiting:
    known = {"at_server": True, **more}
    return Waiting(
        serial=1,
        what=f"tget({format_tag(tag)})",
        tag=format_tag(tag),
        has_timeout=timeout_s < math.inf,
        puts=(puts,),
        waited_s=1.0,
        **known,
    )


def survey(waiting: list[int], *tags: object, **puts: int) -> dict[str, Any]:
    return {
        "waiting": [(client, 0) for client in waiting],
        "puts_applied": {name[1:]: count for name, count in puts.items()},
        "tags": [(encode_tag(tag).hex(), 1) for tag in tags],  # type: ignore[arg-type]
    }


def test_nobody_is_suspected_while_one_works_or_waits_with_a_timeout() -> None:
    watch = WaitWatch()
    assert not watch.all_wait([])
    watch.note(3, plan("a", 3), waiting("x"), now_s=0)
    assert watch.all_wait([3])
    assert not watch.all_wait([3, 4])
    watch.note(4, plan("b", 4), waiting("y", timeout_s=5), now_s=0)
    assert not watch.all_wait([3, 4])
    watch.note(4, plan("b", 4), waiting("y"), now_s=0)
    assert watch.all_wait([3, 4])
    watch.forget(4)
    assert not watch.all_wait([3, 4])


def test_the_servers_have_to_confirm() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3), waiting("x", puts=2), now_s=0)
    assert not watch.servers_confirm_deadlock(
        [3], [survey([])]
    )  # its request was answered meanwhile
    assert not watch.servers_confirm_deadlock([3], [survey([3], _3=1)])  # a put is still on its way
    assert watch.servers_confirm_deadlock([3], [survey([3], _3=2)])


def test_it_is_one_when_two_searches_in_a_row_find_it() -> None:
    watch = WaitWatch()
    surveys = [survey([3])]
    asked: list[None] = []

    def ask() -> list[dict[str, Any]]:
        asked.append(None)
        return surveys

    assert watch.search([3], ask) is None
    assert asked == []  # no server is asked while somebody works
    watch.note(3, plan("a", 3), waiting("x"), now_s=0)
    assert watch.search([3], ask) is None
    watch.forget(3)
    assert watch.search([3], ask) is None  # it went on in between
    watch.note(3, plan("a", 3), waiting("x"), now_s=0)
    assert watch.search([3], ask) is None
    surveys[:] = [survey([])]
    assert watch.search([3], ask) is None  # its request was answered
    surveys[:] = [survey([3])]
    assert watch.search([3], ask) is None
    assert watch.search([3], ask) == surveys


def test_a_rank_that_waits_for_others_of_its_copy_is_at_no_server() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3, 4), waiting("x"), now_s=0)
    watch.note(4, plan("a", 3, 4), waiting("", at_server=False), now_s=0)
    assert watch.all_wait([3, 4])
    assert watch.servers_confirm_deadlock([3, 4], [survey([3])])


def direct(serial: int, **counts: Any) -> Waiting:
    return Waiting(
        serial=serial,
        what="recv(from b.0 rank 0)",
        tag="",
        has_timeout=False,
        at_server=False,
        puts=(0,),
        waited_s=1.0,
        counts=MessageCounts(**counts),
    )


def test_receivers_wait_in_vain_when_every_message_has_reached_them() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3), direct(1, sent={(2, 4): 2}, waits_for="message"), now_s=0)
    watch.note(4, plan("b", 4), direct(2, arrived=1, waits_for="message"), now_s=0)
    assert not watch.servers_confirm_deadlock([3, 4], [survey([])])  # one of the two is on its way
    watch.note(4, plan("b", 4), direct(2, arrived=2, waits_for="message"), now_s=0)
    assert watch.servers_confirm_deadlock(
        [3, 4], [survey([])]
    )  # both are there, and not what it waits for
    # One that waits for a tuple is not held by messages, but may have sent some.
    watch.note(3, plan("a", 3), waiting("x", counts=MessageCounts({(2, 4): 3})), now_s=0)
    assert not watch.servers_confirm_deadlock([3, 4], [survey([3])])


def test_what_a_copy_has_sent_before_its_end_counts() -> None:
    watch = WaitWatch()
    watch.note(4, plan("b", 4), direct(2, arrived=0, waits_for="message"), now_s=0)
    watch.note_end(3, 1, MessageCounts({(2, 4): 1}))
    assert not watch.servers_confirm_deadlock([4], [survey([])])
    watch.note(4, plan("b", 4), direct(2, arrived=1, waits_for="message"), now_s=0)
    assert watch.servers_confirm_deadlock([4], [survey([])])
    # A later copy on the same rank begins with no messages.
    watch.note_end(4, 2, MessageCounts())
    watch.note(4, plan("b", 4), direct(5, arrived=0, waits_for="message"), now_s=0)
    assert watch.servers_confirm_deadlock([4], [survey([])])


def test_a_receipt_comes_as_long_as_the_receiver_can_take_or_drop_the_message() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3), direct(1, waits_for="receipt", receivers=((2, 4),)), now_s=0)
    assert not watch.servers_confirm_deadlock([3], [survey([])])  # rank 4 has ended, and drops it
    watch.note(4, plan("b", 4), waiting("", at_server=False), now_s=0)
    assert not watch.servers_confirm_deadlock(
        [3, 4], [survey([])]
    )  # so does one that meets its copy's others
    watch.note(4, plan("b", 4), waiting("x"), now_s=0)
    assert watch.servers_confirm_deadlock([3, 4], [survey([4])])
    watch.note(4, plan("b", 4), direct(2, waits_for="message"), now_s=0)
    assert watch.servers_confirm_deadlock([3, 4], [survey([])])
    # Rank 4 has taken it since rank 3 told of its wait: rank 3 may be computing by now.
    taken = direct(2, waits_for="message", received={(1, 3): 1})
    watch.note(4, plan("b", 4), taken, now_s=0)
    assert not watch.servers_confirm_deadlock([3, 4], [survey([])])
    more = direct(1, waits_for="receipt", receivers=((2, 4),), delivered={(2, 4): 1})
    watch.note(3, plan("a", 3), more, now_s=0)
    assert watch.servers_confirm_deadlock([3, 4], [survey([])])


def test_who_drops_what_it_was_sent_is_at_work() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3), direct(1, waits_for="receipt"), now_s=0)
    assert not watch.servers_confirm_deadlock([3], [survey([])])


def test_a_rank_with_another_request_than_it_told_has_gone_on() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3), waiting("x", request=7), now_s=0)
    later = survey([])
    later["waiting"] = [(3, 8)]
    assert not watch.servers_confirm_deadlock([3], [later])
    later["waiting"] = [(3, 7)]
    assert watch.servers_confirm_deadlock([3], [later])


def test_the_explanation_names_who_what_and_who_could_have() -> None:
    watch = WaitWatch()
    watch.note(3, plan("trainer", 3), waiting(("trial", ANY)), now_s=10)
    surveys = [survey([3], ("trail", 3), "something else")]
    text = watch.explain([3], surveys, ended=["source.0"], groups_to_come=["report"], now_s=11.5)
    assert "trainer.0 has waited 2.5 s in tget(('trial', ANY)) (rank 3)" in text
    assert "nearly match: ('trail', 3) x 1" in text
    assert "something else" not in text
    assert "ended, and could have put it: source.0" in text
    assert "group report" in text
    full = {**survey([3]), "spill_error": "/scratch/run: No space left on device"}
    text = watch.explain([3], [full], ended=[], groups_to_come=[], now_s=11)
    assert "full and cannot move tuples to the disk: /scratch/run: No space left on device" in text
    empty = watch.explain([3], [survey([3])], ended=[], groups_to_come=[], now_s=11)
    assert "the tuple space is empty" in empty


def test_an_explanation_lists_what_it_names_and_leaves_pieces_out() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3), waiting("tag"), now_s=0)
    watch.note(4, plan("b", 4), direct(1, waits_for="message"), now_s=0)
    server = survey([3], "tag1", "tag2")
    server["tags"].append((b"p\x01\x00\x00\x00x".hex(), 1))  # of a striped tuple
    text = watch.explain([4, 3], [server], ended=["c.0", "d.0"], groups_to_come=["g", "h"], now_s=1)
    lines = text.splitlines()
    assert lines[0].endswith("(rank 3); tags there that nearly match: 'tag2' x 1, 'tag1' x 1")
    assert lines[1].endswith("(rank 4)")
    assert lines[2:] == [
        "ended, and could have put it: c.0, d.0",
        "yet to start, and cannot: group g, h",
    ]
    alone = watch.explain(
        [4], [survey([])], ended=["b.0"], groups_to_come=[], skipped=["h, when ..."], now_s=1
    )
    assert alone.splitlines()[1:] == [
        "the tuple space is empty",
        "skipped, and so put nothing: group h, when ...",
    ]


def test_a_deadlock_is_believed_when_it_is_found_twice() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3), waiting("x"), now_s=0)
    surveys = [survey([3])]
    assert watch.search([3], lambda: surveys) is None
    assert watch.search([3, 4], lambda: surveys) is None  # rank 4 is at work: it begins anew
    assert watch.search([3], lambda: surveys) is None
    assert watch.search([3], lambda: surveys) is surveys
