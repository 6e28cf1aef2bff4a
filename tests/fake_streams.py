"""Streams, events and graphs of the stand-in for CuPy.

Work is done when it is put into a stream, but for copies on a stream of its own: those are done
when somebody waits for them, so that whoever does not wait sees. A stream that captures keeps its
work for a graph.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import ClassVar


class Graph:
    """What was put into a stream while it captured."""

    launched: ClassVar[int] = 0

    def __init__(self, work):
        self.work = work

    def launch(self, stream=None):
        Graph.launched += 1
        Stream.log.append("graph")
        for function in self.work:
            function()


class Stream:
    """A queue: what is put into it is done at once, or kept while it captures.

    Copies that are begun on it, while another stream is the current one, wait in `begun`.
    """

    now: ClassVar[list[Stream]] = []
    alive: ClassVar = weakref.WeakValueDictionary()
    fails: ClassVar[str] = (
        "DIEL_STANDIN_FAIL says that nothing is captured"
        if os.environ.get("DIEL_STANDIN_FAIL") == "capture"
        else ""
    )
    log: ClassVar[deque[str]] = deque(maxlen=100_000)

    def __init__(self, non_blocking=False):
        self.ptr = id(self) if non_blocking else 0
        self.captured = None
        self.begun = deque()
        self.done = 0
        self.alive[self.ptr] = self

    def __enter__(self):
        self.now.append(self)
        return self

    def __exit__(self, *error):
        self.now.pop()

    def begin_capture(self):
        if self.ptr == 0:
            raise RuntimeError("the null stream cannot capture")
        self.captured = []

    def end_capture(self):
        work, self.captured = self.captured, None
        if self.fails:
            raise RuntimeError(self.fails)
        return Graph(work)

    def put(self, function):
        if self.captured is None:
            function()
        else:
            self.captured.append(function)

    def synchronize(self):
        assert self.captured is None, "a capturing stream cannot be waited for"
        self.finish(self.done + len(self.begun))

    def finish(self, count):
        """Do what was begun, until so many have been done since the stream was made."""
        while self.done < count:
            self.done += 1
            self.begun.popleft()()

    def record(self):
        return Event(self)

    def wait_event(self, event):
        event.synchronize()


class Event:
    """A place in a stream."""

    def __init__(self, stream):
        self.stream = stream
        self.place = stream.done + len(stream.begun)

    @property
    def done(self):
        return self.stream.done >= self.place

    def synchronize(self):
        self.stream.finish(self.place)


def copy_in_stream(what, stream, out, x):
    """Copy at once, or on a stream of its own when it is waited for: whoever does not wait sees."""

    def work():
        Stream.log.append(what)
        out[...] = x

    if stream is None or stream is Stream.now[-1]:
        work()
    else:
        Stream.log.append(f"{what} begins")
        stream.begun.append(work)


def deviceSynchronize():
    for stream in list(Stream.alive.values()):
        stream.synchronize()


_null_stream = Stream()
Stream.now.append(_null_stream)
