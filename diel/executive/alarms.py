"""What is to happen at a certain time, unless it is called off before."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Alarms(Generic[Event]):
    """Events with a time, each under a name; looked at a few times a second.

    There are never many more than copies that run, and most of these have none: so no heap.
    """

    def __init__(self) -> None:
        self._alarms: dict[Hashable, tuple[float, Event]] = {}

    def set(self, name: Hashable, at_s: float, event: Event) -> None:
        """Let an event happen at `at_s`, in place of any other of this name."""
        self._alarms[name] = (at_s, event)

    def call_off(self, name: Hashable) -> None:
        """Forget the event of this name, if there is one."""
        self._alarms.pop(name, None)

    def due(self, now_s: float) -> list[Event]:
        """Return, and forget, the events whose time has come, earliest first."""
        late = [name for name, (at_s, _) in self._alarms.items() if at_s <= now_s]
        late.sort(key=lambda name: self._alarms[name][0])
        return [self._alarms.pop(name)[1] for name in late]
