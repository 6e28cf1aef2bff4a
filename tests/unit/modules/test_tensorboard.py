"""Event files of TensorBoard, read back without the library that wrote them."""

from __future__ import annotations

import contextlib
import importlib.util
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from diel import TrialLog
from diel.testing import Module, run_modules
from modules import master, tensorboard, trainer
from modules.sweep.ledger import Ledger, ledger_path, trials_of
from modules.tensorboard import TensorBoardReporter

TRIAL: dict[str, Any] = {
    "trial": 3,
    "state": "finished",
    "parameters": {"rate": 0.25, "hidden": [8, 4], "kind": "adam", "fast": True, "none": None},
    "metrics": {"accuracy": 0.75, "loss": "nan", "diverged": False, "remark": "odd"},
    "reports": [(1, {"accuracy": 0.5}), (4, {"accuracy": 0.7, "loss": 2.5})],
    "started_s": 1000.0,
    "seconds": 20.0,
    "reason": None,
}


class Sweep:
    name = "all.master"


# -- a reader of its own: the records of TFRecord, and the wire format of protocol buffers ---------


def records(raw: bytes) -> Iterator[bytes]:
    """Yield records: length, CRC-32C of it, data, and CRC-32C of these, each masked."""
    at = 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        data = raw[at + 12 : at + 12 + length]
        for part, place in ((raw[at : at + 8], at + 8), (data, at + 12 + length)):
            crc = crc32c(part)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack_from("<I", raw, place) == (masked,)
        yield data
        at += length + 16


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def fields(data: bytes) -> dict[int, list[Any]]:
    """Return the fields of a message by number: numbers, floats or bytes."""
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        value: Any
        if kind == 0:
            value = varint()
        elif kind == 2:
            length = varint()
            value, at = data[at : at + length], at + length
        else:
            form = "<d" if kind == 1 else "<f"
            (value,) = struct.unpack_from(form, data, at)
            at += struct.calcsize(form)
        found.setdefault(key >> 3, []).append(value)
    return found


def read(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, Any], float]:
    """Return scalars by tag, hyperparameters with the status and metrics, and the last time."""
    (file,) = folder.iterdir()
    scalars: dict[str, list[tuple[int, float]]] = {}
    page: dict[str, Any] = {}
    time_s = 0.0
    for record in records(file.read_bytes()):
        event = fields(record)
        time_s, step = event[1][0], event.get(2, [0])[0]
        for value in (v for summary in event.get(5, []) for v in fields(summary).get(1, [])):
            parts = fields(value)
            tag = parts[1][0].decode()
            if 2 in parts:
                scalars.setdefault(tag, []).append((step, parts[2][0]))
            elif tag.startswith("_hparams_/"):
                content = fields(fields(fields(parts[9][0])[1][0])[2][0])
                page |= hparams(content)
    return scalars, page, time_s


def hparams(content: dict[int, list[Any]]) -> dict[str, Any]:
    if 2 in content:  # the experiment: its metrics
        infos = fields(content[2][0]).get(5, [])
        return {"metrics": [fields(fields(info)[1][0])[2][0].decode() for info in infos]}
    if 3 in content:  # the start of a session: parameters
        found: dict[str, Any] = {}
        for entry in fields(content[3][0]).get(1, []):
            pair = fields(entry)
            ((kind, (value,)),) = fields(pair[2][0]).items()
            named = {2: lambda v: v, 3: bytes.decode, 4: bool}[kind](value)
            found[pair[1][0].decode()] = named
        return {"parameters": found}
    return {"status": fields(content[4][0])[1][0]}


needs_writer = pytest.mark.skipif(
    importlib.util.find_spec("tensorboardX") is None, reason="tensorboardX writes event files"
)


@needs_writer
def test_an_event_file_has_curve_results_and_parameters(tmp_path: Path) -> None:
    TensorBoardReporter().log_trial(tmp_path, Sweep(), TRIAL)
    folder = tmp_path / "tensorboard" / "all.master" / "trial-3"
    scalars, page, time_s = read(folder)
    assert scalars["accuracy"] == [(1, 0.5), (4, pytest.approx(0.7))]
    assert scalars["loss"] == [(4, 2.5)]
    assert scalars["result/accuracy"] == [(4, 0.75)]
    ((step, loss),) = scalars["result/loss"]
    assert step == 4
    assert loss != loss
    assert sorted(scalars) == ["accuracy", "loss", "result/accuracy", "result/loss"]
    assert page == {
        "parameters": {"rate": 0.25, "hidden": "8x4", "kind": "adam", "fast": True, "none": "None"},
        "metrics": ["result/accuracy", "result/loss"],
        "status": 1,  # success
    }
    assert time_s == 1020.0
    # Nothing is written twice, and what a killed process has left is written anew.
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    TensorBoardReporter().log_trial(tmp_path, Sweep(), TRIAL)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    folder.rename(folder.with_name(".trial-3"))
    TensorBoardReporter().log_trial(tmp_path, Sweep(), TRIAL)
    assert [path.name for path in folder.parent.iterdir()] == ["trial-3"]
    assert read(folder)[0]["accuracy"] == scalars["accuracy"]


