"""Compiling kernels and calling them: now, or recorded once and replayed as a CUDA graph.

A kernel of a small network takes 2 us and its launch from Python as long again; a CUDA graph
launches all kernels of a step at once. The first run of recorded calls does them one by one, since
libraries load kernels when they are first used, which a capture does not allow; the second run
captures.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dnn.backend.cuda.joining import Call, Launch, Uses, dependencies, joint_launches
from dnn.backend.cuda.source import (
    LONG,
    SCALAR,
    SHORT,
    THREADS,
    Elementwise,
    Index,
    Kernel,
    code_of,
    elementwise_kernel,
)
from dnn.backend.cuda.transposition import tiles_of, transposing_kernel
from dnn.backend.device import allocating
from dnn.compilation import compiling
from dnn.errors import DeviceError, DtypeError, ShapeError

__all__ = [
    "LOAD_BYTES",
    "NUMBERS",
    "Launcher",
    "Replay",
    "broadcast_strides",
    "collapse",
    "element_strides",
    "index_of",
    "require_contiguous",
]

PROCESSORS = 16  # cudaDevAttrMultiProcessorCount

LOAD_BYTES = 16
"""Most bytes that a thread loads or stores by one instruction."""

FEWEST_FOR_LOADS = 1 << 15
"""Elements from which on a thread computes as many as one load has. A GPU has more threads than
fewer elements are, so that each had better compute one."""

MOST_SHORT = (1 << 31) - 1
"""Most elements that are numbered by 32 bits, and largest distance between them."""

NUMBERS = (int, float, np.number)

Shape = tuple[int, ...]

OPTIONS = ("--std=c++17",)


@functools.cache
def compiled(cupy: Any, index: int, kernel: Kernel) -> Any:
    """Return a kernel's compiled function on a GPU; all networks of a process share it."""
    with cupy.cuda.Device(index), compiling("CuPy's cache"):
        return cupy.RawModule(code=kernel.program, options=OPTIONS).get_function(kernel.name)


@functools.cache
def resident_blocks(cupy: Any, index: int, kernel: Kernel) -> int:
    """Return how many blocks of a kernel a processor of a GPU has at once.

    That depends on the registers of its threads and on its shared memory. Of a function that CUDA
    has not loaded, such as one that counts its calls, it is 1.
    """
    loaded = getattr(compiled(cupy, index, kernel).kernel, "ptr", None)
    if loaded is None:
        return 1
    with cupy.cuda.Device(index):
        occupancy = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        return max(1, int(occupancy(loaded, THREADS, 0)))


