"""Devices, streams, events and graphs of the stand-in for CuPy.

Nothing is done when it is put into a stream, but when somebody waits for it: whoever does not wait
sees what was there before, and memory of the host that the GPU still reads must not be changed. An
error of what was put there comes at a call that waits, and from then on at every call, as of
CUDA's. A stream that captures keeps its work for a graph, and refuses what waits.

Each thread has a current device, and for each device a current stream.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

ERRORS = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    900: (
        "cudaErrorStreamCaptureUnsupported",
        "operation not permitted when stream is capturing",
    ),
    901: (
        "cudaErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture",
    ),
    905: (
        "cudaErrorStreamCaptureIsolation",
        "dependency created on uncaptured work in another stream",
    ),
    907: (
        "cudaErrorCapturedEvent",
        "operation not permitted on an event last recorded in a capturing stream",
    ),
}
"""Names and texts of the errors of CUDA's runtime, by number."""

ENDING = frozenset({700, 719})
"""Errors after which a device answers nothing else for as long as the process lives."""

Work = Callable[[], object]


class CUDARuntimeError(RuntimeError):
    """An error of CUDA's runtime, by its number."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(": ".join(ERRORS[status]))


class _OfThread(threading.local):
    """What each thread has of its own: its device, and its streams for each device."""

    def __init__(self) -> None:
        self.device = 0
        self.devices: list[int] = []
        self.streams: dict[int, list[Stream]] = {}


here = _OfThread()
_running = threading.RLock()
failed: dict[int, int] = {}
"""Devices that have failed, with the number of the error."""


def getDeviceCount() -> int:
    """Return the number of GPUs: as many as CUDA_VISIBLE_DEVICES has, one without it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    if not visible:
        raise CUDARuntimeError(100)
    return len(visible.split(","))


def getDevice() -> int:
    """Return the current device of this thread."""
    return here.device


def setDevice(device: int) -> None:
    """Make a device the current one of this thread."""
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError(101)
    here.device = device


def check_device(device: int) -> None:
    """Raise the error of a device that has failed."""
    if device in failed:
        raise CUDARuntimeError(failed[device])


class Device:
    """A GPU by its number; with `with` the current one of this thread."""

    def __init__(self, device: int | Device | None = None) -> None:
        self.id = here.device if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __enter__(self) -> Device:
        here.devices.append(here.device)
        setDevice(self.id)
        return self

    def __exit__(self, *error: object) -> None:
        setDevice(here.devices.pop())

    def use(self) -> Device:
        setDevice(self.id)
        return self

    def synchronize(self) -> None:
        with self:
            deviceSynchronize()


class Graph:
    """What was put into a stream while it captured."""

    launched: ClassVar[int] = 0

    def __init__(self, work: list[Work], device: int) -> None:
        self.work = work
        self.device = device

    def launch(self, stream: Stream | None = None) -> None:
        stream = stream or get_current_stream()
        Graph.launched += 1
        Stream.log.append("graph")
        for work in self.work:
            stream.put(work)


