"""When is it a deadlock, and what is said about it."""

from __future__ import annotations

import math
from typing import Any

from diel.executive.deadlock import WaitWatch
from diel.executive.messages import Waiting
from diel.executive.scheduler import CopyPlan
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
    assert not watch.is_deadlock([3], [survey([])])  # its request was answered meanwhile
    assert not watch.is_deadlock([3], [survey([3], _3=1)])  # a put is still on its way
    assert watch.is_deadlock([3], [survey([3], _3=2)])


def test_a_rank_that_waits_for_others_of_its_copy_is_at_no_server() -> None:
    watch = WaitWatch()
    watch.note(3, plan("a", 3, 4), waiting("x"), now_s=0)
    watch.note(4, plan("a", 3, 4), waiting("", at_server=False), now_s=0)
    assert watch.all_wait([3, 4])
    assert watch.is_deadlock([3, 4], [survey([3])])


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
    empty = watch.explain([3], [survey([3])], ended=[], groups_to_come=[], now_s=11)
    assert "the tuple space is empty" in empty
