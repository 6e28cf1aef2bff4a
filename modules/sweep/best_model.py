"""Which file holds the model of a sweep's best trial, or of another one that is asked for."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

from ..report.sweep import DONE, STATE, STOPPED
from .kept_model import BEST, SUFFIX, model_of_trial, other_files, provenance_of, trial_of
from .watched import WatchedSweep


def choose_model(run_dir: Path, ledger: Path, trial: int | None) -> dict[str, Any]:
    """Return where the model of a trial is, by default of the best one.

    ``sweep``, ``trial``, and ``file``. Where a trial has to be trained again ``file`` is None, and
    there are ``parameters``, ``seed``, ``provenance``, and ``path``, the place of the file without
    its suffix. A ValueError if there is no such trial, or no model of the best one; an OSError if
    the ledger cannot be read.
    """
    if trial is not None:
        if isinstance(trial, bool) or not hasattr(trial, "__index__"):
            raise ValueError(f"a trial is a whole number, not {trial!r:.40}")
        trial = operator.index(trial)
    watched = WatchedSweep(run_dir, ledger)
    watched.catch_up()
    folder, kept = ledger.parent, ledger.with_name(BEST + SUFFIX)
    kept_trial = trial_of(kept)
    if trial is None:
        _check_kept(watched, kept, kept_trial)
        return {"sweep": watched.name, "trial": kept_trial, "file": str(kept)}
    for file in (kept, model_of_trial(folder, trial)):
        if trial_of(file) == trial:
            return {"sweep": watched.name, "trial": trial, "file": str(file)}
    found = watched.trial(trial)
    if found is None:
        raise ValueError(f"{watched.name} of {run_dir} has no trial {trial} (yet)")
    if found[STATE] not in DONE | STOPPED:
        raise ValueError(f"trial {trial} of {watched.name} has no result: it is {found[STATE]}")
    objective = watched.summary()["objective"]
    metrics = found["metrics"]
    score = metrics.get(objective)
    return {
        "sweep": watched.name,
        "trial": trial,
        "file": None,
        "path": str(model_of_trial(folder, trial).with_suffix("")),
        "parameters": found["parameters"],
        "seed": found["seed"],
        "provenance": provenance_of(run_dir, watched.name, objective, score, metrics),
    }


def _check_kept(watched: WatchedSweep, kept: Path, kept_trial: int | None) -> None:
    """Raise a ValueError unless there is a model, of the best trial so far."""
    summary = watched.summary()
    best, objective = summary["best"], summary["objective"]
    number = None if best is None else best["trial"]
    again = f"trial={number} (diel predict --trial {number}) trains that one again"
    if not kept.exists():
        others = other_files(kept.parent)
        if others:
            place = kept.with_name(others[0])
            raise ValueError(
                f"{place} is no {SUFFIX} file, and diel reads no others, which may run code: load "
                "it as it was written"
            )
        if best is None:
            raise ValueError(f"{watched.name} of {watched.run_dir} has no trial with a result")
        raise ValueError(
            f"{watched.name} of {watched.run_dir} holds no model of its best trial, {number}: one "
            "is written at the end of a sweep if safetensors is installed (pip install "
            '"diel[checkpoint]") and, where train names a function, that has an attribute '
            f"save_model; with these {again}"
        )
    if best is None or kept_trial is None or kept_trial == number:
        return
    row = watched.trial(kept_trial)
    is_as_good = row is not None and row["metrics"].get(objective) == best.get(objective)
    if objective in (row or {}).get("metrics", {}) and not is_as_good:
        raise ValueError(
            f"{kept} is of trial {kept_trial}, and trial {number} is better by now: its model is "
            f"written at the end of the sweep; {again}"
        )
