"""Checkpoints of trials: a longer budget goes on from a shorter one, to the last bit.

::

    RUN_DIR/checkpoints/GROUP.MODULE/2f6c...e1-10.safetensors      a network after 10 epochs

A file is named by a digest of all that a training depends on but for its number of epochs: the
point, the seed, the rows, the device and precision, what patience watches. So a training finds
those of its own beginning, in this run and in an earlier one, and goes on from the longest. Where a
schedule depends on the number of epochs there is no such beginning. Files are written whole or not
at all, and the oldest make room for new ones.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .hyperparameters import Hyperparameters
from .sweep.runners import parse_memory
from .trial import Reports
from .trial_plan import TrialPlan

if TYPE_CHECKING:
    from dnn import EarlyStopping, Ensemble, NeuralNetwork, Progress
    from dnn.distributed import Communicator

    from .evaluation import SplitData

FOLDER: Final = "checkpoints"
_SUFFIX: Final = ".safetensors"
_log: Final = logging.getLogger(__name__)


class CheckpointOptions(BaseModel):
    """Which checkpoints of trials are kept, and from which earlier ones trials go on."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    keep: int = Field(100, ge=1, description="most files of a trainer module, the newest")
    size: str | int = Field("1 GiB", description="most bytes of them together")
    earlier: str | None = Field(
        None,
        description="the directory of an earlier run from whose checkpoints trials go on, relative "
        "to the workflow file",
    )
    by_point: bool = Field(
        False,
        description="points that differ in their epochs alone have one seed, so that the longer "
        "goes on from the shorter within a sweep; it follows from the point, not from the trial",
    )

    @field_validator("size")
    @classmethod
    def _check_size(cls, size: str | int) -> str | int:
        try:
            parse_memory(size)
        except ValueError as error:
            raise ValueError(str(error).replace("memory_limit", "size")) from None
        return size

    def problem_with_earlier(self, folder: Path) -> str:
        """Return why there is nothing to go on from; empty if there is something."""
        if self.earlier is None:
            return ""
        place = folder / self.earlier
        if not place.is_dir():
            return f"there is no run at {place}"
        if not (place / FOLDER).is_dir():
            return f"{place} holds no checkpoints: its trainer had no option checkpoints"
        return ""


@dataclass(frozen=True)
class Resumed:
    """An earlier training that is resumed: how far it has come, and what it has reported."""

    progress: Progress
    reports: Reports
    """Epochs and the metrics that were computed after them, without those that are not needed."""
    rule: Mapping[str, Any] | None
    """The state of the rule of patience: `best`, `best_epoch` and `waited`."""

    def apply(self, rule: EarlyStopping | None, snapshot: dict[str, Any] | None) -> None:
        """Have a rule of patience go on, with what was kept of the best epoch."""
        if rule is not None and self.rule is not None:
            rule.go_on(**self.rule, snapshot=snapshot)


