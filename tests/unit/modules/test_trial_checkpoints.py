"""Checkpoints of trials: what goes on is what was never interrupted, to the last bit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from diel.testing import Module, run_modules
from dnn.distributed import Communicator, run_on_threads
from modules import master, trainer
from modules.checkpoints import FOLDER, Checkpoints, point_without_epochs
from modules.hyperparameters import Hyperparameters
from modules.network_trainer import NetworkTrainer
from modules.sweep.ledger import ledger_path, trials_of
from modules.trial import Report, run_trial

pytest.importorskip("sklearn", reason="the data come with scikit-learn")
pytest.importorskip("safetensors")

FOLDS = {"method": "k_fold", "folds": 2}
NESTED = {"method": "nested", "folds": 2, "inner_folds": 2}
POINT = {"hidden": [6], "batch_size": 64, "learning_rate": 0.05}
DROPPING = {"hidden": [6], "batch_size": 64, "dropout": 0.2, "optimizer": "adam"}
GROWING = {**POINT, "batch_growth": 2.0, "growth_every": 3}  # trained alone


def timeless(found: Any) -> Any:
    """Without the times: those are never the same."""
    if isinstance(found, dict):
        return {name: timeless(x) for name, x in found.items() if "training_time_s" not in name}
    return [timeless(x) for x in found] if isinstance(found, (list, tuple)) else found


class Trials:
    """Runs trials with checkpoints in a folder, and counts the epochs that are trained."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> None:
        self.folder, self.epochs = folder, 0
        given = {"dataset": "breast_cancer", "checkpoints": {}, **options}
        task = trainer.Options.model_validate(given).task(Path(), kept_in=folder)
        self.train = task.load()
        assert isinstance(self.train, NetworkTrainer)
        from dnn.training.networks import Fit

        inner: Callable[..., Any] = Fit._epoch

        def counted(fit: Any, trainer_: Any, active: Any, order: Any) -> None:
            self.epochs += len(active)
            inner(fit, trainer_, active, order)

        monkeypatch.setattr(Fit, "_epoch", counted)

    def alone(self, point: dict[str, Any], **more: Any) -> tuple[Any, Any]:
        report = Report(0, 3, options={}, folder=Path(), **more)
        result = run_trial(self.train, point, report)
        assert not result.reason, result.detail
        return timeless(result.metrics), timeless(report.curve.points)

    def together(self, *points: dict[str, Any]) -> list[tuple[Any, Any]]:
        reports = [Report(0, 3 + n, options={}, folder=Path()) for n in range(len(points))]
        found = self.train.train_together(list(zip(points, reports, strict=True)))
        curves = [report.curve.points for report in reports]
        return [(timeless(m), timeless(c)) for m, c in zip(found, curves, strict=True)]


@pytest.mark.sample(4)
@pytest.mark.parametrize("point", [POINT, DROPPING, GROWING])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"patience": 30, "min_delta": 0.3},
        {"seeds": 2, "evaluation": FOLDS},
        {"patience": 8, "evaluation": NESTED, "seeds": 2},
    ],
)
def test_a_longer_budget_goes_on_from_a_shorter_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: Any, point: Any
) -> None:
    short, middle, long = ({**point, "epochs": epochs} for epochs in (5, 9, 20))
    whole = Trials(monkeypatch, tmp_path / "never", **{**options, "checkpoints": None})
    expected = whole.alone(long), whole.alone(middle)
    parts = Trials(monkeypatch, tmp_path / "kept", **options)
    parts.alone(short)
    # From a network alone to one in a plan and the other way round.
    assert parts.together(middle, {**point, "epochs": 7})[0] in (expected[1], (None, []))
    parts.alone(middle)
    before = parts.epochs
    assert parts.alone(long) == expected[0]
    if not options:
        assert parts.epochs - before == 11
        parts.alone({**long, "learning_rate": 0.01})  # another point
        assert parts.epochs - before == 31


def test_metrics_that_the_shorter_training_was_not_asked_for_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = {**POINT, "epochs": 8}
    asked = {"metrics": ["auc"]}
    whole = Trials(monkeypatch, tmp_path / "never", **asked, checkpoints=None).alone(long)
    Trials(monkeypatch, tmp_path / "kept").alone({**POINT, "epochs": 5})
    metrics, curve = Trials(monkeypatch, tmp_path / "kept", **asked).alone(long)
    assert (metrics, curve) == whole
    assert all("auc" in point for _, point in curve)


