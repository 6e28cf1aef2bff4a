"""What is to happen at a certain time, unless it is called off before."""

from __future__ import annotations

from typing import Generic, TypeVar

Event = TypeVar("Event")


class Alarms(Generic[Event]):
    """Events with a time, by a number of their own; looked at a few times a second.

    There are never more than copies that run, and most have none: so no heap.
    """

    def __init__(self) -> None:
        self._alarms: dict[int, tuple[float, Event]] = {}

    def set(self, number: int, at_s: float, event: Event) -> None:
        """Let an event happen at `at_s`, in place of any other of this number."""
        self._alarms[number] = (at_s, event)

    def call_off(self, number: int) -> None:
        """Forget the event of this number, if there is one."""
        self._alarms.pop(number, None)

    def due(self, now_s: float) -> list[Event]:
        """Return, and forget, the events whose time has come, earliest first."""
        due = sorted((at_s, number) for number, (at_s, _) in self._alarms.items() if at_s <= now_s)
        return [self._alarms.pop(number)[1] for _, number in due]
