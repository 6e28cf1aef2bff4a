"""Population based training: who goes on from whom, and that no bit depends on where and how."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from diel.testing import Module, run_modules
from modules import fused, master, trainer
from modules.options import SweepOptions
from modules.reporter import SweepReporter
from modules.search import Search
from modules.space import Space
from modules.strategies import WAIT, Lagged, Population, with_rule
from modules.sweep import lineage
from modules.sweep.ledger import ledger_path, trials_of
from modules.sweep.lineage import Lineage, TrialCheckpoints
from modules.sweep.models import choose_model
from modules.sweep.warm_start import EarlierResults
from modules.sweep.watched import WatchedSweep
from modules.trial import Report, Trial, run_trial
from modules.trial_states import TrialStates

TABLE: dict[str, Any] = {
    "rate": {"from": 1e-3, "to": 1.0, "scale": "log"},
    "momentum": {"from": 0.0, "to": 0.9, "step": 0.1},
    "hidden": [[8], [16], [32]],
    "epochs": 3,
}
SPACE = Space.parse(TABLE)


def generation(strategy: Population, number: int) -> list[dict[str, Any]]:
    first = number * strategy.members
    asked = [strategy.ask(trial) for trial in range(first, first + strategy.members)]
    points = [point for point in asked if isinstance(point, dict)]
    assert len(points) == strategy.members
    return points


def made(**options: Any) -> Population:
    return Population(SPACE, 1, free=["rate", "momentum"], **{"members": 8, **options})


def test_the_worst_go_on_from_the_best_with_points_near_theirs() -> None:
    strategy = made(resample=0.0)
    points = generation(strategy, 0)
    assert [strategy.parent(trial) for trial in range(8)] == [None] * 8
    for trial in range(8):
        assert strategy.ask(8) is WAIT
        strategy.tell(trial, points[trial], float(trial))
    after = generation(strategy, 1)
    parents = [strategy.parent(trial) for trial in range(8, 16)]
    assert parents[2:] == list(range(2, 8))
    assert after[2:] == points[2:]
    for point, parent in zip(after[:2], parents[:2], strict=True):
        assert parent in (6, 7)
        before = points[parent]
        assert point["hidden"] == before["hidden"]
        assert point["epochs"] == 3
        assert point["rate"] / before["rate"] == pytest.approx(0.8) or point["rate"] in (
            pytest.approx(before["rate"] * 1.2),
            1.0,
        )
        assert abs(point["momentum"] - before["momentum"]) == pytest.approx(0.1)
        SPACE.check(point)
    assert strategy.possible_parents() >= {*parents, *range(8, 16)}
    assert 0 not in strategy.possible_parents()


def test_neither_the_order_of_results_nor_a_restart_changes_it() -> None:
    def told(order: Sequence[int], *, asks: bool) -> list[Any]:
        strategy = made()
        found: dict[int, Any] = {}
        for number in range(3):
            for trial in (number * 8 + place for place in order):
                point = strategy.ask(trial) if asks else known[trial][0]
                found[trial] = point, strategy.parent(trial)
                assert isinstance(point, dict)
                strategy.tell(trial, point, (trial * 37 % 11) / (1 + point["rate"]))
        return [found[trial] for trial in sorted(found)] + [(strategy._now,)]

    known = told(range(8), asks=True)
    assert told(range(7, -1, -1), asks=True) == known
    assert told([3, 1, 0, 2, 7, 6, 5, 4], asks=False)[-1] == known[-1]  # as a ledger is read


def test_what_has_no_score_goes_on_from_another_or_begins_anew() -> None:
    strategy = made(members=4)
    points = generation(strategy, 0)
    for trial, score in enumerate([None, 2.0, None, float("nan")]):
        strategy.tell(trial, points[trial], score)
    generation(strategy, 1)
    assert [strategy.parent(trial) for trial in range(4, 8)] == [1, 1, 1, 1]
    for trial in range(4, 8):
        strategy.tell(trial, points[0], None)
    again = generation(strategy, 2)
    assert [strategy.parent(trial) for trial in range(8, 12)] == [None] * 4
    assert len({point["rate"] for point in again + points}) == 8


def test_numbers_stay_inside_and_never_become_zero_or_cease_to_be() -> None:
    table = {
        "dropout": [0.0, 0.1, 0.2],
        "width": {"from": 1, "to": 64, "scale": "log"},
        "average": {"from": 0.0, "to": 0.5},
        "flag": [True, False],
    }
    space = Space.parse(table)
    strategy = Population(space, 3, list(table), members=2, share=0.5, resample=0.3)
    point = {"dropout": 0.1, "width": 2, "average": 0.45, "flag": True}
    seen: dict[str, set[Any]] = {name: set() for name in table}
    for trial in range(300):
        found = strategy._explored(point, trial)
        space.check(found)
        for name, value in found.items():
            seen[name].add(value)
    assert seen["dropout"] == {0.1, 0.2}
    assert {1, 3} <= seen["width"]
    assert 0.0 not in seen["average"]
    assert max(seen["average"]) <= 0.5
    assert seen["flag"] == {True, False}
    none = {**point, "dropout": 0.0}
    assert {strategy._explored(none, trial)["dropout"] for trial in range(50)} == {0.0}


def test_a_lag_would_wait_for_good_and_is_left_out() -> None:
    assert not isinstance(with_rule(made(), None, 4), Lagged)


def test_enqueued_trials_have_no_part_in_it() -> None:
    options = {"strategy": {"name": "population", "members": 2, "perturb": ["rate"]}, "trials": 6}
    search = Search(
        SweepOptions.model_validate({"space": TABLE, "objective": "accuracy", **options})
    )
    search.enqueue(1)
    points = {trial: search.ask(trial) for trial in (0, 2)}
    for trial, point in points.items():
        assert isinstance(point, dict)
        search.tell(trial, point, {"accuracy": trial / 10})
    assert isinstance(search.ask(3), dict)
    assert isinstance(search.ask(4), dict)
    assert (search.parent(3), search.parent(4)) == (2, 2)
    assert search.possible_parents() == {2, 3, 4}


# -- lineage --------------------------------------------------------------------------------------


def test_the_schedule_of_a_lineage_has_what_changed_when() -> None:
    found = Lineage()
    for trial, parent, rate in ((0, None, 0.1), (3, 0, 0.1), (5, 3, 0.08), (7, 5, 0.08)):
        before = None if parent is None else {"trial": parent, "step": found.last_step(parent)}
        steps = found.last_step(parent) if parent is not None else 0
        reports = [(steps + 1, {}), (steps + 2, {})]
        point = {"rate": rate, "hidden": [8]}
        found.add({"trial": trial, "parent": before, "parameters": point, "reports": reports})
    assert [stage.trial for stage in found.of(7)] == [0, 3, 5, 7]
    assert found.schedule(7) == [
        {"step": 0, "trial": 0, "rate": 0.1},
        {"step": 4, "trial": 5, "rate": 0.08},
    ]
    assert found.lines(7)[1:] == [
        "  from step 0: rate 0.1 (trial 0)",
        "  from step 4: rate 0.08 (trial 5)",
    ]
    assert found.lines(0) == []
    assert found.of(99) == []


def test_checkpoints_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    needed = {2}
    checkpoints = TrialCheckpoints(folder, lambda: needed)
    checkpoints.prepare()
    for trial in range(3):
        (folder / f"trial-{trial}").write_text("a file")
    (folder / "trial-3").mkdir()
    (folder / "trial-3" / "part").write_text("a folder")
    (folder / "mine").write_text("of the user's")
    checkpoints = TrialCheckpoints(folder, lambda: needed)  # as after a restart
    checkpoints.recorded([4], kept=[0])
    assert {path.name for path in folder.iterdir()} == {"trial-0", "trial-2", "mine"}


# -- sweeps of networks ---------------------------------------------------------------------------

pytest.importorskip("sklearn", reason="the data come with scikit-learn")
pytest.importorskip("safetensors")

NETWORKS: dict[str, Any] = {
    "learning_rate": {"from": 1e-3, "to": 1.0, "scale": "log"},
    "momentum": {"from": 0.1, "to": 0.9},
    "dropout": {"from": 0.05, "to": 0.3},
    "hidden": [[6], [8]],
    "batch_size": 64,
    "epochs": 2,
}
WANTED: dict[str, Any] = {
    "strategy": {"name": "population", "members": 4, "share": 0.5},
    "trials": 16,
    "seed": 3,
    "deterministic": True,
    "space": NETWORKS,
}


def sweep(folder: Path, trainers: int = 1, **more: Any) -> list[dict[str, Any]]:
    """Run a sweep, or what is left of it; return its records in the order of trials."""
    folder.mkdir(exist_ok=True)
    context = {"folder": folder, "run_dir": folder}
    wanted = master.Options.model_validate({**WANTED, **more}, context=context)
    own = trainer.Options.model_validate({"dataset": "breast_cancer"})
    modules = {
        "master": Module(master.run, wanted),
        "trainer": Module(trainer.run, own, copies=trainers),
    }
    (done,) = run_modules(modules, folder=folder, run_dir=folder, timeout=60)["master"]
    assert done.tuples == []
    return sorted(trials_of(ledger(folder)), key=lambda record: int(record["trial"]))


def ledger(folder: Path) -> Path:
    return ledger_path(folder, "group", "master", (0,))


def results(records: list[dict[str, Any]]) -> list[Any]:
    """Return what may depend on nothing but the sweep."""

    def timeless(metrics: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in metrics.items() if name != "training_time_s"}

    return [
        (
            *(record["trial"], record["state"], record["parent"], record["parameters"]),
            timeless(record["metrics"]),
            [(step, timeless(reported)) for step, reported in record["reports"]],
        )
        for record in records
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A sweep on one trainer, whose networks are trained in one plan."""
    folder = tmp_path_factory.mktemp("population")
    return folder, sweep(folder)


