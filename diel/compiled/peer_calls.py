"""The calls of ``diel.h`` between the ranks of a group: messages, and boundaries."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diel.compiled.lanes import CompiledLanes, LaneWait
from diel.compiled.layout import (
    ABSENT,
    DTYPES,
    EXCHANGE,
    MOST_AXES,
    MOVE,
    OWNED,
    PULL,
    READS,
    AddressStruct,
    ArrayStruct,
)
from diel.compiled.tuple_calls import TupleCalls, pattern_at
from diel.compiled.values import CODES, array_at, value_at
from diel.errors import BoundaryError

if TYPE_CHECKING:
    from diel.compiled.layout import CopyStruct
    from diel.coupling.address import Address
    from diel.coupling.boundary import SharedBoundary
    from diel.loading.context import Context
    from diel.workflow.boundary import Box


@dataclass
class _Opened:
    """A boundary that a copy has opened: its sections, and what is bound to them."""

    name: str
    dtype: np.dtype[Any]
    boxes: dict[int, list[Box]]
    bound: dict[int, dict[int, Any]] = field(default_factory=lambda: {OWNED: {}, READS: {}})
    shared: SharedBoundary | None = None
    lanes: CompiledLanes | None = None
    wait: LaneWait | None = None


class PeerCalls(TupleCalls):
    """Those of one copy."""

    def __init__(self, context: Context, struct: CopyStruct) -> None:
        super().__init__(context, struct)
        self._opened: list[_Opened] = []

    # -- messages -----------------------------------------------------------------------------

    def send(
        self,
        how: int,
        module: bytes,
        copy: int,
        rank: int,
        tag: bytes | None,
        value: int,
        timeout_s: float,
    ) -> None:
        """Send a value, or move it."""
        found, to = value_at(ArrayStruct.from_address(value)), (module.decode(), copy, rank)
        name = None if tag is None else pattern_at(tag)
        if how == MOVE:
            self.context.move(found, to, tag=name, timeout=None if timeout_s < 0 else timeout_s)
        else:
            self.context.send(found, to, tag=name)

    def recv(
        self,
        module: bytes | None,
        copy: int,
        rank: int,
        tag: bytes | None,
        value: int,
        source: int | None,
        timeout_s: float,
    ) -> None:
        """Receive a value: into the caller's memory, or memory that is handed out."""
        struct = self.destination(value)
        out = array_at(struct) if struct.data and struct.dtype in DTYPES and struct.ndim else None
        sender, found = self.context.recv(
            (module.decode(), copy, rank) if module else None,
            tag=None if tag is None else pattern_at(tag),
            out=out,
            timeout=None if timeout_s < 0 else timeout_s,
            with_source=True,
        )
        if source:
            _write_address(AddressStruct.from_address(source), sender)
        if out is None:
            self.give(struct, found)

    def peers(self, module: bytes, copies: int, ranks: int) -> None:
        """Say how many copies and ranks a module of the group has."""
        name = module.decode()
        ctypes.c_int32.from_address(copies).value = self.context.copies_of.get(name, 0)
        ctypes.c_int32.from_address(ranks).value = self.context.ranks_of(name)

    # -- boundaries ---------------------------------------------------------------------------

    def boundary(self, name: bytes, number: int, owned: int, read: int) -> None:
        """Open a boundary; its number is the same each time."""
        names = [each.name for each in self._opened]
        if name.decode() not in names:
            declared, sections = self.context.sections(name.decode())
            if len(declared.shape) > MOST_AXES:
                raise BoundaryError(
                    f'boundary "{declared.name}" has {len(declared.shape)} axes: in C {MOST_AXES} '
                    "are the most"
                )
            boxes = {OWNED: [*sections.owned.values()], READS: [*sections.read.values()]}
            self._opened.append(_Opened(declared.name, np.dtype(declared.dtype), boxes))
            names.append(declared.name)
        opened = self._opened[names.index(name.decode())]
        ctypes.c_int32.from_address(number).value = names.index(opened.name)
        ctypes.c_int32.from_address(owned).value = len(opened.boxes[OWNED])
        ctypes.c_int32.from_address(read).value = len(opened.boxes[READS])

    def section(self, number: int, kind: int, index: int, section: int, start: int | None) -> None:
        """Describe a section."""
        opened, struct = self._boundary(number), ArrayStruct.from_address(section)
        box = _box(opened, kind, index)
        struct.data, struct.owner = None, 0
        struct.dtype, struct.ndim = CODES[opened.dtype], len(box)
        struct.shape[: len(box)] = [end - begin for begin, end in box]
        struct.bytes = opened.dtype.itemsize * int(np.prod(struct.shape[: len(box)]))
        if start:
            (ctypes.c_int64 * len(box)).from_address(start)[:] = [begin for begin, _ in box]

    def bind(
        self, number: int, kind: int, index: int, data: int | None, strides: int | None
    ) -> None:
        """Let memory of the module be that of a section."""
        opened = self._boundary(number)
        shape = tuple(end - begin for begin, end in _box(opened, kind, index))
        if opened.shared is not None:
            raise BoundaryError(f'boundary "{opened.name}" is in use already: bind before that')
        if not data:
            raise BoundaryError(
                f'boundary "{opened.name}": the memory to bind is NULL (from Fortran: it is not '
                f"{opened.dtype} of shape {shape[::-1]})"
            )
        opened.bound[kind][index] = _memory_at(data, shape, opened.dtype, strides)

    def whole(self, number: int, whole: int) -> None:
        """Describe the whole array of a boundary, which diel owns."""
        struct, array = ArrayStruct.from_address(whole), self._shared(number).array
        struct.data, struct.bytes, struct.owner = array.ctypes.data, array.nbytes, 0
        struct.dtype, struct.ndim = CODES[array.dtype], array.ndim
        struct.shape[: array.ndim] = array.shape

    def exchange(self, number: int, how: int, timeout_s: float, step: int | None) -> None:
        """Exchange, push or pull."""
        shared, timeout = self._shared(number), None if timeout_s < 0 else timeout_s
        if self._opened[number].lanes is not None:
            raise BoundaryError(
                f'boundary "{shared.name}" has libraries with MPI alone, which exchange it in C: '
                "call diel_exchange, in files that include mpi.h before diel.h; for push and pull "
                "say ahead = 1, or more, in its [[boundary]]"
            )
        if how == EXCHANGE:
            shared.exchange(timeout)
        elif how == PULL:
            shared.pull(timeout)
        else:
            shared.push(timeout=timeout)
        if step:
            ctypes.c_int64.from_address(step).value = shared.step

    def _boundary(self, number: int) -> _Opened:
        if not 0 <= number < len(self._opened):
            raise BoundaryError(f"this copy has no boundary {number}: open it first")
        return self._opened[number]

    def _shared(self, number: int) -> SharedBoundary:
        opened = self._boundary(number)
        if opened.shared is None:
            given = {kind: _in_order(opened, kind) for kind in (OWNED, READS)}
            opened.shared = self.context.boundary(
                opened.name, owned=given[OWNED], read=given[READS]
            )
            lanes = self.context.lanes(opened.name)
            opened.lanes = None if lanes is None else CompiledLanes(lanes)
        return opened.shared

    # -- exchanges in C -----------------------------------------------------------------------

    def lanes(
        self, number: int, request_bytes: int, lanes: int, count: int, comm: int, memory: int
    ) -> int | None:
        """Hand over what is sent and received in each exchange."""
        self._shared(number)
        found = self._opened[number].lanes
        if found is None:
            return ABSENT
        found.hand_over(request_bytes, lanes, count, comm, memory)
        return None

    def lane_wait(self, number: int, timeout_s: float) -> None:
        """Sleep a little, after a look whether the run stops or the time is over."""
        opened = self._boundary(number)
        if opened.wait is None:
            opened.wait = LaneWait(self.context, opened.name, timeout_s)
        try:
            opened.wait.pause()
        except BaseException:
            self.lane_done(number)
            raise

    def lane_done(self, number: int) -> None:
        """End a wait."""
        opened = self._boundary(number)
        if opened.wait is not None:
            opened.wait.end()
            opened.wait = None

    def end_lanes(self, end: Any) -> None:
        """Free the requests of all exchanges in C, by the library's own function for that."""
        for opened in self._opened:
            if opened.lanes is not None and opened.lanes.memory is not None:
                end(*opened.lanes.to_end)


