"""The recorded curves as a search meets them: the curve of any point, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from replay_curves import (
    ACTIVATIONS,
    BATCHES,
    EPOCHS,
    FOLDER,
    STRUCTURES,
    WIDTHS,
    features,
    points_of,
)

Point = dict[str, Any]
SPACE = {
    "depth": {"from": 1, "to": 3, "step": 1},
    "width": {"from": 16, "to": 512, "log_steps": 6},
    "activation": list(ACTIVATIONS),
    "learning_rate": {"from": 1e-4, "to": 1.0, "scale": "log"},
    "momentum": {"from": 0.0, "to": 0.95},
    "weight_decay": {"from": 1e-6, "to": 1e-2, "scale": "log"},
    "batch_size": {"from": 16, "to": 256, "log_steps": 5},
}
"""The space of the race, as a workflow file has it."""
CONTINUOUS = frozenset({"learning_rate", "momentum", "weight_decay"})
_APART = 10.0
"""How much further a step in depth, width, activation or batch size is than the whole range of a
continuous parameter: the structure comes first."""
WIDE = 128
"""Networks from this width on gain nothing by being trained at once, and are trained alone."""


def shares_of(rates: Any) -> Any:
    """Return learning rate, momentum and weight decay as shares of their ranges."""
    rate, momentum, decay = np.asarray(rates, float).T
    return np.column_stack(((np.log10(rate) + 4) / 4, momentum / 0.95, (np.log10(decay) + 6) / 4))


class Curves:
    """All recorded curves of a task.

    Attributes
    ----------
    val : array (points, epochs), test : array (points)
    structure : array (points)
    unit_s : float
        Seconds of an average full training alone: what time is told in.
    """

    def __init__(self, task: str, folder: Path = FOLDER) -> None:
        with np.load(folder / f"{task}.npz") as kept:
            rows = {key: kept[key] for key in kept.files}
        self.val, self.test = rows["val"] / 1e4, rows["test"] / 1e4
        self.structure = rows["structure"].astype(int)
        structures, rates = points_of(rows["structure"], rows["number"])
        self._where = np.column_stack(
            (np.array([_place(tuple(structure)) for structure in structures]), shares_of(rates))
        )
        self.alone_s, self.torch_s = rows["alone"].astype(float), rows["torch"].astype(float)
        self._call_s, self._each_s = _line(
            self.alone_s, self.structure, rows["together"], rows["cost"]
        )
        # The mean over the space, whichever points are recorded.
        self.unit_s = EPOCHS * float(self.alone_s.mean())
        *self._lengths, noise = rows["lengths"].astype(float)
        self._features = features(structures, rates) / self._lengths
        # Validation accuracies after every epoch, and the test accuracy after the last.
        accuracies = np.clip(np.column_stack((self.val, self.test)), 0.02, 0.998)
        logits = np.log(accuracies / (1 - accuracies))
        self._mean = logits.mean(0)
        covariance = self._covariance(self._features)
        factor = np.linalg.inv(covariance + noise * np.eye(len(covariance)))
        self._weights = factor @ (logits - self._mean)
        self._residuals = noise * self._weights
        self._fitted = logits - self._residuals
        self.left_out = self._weights / np.diag(factor)[:, None]
        """Errors in logits of each point predicted from all others."""

    def __len__(self) -> int:
        return len(self.test)

    def _covariance(self, features: Any) -> Any:
        squares = ((features[:, None] - self._features) ** 2).sum(2)
        far = np.sqrt(3 * squares)
        return (1 + far) * np.exp(-far)

    def predicted(self, point: Point, random: Any) -> tuple[Any, float, float]:
        """Return a curve of a point: validation, test, and how far off the nearest recorded one is.

        The prediction of a Gaussian process, no better and no worse than those of the 16 nearest
        recorded points, and on it what one of these has beside its own prediction: the noise of
        seeds, and what the process does not explain.
        """
        rates = [[point["learning_rate"], point["momentum"], point["weight_decay"]]]
        wanted = features([structure_of(point)], rates) / self._lengths
        covariance = self._covariance(wanted)[0]
        nearest = np.argpartition(-covariance, 16)[:16]
        around = self._fitted[nearest]
        logits = np.clip(self._mean + covariance @ self._weights, around.min(0), around.max(0))
        logits += self._residuals[random.choice(nearest)]
        *val, test = 1 / (1 + np.exp(-logits))
        return np.array(val), float(test), self.nearest(point, np.zeros(len(self), bool))[1]

    def recorded(self, point: Point, used: Any) -> tuple[Any, float, float]:
        """Return the curve of the nearest recorded point, which counts as used from now on."""
        place, off = self.nearest(point, used)
        used[place] = True
        return self.val[place], float(self.test[place]), off

    def nearest(self, point: Point, used: Any) -> tuple[int, float]:
        """Return the nearest recorded point, one not used if its structure has any, and how far.

        The distance is that of learning rate, momentum and weight decay, as shares of their
        ranges; 10 and more where the structure is another.
        """
        shares = shares_of([[point["learning_rate"], point["momentum"], point["weight_decay"]]])
        where = np.concatenate((_place(structure_of(point)), shares[0]))
        squares = ((self._where - where) ** 2).sum(1)
        place = int((squares + np.where(used, _APART, 0)).argmin())
        return place, float(np.sqrt(squares[place]))

    def epoch_s(self, structure: int, networks: int, engine: str) -> float:
        """Return the seconds of an epoch of some networks of a structure at once."""
        if engine == "torch":
            return networks * float(self.torch_s[structure])
        if networks == 1 or STRUCTURES[structure][1] >= WIDE:
            return networks * float(self.alone_s[structure])
        return float(self._call_s[structure] + networks * self._each_s[structure])


def structure_of(point: Point) -> tuple[int, int, int, int]:
    """Return depth, width, number of the activation, and batch size of a point."""
    activation = ACTIVATIONS.index(point["activation"])
    return int(point["depth"]), int(point["width"]), activation, int(point["batch_size"])


def _place(structure: tuple[int, int, int, int]) -> Any:
    depth, width, activation, batch = structure
    steps = (depth, WIDTHS.index(width), activation, BATCHES.index(batch))
    return _APART * np.array(steps, float)


def _line(alone: Any, structure: Any, together: Any, cost: Any) -> tuple[Any, Any]:
    """Fit an epoch's seconds: a part for each plan, and one for each network, by structure.

    From an epoch alone and one of the recorded plan; where that is missing, of networks of one
    depth and width.
    """
    call, each = np.full(len(alone), np.nan), np.full(len(alone), np.nan)
    for s in range(len(alone)):
        at = np.flatnonzero((structure == s) & (together > 1))
        if len(at):
            k, seconds = float(together[at[0]]), float(cost[at].min())
            each[s] = min(max((seconds - alone[s]) / (k - 1), 0.1 * alone[s]), alone[s])
            call[s] = alone[s] - each[s]
    share = float(np.nanmedian(each / alone))
    missing = np.isnan(each)
    each[missing] = share * alone[missing]
    call[missing] = alone[missing] - each[missing]
    return call, each


@dataclass
class Trial:
    """A trial of a simulated search: its number, its whole curve, its reports so far."""

    number: int
    point: Point
    structure: int
    val: Any
    test: float
    reports: list[tuple[int, float]]