class Launcher:
    """Compiles kernels when they are first called, and calls them on its GPU.

    Each thread has a current GPU of its own, the first one at its start: `gpu` makes this one the
    current one within a block.
    """

    def __init__(self, cupy: Any, index: int = 0) -> None:
        self.cupy = cupy
        self.index = index
        self.gpu = cupy.cuda.Device(index)
        self.processors = cupy.cuda.runtime.deviceGetAttribute(PROCESSORS, index)
        self._workspaces: dict[str, Any] = {}
        self._recording: list[tuple[Call | Launch, Uses | None]] | None = None

    # Recording.

    @property
    def is_recording(self) -> bool:
        """Whether calls are recorded instead of done."""
        return self._recording is not None

    def begin_recording(self) -> None:
        """Record calls from now on instead of doing them."""
        if self._recording is not None:
            raise DeviceError("calls are recorded already")
        self._recording = []

    def end_recording(self) -> list[Call]:
        """Stop recording, and return what was recorded: calls, and launches of one or more kernels.

        They are in an order that gives the same results.
        """
        assert self._recording is not None
        recorded, self._recording = self._recording, None
        calls, uses = zip(*recorded, strict=True) if recorded else ((), ())
        ordered = joint_launches(calls, dependencies(uses))
        return [self._call(each) if isinstance(each, Launch) else each for each in ordered]

    def call(self, call: Call, uses: Uses | None = None) -> None:
        """Call a function now, or record the call.

        `uses` is the memory that it reads and writes; without it, no call changes places with it.
        """
        if self._recording is None:
            with self.gpu:
                call.run()
        else:
            self._recording.append((call, uses))

    # Launching.

    def launch(
        self,
        kernel: Kernel,
        blocks: int,
        arguments: Sequence[Any],
        joins: bool = True,
        turns: tuple[int, ...] = (),
        by_element: Sequence[int] = (),
    ) -> None:
        """Launch a kernel with blocks of `THREADS` threads, or with fewer blocks.

        There are as many as the GPU runs at once, since more would only begin later: a kernel loops
        over what is left. With `joins` it may share a launch with others when calls are recorded,
        with all its blocks, since those that begin later fill the processors that others leave.
        That is not for kernels that need much memory of a processor of the GPU. `turns` and
        `by_element` are those of `Launch`.
        """
        launch = Launch(kernel, max(1, blocks), tuple(arguments), joins, turns, tuple(by_element))
        if self._recording is None:
            with self.gpu:
                self._call(launch).run()
        else:
            self._recording.append((launch, launch.uses()))

    def _call(self, launch: Launch) -> Call:
        function = compiled(self.cupy, self.index, launch.kernel)
        blocks = launch.blocks
        if blocks > self.processors and not launch.lanes:  # each has one at least
            at_once = resident_blocks(self.cupy, self.index, launch.kernel)
            blocks = min(blocks, self.processors * at_once)
        return Call(function, ((blocks,), (THREADS,), launch.arguments))

    def for_each(
        self,
        kernel: Kernel,
        elements: int,
        arguments: Sequence[Any],
        by_element: Sequence[int] = (),
        each: int = 1,
    ) -> None:
        """Launch a kernel with a thread for each element of a number, or for `each` neighbours."""
        if elements:
            blocks = -(-elements // (THREADS * each))
            turns = (elements, each)
            self.launch(kernel, blocks, arguments, turns=turns, by_element=by_element)

    def elementwise(
        self,
        spec: Elementwise,
        operands: Sequence[Any],
        integers: Sequence[int] = (),
        hidden: int | None = None,
        bfloat16: bool = False,
        bits: bool = False,
    ) -> None:
        """Launch an elementwise kernel over the shape of its last written operand.

        The operands, in the order of the parameters, broadcast to that. `hidden` is an axis of
        pointer operands that the other operands do not have: it is left out of the loop. Operands
        of uint16 are bfloat16 with `bfloat16`, and copied bit by bit with `bits`; else they are
        refused.
        """
        named = dict(zip(spec.parameters, operands, strict=True))
        target = named[spec.writes[-1]]
        shape: Shape = tuple(target.shape)
        codes, strides = [], []
        for name, operand in named.items():
            if isinstance(operand, NUMBERS):
                codes.append(SCALAR)
                continue
            self.check(spec.name, operand, bfloat16 or bits)
            codes.append("b2" if bits else code_of(operand.dtype))
            operand_shape, steps = tuple(operand.shape), element_strides(operand)
            if hidden is not None and name in spec.pointers:
                operand_shape, steps = _without(operand_shape, hidden), _without(steps, hidden)
            try:
                strides.append(broadcast_strides(operand_shape, steps, shape))
            except ValueError as error:
                raise ShapeError(spec.name, str(error), operand_shape, shape) from None
        lengths, strides = collapse(shape, strides)
        elements = int(np.prod(lengths, dtype=np.int64))
        if _is_of_one_array(spec, codes) and elements >= FEWEST_FOR_LOADS:
            tiles = tiles_of(lengths, *strides)
            if tiles is not None:
                kernel = transposing_kernel(spec, tuple(codes))
                given = [np.float64(x) if isinstance(x, NUMBERS) else x for x in operands]
                self.launch(kernel, tiles.blocks, [*given, *map(np.int64, tiles.numbers)])
                return
        arrays = {name: x for name, x in named.items() if not isinstance(x, NUMBERS)}
        many, shared = _loads(spec, arrays, lengths, strides)
        index = index_of(lengths, strides)
        kernel = elementwise_kernel(spec, tuple(codes), len(lengths), index, many, shared)
        numbers = [*integers, elements, *lengths[1:], *(s for steps in strides for s in steps)]
        arguments = [np.float64(x) if isinstance(x, NUMBERS) else x for x in operands]
        places = [at for at, code in enumerate(codes) if code != SCALAR]
        in_order = [
            at
            for at, steps in zip(places, strides, strict=True)
            if steps == _in_order(lengths) and spec.parameters[at] not in spec.pointers
        ]
        self.for_each(kernel, elements, [*arguments, *map(np.int64, numbers)], in_order, many)

    def workspace(self, size: int, code: str) -> Any:
        """Return memory for parts of results, shared by kernels, which run one by one."""
        key, kind = f"{size} of {code}", np.dtype(code)
        if key not in self._workspaces:
            with self.gpu, allocating(self.cupy, size * kind.itemsize, self.index):
                self._workspaces[key] = self.cupy.empty(size, kind)
        return self._workspaces[key]

    def counters(self, number: int) -> Any:
        """Return integers that are 0 between kernels: a kernel that counts has to reset them."""
        size = 1 << max(10, (number - 1).bit_length())
        key = f"counters {size}"
        if key not in self._workspaces:
            with allocating(self.cupy, 4 * size, self.index):
                self._workspaces[key] = self.cupy.asarray(np.zeros(size, np.int32))
        return self._workspaces[key]

    def check(self, operation: str, operand: Any, bfloat16: bool = False) -> None:
        """Raise unless an operand is an array of this GPU, and of uint16 with `bfloat16` alone."""
        if not isinstance(operand, self.cupy.ndarray):
            message = f"{operation}: {type(operand).__name__} where an array of the GPU is needed"
            raise DeviceError(message)
        if operand.data.device_id != self.index:
            message = f"an array of cuda:{operand.data.device_id} where one of cuda:{self.index}"
            raise DeviceError(f"{operation}: {message} is needed")
        if operand.dtype == np.uint16 and not bfloat16:
            raise DtypeError(f"{operation}: on a GPU 16-bit whole numbers are not supported")


class Replay:
    """Repeats calls, as a CUDA graph if it can, on the GPU that is current when it is made.

    `prepare` is called in the stream that captures.

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
        self._gpu = cupy.cuda.Device()
        self._calls = tuple(calls)
        self._prepare = prepare
        self._graph: Any = None
        self._runs = 0
        self.how = "launches: not captured before the second run"
        self._may_capture = True

    def __len__(self) -> int:
        return len(self._calls)

    def run(self) -> None:
        """Do all calls in the current stream of their GPU."""
        with self._gpu:
            self._run()

    def _run(self) -> None:
        if self._graph is None and self._may_capture and self._runs:
            self._capture()
        self._runs += 1
        if self._graph is not None:
            self._graph.launch(self._cupy.cuda.get_current_stream())
        else:
            self._call_all()

    def _call_all(self) -> None:
        for call in self._calls:
            call.run()

    def _capture(self) -> None:
        """Try to make the graph; nothing is computed."""
        self._may_capture = False
        cuda = self._cupy.cuda
        stream = cuda.Stream(non_blocking=True)
        # Memory that CuPy's own functions allocate belongs to the graph, and is not reused.
        self._pool = cuda.MemoryPool()
        try:
            with stream, cuda.using_allocator(self._pool.malloc):
                self._prepare()
                stream.begin_capture()
                try:
                    self._call_all()
                finally:
                    graph = stream.end_capture()
        except (RuntimeError, NotImplementedError) as error:  # CuPy's errors are RuntimeErrors
            self.how = f"launches: {error}"
            log_fallback(len(self), str(error))
        else:
            self._graph = graph
            self.how = "one CUDA graph"


_logged: set[str] = set()


def log_fallback(calls: int, reason: str) -> None:
    """Log why calls are no CUDA graph, each reason once in a process."""
    if reason not in _logged:
        _logged.add(reason)
        message = "a plan of %d calls is launched call by call, not as a CUDA graph: %s"
        logging.getLogger("dnn").warning(message, calls, reason)


def index_of(lengths: Sequence[int], strides: Sequence[Sequence[int]]) -> Index:
    """Return the types of numbers of elements and of their places, for arrays with strides."""
    distances = (
        sum((n - 1) * abs(step) for n, step in zip(lengths, steps, strict=True))
        for steps in strides
    )
    return SHORT if max(math.prod(lengths), *distances) <= MOST_SHORT else LONG


def _is_of_one_array(spec: Elementwise, codes: Sequence[str]) -> bool:
    """Say whether a kernel reads one array and numbers, and writes its last operand alone."""
    writes = spec.writes == spec.parameters[-1:] == spec.only_written
    arrays = [code for code in codes if code != SCALAR]
    return writes and len(arrays) == 2 and not (spec.pointers or spec.integers or spec.gate)


def _loads(
    spec: Elementwise, arrays: Mapping[str, Any], lengths: Shape, strides: Sequence[Shape]
) -> tuple[int, frozenset[str]]:
    """Return how many neighbours a thread is to load at once, 1 where arrays do not allow more.

    And of which arrays one element serves all neighbours.
    """
    none: frozenset[str] = frozenset()
    steps = dict(zip(arrays, strides, strict=True))
    shared = frozenset(name for name, each in steps.items() if not each[-1])
    elements = np.prod(lengths, dtype=np.int64)
    if spec.pointers or elements < FEWEST_FOR_LOADS or shared & {*spec.writes}:
        return 1, none
    several = {name: x for name, x in arrays.items() if name not in shared}
    many = LOAD_BYTES // max(x.dtype.itemsize for x in several.values())
    fits = (
        (not spec.gate or spec.gate in shared)
        and all(steps[name][-1] == 1 for name in several)
        and not any(step % many for name in several for step in steps[name][:-1])
        and not any(x.data.ptr % (many * x.dtype.itemsize) for x in several.values())
        and (len(lengths) == 1 or lengths[-1] % many == 0)
    )
    return (many, shared) if fits else (1, none)


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]


# Operands get as few axes as possible: a kernel converts the number of an element to an index by
# dividing, axis by axis, and kernels are compiled for a number of axes.


def element_strides(array: Any) -> Shape:
    """Return the strides of an array in elements."""
    size = array.dtype.itemsize
    return tuple(stride // size for stride in array.strides)


def broadcast_strides(shape: Shape, strides: Shape, target: Shape) -> Shape:
    """Return the strides of an array that is broadcast to a shape: 0 where it repeats."""
    missing = len(target) - len(shape)
    if missing < 0 or any(
        length not in (1, wanted) for length, wanted in zip(shape, target[missing:], strict=True)
    ):
        raise ValueError(f"{shape} does not broadcast to {target}")
    kept = (0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True))
    return (*(0,) * missing, *kept)


def collapse(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Merge neighbouring axes where the strides of every operand allow it; keep at least one."""
    axes: list[list[int]] = []  # length, then the stride of each operand; the last axis first
    for axis in reversed(range(len(shape))):
        length, steps = shape[axis], [operand[axis] for operand in strides]
        if length == 1:
            continue
        if axes and all(
            step == inner * axes[-1][0] for step, inner in zip(steps, axes[-1][1:], strict=True)
        ):
            axes[-1][0] *= length
        else:
            axes.append([length, *steps])
    axes = axes[::-1] or [[1, *(0 for _ in strides)]]
    columns = list(zip(*axes, strict=True))
    return tuple(columns[0]), [tuple(column) for column in columns[1:]]


def _in_order(lengths: Shape) -> Shape:
    """Return the strides of an array whose elements are next to each other, in C order."""
    return tuple(math.prod(lengths[axis + 1 :]) for axis in range(len(lengths)))


def require_contiguous(operation: str, x: Any) -> None:
    """Raise `ShapeError` unless an array is contiguous in C order."""
    if not x.flags.c_contiguous:
        raise ShapeError(operation, f"an array {x.shape} is not contiguous", tuple(x.shape))
