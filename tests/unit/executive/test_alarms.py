from __future__ import annotations

from diel.executive.orders import Alarms


def test_what_is_due_comes_once_and_in_time_order() -> None:
    alarms: Alarms[str] = Alarms()
    alarms.set("a", 3.0, "third")
    alarms.set("b", 1.0, "first")
    alarms.set("c", 2.0, "called off")
    alarms.set("d", 9.0, "much later")
    alarms.set("d", 2.5, "second")
    alarms.call_off("c")
    alarms.call_off("never set")
    assert alarms.due(0.9) == []
    assert alarms.due(3.0) == ["first", "second", "third"]
    assert alarms.due(100.0) == []