def test_generations_follow_each_other(whole: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = whole
    assert len(records) == 16
    assert {record["state"] for record in records} == {"finished"}
    for record in records:
        parent, first = record["parent"], 2 * (record["trial"] // 4)
        assert [step for step, _ in record["reports"]] == [first + 1, first + 2]
        assert (parent is None) == (first == 0)
        if parent is not None:
            before = records[parent["trial"]]
            assert parent["step"] == first
            assert before["trial"] // 4 == record["trial"] // 4 - 1
            assert before["parameters"]["hidden"] == record["parameters"]["hidden"]
    assert any(r["parent"] and r["parent"]["trial"] % 4 != r["trial"] % 4 for r in records)
    there = {path.name for path in (ledger(folder).parent / lineage.FOLDER).iterdir()}
    assert len(there) <= 9  # of the last generation, of its parents, and the best


@pytest.mark.parametrize("case", ["alone", "files", "trainers"])
def test_no_bit_depends_on_how_trials_are_trained(
    whole: tuple[Path, list[dict[str, Any]]],
    case: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if case == "alone":  # one network after the other
        monkeypatch.setattr(fused.FusedTrainings, "_most_networks", lambda *_: 1)
    if case == "files":  # as if another trainer had trained each parent
        monkeypatch.setattr(TrialStates, "save", _to_file)
    records = sweep(tmp_path / "other", trainers=3 if case == "trainers" else 1)
    assert results(records) == results(whole[1])


def _to_file(states: TrialStates, path: Path, progress: Any, rank: int = 0) -> None:
    progress.save(path)


@pytest.mark.parametrize("left", [2, 6, 12])
def test_a_sweep_that_was_killed_goes_on_to_the_same_results(
    whole: tuple[Path, list[dict[str, Any]]],
    left: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(TrialCheckpoints, "recorded", lambda *_, **__: None)  # as they were then
    killed = tmp_path / "killed"
    if not (tmp_path / "all").exists():
        sweep(tmp_path / "all")
    shutil.copytree(tmp_path / "all", killed)
    lines = ledger(killed).read_text().splitlines(keepends=True)
    ledger(killed).write_text("".join(lines[: 1 + left]) + lines[1 + left][:30])
    (ledger(killed).with_name("finished")).unlink(missing_ok=True)
    for path in (ledger(killed).parent / lineage.FOLDER).iterdir():
        if int(path.name.partition("-")[2]) >= left:
            path.unlink()  # they are written anew
    monkeypatch.undo()
    assert results(sweep(killed)) == results(whole[1])


def test_copies_of_one_network_with_one_point_do_not_stay_the_same(tmp_path: Path) -> None:
    point = {"hidden": [6], "batch_size": 64, "epochs": 2}
    task = trainer.Options.model_validate({"dataset": "breast_cancer"}).task(tmp_path)
    train: Any = task.load()
    root = tmp_path / "trial-0"
    trials = [Trial(0, point, 5, checkpoint=root)]
    trials += [Trial(n, point, n, 1, None, tmp_path / f"trial-{n}", root) for n in (1, 2)]
    losses = []
    for trial in trials:
        found = run_trial(train, trial.parameters, task.report(trial))
        assert not found.reason, found.detail
        losses.append(found.metrics["loss"])
    assert len({*losses}) == 3
    report = task.report(trials[1]._replace(number=3, parent_checkpoint=tmp_path / "gone"))
    assert "gone is not there" in run_trial(train, point, report).reason
    other = run_trial(train, {**point, "hidden": [7]}, task.report(trials[1]))
    assert "ShapeError" in other.reason


def test_any_trial_can_be_repeated_with_those_that_it_comes_from(
    whole: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, records = whole
    watched = WatchedSweep(folder, ledger(folder))
    watched.catch_up()
    options = trainer.Options.model_validate({"dataset": "breast_cancer"})
    trial = next(r for r in records[::-1] if r["parent"]["trial"] % 4 != r["trial"] % 4)
    shown = watched.trial(trial["trial"])
    assert shown is not None
    assert len(shown["ancestors"]) == trial["trial"] // 4
    given = (options, folder, trial["parameters"], 3, trial["trial"], trial["seed"])
    reason, _, metrics = trainer.try_point(*given, ancestors=shown["ancestors"])
    assert not reason
    assert metrics["loss"] == trial["metrics"]["loss"]
    found = choose_model(watched, ledger(folder), trial["trial"])
    if found["file"] is None:
        file = trainer.save_model(
            *(options, folder, found["parameters"], found["trial"], found["seed"]),
            *(tmp_path / "again", found["provenance"]),
            ancestors=found["ancestors"],
        )
        assert file.is_file()


def test_an_average_is_of_networks_that_went_on_from_others(
    whole: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    shutil.copytree(whole[0], tmp_path / "again")
    asked = SweepReporter().find_candidates(tmp_path / "again", "", 4)
    last = asked["candidates"][-1]
    record = whole[1][last["trial"]]
    assert record["parent"] is not None
    options = trainer.Options.model_validate({"dataset": "breast_cancer"})
    found = trainer.choose_average(options, tmp_path, {**asked, "candidates": [last]})
    assert found["score"]["best"]["accuracy"] == pytest.approx(record["metrics"]["accuracy"])


def test_the_model_of_the_best_member_is_kept_and_its_schedule_told(
    whole: tuple[Path, list[dict[str, Any]]],
) -> None:
    from dnn import load

    folder, records = whole
    best = min(records, key=lambda r: (-r["metrics"]["accuracy"], r["trial"]))
    model = load(ledger(folder).with_name("best.safetensors"))
    about = model.provenance
    assert about["trial"] == best["trial"]
    assert about["metrics"]["loss"] == best["metrics"]["loss"]
    if best["parent"] is not None:
        assert all(entry["trial"] <= best["trial"] for entry in about.get("schedule", []))


def test_the_lineage_is_drawn(whole: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _records = whole
    watched = WatchedSweep(folder, ledger(folder))
    watched.catch_up()
    figure = watched.figures()["lineage"]
    panel: Any = figure.panels[0]
    assert len(panel.layers) == 12  # a line for each trial that went on from another
    assert {layer.style for layer in panel.layers} <= {"best", "cloud"}
    assert "Lineage" in (folder / "report.html").read_text()
    head = (folder / "results.csv").read_text().splitlines()[0]
    assert lineage.LINEAGE not in head
    assert lineage.LINEAGE not in watched.columns()


def test_a_model_that_no_trainer_keeps_is_read_from_its_checkpoint(
    whole: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(whole[0], again)
    ledger(again).with_name("finished").unlink(missing_ok=True)
    ledger(again).with_name("best.safetensors").unlink()
    sweep(again)  # there is nothing left to train
    from dnn import load

    there, here = (load(ledger(f).with_name("best.safetensors")) for f in (whole[0], again))
    assert here.provenance["metrics"]["loss"] == there.provenance["metrics"]["loss"]


# -- trainers of one's own ------------------------------------------------------------------------

MINE = """
def train(parameters, report):
    total = int(report.parent_checkpoint.read_text()) if report.parent_checkpoint else 0
    for step in range(2):
        total += 1
        report(total, score=total * parameters["rate"])
    if parameters["rate"] < report.options["keeps_from"]:
        return {"score": total * parameters["rate"]}
    report.checkpoint.write_text(str(total))
    return {"score": total * parameters["rate"], "total": total}
"""


def of_mine(folder: Path, keeps_from: float, **options: Any) -> list[dict[str, Any]]:
    (folder / "mine.py").write_text(MINE)
    strategy = {"name": "population", "members": 4, "perturb": ["rate"]}
    given = {"strategy": strategy, "trials": 12, "objective": "score", "maximise": True}
    context = {"folder": folder, "run_dir": folder}
    wanted = master.Options.model_validate(
        {**given, "space": {"rate": TABLE["rate"]}}, context=context
    )
    own = {"train": "./mine.py:train", "options": {"keeps_from": keeps_from}, **options}
    modules = {
        "master": Module(master.run, wanted),
        "trainer": Module(
            trainer.run, trainer.Options.model_validate(own, context=context), copies=2
        ),
    }
    run_modules(modules, folder=folder, run_dir=folder, timeout=60)
    return sorted(trials_of(ledger(folder)), key=lambda record: int(record["trial"]))


@pytest.mark.parametrize("options", [{}, {"isolated": True}])
def test_a_function_goes_on_from_what_it_has_written(tmp_path: Path, options: Any) -> None:
    records = of_mine(tmp_path, 0.0, **options)
    assert [record["metrics"]["total"] for record in records] == [2] * 4 + [4] * 4 + [6] * 4


def test_a_function_that_leaves_nothing_fails_and_others_go_on(tmp_path: Path) -> None:
    records = of_mine(tmp_path, 0.05)
    failed = [record for record in records if record["state"] == "failed"]
    assert failed
    assert all("report.checkpoint" in record["reason"] for record in failed)
    numbers = {record["trial"] for record in failed}
    later = [record["parent"]["trial"] for record in records[4:]]
    assert not numbers.intersection(later)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_network_of_pytorch_goes_on_with_a_rate_of_its_own(
    tmp_path: Path, optimizer: str
) -> None:
    pytest.importorskip("torch")
    from modules.torch_trainer import train

    point = {"hidden": [6], "epochs": 2, "optimizer": optimizer, "batch_size": 64}
    given: dict[str, Any] = {"options": {"dataset": "breast_cancer"}, "folder": tmp_path}
    kept = [tmp_path / f"trial-{number}" for number in range(2)]
    root = Report(0, 1, checkpoint=kept[0], **given)
    before = train({**point, "learning_rate": 0.01}, root)
    child = Report(1, 2, checkpoint=kept[1], parent_checkpoint=kept[0], **given)
    after = train({**point, "learning_rate": 1e-12}, child)
    assert [step for step, _ in child.curve.points] == [3, 4]
    assert after["loss"] == pytest.approx(before["loss"], abs=1e-6)
    with np.load(kept[0]) as first, np.load(kept[1]) as second:
        assert first.files == second.files
        moved = [name for name in first.files if not np.array_equal(first[name], second[name])]
    assert any(name.startswith("optimizer/") for name in moved)


# -- what is wrong in a file ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"early_stopping": "median"}, "ends no trial early"),
        ({"strategy": {"name": "population", "perturb": ["rat"]}}, "is no parameter"),
        ({"strategy": {"name": "population", "perturb": ["epochs"]}}, "no parameter to perturb"),
        (
            {"strategy": "population", "space": {"rate": TABLE["rate"]}},
            "no parameter to perturb",
        ),
        ({"strategy": {"name": "population", "members": 1}}, "members"),
        ({"objective": ["accuracy", "training_time_s"]}, "one objective"),
        ({"alike": 4}, "no points that are alike"),
        ({"trials": None}, "no last trial"),
    ],
)
def test_what_does_not_go_with_it_is_said(options: dict[str, Any], said: str) -> None:
    strategy = {"name": "population", "perturb": ["rate"]}
    given = {"space": TABLE, "strategy": strategy, "trials": 32, "objective": "accuracy", **options}
    with pytest.raises(ValidationError, match=said):
        SweepOptions.model_validate(given)


@pytest.mark.parametrize(
    ("parents", "said"),
    [
        ([None, 0, 3], r"parent\(2\) returned 3"),
        ([None, None, None, 2], "has not ended"),
        ([None, 0, 1, 1], ""),
    ],
)
def test_a_strategy_of_ones_own_may_name_parents(
    tmp_path: Path, parents: list[int | None], said: str
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "chosen.py").write_text(
        f"""
from modules.strategies import WAIT

class Chain:
    def __init__(self, space, seed):
        self.told = 0

    def ask(self, trial):
        if trial > self.told and not {bool(said)}:
            return WAIT
        return {{"rate": 1.0 + trial}} if trial < 4 else None

    def tell(self, trial, parameters, score):
        self.told += 1

    def parent(self, trial):
        return {parents}[trial]
"""
    )
    context = {"folder": tmp_path, "run_dir": tmp_path}
    wanted = master.Options.model_validate(
        {
            "strategy": "./chosen.py:Chain",
            "objective": "score",
            "maximise": True,
            "space": {"rate": {"from": 1.0, "to": 9.0}},
        },
        context=context,
    )
    own = {"train": "./mine.py:train", "options": {"keeps_from": 0.0}}
    modules = {
        "master": Module(master.run, wanted),
        "trainer": Module(trainer.run, trainer.Options.model_validate(own, context=context)),
    }
    if said:
        with pytest.raises(Exception, match=said):
            run_modules(modules, folder=tmp_path, run_dir=tmp_path, timeout=30)
        return
    run_modules(modules, folder=tmp_path, run_dir=tmp_path, timeout=30)
    totals = [record["metrics"]["total"] for record in trials_of(ledger(tmp_path))]
    assert totals == [2, 4, 6, 6]


def test_a_later_sweep_takes_over_only_what_began_anew(
    whole: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    space = Space.parse(NETWORKS)
    objectives = SweepOptions.model_validate(WANTED).objectives()
    earlier = EarlierResults(
        str(ledger(whole[0])), tmp_path, tmp_path / "trials.jsonl", space, objectives
    )
    assert [record["trial"] for record in earlier.records] == [0, 1, 2, 3]


def test_results_of_an_earlier_sweep_are_not_taken_over(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot take over"):
        master.Options.model_validate({**WANTED, "warm_start": str(tmp_path)})


@pytest.mark.parametrize(
    "options",
    [{"patience": 3}, {"seeds": 2}, {"evaluation": {"method": "k_fold"}}, {"checkpoints": {}}],
)
def test_our_trainer_says_what_cannot_go_on(options: dict[str, Any], tmp_path: Path) -> None:
    own = trainer.Options.model_validate({"dataset": "breast_cancer", **options})
    report = Report(0, 1, options={}, folder=tmp_path, checkpoint=tmp_path / "trial-0")
    result = run_trial(own.task(tmp_path).load(), {"epochs": 1}, report)
    assert "go on from each other" in result.reason
