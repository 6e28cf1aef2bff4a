"""What a trainer does for each trial, and where: here, in another process, on all its ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .limits import Limits
from .messages import Tags
from .serving import Trier, serve
from .together import Followers, follow
from .trying import Hear, Report, Train, Tried, check_metrics, try_here
from .under_way import UnderWay

if TYPE_CHECKING:
    from diel import Context


@dataclass(frozen=True)
class Task:
    """A function that tries points.

    Attributes
    ----------
    spec : str
        Where it is, as a workflow file says it.
    options : mapping
        What the file gives to it.
    folder : Path
        Of the workflow file.
    prepares : bool
        Whether it is not the function itself, but returns it: ``prepare(options, folder)``.
    """

    spec: str
    options: Mapping[str, Any]
    folder: Path
    prepares: bool = False

    def load(self) -> Train:
        """Import the function; prepare what it needs.

        Raises
        ------
        Exception
            Whatever its code raises.
        """
        from diel import import_function

        function = import_function(self.spec, self.folder)
        train: Train = function(self.options, self.folder) if self.prepares else function
        return train


class Here:
    """Tries points in this process.

    Parameters
    ----------
    task : Task
    comm : MPI.Intracomm or None
        That the function finds in its report.
    note : function, optional
        Is told of the trials that begin, from which to before which, and of none, as 0 and 0:
        a trial may be the last thing that this process does.
    """

    def __init__(
        self, task: Task, comm: Any = None, note: Callable[[int, int], None] | None = None
    ) -> None:
        self._train = task.load()
        self._note = note or (lambda start, stop: None)
        self.at_once: int = getattr(self._train, "at_once", 1)
        self.keeps: bool = hasattr(self._train, "keep")
        self._options, self._folder, self._comm = task.options, task.folder, comm

    def __call__(
        self, trial: int, parameters: dict[str, Any], seed: int, attempt: int, hear: Hear | None
    ) -> Tried:
        """Try a point; `hear` takes what the trial says meanwhile."""
        report = Report(
            trial,
            seed,
            attempt,
            options=self._options,
            folder=self._folder,
            comm=self._comm,
            hear=hear,
        )
        self._note(trial, trial + 1)
        tried = try_here(self._train, parameters, report)
        self._note(0, 0)
        return tried

    def keep(self, trial: int, parameters: dict[str, Any], seed: int, path: Path) -> Path:
        """Have the model of a trial written; return its file.

        Raises
        ------
        Exception
            Whatever the code of the task raises.
        """
        report = Report(trial, seed, options=self._options, folder=self._folder, comm=self._comm)
        file: Path = self._train.keep(parameters, report, path)  # type: ignore[attr-defined]
        return file

    def try_together(
        self, first: int, trials: Sequence[tuple[dict[str, Any], int]]
    ) -> list[Tried | None]:
        """Try several points at once, given with their seeds; None for those to try alone.

        `first` is the number of the first of them. What goes wrong with all of them goes wrong
        with one of them, which is found out alone.
        """
        from diel.errors import RunStopped

        self._note(first, first + len(trials))
        try:
            found = self._train.together(trials)  # type: ignore[attr-defined]
        except RunStopped:
            raise
        except Exception:
            return [None] * len(trials)
        finally:
            self._note(0, 0)
        return [None if one is None else Tried(check_metrics(one)) for one in found]


def serve_group(ctx: Context, task: Task, limits: Limits) -> int:
    """Be a trainer of the group; return how many trials were tried.

    Raises
    ------
    ValueError
        If trials shall have a process of their own, and the trainer several ranks.
    """
    tags = Tags(ctx.group, ctx.module)
    if limits.needs_process:
        from .isolation import Apart

        with closing(Apart(ctx, task, limits)) as apart:
            return serve(ctx, tags, apart)
    comm = comm_of(ctx)
    rank = 0 if comm is None else comm.rank
    with UnderWay(ctx.run_dir, tags, ctx.copy_index, rank) as under_way:
        here = Here(task, comm, under_way.note)
        if comm is None or comm.size == 1:
            return serve(ctx, tags, here, lambda suspects: _beside(ctx, task, here, suspects))
        if rank > 0:
            return follow(ctx, tags, here)
        followers = Followers(ctx, tags, here)
        trials = serve(ctx, tags, followers)
        followers.dismiss()
        return trials


@contextmanager
def _beside(ctx: Context, task: Task, here: Trier, suspects: Collection[int]) -> Iterator[Trier]:
    """Give what tries suspects in another process first, which may die of them.

    A function may want what only a rank has: what fails there without dying is tried here too.
    """
    from .isolation import Apart, NotReady

    with closing(Apart(ctx, task, Limits(isolated=True))) as apart:

        def beside(
            trial: int, parameters: dict[str, Any], seed: int, attempt: int, hear: Hear | None
        ) -> Tried:
            if trial in suspects:
                with suppress(NotReady):
                    tried = apart(trial, parameters, seed, attempt, hear)
                    if tried.has_died or not tried.reason:
                        return tried
            return here(trial, parameters, seed, attempt, hear)

        yield beside


def comm_of(ctx: Context) -> Any:
    """Return the communicator of this copy; None in a test without MPI."""
    try:
        return ctx.comm
    except RuntimeError:  # a test without MPI
        return None
