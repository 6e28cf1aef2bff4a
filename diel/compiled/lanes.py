"""Boundary exchanges that run in C: what ``diel.h`` gets to make its requests of, and its waits."""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import TYPE_CHECKING, Any, Final

from diel.compiled.layout import LaneStruct
from diel.errors import CouplingTimeout

if TYPE_CHECKING:
    from diel.coupling.lanes import Lane, Lanes
    from diel.loading.context import Context

_STATE_BYTES: Final = 16  # whether requests were made and are active, before them
_LOOK_EVERY_S: Final = 4e-3
_FIRST_SLEEP_S: Final = 20e-6
_LONGEST_SLEEP_S: Final = 2e-3
_GROWTH: Final = 1.2


class CompiledLanes:
    """The lanes of a boundary as C has them, and the memory of its requests."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._structs = (LaneStruct * max(1, len(lanes.lanes)))(*map(_struct_of, lanes.lanes))
        self.memory: Any = None

    @property
    def to_end(self) -> tuple[int, int, int]:
        """The address of the requests, how many there are, and how many of these are receives."""
        receives = sum(not lane.is_send for lane in self._lanes.lanes)
        return ctypes.addressof(self.memory), len(self._lanes.lanes), receives

    def hand_over(self, request_bytes: int, lanes: int, count: int, comm: int, memory: int) -> None:
        """Write where the lanes and the memory for requests are; the same memory each time."""
        if self.memory is None:
            size_bytes = _STATE_BYTES + request_bytes * (1 + len(self._lanes.lanes))
            self.memory = (ctypes.c_int64 * -(-size_bytes // 8))()
        ctypes.c_void_p.from_address(lanes).value = ctypes.addressof(self._structs)
        ctypes.c_int32.from_address(count).value = len(self._lanes.lanes)
        ctypes.c_int32.from_address(comm).value = self._lanes.handle
        ctypes.c_void_p.from_address(memory).value = ctypes.addressof(self.memory)


class LaneWait:
    """A wait of an exchange in C: sleeps between its polls, with looks whether it has to end."""

    def __init__(self, context: Context, name: str, timeout_s: float) -> None:
        self._context = context
        self._name = name
        self._timeout_s = timeout_s
        self._began_s = time.monotonic()
        self._next_look_s = 0.0
        self._sleep_s = _FIRST_SLEEP_S
        self._block = contextlib.ExitStack()
        subject = f'boundary "{name}"'
        self._block.enter_context(context.waiting_outside("exchange", subject))

    def pause(self) -> None:
        """Sleep once.

        Raises
        ------
        CouplingTimeout
            If the time is over.
        RunStopped
            If the run is stopping.
        """
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._context.raise_if_stopped()
        if 0 <= self._timeout_s <= now_s - self._began_s:
            raise CouplingTimeout(f'exchange(boundary "{self._name}")', self._timeout_s)
        time.sleep(self._sleep_s)
        self._sleep_s = min(_LONGEST_SLEEP_S, _GROWTH * self._sleep_s)

    def end(self) -> None:
        """End it."""
        self._block.close()


def _struct_of(lane: Lane) -> LaneStruct:
    view = lane.view
    is_whole = view.flags.c_contiguous and 0 < view.nbytes < 2**31
    struct = LaneStruct(
        data=view.ctypes.data,
        bytes=view.nbytes if is_whole else 0,
        ndim=view.ndim,
        item_bytes=view.itemsize,
        peer=lane.peer,
        tag=lane.tag,
        is_send=lane.is_send,
    )
    struct.shape[: view.ndim] = view.shape
    struct.strides[: view.ndim] = view.strides
    return struct