def test_epochs_that_are_done_are_not_trained_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = Trials(monkeypatch, tmp_path)
    trials.train._together.epoch_s(Hyperparameters.model_validate(POINT), 0)  # its time is taken
    counts = []
    for epochs in (5, 8, 8, 3, 12):
        before = trials.epochs
        trials.alone({**POINT, "epochs": epochs})
        counts.append(trials.epochs - before)
    assert counts == [5, 3, 3, 3, 4]
    (file,) = tmp_path.glob("*-12.safetensors")
    name = file.stem.partition("-")[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{name}-{epochs}.safetensors" for epochs in (3, 5, 8, 12)
    )


def test_a_rule_of_the_sweep_sees_all_epochs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rule(last: int, seen: list[Any]) -> Callable[..., bool]:
        def on_report(trial: int, step: int, metrics: dict[str, Any]) -> bool:
            seen.append((step, timeless(metrics)))
            return step < last

        return on_report

    for options in ({}, {"patience": 4, "min_delta": 0.05}):
        whole = Trials(monkeypatch, tmp_path / "never", **options, checkpoints=None)
        kept = Trials(monkeypatch, tmp_path / f"kept {len(options)}", **options)
        long = {**POINT, "epochs": 12}
        seen: list[Any] = []
        stopped = kept.alone(long, on_report=rule(4, seen))
        assert stopped == whole.alone(long, on_report=rule(4, []))
        for last in (4, 2, 9):  # it goes on, and may be stopped where it has been before
            seen, expected = [], []
            before = kept.epochs
            found = kept.alone(long, on_report=rule(last, seen))
            trained = kept.epochs - before
            assert found == whole.alone(long, on_report=rule(last, expected))
            assert seen == expected
            assert trained == (last if last <= 4 else len(seen) - 4)


def test_files_are_bounded_and_a_kill_leaves_nothing_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".1234.safetensors.17.tmp").write_bytes(b"half")  # of a process that was killed
    os.utime(tmp_path / ".1234.safetensors.17.tmp", (1, 1))
    trials = Trials(monkeypatch, tmp_path, checkpoints={"keep": 3})
    for epochs in (2, 3, 4, 5, 6):
        trials.alone({**POINT, "epochs": epochs})
    files = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert [path.stem.rpartition("-")[2] for path in files] == ["4", "5", "6"]
    size = files[0].stat().st_size
    # A damaged file is passed over, and said.
    expected = trials.alone({**POINT, "epochs": 8})
    (newest,) = tmp_path.glob("*-6.safetensors")
    newest.write_bytes(newest.read_bytes()[:-9])
    trials.epochs = 0
    with caplog.at_level(logging.WARNING):
        assert trials.alone({**POINT, "epochs": 8}) == expected
    assert trials.epochs == 3
    assert "-6.safetensors is passed over" in caplog.text
    # By their size.
    trials = Trials(monkeypatch, tmp_path, checkpoints={"keep": 9, "size": 2 * size + 2000})
    trials.alone({**POINT, "epochs": 7})
    assert len(list(tmp_path.iterdir())) <= 2
    caplog.clear()
    trials = Trials(monkeypatch, tmp_path / "none", checkpoints={"size": "10 B"})
    for epochs in (1, 2):
        trials.alone({**POINT, "epochs": epochs})
    assert not (tmp_path / "none").exists()
    assert caplog.text.count("none is kept") == 1


def test_where_a_schedule_goes_by_all_epochs_nothing_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scheduled = {**POINT, "schedule": "cosine"}
    trials = Trials(monkeypatch, tmp_path)
    for epochs in (3, 6):
        wanted = Hyperparameters.model_validate({**scheduled, "epochs": epochs})
        trials.train._together.epoch_s(wanted, 0)
    before = trials.epochs
    trials.alone({**scheduled, "epochs": 3})
    trials.alone({**scheduled, "epochs": 6})
    assert trials.epochs == before + 9
    assert point_without_epochs(wanted)["epochs"] == 6


def test_a_diverged_training_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trials = Trials(monkeypatch, tmp_path)
    metrics, _ = trials.alone({**POINT, "learning_rate": 1e30, "epochs": 2})
    assert metrics["diverged"] is True
    assert not list(tmp_path.iterdir())