def _box(opened: _Opened, kind: int, index: int) -> Box:
    boxes = opened.boxes.get(kind)
    if boxes is None or not 0 <= index < len(boxes):
        counts = f"owns {len(opened.boxes[OWNED])} and reads {len(opened.boxes[READS])}"
        raise BoundaryError(
            f'boundary "{opened.name}" has no section {index} of kind {kind} here: this rank '
            f"{counts}, each from 0"
        )
    return boxes[index]


def _in_order(opened: _Opened, kind: int) -> list[Any]:
    bound = opened.bound[kind]
    if bound and len(bound) < len(opened.boxes[kind]):
        raise BoundaryError(
            f'boundary "{opened.name}": {len(bound)} of {len(opened.boxes[kind])} sections of a '
            "kind are bound: bind all of them, or none"
        )
    return [bound[index] for index in sorted(bound)]


def _memory_at(
    data: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: int | None
) -> np.ndarray[Any, Any]:
    """Return memory of the module as an array, without a copy."""
    if strides is None:
        steps = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    else:
        steps = list((ctypes.c_int64 * len(shape)).from_address(strides))
    if min(steps) < 1:
        raise BoundaryError(f"strides are numbers of elements, at least 1; got {steps}")
    reach = 1 + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
    memory: Any = (ctypes.c_char * (reach * dtype.itemsize)).from_address(data)
    array: np.ndarray[Any, Any] = np.ndarray(
        shape, dtype, memory, 0, [step * dtype.itemsize for step in steps]
    )
    return array


def _write_address(struct: AddressStruct, address: Address) -> None:
    struct.module, struct.copy, struct.rank = address.module.encode(), address.copy, address.rank