class Stream:
    """A queue of work of one device, which is done when somebody waits for it."""

    alive: ClassVar = weakref.WeakValueDictionary[int, Any]()
    fails: ClassVar[str] = (
        "DIEL_STANDIN_FAIL says that nothing is captured"
        if os.environ.get("DIEL_STANDIN_FAIL") == "capture"
        else ""
    )
    log: ClassVar[deque[str]] = deque(maxlen=100_000)
    _numbers = itertools.count(0x10000, 16)

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        if null or ptds or not non_blocking:
            raise NotImplementedError("the stand-in has non-blocking streams and the null stream")
        self._begin(next(self._numbers), here.device)
        self.alive[self.ptr] = self

    def _begin(self, ptr: int, device: int) -> None:
        self.ptr = ptr
        self.device_id = device
        self.captured: list[Work] | None = None
        self.spoilt = False
        self.begun: deque[Work] = deque()
        self.done_count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.ptr == self.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __enter__(self) -> Stream:
        if self.device_id != here.device:
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match "
                f"with the current device ({here.device})"
            )
        here.streams.setdefault(self.device_id, []).append(self)
        return self

    def __exit__(self, *error: object) -> None:
        here.streams[self.device_id].pop()

    @property
    def done(self) -> bool:
        self.refuse_in_capture()
        return not self.begun

    def is_capturing(self) -> bool:
        return self.captured is not None

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        self.captured, self.spoilt = [], False

    def end_capture(self) -> Graph:
        work, self.captured = self.captured, None
        if work is None:
            raise CUDARuntimeError(1)
        if self.fails:
            raise RuntimeError(self.fails)
        if self.spoilt:
            raise CUDARuntimeError(901)
        return Graph(work, self.device_id)

    def refuse_in_capture(self) -> None:
        """Raise the error of what may not be called for a stream that captures."""
        if self.captured is not None:
            self.spoilt = True
            raise CUDARuntimeError(900)

    def put(self, work: Work) -> None:
        """Add work to the queue, or to what is captured."""
        check_device(self.device_id)
        if self.device_id != here.device:
            raise CUDARuntimeError(400)
        if self.captured is None:
            self.begun.append(work)
        elif self.spoilt:
            raise CUDARuntimeError(901)
        else:
            self.captured.append(work)

    def synchronize(self) -> None:
        self.refuse_in_capture()
        self.finish()
        check_device(self.device_id)

    def finish(self, count: int | None = None) -> None:
        """Do what was begun, until so many have been done since the stream was made; or all."""
        with _running:
            while self.begun and (count is None or self.done_count < count):
                self.done_count += 1
                work = self.begun.popleft()
                if self.device_id in failed:
                    continue
                try:
                    work()
                except CUDARuntimeError as error:
                    failed[self.device_id] = error.status

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        if event.stream is None:
            return
        if (self.captured is None) == event.captured:
            raise CUDARuntimeError(905)
        if not event.captured:
            stream, place = event.stream, event.place  # the event may be recorded again
            self.put(lambda: stream.finish(place))


def _null_stream(device: int) -> Stream:
    stream = Stream.__new__(Stream)
    stream._begin(0, device)
    return stream


_null_streams: dict[int, Stream] = {}


def _null_stream_of(device: int) -> Stream:
    with _running:
        if device not in _null_streams:
            _null_streams[device] = _null_stream(device)
        return _null_streams[device]


def get_current_stream(device_id: int = -1) -> Stream:
    """Return the current stream of this thread for a device, its current one if left out."""
    device = here.device if device_id == -1 else device_id
    stack = here.streams.get(device)
    return stack[-1] if stack else _null_stream_of(device)


def stream_at(ptr: int) -> Stream:
    """Return the stream that a library was given by its address."""
    if ptr == 0:
        return _null_stream_of(here.device)
    if ptr not in Stream.alive:
        raise CUDARuntimeError(400)
    found: Stream = Stream.alive[ptr]
    return found


class Event:
    """A place in a stream."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.stream: Stream | None = None
        self.place = 0
        self.captured = False

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream = stream or get_current_stream()
        check_device(stream.device_id)
        self.captured = stream.captured is not None
        self.place = stream.done_count + len(stream.begun)

    def _refuse_captured(self) -> None:
        if self.captured:
            raise CUDARuntimeError(907)

    @property
    def done(self) -> bool:
        self._refuse_captured()
        if self.stream is None:
            return True
        # Work of a GPU goes on by itself: whoever asks again and again comes to its end.
        self.finish()
        check_device(self.stream.device_id)
        return True

    def synchronize(self) -> None:
        self._refuse_captured()
        self.finish()
        if self.stream is not None:
            check_device(self.stream.device_id)

    def finish(self) -> None:
        if self.stream is not None:
            self.stream.finish(self.place)


def streams_of(device: int) -> list[Stream]:
    """Return the streams of a device, the null stream first."""
    others = [stream for stream in list(Stream.alive.values()) if stream.device_id == device]
    return [_null_stream_of(device), *others]


def deviceSynchronize() -> None:
    streams = streams_of(here.device)
    for stream in streams:
        stream.refuse_in_capture()
    for stream in streams:
        stream.finish()
    check_device(here.device)


def finish_all() -> None:
    """Do all work of all devices, wherever it was put."""
    devices = {stream.device_id for stream in list(Stream.alive.values())} | set(_null_streams)
    for device in devices:
        for stream in streams_of(device):
            stream.finish()


def forget() -> None:
    """Be as a process is at its start: nothing in the queues, no device failed, device 0."""
    for stream in [*list(Stream.alive.values()), *_null_streams.values()]:
        stream.begun.clear()
    failed.clear()
    here.device = 0
    here.streams.clear()
