"""A tuple space within this process, for tests of modules without MPI."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from diel.coupling.channel import Channel
from diel.errors import RunStopped
from diel.loading.context import Context, Place
from diel.loading.state import SavedState
from diel.run.directory import RunDirectory, state_of, version_of_state
from diel.tuples import codec
from diel.tuples.client import TupleClient
from diel.tuples.protocol import (
    STRIPED,
    Operation,
    Reply,
    is_piece,
    unpack_frames,
)
from diel.tuples.requests import Requests
from diel.tuples.store import TupleStore
from diel.tuples.striping import PieceLayout
from diel.tuples.tags import Tag, decode_tag
from diel.tuples.transport import LocalTransport
from diel.workflow import model
from diel.workflow.boundary import Boundary


class TupleSpace:
    """A tuple space within this process; its clients may be in several threads.

    As a context manager it ends the waits of its clients at the end of the block.

    Parameters
    ----------
    servers, memory, when_full
        As in the table [tuple_space] of a workflow file.
    """

    def __init__(
        self,
        *,
        servers: int = 1,
        memory: str | int = "2 GiB",
        when_full: Literal["wait", "raise"] = "wait",
    ) -> None:
        asked = model.TupleSpace(servers=servers, memory=memory, when_full=when_full)
        stores = [TupleStore(asked.memory_bytes, when_full == "raise") for _ in range(servers)]
        self._transport = LocalTransport(stores)
        self._is_closed = False
        self._run_dir: Path | None = None
        self._remove_run_dir: Callable[[], object] = lambda: None

    def client(self, safe_point: Callable[[], None] = lambda: None) -> TupleClient:
        """Return a further client, for use by one thread.

        Parameters
        ----------
        safe_point : callable, optional
            Called during waits, at once after `wake`; what it raises ends them.
        """

        def stop_waiting() -> None:
            self.raise_if_closed()
            safe_point()

        return TupleClient(self._transport.another_client(stop_waiting))

    def context(
        self,
        *,
        module: str = "module",
        group: str = "group",
        options: Any = None,
        copies: int = 1,
        copy_index: int = 0,
        copies_of: Mapping[str, int] | None = None,
        iteration: tuple[int, ...] = (0,),
        run_dir: Path | None = None,
        folder: Path | None = None,
        comm: Any = None,
        gpus: Sequence[int] = (),
        gpu_share: float = 1.0,
        tuples: TupleClient | None = None,
        record: Callable[..., None] | None = None,
        channel: Channel | None = None,
        boundaries: Sequence[Boundary] = (),
    ) -> Context:
        """Return a context as a module receives it, by default on a client of its own.

        Parameters
        ----------
        module, group, options, copies, copy_index, copies_of, iteration
            The values of the context.
        run_dir, folder, comm, gpus, gpu_share, tuples
            Further values. A run directory that is not given is made, and removed with the space.
            A state that a context has saved by ``checkpoint`` is ``restored`` in the next context
            for the same copy.
        channel, boundaries : optional
            The context's messages, and the boundaries that the workflow file would declare.
        record : callable, optional
            Called with each record that is made through the context: the class of a record of the
            journal, and its fields as keywords.
        """
        place = Place(
            group=group,
            module=module,
            copy_index=copy_index,
            copies=copies,
            copies_of={module: copies} if copies_of is None else copies_of,
            run_dir=self._own_run_dir() if run_dir is None else Path(run_dir),
            folder=Path.cwd() if folder is None else Path(folder),
            iteration=iteration,
        )
        return Context(
            place,
            comm=comm,
            make_module_comm=_refuse_module_comm,
            options={} if options is None else options,
            threads=1,
            gpus=gpus,
            gpu_share=gpu_share,
            tuples=self.client() if tuples is None else tuples,
            record=(lambda kind, **fields: None) if record is None else record,
            channel=channel,
            boundaries=boundaries,
            state=_state_of(place),
        )

    def tuples(self) -> list[tuple[Tag, Any]]:
        """Return all tuples as (tag, value), server by server, oldest first; they stay there."""
        frames = self._dump()
        pieces = {frame.key: frame.payload for frame in frames if is_piece(frame.key)}
        return [
            (decode_tag(frame.key), _value(frame, pieces))
            for frame in frames
            if not is_piece(frame.key)
        ]

    def tags(self) -> list[Tag]:
        """Return the tags of all tuples, in the order of `tuples`."""
        return [decode_tag(frame.key) for frame in self._dump() if not is_piece(frame.key)]

    def _dump(self) -> list[Reply]:
        requests = Requests(self._transport.another_client())
        frames: list[Reply] = []
        for server in range(requests.servers):
            reply = requests.ask(server, Operation.DUMP)
            while reply.number:
                frames += unpack_frames(reply.payload)
                reply = requests.ask(server, Operation.DUMP, argument=1)
        return frames

    def close(self) -> None:
        """End the waits of all clients, which raise `RunStopped`; remove a run directory made."""
        self._is_closed = True
        self.wake()
        self._remove_run_dir()

    def raise_if_closed(self) -> None:
        """Raise `RunStopped` after `close`."""
        if self._is_closed:
            raise RunStopped("the test's tuple space was closed")

    def wake(self) -> None:
        """Make every client that waits call its safe point."""
        self._transport.wake()

    def _own_run_dir(self) -> Path:
        if self._run_dir is None:
            self._run_dir = Path(tempfile.mkdtemp(prefix="diel-testing-"))
            self._remove_run_dir = weakref.finalize(
                self, shutil.rmtree, self._run_dir, ignore_errors=True
            )
        return self._run_dir

    def __enter__(self) -> TupleSpace:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _value(item: Reply, pieces: Mapping[bytes, Any]) -> Any:
    payload = item.payload
    if item.kind & STRIPED:
        layout = PieceLayout.unpack(payload)
        payload = bytearray().join(pieces[key] for key in layout.piece_keys())
    return codec.decode(item.kind & ~STRIPED, item.meta, payload)


def _refuse_module_comm() -> NoReturn:
    raise RuntimeError("this context was made without MPI: it has no communicator")


def _state_of(place: Place) -> SavedState:
    """Return the saved state of rank 0 of a copy: its last one in the run directory, if any."""
    folder = RunDirectory(place.run_dir).states
    stem = state_of(place.module, place.copy_index, 0, place.group, place.iteration)
    found = [file.name for file in folder.glob(f"{stem}_*.zip")]
    return SavedState(folder, stem, max(found, key=version_of_state, default=""), lambda name: None)
