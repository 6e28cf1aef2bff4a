"""What a trainer does for each trial, and where: here, in another process, on all its ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .limits import Limits
from .messages import Tags
from .serving import Trier, serve
from .together import Followers, follow
from .trying import Hear, Report, ShowProgress, Train, Tried, check_metrics, try_here
from .under_way import UnderWay

if TYPE_CHECKING:
    from diel import Context

TRAINERS: Final = "trainers"
"""The kind of plugins among which a function for trials is looked for by its name."""
_SHOW_EVERY_S: Final = 0.5


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

        function = import_function(self.spec, self.folder, TRAINERS)
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
    progress : function, optional
        Shows how far they are.
    """

    def __init__(
        self,
        task: Task,
        comm: Any = None,
        note: Callable[[int, int], None] | None = None,
        progress: ShowProgress | None = None,
    ) -> None:
        self._train = task.load()
        self._progress = progress
        self._note = note or (lambda start, stop: None)
        self.at_once: int = getattr(self._train, "at_once", 1)
        self.keeps: bool = hasattr(self._train, "keep")
        self._options, self._folder, self._comm = task.options, task.folder, comm

    def __call__(
        self, trial: int, parameters: dict[str, Any], seed: int, attempt: int, hear: Hear | None
    ) -> Tried:
        """Try a point; `hear` takes what the trial says meanwhile."""
        self._note(trial, trial + 1)
        tried = try_here(self._train, parameters, self._report(trial, seed, attempt, hear))
        self._note(0, 0)
        return tried

    def _report(self, trial: int, seed: int, attempt: int = 1, hear: Hear | None = None) -> Report:
        return Report(
            trial,
            seed,
            attempt,
            options=self._options,
            folder=self._folder,
            comm=self._comm,
            hear=hear,
            progress=self._progress,
        )

    def keep(self, trial: int, parameters: dict[str, Any], seed: int, path: Path) -> Path:
        """Have the model of a trial written; return its file.

        Raises
        ------
        Exception
            Whatever the code of the task raises.
        """
        report = self._report(trial, seed)
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
        reports = [self._report(first + place, seed) for place, (_, seed) in enumerate(trials)]
        try:
            found = self._train.together(  # type: ignore[attr-defined]
                [(point, report) for (point, _), report in zip(trials, reports, strict=True)]
            )
        except RunStopped:
            raise
        except Exception:
            return [None] * len(trials)
        finally:
            self._note(0, 0)
        return [
            None if one is None else Tried(check_metrics(one), reports=report.curve.points)
            for one, report in zip(found, reports, strict=True)
        ]


class Progress:
    """Shows how far a trainer is, now and then, where its trials take long enough to be looked at.

    Parameters
    ----------
    show : function
        As `Context.progress`.
    clock : function, optional
        Seconds from anywhere.
    """

    def __init__(self, show: ShowProgress, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._due_s = clock() + _SHOW_EVERY_S

    def __call__(self, done: float, total: float | None, text: str) -> None:
        """Show it, if it is time for that and there is more to come."""
        now_s = self._clock()
        if now_s >= self._due_s and done != total:
            self._due_s = now_s + _SHOW_EVERY_S
            self._show(done, total, text)


def serve_group(ctx: Context, task: Task, limits: Limits) -> int:
    """Be a trainer of the group; return how many trials were tried.

    Raises
    ------
    ValueError
        If trials shall have a process of their own, and the trainer several ranks.
    """
    tags = Tags(ctx.group, ctx.module)
    progress = Progress(ctx.progress)
    if limits.needs_process:
        from .isolation import Apart

        with closing(Apart(ctx, task, limits, progress)) as apart:
            return serve(ctx, tags, apart)
    comm = comm_of(ctx)
    rank = 0 if comm is None else comm.rank
    with UnderWay(ctx.run_dir, tags, ctx.copy_index, rank) as under_way:
        here = Here(task, comm, under_way.note, progress if rank == 0 else None)
        if comm is None or comm.size == 1:
            return serve(ctx, tags, here, partial(_beside, ctx, task, here, progress))
        if rank > 0:
            return follow(ctx, tags, here)
        followers = Followers(ctx, tags, here)
        trials = serve(ctx, tags, followers)
        followers.dismiss()
        return trials


@contextmanager
def _beside(
    ctx: Context, task: Task, here: Trier, progress: ShowProgress, suspects: Collection[int]
) -> Iterator[Trier]:
    """Give what tries suspects in another process first, which may die of them.

    A function may want what only a rank has: what fails there without dying is tried here too.
    """
    from .isolation import Apart, NotReady

    with closing(Apart(ctx, task, Limits(isolated=True), progress)) as apart:

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
