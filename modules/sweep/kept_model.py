"""The models that a sweep keeps, beside its ledger: of the best trial, and of others on request.

::

    sweeps/GROUP.MASTER/trials.jsonl
                        best.safetensors        written at the end of the sweep
                        trial-7.safetensors     written when it is asked for: trained again

A function of the user's may write files of other kinds, such as ``best.pt``. These are named, and
never read: they may be pickles.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .ledger import plain

SUFFIX: Final = ".safetensors"
BEST: Final = "best"
_STAMP: Final = re.compile(r"-\d{8}-\d{6}(-\d+)?$")
_SPLIT: Final = "splits"
_LONGEST_HEADER_BYTES: Final = 10**8  # as of safetensors itself


def name_of_run(run_dir: Path) -> str:
    """Return the name of a run's workflow: that of its directory, without the time."""
    return _STAMP.sub("", run_dir.name)


def provenance_of(
    run_dir: Path, sweep: str, objective: str, score: Any, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Return where a trial comes from, as values of JSON: see `Report.provenance`."""
    recorded = {name: value for name, value in metrics.items() if name != _SPLIT}
    found: dict[str, Any] = plain(
        {
            "run": run_dir.absolute().name,
            "workflow": name_of_run(run_dir),
            "sweep": sweep,
            "objective": objective,
            "score": score,
            "metrics": recorded,
        }
    )
    return found


def how_to_use(run_dir: Path, ledger: Path) -> dict[str, str]:
    """Return how to use the model of the best trial: its ``file``, a ``command`` and ``python``.

    Empty if there is none, or it is none of our files.
    """
    file = ledger.with_name(BEST + SUFFIX)
    if not file.is_file():
        return {}
    is_alone = len(list((run_dir / "sweeps").glob("*/trials.jsonl"))) < 2
    which = [] if is_alone else ["--sweep", ledger.parent.name]
    name = "" if is_alone else repr(ledger.parent.name)
    return {
        "file": str(file),
        "command": shlex.join(["diel", "predict", str(run_dir), "NEW.csv", *which]),
        "python": f"import diel\n\nmodel = diel.open_run({str(run_dir)!r}).best_model({name})\n"
        'model.predict_class("NEW.csv")',
    }


def model_of_trial(folder: Path, trial: int) -> Path:
    """Return the place of the model of a trial that was trained again."""
    return folder / f"trial-{trial}{SUFFIX}"


def other_files(folder: Path) -> list[str]:
    """Return the names of files that a user's function has written as the best model."""
    return sorted(file.name for file in folder.glob(f"{BEST}*") if file.suffix != SUFFIX)


def trial_of(file: Path) -> int | None:
    """Return which trial a model is of, from the header of its file; None if it is not said."""
    try:
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > _LONGEST_HEADER_BYTES:
                return None
            header = json.loads(opened.read(size))
        about = json.loads(header["__metadata__"]["dnn"])
        trial = about["model"]["provenance"]["trial"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return trial if type(trial) is int else None
