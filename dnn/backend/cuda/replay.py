"""The calls of a plan, recorded once: replayed as one CUDA graph, or else call by call.

A kernel of a small network takes 2 us and its launch from Python as long again; a graph launches
all kernels of a step at once. The first run is call by call, since libraries load kernels when
they are first used, which a capture does not allow; the second run captures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dnn.backend.cuda.launch import Call

__all__ = ["Replay"]


class Replay:
    """Calls, to be repeated.

    Parameters
    ----------
    cupy : module
    calls : sequence of Call
    prepare : callable
        Called in the capturing stream before capturing begins.

    Attributes
    ----------
    how : str
        ``"one CUDA graph"``, or ``"launches"`` with the reason.
    """

    def __init__(
        self,
        cupy: Any,
        calls: Sequence[Call],
        prepare: Callable[[], None],
    ) -> None:
        self._cupy = cupy
        self._calls = tuple(calls)
        self._prepare = prepare
        self._graph: Any = None
        self._runs = 0
        self.how = "launches: not captured before the second run"
        self._may_capture = True

    def __len__(self) -> int:
        return len(self._calls)

    def run(self) -> None:
        """Do all calls in the current stream."""
        if self._graph is None and self._may_capture and self._runs:
            self._capture()
        self._runs += 1
        if self._graph is not None:
            self._graph.launch(self._cupy.cuda.get_current_stream())
        else:
            self._call_all()

    def _call_all(self) -> None:
        for function, arguments in self._calls:
            function(*arguments)

    def _capture(self) -> None:
        """Try to make the graph; nothing is computed."""
        self._may_capture = False
        stream = self._cupy.cuda.Stream(non_blocking=True)
        try:
            with stream:
                self._prepare()
                stream.begin_capture()
                try:
                    self._call_all()
                finally:
                    graph = stream.end_capture()
        except (RuntimeError, NotImplementedError) as error:  # CuPy's errors are RuntimeErrors
            self.how = f"launches: {error}"
        else:
            self._graph = graph
            self.how = "one CUDA graph"
