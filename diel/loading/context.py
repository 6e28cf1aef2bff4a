"""The context that a function module receives: everything diel offers to it."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from diel.errors import BoundaryError, CouplingError
from diel.frozen import Frozen
from diel.loading.deadline import NO_DEADLINE, Deadline
from diel.loading.forks import NotARank
from diel.loading.module_spec import folder_of_element
from diel.loading.results import Results, as_number
from diel.workflow.programs import child_environment

if TYPE_CHECKING:
    from mpi4py import MPI

    from diel.coupling.address import Address, To
    from diel.coupling.boundary import Sections, SharedBoundary
    from diel.coupling.channel import Channel
    from diel.coupling.lanes import Lanes
    from diel.coupling.messages import Sending
    from diel.loading.state import SavedState
    from diel.tuples.client import TupleClient
    from diel.tuples.tags import Tag
    from diel.workflow.boundary import AheadPolicy, Boundary
    from diel.workflow.elements import Element

_PROGRESS_EVERY_S: Final = 0.1


class Place(Frozen):
    """Group, module, copy and folders of a rank: fields that `Context` has as attributes."""

    group: str
    module: str
    copy_index: int
    copies: int
    copies_of: Mapping[str, int]
    run_dir: Path
    folder: Path
    iteration: tuple[int, ...] = (0,)
    element: Element | None = None


class Context:
    """The argument of a module's function, ``run(ctx)``: all that diel offers to it.

    Attributes
    ----------
    comm : MPI.Intracomm
        The communicator of this copy.
    copy_index, copies : int
        Which copy of the module this is, from 0, and how many there are.
    group, module : str
    iteration : tuple of int
        Which iteration of the group this is, from 0: a number for each enclosing group, outermost
        first, and one for the group itself.
    copies_of : mapping of str to int
        Copies of every module in the group.
    options : dict or pydantic.BaseModel
        From the workflow file; an instance of ``Options`` where the function's file defines it.
    threads : int
        BLAS/OpenMP threads of this rank; already set.
    gpus : tuple of int
        The devices of this rank, as CUDA counts them in this process: from 0. Which they are on
        the node is in ``CUDA_VISIBLE_DEVICES``.
    gpu_share : float
        How much of its device this rank may use: 1.0, and no other rank uses it, or less where
        ``gpus = 0.25`` in the workflow file lets ranks share one.
    tuples : TupleClient
        The tuple space.
    results : Results
    log : logging.Logger
        Writes to this rank's log file; warnings and errors are shown on the terminal too.
    run_dir, folder : Path
        The run directory; the folder of the workflow file.
    element : Element or None
        In a group with ``foreach``, the element that this is: its ``name``, such as ``cases-3``,
        its ``index``, from 0, and its ``values`` by their names.
    element_dir : Path
        A folder of that element in the run directory; the run directory outside of elements.
    session : str
        Different each time that the run is started, to tell tuples of a checkpoint from new ones.
    time_left_s : float or None
        Seconds until this copy's ``time_limit`` or the job around the run ends.
    ends_soon : bool
        Whether ``signal_before`` of the module or of [workflow] is reached.
    """

    def __init__(
        self,
        place: Place,
        *,
        comm: MPI.Intracomm | None,
        make_comm: Callable[[], MPI.Intracomm] | None = None,
        make_module_comm: Callable[[], MPI.Intracomm],
        options: Any,
        threads: int,
        tuples: TupleClient,
        record: Callable[..., None],
        gpus: Sequence[int] = (),
        gpu_share: float = 1.0,
        channel: Channel | None = None,
        boundaries: Sequence[Boundary] = (),
        state: SavedState | None = None,
        session: str = "",
        allow_loss: Callable[[], None] = lambda: None,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:
        self._channel = channel
        self._declared = {boundary.name: boundary for boundary in boundaries}
        self._boundaries: dict[str, SharedBoundary] = {}
        self._state = state
        self.session = session
        self._place = place
        self._comm = comm
        self._make_comm = make_comm
        self._make_module_comm = make_module_comm
        self._module_comm: MPI.Intracomm | None = None
        self._record = record
        self._progress_recorded_s = 0.0
        self.options = options
        self.threads = threads
        self.gpus = tuple(gpus)
        self.gpu_share = gpu_share
        self.tuples = tuples
        self.results = Results(record, place.run_dir)
        self._log: logging.Logger | None = None
        self._allow_loss = allow_loss
        self._deadline = deadline

    group = property(lambda self: self._place.group)
    module = property(lambda self: self._place.module)
    iteration = property(lambda self: self._place.iteration)
    copy_index = property(lambda self: self._place.copy_index)
    copies = property(lambda self: self._place.copies)
    copies_of = property(lambda self: self._place.copies_of)
    run_dir = property(lambda self: self._place.run_dir)
    folder = property(lambda self: self._place.folder)
    element = property(lambda self: self._place.element)

    @property
    def element_dir(self) -> Path:
        """The folder of this element in the run directory; it is made when it is asked for."""
        found = folder_of_element(self.run_dir, self.element)
        found.mkdir(parents=True, exist_ok=True)
        return found

    def ranks_of(self, module: str) -> int:
        """Return how many ranks all copies of a module of the group have together."""
        copies = () if self._channel is None else self._channel.peers.copies.get(module, ())
        return sum(len(copy.ranks) for copy in copies) or self.copies_of.get(module, 0)

    @property
    def log(self) -> logging.Logger:
        """The logger of this rank."""
        if self._log is None:
            name = f"{self._place.module}.{self._place.copy_index}"
            self._log = _logger_of(name, self._record)
        return self._log

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator of this copy."""
        if self._comm is None:
            if self._make_comm is None:
                raise RuntimeError("this context was made without MPI: it has no communicator")
            self._comm = self._make_comm()
        return self._comm

    @property
    def rank_of_copy(self) -> tuple[int, int]:
        """Which rank of the copy this is, from 0, and how many the copy has."""
        if self._channel is not None:
            me = self._channel.address
            copies = self._channel.peers.copies.get(me.module, ())
            return me.rank, len(copies[me.copy].ranks) if copies else 1
        return (0, 1) if self._comm is None else (self._comm.Get_rank(), self._comm.Get_size())

    def raise_if_stopped(self) -> None:
        """Raise `RunStopped` where the run, or this copy, is ending; never waits."""
        if self._channel is not None:
            self._channel.raise_if_stopped()

    @property
    def comm_was_made(self) -> bool:
        """Whether there is a communicator of this copy: given, or made by the use of `comm`."""
        return self._comm is not None

    @property
    def module_comm(self) -> MPI.Intracomm:
        """The communicator of all copies of the module; the first use is collective over them."""
        if self._module_comm is None:
            self._module_comm = self._make_module_comm()
        return self._module_comm

    def forget_communicators(self) -> None:
        """Have each use of a communicator raise: in a process that was forked from the rank."""

        def refuse() -> NoReturn:
            raise NotARank

        self._comm = self._module_comm = None
        self._make_comm = self._make_module_comm = refuse

    def child_environment(self) -> dict[str, str]:
        """Return an environment for a child process that has nothing of MPI or its launcher.

        Executables have it too, and its PATH ends with the folder of the command ``diel``. A child
        that inherits `os.environ` has nothing of the launcher either, but what a person has set for
        MPI, such as ``OMPI_MCA_...``.
        """
        return child_environment() | self._deadline.facts()

    @property
    def time_left_s(self) -> float | None:
        """Seconds until this copy has to have ended, at least 0; None where nothing ends it.

        What comes first counts: the end of the module's ``time_limit``, for this attempt of the
        copy, or of the job around the run, where that is known. Each rank has a clock of its own.
        """
        return self._deadline.left_s

    @property
    def ends_soon(self) -> bool:
        """Whether it is time to save the state: ``signal_before`` is reached.

        That of the module, before the end of its ``time_limit``, or of [workflow], before the end
        of the job around the run. Ranks of a copy may see it a moment apart: where they have to
        agree, let one of them look and tell the others.
        """
        return self._deadline.is_near

    @property
    def module_comm_was_made(self) -> bool:
        """Whether `module_comm` has been used."""
        return self._module_comm is not None

    def allow_loss(self) -> None:
        """Declare that the group can go on without this copy, if its rank dies.

        That holds for a copy of one rank that takes its work under claims, so that other ranks can
        take it then, and for which no rank waits. It matters where the workflow file says
        ``on_rank_loss = "continue"`` and MPI supports that; else a rank that dies ends the run.
        """
        self._allow_loss()

    @property
    def address(self) -> Address:
        """The address of this rank: its module, copy and rank."""
        return self._messages.address

    def send(
        self,
        value: object,
        to: To,
        *,
        tag: Tag | None = None,
        copy: bool = True,
        ahead: int | None = None,
        policy: AheadPolicy = "wait",
        timeout: float | None = None,
    ) -> Sending:
        """Send a value to a rank of this group; never waits, unless it is told to by `ahead`.

        Messages of one tag from one rank to another are received in the order in which they were
        sent.

        Parameters
        ----------
        value : object
            A NumPy or GPU array or bytes, which are sent as they are, or any picklable object.
        to : str, tuple or Address
            ``"heat"``, ``("heat", copy)`` or ``("heat", copy, rank)``; what is left out is 0.
        tag : str or tuple of str and int, optional
            `recv` receives only messages with the same tag; no tag counts as a tag of its own.
        copy : bool, optional
            By default the value is copied, if it is not small, and may be changed at once. If
            False an array is sent from its own memory, and may be changed when the message has
            left.
        ahead : int, optional
            How many messages of this tag the receiver may have yet to receive; by default any
            number, and all are kept in this rank's memory.
        policy : {"wait", "drop oldest", "error"}, optional
            What to do where there are so many: wait until the receiver has received one, drop the
            oldest that it has not asked for, or raise an error.
        timeout : float, seconds, optional
            How long to wait at most; by default as long as the run lasts.

        Returns
        -------
        Sending
            ``wait()`` returns when the message has left, and ``done`` says whether it has. Up to
            2 KiB leave at once, a larger message when it is received. There is no need to wait:
            the end of the module's function does so.

        Raises
        ------
        AddressError
            If no rank in the group has this address.
        PayloadError
            If the value cannot be pickled.
        TagError
            If `tag` is no tag.
        TooFarAhead
            If `ahead` messages have not been received, and the policy is "error".
        CouplingTimeout
            If they have not been in time, and the policy is "wait".
        """
        return self._messages.send(
            value, to, tag=tag, copy=copy, ahead=ahead, policy=policy, timeout=timeout
        )

    def recv(
        self,
        source: To | None = None,
        *,
        tag: Tag | None = None,
        out: Any = None,
        timeout: float | None = None,
        with_source: bool = False,
    ) -> Any:
        """Receive a value, wait until one has been sent.

        Parameters
        ----------
        source : str, tuple or Address, optional
            The sender, as in `send`; by default any rank in the group.
        tag : str or tuple of str and int, optional
            Of the message.
        out : array, optional
            Of NumPy or on a GPU, with the dtype and shape of the message, which is received into
            it.
        timeout : float, seconds, optional
            How long to wait at most; by default as long as the run lasts.
        with_source : bool, optional
            Return (address of the sender, value).

        Returns
        -------
        object
            The value that was sent; `out` if that is given. Without `out`, an array from a GPU
            is received as a NumPy array.

        Raises
        ------
        AddressError
            If no rank in the group has this address.
        CouplingTimeout
            If no message came in time.
        PayloadError
            If the message does not fit `out`. It has not been received then.
        RunStopped
            If the run is stopping.
        """
        return self._messages.recv(
            source, tag=tag, out=out, timeout=timeout, with_source=with_source
        )

    def move(
        self, value: object, to: To, *, tag: Tag | None = None, timeout: float | None = None
    ) -> None:
        """Send a value and wait until it has been received; an array is not copied.

        Parameters
        ----------
        value, to, tag
            As in `send`.
        timeout : float, seconds, optional
            How long to wait at most. The message still can be received after that, and the value
            must not be changed before.

        Raises
        ------
        AddressError, PayloadError, TagError
            As `send`.
        CouplingTimeout
            If it was not received in time.
        RunStopped
            If the run is stopping.

        Notes
        -----
        If the receiver's function returns without having received the message, it is dropped with
        a warning, and the wait ends.
        """
        self._messages.move(value, to, tag=tag, timeout=timeout)

    def boundary(
        self, name: str, *, owned: Sequence[Any] = (), read: Sequence[Any] = ()
    ) -> SharedBoundary:
        """Return a shared boundary, the same object each time.

        Parameters
        ----------
        name : str
            Of a [[boundary]] of the workflow file.
        owned, read : sequence of ndarray, optional
            At the first call: the memory of the sections that this rank owns, and of those that it
            reads, in place of views of the boundary's ``array``. It is sent and received into as it
            is, without a copy where it is C-contiguous.

        Raises
        ------
        BoundaryError
            If there is no such boundary, this rank has no part in it, a module of it is not in
            this group, or the memory does not fit its sections.
        """
        if name not in self._boundaries:
            from diel.coupling.boundary import SharedBoundary

            self._boundaries[name] = SharedBoundary(
                self._declaration_of(name), self._messages, owned=owned, read=read
            )
        elif owned or read:
            raise BoundaryError(f'boundary "{name}" has its memory already: give it at first')
        return self._boundaries[name]

    def sections(self, name: str) -> tuple[Boundary, Sections]:
        """Return the declaration of a boundary, and the sections of this rank; as `boundary`."""
        from diel.coupling.boundary import Sections

        declared = self._declaration_of(name)
        return declared, Sections.of(declared, self._messages)

    def lanes(self, name: str) -> Lanes | None:
        """Return what a compiled module exchanges by itself at a boundary; None if Python does."""
        from diel.coupling.lanes import Lanes

        shared, number = self.boundary(name), list(self._declared).index(name)
        return Lanes.of(self._declared[name], number, shared, self._messages)

    @contextlib.contextmanager
    def waiting_outside(self, operation: str, subject: object) -> Iterator[None]:
        """Let this rank count as waiting in a block, which checks `raise_if_stopped` by itself."""
        since_s = self._messages.begin_wait(operation, subject)
        try:
            yield
        finally:
            self._messages.end_wait(since_s)

    def _declaration_of(self, name: str) -> Boundary:
        if name not in self._declared:
            known = ", ".join(self._declared) or "none"
            raise BoundaryError(f'the workflow file has no [[boundary]] "{name}"; it has {known}')
        return self._declared[name]

    @property
    def restored(self) -> Any:
        """The state that this rank saved by `checkpoint` in this iteration before a resumption.

        None if there is none.

        Raises
        ------
        RunDirectoryError
            If it cannot be read.
        """
        return None if self._state is None else self._state.restored()

    def checkpoint(self, state: object) -> None:
        """Save the state of this rank, from which it goes on if the run is started again.

        The run saves a checkpoint for it as soon as all checkpoints then take no more than a
        twentieth of the time; from then on the state counts, and `restored` has it.

        Parameters
        ----------
        state : object
            None, truth values, numbers, text, bytes, arrays, and lists and tables of these; a tuple
            comes back as a list. None replaces an earlier state.

        Raises
        ------
        OSError
            If it cannot be written.
        PayloadError
            If it holds anything else; says where.
        RuntimeError
            If this context was made without a place for it.

        Notes
        -----
        Tuples that this rank has put before are on their servers when this returns. Those that it
        puts or takes after it may be there, or not, when the run goes on from this state: see
        docs/modules.md.
        """
        if self._state is None:
            raise RuntimeError("this context was made without a place for states")
        self.tuples.flush()
        self._state.save(state)

    @property
    def _messages(self) -> Channel:
        if self._channel is None:
            raise CouplingError("this context was made without other ranks to send to")
        return self._channel

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Report the progress of this copy, as displays show it.

        Parameters
        ----------
        done, total : float
            In any unit; without a total, only `done` is shown.
        text : str, optional
            What is being done.

        Raises
        ------
        ValueError
            If `done` or `total` is no number, or an infinite one.
        """
        try:
            done = as_number(done)
            total = None if total is None else as_number(total)
            is_finite = math.isfinite(done) and (total is None or math.isfinite(total))
        except ValueError:
            is_finite = False
        if not is_finite:
            raise ValueError(f"progress is two numbers: got {done!r} of {total!r}")
        now_s = time.monotonic()
        if done != total and now_s - self._progress_recorded_s < _PROGRESS_EVERY_S:
            return
        self._progress_recorded_s = now_s
        from diel.run.records import ProgressMade  # here: few ranks need it

        self._record(ProgressMade, done=done, total=total, text=text)


_CURRENT: Final[ContextVar[Context]] = ContextVar("diel_context")


def current_context() -> Context:
    """Return the context of the module that is running here.

    Raises
    ------
    RuntimeError
        If no module is: outside of a module's function, or in a thread that it has started.
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise RuntimeError(
            "no module is running here: a module's function has a context from its call until it "
            "returns, and threads that it starts have none"
        ) from None


@contextlib.contextmanager
def running(context: Context) -> Iterator[None]:
    """Make a context the current one of this thread while a module's function is called."""
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


# -- the logger of a rank -------------------------------------------------------------------------


def _logger_of(name: str, record: Callable[..., None]) -> logging.Logger:
    """Return a logger that prints, and sends warnings and errors to the journal."""
    logger = logging.Logger(name, logging.INFO)
    to_file = _OutputHandler()
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(to_file)
    logger.addHandler(_JournalHandler(record))
    return logger


class _JournalHandler(logging.Handler):
    """Sends warnings and errors to the journal."""

    def __init__(self, record: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        self._write = record

    def emit(self, record: logging.LogRecord) -> None:
        from diel.run.records import MessageLogged

        with contextlib.suppress(NotARank):  # it is in the log file, at least
            self._write(MessageLogged, level=record.levelname, text=record.getMessage())


class _OutputHandler(logging.Handler):
    """Prints log records to the present standard output, which is the module's log file."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)
