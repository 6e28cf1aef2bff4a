"""Event files of TensorBoard for the trials of a sweep: a reporter that a master asks for.

::

    RUN_DIR/tensorboard/GROUP.MASTER/trial-7/events.out.tfevents...

        accuracy, loss ...            scalars by step: what the trial has reported on its way
        result/accuracy ...           scalars: its metrics at the end
        _hparams_/...                 its parameters and these metrics, for the hparams page

The files are written by tensorboardX. A folder has its name once its files are whole, so a run that
is resumed writes what is missing, and nothing twice.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from diel import Reporter

from .sweep.ledger import FAILED, as_numbers
from .sweep.output import cell

_WRITER: Final = "tensorboardX"
_FOLDER: Final = "tensorboard"
_RESULT: Final = "result/"


class TensorBoardReporter(Reporter):
    """Writes an event file for each trial that ends."""

    on_request = True

    @classmethod
    def missing_here(cls) -> tuple[str, str] | None:
        """Return that tensorboardX is missing, if it is."""
        if importlib.util.find_spec(_WRITER) is not None:
            return None
        return f"{_WRITER}, which writes event files", 'pip install "diel[tensorboard]"'

    def log_trial(self, run_dir: Path, sweep: Any, trial: Mapping[str, Any]) -> None:
        """Write the event file of a trial, unless it is there."""
        folder = run_dir / _FOLDER / sweep.name / f"trial-{trial['trial']}"
        if folder.exists():
            return
        half = folder.with_name(f".{folder.name}")
        shutil.rmtree(half, ignore_errors=True)  # of a process that was killed
        half.mkdir(parents=True)
        _write(half, trial)
        half.rename(folder)


def _write(folder: Path, trial: Mapping[str, Any]) -> None:
    writer_kind = importlib.import_module(_WRITER).SummaryWriter
    ended_s = time.time()
    if trial.get("started_s") is not None:
        ended_s = trial["started_s"] + (trial.get("seconds") or 0.0)
    reports = [(step, dict(_numbers(metrics))) for step, metrics in trial["reports"]]
    results = dict(_numbers(trial["metrics"]))
    last = reports[-1][0] if reports else 0
    with writer_kind(logdir=str(folder)) as writer:
        for step, metrics in reports:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step, walltime=ended_s)
        for name, value in results.items():
            writer.add_scalar(_RESULT + name, value, last, walltime=ended_s)
        if trial.get("reason"):
            writer.add_text("reason", str(trial["reason"]), last, walltime=ended_s)
        parameters = {name: _plain(value) for name, value in trial["parameters"].items()}
        for summary in _hparams(parameters, [_RESULT + name for name in results], trial["state"]):
            writer.file_writer.add_summary(summary, last, walltime=ended_s)


def _hparams(parameters: dict[str, Any], metrics: list[str], state: str) -> Iterator[Any]:
    """Yield what the hparams page reads of a trial; one that has failed is marked so."""
    summaries = importlib.import_module(f"{_WRITER}.summary")
    experiment, start, end = summaries.hparams(parameters, dict.fromkeys(metrics, 0.0))
    if state == FAILED:
        plugin = importlib.import_module(f"{_WRITER}.proto.plugin_hparams_pb2")
        status = importlib.import_module(f"{_WRITER}.proto.api_pb2").Status
        (value,) = end.value
        data = plugin.HParamsPluginData.FromString(value.metadata.plugin_data.content)
        data.session_end_info.status = status.Value("STATUS_FAILURE")
        value.metadata.plugin_data.content = data.SerializeToString()
    yield from (experiment, start, end)


def _numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in as_numbers(dict(metrics)).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, float(value)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(cell(value))
