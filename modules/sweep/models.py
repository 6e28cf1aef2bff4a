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
import math
import operator
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..objective import Objective, judge
from ..predictions import place_of_predictions, read_predictions
from .ledger import FINISHED, RESULTS, STOPPED, about_of, ledgers_in, plain, trials_of
from .results import best_step_of

if TYPE_CHECKING:
    from .watched import WatchedSweep

SUFFIX: Final = ".safetensors"
BEST: Final = "best"
CANDIDATES: Final = 4
"""Of so many times as many trials an average is chosen, the best ones."""
_STAMP: Final = re.compile(r"-\d{8}-\d{6}(-\d+)?$")
_SPLIT: Final = "splits"
_LONGEST_HEADER_BYTES: Final = 10**8  # as of safetensors itself


def name_of_run(run_dir: Path) -> str:
    """Return the name of a run's workflow: that of its directory, without the time."""
    return _STAMP.sub("", run_dir.name)


def provenance_of(
    run_dir: Path,
    sweep: str,
    objective: str,
    score: Any,
    metrics: Mapping[str, Any],
    epochs: int | None = None,
    schedule: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return where a trial comes from, as values of JSON: see `Report.provenance`.

    `epochs` is given if time has ended its training, and it has the network of this epoch;
    `schedule` if it went on from others, as `Lineage.schedule` has it.
    """
    recorded = {name: value for name, value in metrics.items() if name != _SPLIT}
    found: dict[str, Any] = plain(
        {
            "run": run_dir.absolute().name,
            "workflow": name_of_run(run_dir),
            "sweep": sweep,
            "objective": objective,
            "score": score,
            "metrics": recorded,
            **({} if epochs is None else {"epochs": epochs}),
            **({"schedule": [*schedule]} if schedule else {}),
        }
    )
    return found


def how_to_use(run_dir: Path, ledger: Path) -> dict[str, str]:
    """Return how to use the model of the best trial: its ``file``, a ``command`` and ``python``.

    And the file of its ``predictions``, if there is one. Empty if there is no model, or it is none
    of our files.
    """
    file = ledger.with_name(BEST + SUFFIX)
    if not file.is_file():
        return {}
    is_alone = len(ledgers_in(run_dir)) < 2
    which = [] if is_alone else ["--sweep", ledger.parent.name]
    name = "" if is_alone else repr(ledger.parent.name)
    predictions = place_of_predictions(file)
    known = read_predictions(predictions)
    predict = "predict_class" if known is None or known.is_class else "predict"
    return {
        **({} if known is None else {"predictions": str(predictions)}),
        "file": str(file),
        "command": shlex.join(["diel", "predict", str(run_dir), "NEW.csv", *which]),
        "python": f"import diel\n\nmodel = diel.open_run({str(run_dir)!r}).best_model({name})\n"
        f'model.{predict}("NEW.csv")',
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


def choose_model(watched: WatchedSweep, ledger: Path, trial: int | None) -> dict[str, Any]:
    """Return where the model of a trial of a sweep is, by default of the best one.

    ``sweep``, ``trial``, and ``file``. Where a trial has to be trained again ``file`` is None, and
    there are ``parameters``, ``seed``, ``ancestors``, the trials that it comes from, the first one
    first, ``provenance``, and ``path``, the place of the file without its suffix. A ValueError if
    there is no such trial, or no model of the best one.
    """
    if trial is not None:
        if isinstance(trial, bool) or not hasattr(trial, "__index__"):
            raise ValueError(f"a trial is a whole number, not {trial!r:.40}")
        trial = operator.index(trial)
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
        raise ValueError(f"{watched.name} of {watched.run_dir} has no trial {trial} (yet)")
    if found["state"] not in (*RESULTS, STOPPED):
        raise ValueError(f"trial {trial} of {watched.name} has no result: it is {found['state']}")
    if found["ancestors"] is None:
        raise ValueError(f"trial {trial} of {watched.name} went on from one that is not recorded")
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
        "ancestors": found["ancestors"],
        "provenance": provenance_of(
            *(watched.run_dir, watched.name, objective, score, metrics), best_step_of(found)
        ),
    }


def choose_candidates(watched: WatchedSweep, ledger: Path, count: int) -> dict[str, Any]:
    """Return the trials of which an average of so many is chosen: the best ones of each split.

    ``sweep``, ``count``, ``candidates``, as `modules.averaging.Candidate` takes them, ``is_blind``,
    ``trials``, how many have a result, and ``path``, the file for the choice. A ValueError if none
    has, or the objective is a function of the user's.
    """
    about = about_of(ledger)
    texts, larger = about["objective"], about.get("maximise")
    if ":" in texts[0]:
        raise ValueError(
            f"{watched.name}: {texts[0]} ranks the trials, and only those that a metric ranks, or "
            "an expression, are averaged"
        )
    objective = Objective.parse(texts[0], larger[0] if isinstance(larger, list) else larger)
    records: list[dict[str, Any]] = []
    for record in trials_of(ledger):
        if record["state"] == FINISHED and not judge(record["metrics"], [objective]).reason:
            records.append(record)
    if not records:
        raise ValueError(f"{watched.name} of {watched.run_dir} has no trial with a result")
    scores = [_split_scores(record, objective) for record in records]
    most = len(scores[0])
    ways = [range(most), *([split] for split in range(most))]
    if most > 1:
        ways += [[split for split in range(most) if split != left] for left in range(most)]
    kept: set[int] = set()
    for way in ways:
        means = [sum(each[split] for split in way) for each in scores]
        order = sorted(range(len(records)), key=lambda place: (-means[place], place))
        kept.update(order[: CANDIDATES * count])
    strategy = about.get("strategy", {}).get("name")
    return {
        "sweep": watched.name,
        "count": count,
        "is_blind": strategy in ("grid", "random") and not about.get("early_stopping"),
        "path": str(ledger.with_name(f"average-{count}.json")),
        "trials": len(records),
        "candidates": [
            {
                "trial": records[place]["trial"],
                "parameters": records[place]["parameters"],
                "seed": records[place]["seed"],
                "epochs": best_step_of(records[place]),
                "scores": scores[place],
                "ancestors": lineage,
            }
            for place in sorted(kept)
            if (lineage := watched.ancestors(records[place])) is not None
        ],
    }


def _split_scores(record: Mapping[str, Any], objective: Objective) -> tuple[float, ...]:
    """Return the score of a trial on each of its splits."""
    splits = record.get(_SPLIT, {})
    each = splits.get("choice") or [record["metrics"]]
    values = [objective.score(objective.value({**record["metrics"], **own})) for own in each]
    return tuple(-math.inf if value is None else value for value in values)


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
