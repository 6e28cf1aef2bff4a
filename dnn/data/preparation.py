"""Steps of preparation: what was done to raw samples before a network saw them.

A step is a class with its numbers. `STEPS` names all of them: a new one is a class here, and a row
of that table::

    apply                   raw samples, as prepared ones; used in training and in prediction alike
    to_json, from_json      its numbers as plain values, exact to the last bit
    write_onnx              the same as nodes of an ONNX model

A `Dataset` carries the steps that were applied to it, and `NeuralNetwork.save(path, data=...)`
writes them into the file, from which `dnn.load` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from dnn.backend import Array
from dnn.errors import DataError
from dnn.table import number_of

__all__ = [
    "STEPS",
    "Brightness",
    "Codes",
    "Impute",
    "OneHot",
    "Pixels",
    "Standardise",
    "Step",
    "prepared",
    "step_of",
]

FLAG: Final = "flag"
"""The kind of an attribute that is 0 or 1, made by a step."""
CODE: Final = "code"
"""The kind of an attribute that is a number of a category, from 1, for an embedding."""
MEDIAN: Final = "median"


class OnnxNodes(Protocol):
    """What a step needs to write its nodes."""

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""

    def tensor(self, name: str, value: Array | None = None) -> str:
        """Add a constant; return its name."""

    def cast(self, x: str, dtype: Any, output: str) -> str:
        """Add a conversion to another type of elements; return the name of its output."""


class Step:
    """Base of steps of preparation."""

    name: ClassVar[str]
    """As `STEPS` and files have it."""

    def apply(self, x: Array) -> Array:
        """Return prepared samples.

        Parameters
        ----------
        x : array, shape (n, d)

        Returns
        -------
        array
            Perhaps in float64; it is cast once, behind the last step.

        Raises
        ------
        DataError
            If the samples are not such as the step takes.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of the step as plain values, by name."""
        return {}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Step:
        """Return the step with such numbers; KeyError, TypeError or ValueError if they are none."""
        return cls()

    @property
    def inputs(self) -> int | None:
        """How many numbers a sample has that the step takes; None if it takes any number."""
        return None

    def outputs(self, features: int) -> int:
        """Return how many numbers a sample of so many features has behind the step.

        A ValueError if the step is for another number of features.
        """
        if self.inputs is None:
            return features
        if self.inputs != features:
            raise ValueError(f"{self.name} is for {self.inputs} features, and not for {features}")
        return self._outputs()

    def _outputs(self) -> int:
        assert self.inputs is not None
        return len(self.kinds(("number",) * self.inputs))

    def kinds(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of attributes behind the step, from those before it."""
        return tuple(kinds)

    def write_onnx(self, nodes: OnnxNodes, x: str, name: str) -> str:
        """Add nodes that do what `apply` does; return the name of the last output.

        `name` begins the names of nodes.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.name)


class Brightness(Step):
    """Bytes become brightness in 0 .. 1; numbers have to be brightness already."""

    name = "brightness"

    def apply(self, x: Array) -> Array:
        """Return ``x / 255`` of bytes, in float64."""
        if x.dtype == np.uint8:
            return x / 255.0
        with np.errstate(invalid="ignore"):
            wrong = (x < 0) | (x > 1)
        if wrong.any():
            message = (
                "images are brightness in 0 .. 1 as floats, or 0 .. 255 as uint8, and there is"
            )
            raise DataError(f"{message} {x[wrong][0]:g} in {x.dtype}")
        return x

    def write_onnx(self, nodes: OnnxNodes, x: str, name: str) -> str:
        """Add a division; the model takes bytes, as floats."""
        wide = nodes.cast(x, np.float64, f"{name}.wide")
        return nodes.node("Div", [wide, nodes.tensor(f"{name}.white", np.array(255.0))], name)

    def __str__(self) -> str:
        return "brightness: bytes divided by 255"


class Impute(Step):
    """Missing cells (NaN) become a number of their attribute, learned from training rows.

    Parameters
    ----------
    fill : array of float, shape (d,)
        What a missing cell of each attribute becomes.
    by : sequence of str, optional
        What each of them is, for people, see `dnn.impute`; medians if left out.
    indicators : sequence of int
        Attributes for which there is a further one at the end: 1 where the cell was missing.
    """

    name = "impute"

    def __init__(self, fill: Array, by: Sequence[str] = (), indicators: Sequence[int] = ()) -> None:
        self.fill = np.asarray(fill, np.float32)
        self.by = tuple(by)
        self.indicators = np.asarray([*indicators], np.int64)

    def apply(self, x: Array) -> Array:
        """Return the samples without NaN."""
        missing = np.isnan(x)
        filled = np.where(missing, self.fill, x)
        if not self.indicators.size:
            return filled
        return np.concatenate([filled, missing[:, self.indicators].astype(filled.dtype)], axis=1)

    @property
    def inputs(self) -> int:
        """Number of attributes."""
        return self.fill.size

    def kinds(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of the attributes, those of indicators last."""
        return (*kinds, *(FLAG for _ in self.indicators))

    def to_json(self) -> dict[str, Any]:
        """Return the medians; or what else there is, and which it is."""
        if {*self.by} <= {MEDIAN} and not self.indicators.size:
            return {"medians": _numbers(self.fill)}
        by = self.by or (MEDIAN,) * self.fill.size
        return {"fill": _numbers(self.fill), "by": [*by], "indicators": self.indicators.tolist()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Impute:
        """Return the step with such numbers."""
        fill = _array(given["medians"] if "medians" in given else given["fill"])
        if (abs(fill) > np.finfo(np.float32).max).any():
            raise ValueError("medians are numbers in float32")
        by, indicators = given.get("by", []), given.get("indicators", [])
        if not isinstance(by, list) or not all(isinstance(each, str) for each in by):
            raise TypeError("by is a list of texts")
        if len(by) not in (0, fill.size) or not isinstance(indicators, list):
            raise ValueError("each attribute is filled in one way")
        return cls(fill, by, [_whole(each, 0, fill.size - 1) for each in indicators])

    def write_onnx(self, nodes: OnnxNodes, x: str, name: str) -> str:
        """Add a choice between cells and what fills them, and the indicators behind it."""
        missing = nodes.node("IsNaN", [x], f"{name}.missing")
        fill = nodes.tensor(f"{name}.medians", self.fill)
        if not self.indicators.size:
            return nodes.node("Where", [missing, fill, x], name)
        filled = nodes.node("Where", [missing, fill, x], f"{name}.filled")
        at = nodes.tensor(f"{name}.at", self.indicators)
        taken = nodes.node("Gather", [missing, at], f"{name}.taken", axis=1)
        flags = nodes.cast(taken, np.float32, f"{name}.flags")
        return nodes.node("Concat", [filled, flags], name, axis=1)

    def __str__(self) -> str:
        ways = [*dict.fromkeys(self.by or (MEDIAN,))]
        what = " or ".join("a number" if number_of(way) is not None else way for way in ways)
        what = what.replace("most_frequent", "most frequent value")
        more = f", and {self.indicators.size} columns say where" if self.indicators.size else ""
        return f"impute: missing cells become the {what} of their column{more}"


class Categories(Step):
    """Base of steps that turn codes of categories into what a network takes.

    The columns of categories are taken out, and what they become stands behind all others. A code
    that was in no training row, and a missing cell, are unknown. How many attributes there are
    behind the step depends on the categories of the table alone, so it is the same in all splits.

    Parameters
    ----------
    features : int
        Number of attributes that the step takes.
    counts : mapping of int to int
        By the place of a column: how many categories the table has there.
    codes : mapping of int to sequence of int
        By the same places: the codes that were in training rows.
    """

    def __init__(
        self, features: int, counts: Mapping[int, int], codes: Mapping[int, Sequence[int]]
    ) -> None:
        self.features = features
        self.known: dict[int, Array] = {}
        for at, count in counts.items():
            # What no code equals stands for those of no training row.
            self.known[at] = np.full(count, -1, np.float32)
            self.known[at][[*codes[at]]] = codes[at]
        self.others = np.array([at for at in range(features) if at not in self.known], np.int64)

    @property
    def inputs(self) -> int:
        """Number of attributes that the step takes."""
        return self.features

    def apply(self, x: Array) -> Array:
        """Return the other attributes, and behind them those of each column of categories."""
        parts = [x[:, self.others]]
        parts += [self._encoded(x[:, at], known) for at, known in self.known.items()]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def _encoded(self, column: Array, known: Array) -> Array:
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the number of attributes, and the count and the codes of each column."""
        columns = [
            {"at": at, "count": known.size, "codes": np.flatnonzero(known >= 0).tolist()}
            for at, known in self.known.items()
        ]
        return {"features": self.features, "columns": columns}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Categories:
        """Return the step with such codes."""
        features = _whole(given["features"], 1)
        counts, codes = {}, {}
        for column in given["columns"]:
            at = _whole(column["at"], 0, features - 1)
            counts[at] = _whole(column["count"], 1, 1 << 24)
            codes[at] = [_whole(code, 0, counts[at] - 1) for code in column["codes"]]
        if sum(counts.values()) > 1 << 24:
            raise ValueError("so many categories are none of a table")
        if len(codes) != len(given["columns"]) or not codes:
            raise ValueError("a step of categories has some columns, each once")
        return cls(features, counts, codes)

    def write_onnx(self, nodes: OnnxNodes, x: str, name: str) -> str:
        """Add a comparison of each column with its codes."""
        x = nodes.cast(x, np.float32, f"{name}.single")
        parts = []
        if self.others.size:
            others = nodes.tensor(f"{name}.others", self.others)
            parts.append(nodes.node("Gather", [x, others], f"{name}.rest", axis=1))
        for at, known in self.known.items():
            place = nodes.tensor(f"{name}.at{at}", np.array([at]))
            column = nodes.node("Gather", [x, place], f"{name}.column{at}", axis=1)
            codes = nodes.tensor(f"{name}.codes{at}", known[None])
            equal = nodes.node("Equal", [column, codes], f"{name}.equal{at}")
            flags = nodes.cast(equal, np.float32, f"{name}.flags{at}")
            parts.append(self._write_encoded(nodes, flags, known.size, f"{name}.encoded{at}"))
        return nodes.node("Concat", parts, name, axis=1)

    def _write_encoded(self, nodes: OnnxNodes, flags: str, count: int, name: str) -> str:
        return flags


class OneHot(Categories):
    """A column of categories becomes a column of 0 and 1 for each of them; unknown ones: 0."""

    name = "one_hot"

    def _encoded(self, column: Array, known: Array) -> Array:
        flags: Array = (column[:, None] == known).astype(np.float32)
        return flags

    def kinds(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of the others, and behind them those of 0 and 1."""
        flags = sum(each.size for each in self.known.values())
        return (*(kinds[at] for at in self.others), *(FLAG for _ in range(flags)))

    def __str__(self) -> str:
        count = sum(each.size for each in self.known.values())
        what = "a column" if len(self.known) == 1 else f"{len(self.known)} columns"
        return f"one_hot: {what} of categories become {count} of 0 and 1; unknown ones are 0"


class Codes(Categories):
    """A column of categories becomes the number of each, from 1, for an embedding; unknown: 0."""

    name = "codes"

    def _encoded(self, column: Array, known: Array) -> Array:
        is_code = (column >= 0) & (column < known.size)
        places = np.where(is_code, column, 0).astype(np.intp)
        is_known = is_code & (known[places] == column)
        return np.where(is_known, column + 1, 0).astype(np.float32)[:, None]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many numbers each column may hold, that of unknown ones among them."""
        return tuple(each.size + 1 for each in self.known.values())

    def kinds(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of the others, and behind them those of codes."""
        return (*(kinds[at] for at in self.others), *(CODE for _ in self.known))

    def _write_encoded(self, nodes: OnnxNodes, flags: str, count: int, name: str) -> str:
        numbers = np.arange(1, count + 1, dtype=np.float32)[:, None]
        return nodes.node("MatMul", [flags, nodes.tensor(f"{name}.numbers", numbers)], name)

    def __str__(self) -> str:
        what = "a column" if len(self.known) == 1 else f"{len(self.known)} columns"
        return f"codes: {what} of categories become numbers for an embedding; unknown ones are 0"


class Standardise(Step):
    """``(x - mean) / deviation``, of each attribute or of all values."""

    name = "standardise"

    def __init__(self, mean: Array, deviation: Array) -> None:
        self.mean = np.asarray(mean, np.float64).reshape(1, -1)
        self.deviation = np.asarray(deviation, np.float64).reshape(1, -1)

    def apply(self, x: Array) -> Array:
        """Return the samples shifted and scaled, computed in float64."""
        return (x - self.mean) / self.deviation

    def to_json(self) -> dict[str, Any]:
        """Return means and deviations."""
        return {"mean": _numbers(self.mean), "deviation": _numbers(self.deviation)}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Standardise:
        """Return the step with such means and deviations."""
        mean, deviation = _array(given["mean"]), _array(given["deviation"])
        if mean.shape != deviation.shape or not (deviation > 0).all():
            raise ValueError("each mean has a deviation above 0")
        return cls(mean, deviation)

    @property
    def inputs(self) -> int | None:
        """Number of attributes, if each is scaled by itself."""
        return self.mean.size if self.mean.size > 1 else None

    def write_onnx(self, nodes: OnnxNodes, x: str, name: str) -> str:
        """Add a difference and a quotient in float64, so that both round as here."""
        wide = nodes.cast(x, np.float64, f"{name}.wide")
        mean = nodes.tensor(f"{name}.mean", self.mean)
        centred = nodes.node("Sub", [wide, mean], f"{name}.centred")
        deviation = nodes.tensor(f"{name}.deviation", self.deviation)
        return nodes.node("Div", [centred, deviation], name)

    def __str__(self) -> str:
        if self.mean.size == 1:
            return f"standardise: (x - {self.mean.item():g}) / {self.deviation.item():g}"
        return f"standardise: each of {self.mean.size} columns to mean 0 and deviation 1"


class Pixels(Step):
    """Images of other rows and columns: a part from the middle, or a border of zeros around.

    Parameters
    ----------
    shape : (int, int, int)
        Channels, height and width of the raw images.
    rows, columns : sequence of int
        Where each row and column is read; negative where there is 0.
    """

    name = "pixels"

    def __init__(
        self, shape: tuple[int, int, int], rows: Sequence[int], columns: Sequence[int]
    ) -> None:
        self.shape = shape
        self.rows, self.columns = (np.asarray(each, np.int64) for each in (rows, columns))

    def apply(self, x: Array) -> Array:
        """Return the images as rows of numbers."""
        images = x.reshape(-1, *self.shape)
        taken = images[:, :, np.maximum(self.rows, 0)][..., np.maximum(self.columns, 0)]
        return np.where(self._inside, taken, 0).reshape(len(x), -1)

    @property
    def _inside(self) -> Array:
        return (self.rows[:, None] >= 0) & (self.columns >= 0)

    def to_json(self) -> dict[str, Any]:
        """Return the shape, and where rows and columns are read."""
        places = {"rows": self.rows.tolist(), "columns": self.columns.tolist()}
        return {"shape": list(self.shape), **places}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Pixels:
        """Return the step of such images."""
        channels, height, width = (_whole(each, 1) for each in given["shape"])
        rows = [_whole(each, -1, height - 1) for each in given["rows"]]
        columns = [_whole(each, -1, width - 1) for each in given["columns"]]
        if not rows or not columns:
            raise ValueError("images without pixels")
        return cls((channels, height, width), rows, columns)

    @property
    def inputs(self) -> int:
        """Number of pixels of a raw image."""
        return math.prod(self.shape)

    def _outputs(self) -> int:
        return self.shape[0] * self.rows.size * self.columns.size

    def write_onnx(self, nodes: OnnxNodes, x: str, name: str) -> str:
        """Add the choice of rows and columns, and zeros where there are none."""
        shape = nodes.tensor(f"{name}.shape", np.array([-1, *self.shape]))
        x = nodes.node("Reshape", [x, shape], f"{name}.images")
        for axis, lines in ((2, self.rows), (3, self.columns)):
            taken = nodes.tensor(f"{name}.lines{axis}", np.maximum(lines, 0))
            x = nodes.node("Gather", [x, taken], f"{name}.taken{axis}", axis=axis)
        x = nodes.cast(x, np.float32, f"{name}.single")
        inside = nodes.tensor(f"{name}.inside", self._inside.astype(np.float32))
        x = nodes.node("Mul", [x, inside], f"{name}.inner")
        flat = nodes.tensor(
            f"{name}.flat", np.array([-1, self.shape[0] * len(self.rows) * len(self.columns)])
        )
        return nodes.node("Reshape", [x, flat], name)

    def __str__(self) -> str:
        return f"pixels: the middle, {len(self.rows)} x {len(self.columns)}, of each image"


STEPS: Final[Mapping[str, type[Step]]] = {
    step.name: step for step in (Brightness, Impute, OneHot, Codes, Pixels, Standardise)
}
"""All steps, by the names that files have."""

_KEY: Final = "step"


def prepared(x: Array, steps: Sequence[Step]) -> Array:
    """Return raw samples, of uint8 or float32 as a `Dataset` has them, as a network takes them."""
    for step in steps:
        x = step.apply(x)
    return np.ascontiguousarray(x, np.float32) if steps else x


def described_step(step: Step) -> dict[str, Any]:
    """Return a step as plain values, with its name."""
    return {_KEY: step.name, **step.to_json()}


def step_of(given: Mapping[str, Any]) -> Step:
    """Return the step that plain values describe.

    Raises
    ------
    KeyError, TypeError, ValueError
        If there is no such step, or its numbers are none of it.
    """
    name = given[_KEY]
    if not isinstance(name, str) or name not in STEPS:
        raise ValueError(f"there is no step {name!r} (known: {', '.join(STEPS)})")
    return STEPS[name].from_json(given)


def _numbers(array: Array) -> list[float]:
    found: list[float] = array.ravel().astype(np.float64).tolist()
    return found


def _array(given: Any) -> Array:
    if not isinstance(given, list) or not given:
        raise TypeError("a list of numbers is wanted")
    if not all(type(each) in (int, float) and abs(each) <= _LARGEST for each in given):
        raise ValueError("numbers must be finite")
    return np.array(given, np.float64)


_LARGEST: Final = float(np.finfo(np.float64).max)


def _whole(given: Any, lowest: int, highest: int = 2**31) -> int:
    if type(given) is not int or not lowest <= given <= highest:
        raise ValueError(f"{given!r:.40} is no whole number in {lowest} .. {highest}")
    return given
