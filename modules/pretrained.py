"""Networks that go on from weights of a file: which of them they take, and which stay frozen.

::

    [module.options]
    weights = "$DIEL_RUN_DIR/body.safetensors"
    head = "new"                                # the last layer starts as the seed makes it
    freeze = ["*"]                              # all but that last layer
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .tabular import place_of_data

if TYPE_CHECKING:
    from dnn import Dataset, Ensemble, NeuralNetwork

RUN_DIRECTORY: Final = "DIEL_RUN_DIR"
"""What a path begins with, behind a $, that an earlier module of the same run writes."""


@dataclass(frozen=True)
class Pretrained:
    """What the networks of trials start from.

    `weights` are a file for `NeuralNetwork.load_weights`, None without one; with a new head, the
    last layer is not loaded, and never frozen. `freeze` are patterns for `NeuralNetwork.freeze`.
    """

    weights: Path | None = None
    has_new_head: bool = False
    freeze: Sequence[str] = ()
    _said: set[str] = field(default_factory=set, compare=False)

    def begin(self, networks: NeuralNetwork | Ensemble) -> None:
        """Load weights into networks that have just been made, and freeze what is to be frozen."""
        from dnn import CheckpointError

        head = self._head_of(networks)
        if self.weights is not None:
            try:
                skip = [head] if self.has_new_head else []
                self._say(f"{self.weights.name}: {networks.load_weights(self.weights, skip=skip)}")
            except CheckpointError as error:
                if self.has_new_head or f"{head}." not in str(error):
                    raise
                advice = f'head = "new" leaves {head}, the last layer, as the seed makes it'
                first, *table = str(error).splitlines()
                raise CheckpointError("\n".join([f"{first}; {advice}", *table])) from None
        if self.freeze:
            self._say(f"frozen: {', '.join(self.freeze_in(networks))}")

    def freeze_in(self, networks: NeuralNetwork | Ensemble) -> list[str]:
        """Freeze what is to be frozen; return the names of these parameters."""
        kept = [f"!{self._head_of(networks)}"] if self.has_new_head else []
        return networks.freeze(*self.freeze, *kept)

    def _head_of(self, networks: NeuralNetwork | Ensemble) -> str:
        *_, last = ["", *networks.parameters]  # a stage of a mesh may have none
        return last.rpartition(".")[0]

    def facts(self) -> dict[str, Any]:
        """Return what a training goes on from, as plain values."""
        digest = self.weights and hashlib.sha256(self.weights.read_bytes()).hexdigest()
        return {"weights": digest, "new head": self.has_new_head, "frozen": list(self.freeze)}

    def _say(self, text: str) -> None:
        """Print a text into the log of the rank, once, however many networks begin alike."""
        if text not in self._said:
            self._said.add(text)
            print(text)


def oddity_of_columns(weights: Path, data: Dataset) -> str:
    """Return a line if a model was trained on other columns than a table has; empty if not.

    Its first layer takes columns by their places. A file of weights alone says nothing of columns.
    """
    from dnn import DnnError, load

    try:
        known = load(weights).columns
    except DnnError:
        return ""
    if known is None or data.columns is None or not known.has_names:
        return ""
    theirs, ours = known.features, data.columns.features
    begins = f"weights: {weights.name} was trained on"
    if {*theirs} == {*ours} and theirs != ours:
        wanted = ", ".join(f'"{name}"' for name in known.sources)
        return (
            f"{begins} the same columns in another order, and its first layer takes them by their "
            f"places: say reading.features = [{wanted}]"
        )
    if theirs != ours:
        other = next((name for name in ours if name not in theirs), None)
        what = f"no column {other!r}" if other else "further columns"
        return f"{begins} {what}, and its first layer takes columns by their places"
    for name, categories in data.columns.categories.items():
        if known.categories.get(name) != categories:
            return (
                f"{begins} other categories of column {name!r}, and its first layer takes them by "
                "their places"
            )
    return ""


def written_by_run(weights: str) -> bool:
    """Whether a path is in the directory of the run, where a module of the run writes the file."""
    return weights.startswith((f"${RUN_DIRECTORY}/", f"${{{RUN_DIRECTORY}}}/"))


def place_of_weights(weights: str, folder: Path, run_dir: Path | None = None) -> Path:
    """Return the file that the option means, relative to the workflow file's folder.

    A ValueError with a ``remedy`` if the path names an environment variable that is not set.
    """
    if run_dir is not None and written_by_run(weights):
        return run_dir.absolute() / weights.partition("/")[2]
    return place_of_data(weights, folder, "weights")


def problem_with_weights(place: Path) -> tuple[str, str]:
    """Return why a file cannot be the weights, and what to do; both empty if it can."""
    if not place.exists():
        written = f"${RUN_DIRECTORY}/NAME is a file that an earlier module of the run writes"
        return f"no weights at {place}", written
    status = place.stat()
    return _problem(place, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _problem(place: Path, written_ns: int, size_bytes: int) -> tuple[str, str]:
    """Read the file, again if it was written meanwhile."""
    from dnn import DnnError, read_weights

    try:
        read_weights(place)
    except DnnError as error:
        text, _, remedy = str(error).partition("; convert it: ")
        return text, remedy
    return "", ""