@needs_writer
def test_a_trial_that_failed_says_so(tmp_path: Path) -> None:
    failed = {**TRIAL, "state": "failed", "metrics": {}, "reports": [], "reason": "ValueError: x",
              "started_s": None}  # fmt: skip
    TensorBoardReporter().log_trial(tmp_path, Sweep(), failed)
    folder = tmp_path / "tensorboard" / "all.master" / "trial-3"
    scalars, page, _ = read(folder)
    assert not scalars
    assert page["status"] == 2  # failure
    (file,) = folder.iterdir()
    assert b"ValueError: x" in file.read_bytes()


@needs_writer
def test_tensorboard_itself_reads_it(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    TensorBoardReporter().log_trial(tmp_path, Sweep(), TRIAL)
    folder = tmp_path / "tensorboard" / "all.master" / "trial-3"
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    curve = [(event.step, event.value) for event in found.Scalars("accuracy")]
    assert curve == [(1, 0.5), (4, pytest.approx(0.7))]
    assert "_hparams_/session_start_info" in found.summary_metadata


@needs_writer
@pytest.mark.parametrize("asked", [[], ["tensorboard"]])
def test_a_sweep_that_asks_for_it(tmp_path: Path, asked: list[str]) -> None:
    pytest.importorskip("sklearn", reason="the data come with scikit-learn")
    options = {"space": {"learning_rate": [0.1, 0.3], "epochs": 4}, "log": asked}
    given = trainer.Options.model_validate({"dataset": "breast_cancer"})
    run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(options)),
            "trainer": Module(trainer.run, given),
        },
        folder=tmp_path,
        run_dir=tmp_path,
    )
    place = tmp_path / "tensorboard"
    if not asked:
        assert not place.exists()
        return
    for record in trials_of(ledger_path(tmp_path, "group", "master", (0,))):
        scalars, page, _ = read(place / "group.master" / f"trial-{record['trial']}")
        assert page["parameters"]["learning_rate"] == record["parameters"]["learning_rate"]
        assert [step for step, _ in scalars["loss"]] == [1, 2, 4]
        assert scalars["result/loss"] == [(4, pytest.approx(record["metrics"]["loss"]))]


@needs_writer
def test_a_resumed_run_writes_what_an_earlier_start_has_not(tmp_path: Path) -> None:
    ledger = ledger_path(tmp_path, "all", "master", ())
    about = {"objective": ["accuracy"], "maximise": [True], "space": {"x": [1]}, "trainer": "t"}
    with contextlib.closing(Ledger(ledger, about)) as lines:
        lines.write([{**TRIAL, "trial": number, "reason": ""} for number in range(4)])
    log = TrialLog(tmp_path, "all.master", 3, ["tensorboard"])  # three are recorded before
    assert log.close(60) == []
    found = sorted(path.name for path in (tmp_path / "tensorboard" / "all.master").iterdir())
    assert found == [f"trial-{number}" for number in range(4)]


def test_nothing_is_started_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diel.loading import trial_log

    def refuse(words: list[str]) -> None:
        raise AssertionError(words)

    monkeypatch.setattr(trial_log, "_start", refuse)
    assert TrialLog(tmp_path, "all.master", 0).close(1) == []


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="no installed package has a reporter 'tensorbord'"):
        master.Options.model_validate({"space": {"x": [1]}, "log": ["tensorbord"]})
    given = master.Options.model_validate({"space": {"epochs": [1]}, "log": ["tensorboard"]})
    monkeypatch.setattr(tensorboard, "_WRITER", "not_installed_here")
    lack, remedy = master.missing_here(given, None) or ("", "")
    assert "not_installed_here" in lack
    assert remedy == 'pip install "diel[tensorboard]"'


def test_what_a_reporter_lacks_is_asked_without_the_current_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options = master.Options.model_validate({"space": {"epochs": [1]}, "log": ["tensorboard"]})
    master.missing_here(options, None)
    assert str(tmp_path) not in sys.path