def sweep(folder: Path, run_dir: Path, epochs: Any, **checkpoints: Any) -> list[dict[str, Any]]:
    run_dir.mkdir()
    options = {"space": {"learning_rate": [0.3, 0.1], "hidden": [[4]], "epochs": epochs}}
    given = {"dataset": "breast_cancer", "checkpoints": checkpoints}
    run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(options)),
            "trainer": Module(
                trainer.run, trainer.Options.model_validate(given, context={"folder": folder})
            ),
        },
        folder=folder,
        run_dir=run_dir,
    )
    return list(trials_of(ledger_path(run_dir, "group", "master", (0,))))


def test_a_second_sweep_goes_on_from_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = sweep(tmp_path, tmp_path / "whole", 9)
    sweep(tmp_path, tmp_path / "first", 4)
    assert len(list((tmp_path / "first" / FOLDER / "group.trainer").iterdir())) == 2
    found = []
    inner = Checkpoints.find

    def noted(self: Checkpoints, *given: Any) -> Any:
        found.append(inner(self, *given))
        return found[-1]

    monkeypatch.setattr(Checkpoints, "find", noted)
    second = sweep(tmp_path, tmp_path / "second", 9, earlier="first")
    for record, other in zip(second, expected, strict=True):
        assert timeless(record["metrics"]) == timeless(other["metrics"])
        assert timeless(record["reports"]) == timeless(other["reports"])
    assert [resumed.progress.epochs for resumed in found] == [4, 4]


@pytest.mark.parametrize("given", ["data", {"scheme": "data", "sharded": True}], ids=str)
@pytest.mark.parametrize("patience", [None, 3])
def test_trainings_of_several_ranks_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: Any, patience: Any
) -> None:
    point = {**DROPPING, "batch_norm": True}
    resumed: list[Any] = []
    inner = Checkpoints.find
    monkeypatch.setattr(
        Checkpoints, "find", lambda *given: resumed.append(inner(*given)) or resumed[-1]
    )

    def trials(options: Any, budgets: Sequence[int]) -> Callable[[Communicator], Any]:
        def on_rank(communicator: Communicator) -> Any:
            parallel = {"training": {"parallel": given}, "patience": patience}
            asked = trainer.Options(dataset="breast_cancer", checkpoints=options, **parallel)
            train = asked.task(Path(), kept_in=tmp_path).load()
            for epochs in budgets:
                report = Report(0, 3, options={}, folder=Path(), communicator=communicator)
                metrics = train({**point, "epochs": epochs}, report)
            return timeless(metrics), timeless(report.curve.points)

        return on_rank

    expected = run_on_threads(2, trials(None, [5]))
    assert run_on_threads(2, trials({}, [2, 5])) == expected
    assert [each.progress.epochs for each in resumed if each is not None] == [2, 2]
    names = sorted(path.name.rpartition("-")[2] for path in tmp_path.iterdir())
    assert names == ["2.safetensors", "5.safetensors"]


def test_points_that_differ_in_their_epochs_alone_may_have_one_seed(tmp_path: Path) -> None:
    records = sweep(tmp_path, tmp_path / "run", [2, 5], by_point=True)
    by_rate: dict[float, dict[int, Any]] = {}
    for record in records:
        point = record["parameters"]
        curve = {step: metrics["loss"] for step, metrics in record["reports"]}
        by_rate.setdefault(point["learning_rate"], {})[point["epochs"]] = curve
    for curves in by_rate.values():
        assert curves[2] == {step: curves[5][step] for step in (1, 2)}
    from dnn import load

    about = load(ledger_path(tmp_path / "run", "group", "master", (0,)).with_name(
        "best.safetensors")).provenance  # fmt: skip
    (record,) = (each for each in records if each["trial"] == about["trial"])
    assert about["metrics"]["loss"] == record["metrics"]["loss"]


@pytest.mark.parametrize(
    ("checkpoints", "words"),
    [
        ({"keep": 0}, "greater than or equal to 1"),
        ({"size": "many"}, "size = 'many': write"),
        ({"earlier": "gone"}, "there is no run at"),
        ({"earlier": "."}, "holds no checkpoints"),
        ({"odd": 1}, "odd"),
    ],
)
def test_wrong_options(tmp_path: Path, checkpoints: Any, words: str) -> None:
    given = {"dataset": "digits", "checkpoints": checkpoints}
    with pytest.raises(ValidationError) as caught:
        trainer.Options.model_validate(given, context={"folder": tmp_path})
    assert words in str(caught.value)
