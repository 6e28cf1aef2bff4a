"""A sweep before it is run: how many trials, which come first, how long one takes."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from ..search import Search
from ..trial import trial_seed
from .trying import Report, Tried, reason_of, try_here


@dataclass(frozen=True)
class Preview:
    """What a sweep will do.

    Attributes
    ----------
    strategy : str
    size : int or None
        How many trials there are; None if that is not known.
    points : list of dict
        The parameters of the first trials, as far as they follow from no result.
    trainer : str
        The module that tries them.
    what_is_wrong : callable
        Says of the metrics of a trial why they cannot be ranked; nothing if they can.
    """

    strategy: str
    size: int | None
    points: list[dict[str, Any]]
    trainer: str
    what_is_wrong: Callable[[Mapping[str, Any]], str]


def preview(options: Any, folder: Path, points: int = 5) -> Preview:
    """Look at a sweep.

    Parameters
    ----------
    options : SweepOptions
    folder : Path
        Of the workflow file.
    points : int, optional
        How many points to show.
    """
    search = Search(options, folder)
    asked = (search.ask(trial) for trial in count())
    first = []
    for point in islice(asked, points):
        if not isinstance(point, dict):
            break
        first.append(point)
    return Preview(
        options.strategy["name"],
        search.size,
        first,
        options.trainer,
        lambda metrics: search.judge(metrics).reason,
    )


def try_one(task: Any, parameters: dict[str, Any], seed: int) -> tuple[Tried, float]:
    """Try one point in this process; return what it gave, and its seconds without preparation."""
    try:
        train = task.load()
    except Exception as error:
        return Tried({}, reason_of(error), traceback.format_exc()), 0.0
    report = Report(0, trial_seed(seed, 0), options=task.options, folder=task.folder)
    started_s = time.perf_counter()
    tried = try_here(train, parameters, report)
    return tried, time.perf_counter() - started_s


def place_of(detail: str, folder: Path) -> str:
    """Return the last line of a user's own that a traceback names, as `` (file.py:4)``."""
    own = [
        (path, line)
        for path, line in re.findall(r'File "(.+?)", line (\d+)', detail)
        if Path(path).is_relative_to(folder.absolute())
    ]
    return f" ({Path(own[-1][0]).name}:{own[-1][1]})" if own else ""