class Checkpoints:
    """The checkpoints of a trainer: where they are written, and where they are looked for.

    Parameters
    ----------
    folder : Path, optional
        In the run directory; where there is no run, nothing is written.
    options : CheckpointOptions
    beside : Path
        The folder of the workflow file.
    facts : mapping
        All that the bits of a result depend on, beside a point, its seed and its rows.
    """

    def __init__(
        self,
        folder: Path | None,
        options: CheckpointOptions,
        beside: Path,
        facts: Mapping[str, Any],
    ) -> None:
        self.options = options
        self._folder, self._facts = folder, facts
        self._most_bytes = parse_memory(options.size) or 0
        self._earlier = None if options.earlier is None else beside / options.earlier / FOLDER
        self._digests: WeakKeyDictionary[SplitData, str] = WeakKeyDictionary()
        self._is_too_large = False

    def name(
        self,
        wanted: Hyperparameters,
        seed: int,
        data: SplitData,
        plan: TrialPlan,
        ranks: int = 1,
    ) -> str:
        """Return the name of a training by so many ranks, whatever its number of epochs is."""
        if data not in self._digests:
            self._digests[data] = _digest_of_rows(data)
        rule = None if plan.patience is None else [plan.watch, plan.min_delta]
        deviation = data.training.deviation
        about = {
            "point": point_without_epochs(wanted),
            "seed": seed,
            "rows": self._digests[data],
            "network": [data.features, data.outputs, data.shape, data.embeds, data.in_rows],
            "targets": [data.takes, None if deviation is None else deviation.tolist()],
            "rule": rule,
            **({"ranks": ranks} if ranks > 1 else {}),
            **self._facts,
        }
        text = json.dumps(about, sort_keys=True, default=str)
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def find(
        self,
        name: str,
        epochs: int,
        shown: Iterable[int],
        patience: int | None,
        communicator: Communicator | None = None,
    ) -> Resumed | None:
        """Return the longest beginning of a training of so many epochs; None if there is none.

        `shown` are the epochs after which the training reports: it does not go on from one that has
        not reported after some of these. A file that cannot be read is passed over, with a warning.
        Of several ranks all call it, and go on from the same file.
        """
        wanted = sorted(shown)
        files = sorted(self._files_of(name), reverse=True)
        if communicator is not None:  # the first rank has written them, and decides
            seen = [(done, str(path)) for done, path in files]
            files = [(done, Path(path)) for done, path in communicator.gather_values(seen)[0]]
        for done, path in files:
            if done >= epochs:
                continue
            found = self._read(path, [step for step in wanted if step <= done], patience)
            if communicator is not None and not all(communicator.gather_values(found is not None)):
                continue
            if found is not None:
                return found
        return None

    def _read(self, path: Path, steps: Sequence[int], patience: int | None) -> Resumed | None:
        """Return a beginning of a training that has reported after some steps, if it is one."""
        from dnn import CheckpointError, load_progress

        try:
            progress, about = load_progress(path)
            reports = {int(step): metrics for step, metrics in about["reports"]}
            rule = about["rule"]
        except (CheckpointError, KeyError, TypeError, ValueError) as error:
            if path.exists():  # else another trainer has made room
                _log.warning("%s is passed over: %s", path, error)
            return None
        is_over = patience is not None and (rule is None or rule["waited"] >= patience)
        if is_over or not reports.keys() >= set(steps):
            return None
        return Resumed(progress, [(step, reports[step]) for step in steps], rule)

    def _files_of(self, name: str) -> Iterator[tuple[int, Path]]:
        places = [] if self._folder is None else [self._folder]
        if self._earlier is not None:
            places += sorted(self._earlier.glob("*/"))
        for place in places:
            for path in place.glob(f"{name}-*{_SUFFIX}"):
                with contextlib.suppress(ValueError):
                    yield int(path.stem.rpartition("-")[2]), path

    def save_all(
        self,
        networks: NeuralNetwork | Ensemble,
        names: Sequence[str],
        reports: Sequence[Reports],
        rules: Sequence[EarlyStopping] = (),
        rank: int = 0,
    ) -> None:
        """Write checkpoints of networks, whose `rules` still have the arrays of the best epochs.

        All ranks that train a network together call it, and the first one writes.
        """
        from dnn import progress_of

        progress = progress_of(networks, [rule.snapshot for rule in rules])
        if rank:
            return
        of_each: Sequence[EarlyStopping | None] = rules or [None for _ in names]
        each = zip(names, progress, reports, of_each, strict=True)
        for name, how_far, reported, rule in list(each)[-self.options.keep :]:
            self._save(name, how_far, reported, rule)

    def _save(
        self, name: str, progress: Progress, reports: Reports, rule: EarlyStopping | None
    ) -> None:
        """Write a checkpoint of a training that may be continued; the oldest make room for it."""
        if progress.history.diverged or self._folder is None:
            return
        size = progress.nbytes
        if size > self._most_bytes:
            if not self._is_too_large:
                text = "a checkpoint of %d bytes is more than checkpoints.size = %r: none is kept"
                _log.warning(text, size, self.options.size)
            self._is_too_large = True
            return
        kept = None
        if rule is not None:
            kept = {"best": rule.best, "best_epoch": rule.best_epoch, "waited": rule.waited}
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}-{progress.epochs}{_SUFFIX}"
        progress.save(path, {"reports": reports, "rule": kept})
        self._make_room(self._folder)

    def _make_room(self, folder: Path) -> None:
        """Remove the oldest files, those that a killed process has left half done among them."""
        found = []
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another trainer has removed it
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size, path))
        sum_bytes = 0
        for place, (_, size, path) in enumerate(sorted(found, reverse=True)):
            sum_bytes += size
            if place and (place >= self.options.keep or sum_bytes > self._most_bytes):
                path.unlink(missing_ok=True)


def point_without_epochs(wanted: Hyperparameters) -> dict[str, Any]:
    """Return the parameters of a point, with its epochs only where its schedule depends on them."""
    taken = wanted.model_dump(mode="json")
    if not wanted.is_scheduled_by_epochs:
        del taken["epochs"]
    return taken


def seed_of_point(wanted: Hyperparameters) -> int:
    """Return a seed that points have in common which differ in their epochs alone."""
    text = json.dumps(point_without_epochs(wanted), sort_keys=True)
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little")


def _digest_of_rows(data: SplitData) -> str:
    import numpy as np

    digest = blake2b(digest_size=16)
    # Rows to augment are those before anything is random.
    of_training = (data.prepared.x, data.training.y, data.training.weights)
    for array in (*of_training, data.validation.x, data.validation.y):
        whole = np.ascontiguousarray(() if array is None else array)
        digest.update(f"{whole.dtype} {whole.shape}".encode())
        digest.update(whole.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
