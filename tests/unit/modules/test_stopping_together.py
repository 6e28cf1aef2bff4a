"""Rules that stop trials which are trained together: by cutoffs that come with their lease."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random as Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.modules.sweeping import Sweep
from unit.modules.test_fused import timeless

from diel.testing import Module, run_modules
from modules import master, trainer
from modules.objective import Aim
from modules.space import Space
from modules.strategies import Cohort, Halving, Hyperband, Median, Random, StrategyWithRule
from modules.sweep import messages, trainer_loop
from modules.sweep.joining import lease_message, lease_of
from modules.sweep.ledger import as_written, ledger_path, records_of
from modules.sweep.messages import Lease, SweepOrder
from modules.trial import Report, Reports, Trial, TrialResult, run_trial, trial_seed

pytest.importorskip("sklearn", reason="the data come with scikit-learn")


# -- the verdicts on a cohort ---------------------------------------------------------------------


SCORES = st.lists(st.integers(0, 12).map(float), max_size=30)


@given(SCORES, SCORES.filter(bool), st.integers(2, 4), st.integers(0, 9))
def test_of_a_cohort_those_go_on_that_are_among_the_best_of_all(
    before: list[float], scores: list[float], reduction: int, more: int
) -> None:
    rule = Halving(1, reduction)
    for score in before:
        rule.reported([(1, score)])
    cutoffs = rule.frozen(len(scores) + more)  # not all of them come so far
    of_all = sorted([*before, *scores], reverse=True)
    least = of_all[max(len(of_all) // reduction, 1) - 1]
    expected = {trial for trial, score in enumerate(scores) if score < least}
    assert Cohort(cutoffs).report(1, dict(enumerate(scores))) == expected
    # One of them alone is judged as in a trial of its own.
    alone = rule.stops([(1, scores[0])], rule.cutoff)
    assert Cohort(rule.frozen()).report(1, {0: scores[0]}) == ({0} if alone else set())
    # What later trials report does not change what was frozen.
    rule.reported([(1, 99.0)])
    assert Cohort(cutoffs).report(1, dict(enumerate(scores))) == expected


def test_a_later_part_of_a_cohort_is_compared_with_the_earlier_one() -> None:
    cohort = Cohort(Halving(2, 2).frozen(6))
    assert list(cohort.steps[:4]) == [2, 4, 8, 16]
    assert cohort.report(1, {0: 0.1, 1: 0.2}) == set()  # before the first rung
    assert cohort.report(2, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}) == {0, 1}
    assert cohort.report(4, {2: 0.5, 3: 0.4}) == {3}
    assert cohort.report(2, {4: 0.35, 5: 0.25}) == {5}  # of six, three go on
    assert cohort.report(4, {4: float("nan")}) == {4}


def test_the_median_of_completed_trials_travels() -> None:
    rule = Median(startup_trials=2)
    for score in (0.4, 0.6):
        rule.completed([(1, score), (2, score + 0.1)])
    cohort = Cohort(rule.frozen(3))
    assert cohort.report(1, {7: 0.5, 8: 0.49, 9: 0.9}) == {8}
    assert cohort.report(2, {7: 0.0, 9: 0.0}) == {7}  # the best so far counts
    assert cohort.report(3, {9: 0.0}) == set()


def test_trials_of_a_lease_are_compared_within_their_brackets() -> None:
    rule = Hyperband(1, 2, 2)
    strategy = StrategyWithRule(Random(Space.parse({"a": [1, 2]}), 0), rule)
    cutoffs, cohorts = strategy.cohorts(range(20, 30))
    assert sorted({*cohorts}) == [0, 1]
    for trial, which in zip(range(20, 30), cohorts, strict=True):
        assert Cohort(cutoffs[which]).steps == rule.bracket(trial).steps


def test_a_lease_with_cutoffs_comes_to_another_run_as_it_is() -> None:
    rule = Halving(2, 3)
    for score in (0.5, 0.25, float("inf")):
        rule.reported([(2, score)])
    points = [{"x": 1}, {"x": 2}]
    for cutoffs, cohorts in (([rule.frozen(2)], [0, 0]), ([rule.frozen()] * 2, [0, 1])):
        lease = Lease("here", 3, 10, 12, points, 1, cutoffs, cohorts)
        there = lease_of(as_written(lease_message(lease)), "here")
        assert there.cohorts == cohorts
        assert [vars(each) for each in there.cutoffs or ()] == [vars(each) for each in cutoffs]
    plain = Lease("here", 3, 10, 12, points)
    assert lease_of(as_written(lease_message(plain)), "here") == plain


# -- trainings of a cohort ------------------------------------------------------------------------


def judged(
    train: Any, trials: list[tuple[dict[str, Any], int]], last: dict[int, int]
) -> tuple[list[Any], list[Report]]:
    """Train together, each trial up to the rung that is its last one."""

    def judge(step: int, metrics: Any) -> set[int]:
        return {trial for trial in metrics if step >= last.get(trial, 99)}

    reports = [
        Report(number, seed, options={}, folder=Path(), judge=judge, judged_at=(2, 6))
        for number, (_, seed) in enumerate(trials)
    ]
    given = [(point, report) for (point, _), report in zip(trials, reports, strict=True)]
    return train.train_together(given), reports


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("training", [{}, {"patience": 2, "epochs": 9}, {"dropout": 0.3}])
def test_those_that_go_on_keep_their_bits(
    training: dict[str, Any], precision: str, seed: int
) -> None:
    generator = Generator(f"{seed}/{precision}")
    patience = training.get("patience")
    point = {"hidden": [6], "epochs": 7, "batch_size": 64}
    point |= {name: value for name, value in training.items() if name != "patience"}
    given: dict[str, Any] = {"dataset": "breast_cancer", "compute": {"precision": precision}}
    given |= {} if patience is None else {"patience": patience}
    train = trainer.prepare(given, Path())
    trials = [
        ({**point, "learning_rate": 10 ** generator.uniform(-2, 0)}, trial_seed(seed, number))
        for number in range(7)
    ]
    whole, _ = judged(train, trials, {})
    last = {number: generator.choice([2, 6]) for number in generator.sample(range(7), 4)}
    found, reports = judged(train, trials, last)
    for number, (own, own_seed) in enumerate(trials):
        report = reports[number]
        alone = Report(number, own_seed, options={}, folder=Path(), judged_at=(2, 6))
        steps = [step for step, _ in report.curve.points]
        if not report.is_stopped:
            assert number not in last or patience is not None  # which may have ended it before
            assert repr(timeless(found[number])) == repr(timeless(whole[number]))
        elif patience is None:
            assert steps[-1] == last[number]
            own = {**own, "epochs": last[number]}
        else:
            continue
        tried = run_trial(train, own, alone)
        assert repr(timeless(found[number])) == repr(timeless(tried.metrics))
        curve = [timeless(metrics) for _, metrics in tried.reports]
        assert repr([timeless(metrics) for _, metrics in report.curve.points]) == repr(curve)
    if patience is None:
        assert {number for number, report in enumerate(reports) if report.is_stopped} == {*last}


def test_rows_are_evaluated_at_rungs_and_for_the_curve_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dnn.training.networks import Fit

    evaluated: Counter[int] = Counter()
    here = Fit._validate

    def counting(self: Any, active: Any) -> None:
        before = len(self.histories[active[0]].validation)
        here(self, active)
        after = len(self.histories[active[0]].validation)
        evaluated[len(self.histories[active[0]])] += after - before

    monkeypatch.setattr(Fit, "_validate", counting)
    train = trainer.prepare({"dataset": "breast_cancer"}, Path())
    evaluated.clear()
    judged(train, [({"hidden": [4], "epochs": 12}, seed) for seed in range(3)], {})
    assert {epoch for epoch, times in evaluated.items() if times} == {1, 2, 4, 6, 8}


# -- trials of a lease that run one after the other ------------------------------------------------


def test_short_trials_are_judged_by_their_trainer() -> None:
    def runner(trial: Trial, on_report: Any) -> TrialResult:
        assert trial.judged_at == tuple(Halving(2, 2).steps)
        for step in (1, 2, 4, 6):
            score = trial.parameters["x"] if trial.parameters["x"] != 3 or step < 4 else "text"
            if not on_report(trial.number, step, {"score": score}):
                return TrialResult({"score": score}, is_stopped=True)
        curve: Reports = [(2, {"score": 0.0}), (7, {"score": 9.0})]
        return TrialResult({"score": 1.0}, reports=curve)

    points = [{"x": x} for x in (5.0, 4.0, 7.0, 3, 8.0)]
    order = SweepOrder("here", 1, None, wants_reports=True, aim=Aim("score", True))
    lease = Lease("here", 3, 10, 15, points, 1, [Halving(2, 2).frozen(5)], [0] * 5)
    judge = trainer_loop.LeaseJudge.of(lease, order)
    asked: Any = trainer_loop._ReportsToMaster(None, None, order, 0, {})  # type: ignore[arg-type]
    outcome, _ = trainer_loop._run_lease(lease, order, 0, runner, asked, judge, together=False)
    # As they come, each is compared with those before it; the last one is the best of five.
    assert outcome.stopped == {11, 13}
    steps = {trial: [step for step, _ in reports] for trial, reports in outcome.reports.items()}
    assert steps == {
        10: [1, 2, 4, 6, 7],
        11: [1, 2],
        12: [1, 2, 4, 6, 7],
        13: [1, 2],
        14: steps[10],
    }
    # A text is no score; a function of the user's is judged by the master.
    assert judge is not None
    assert not judge.goes_on(12, 7, {"score": "text"})
    assert judge.goes_on(12, 8, {"other": 1.0})
    assert (
        trainer_loop.LeaseJudge.of(lease, replace(order, aim=Aim("./own.py:score", True))) is None
    )


# -- whole sweeps ---------------------------------------------------------------------------------


SPACE = {"epochs": 9, "hidden": [[4]], "learning_rate": {"from": 1e-3, "to": 1.0, "scale": "log"}}


def swept(folder: Path, copies: int = 1, **options: Any) -> list[dict[str, Any]]:
    """Run a sweep on networks; return its records in the order of trials."""
    folder.mkdir(exist_ok=True)
    given = {"space": SPACE, "seed": 4, **options}
    done = run_modules(
        {
            "master": Module(master.run, master.Options.model_validate(given)),
            "trainer": Module(
                trainer.run,
                trainer.Options.model_validate({"dataset": "breast_cancer"}),
                copies=copies,
            ),
        },
        folder=folder,
        run_dir=folder,
        timeout=60,
    )
    assert done["master"][0].tuples == []
    records = records_of(ledger_path(folder, "group", "master", (0,)))
    return sorted(records, key=lambda record: record["trial"])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the trials whose reports are sent to the master one by one."""
    trials: list[int] = []
    here = messages.IntermediateReport.__init__

    def noting(self: Any, session: str, trial: int, *rest: Any) -> None:
        trials.append(trial)
        here(self, session, trial, *rest)

    monkeypatch.setattr(messages.IntermediateReport, "__init__", noting)
    return trials


def test_trials_of_a_lease_are_stopped_without_a_message_for_each_report(
    tmp_path: Path, sent: list[int]
) -> None:
    rule = {"name": "halving", "min_steps": 1, "reduction": 2}
    records = swept(tmp_path / "first", strategy=rule, trials=60)
    states = Counter(record["state"] for record in records)
    assert states.keys() == {"finished", "stopped"}
    assert states["stopped"] > 30
    assert set(sent) <= {0, 1}  # the first leases have one trial, since nothing is known yet
    train = trainer.prepare({"dataset": "breast_cancer"}, Path())
    for record in records:
        steps = [step for step, _ in record["reports"]]
        whole = [1, 2, 4, 8, 9]
        assert steps == (whole if record["state"] == "finished" else whole[: len(steps)])
        assert record["metrics"]["loss"] == record["reports"][-1][1]["loss"]
    finished = [record for record in records if record["state"] == "finished"]
    for record in finished[:3]:
        report = Report(0, record["seed"], options={}, folder=Path())
        alone = run_trial(train, record["parameters"], report)
        assert timeless(alone.metrics)["loss"] == record["metrics"]["loss"]
    # Resumed, the rule knows what was reported before.
    lines = ledger_path(tmp_path / "first", "group", "master", (0,))
    kept = lines.read_bytes().splitlines(keepends=True)
    lines.write_bytes(b"".join(kept[:40]))
    again = swept(tmp_path / "first", strategy=rule, trials=60)
    assert [record["trial"] for record in again] == list(range(60))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "halving", "reduction": 2},
        {"rule": "hyperband", "reduction": 3, "brackets": 2},
        {"rule": "median"},
    ],
)
def test_with_a_lag_the_same_trials_are_stopped_by_any_number_of_trainers(
    rule: dict[str, Any], tmp_path: Path, sent: list[int]
) -> None:
    common: dict[str, Any] = {
        "strategy": {"name": "cross_entropy", "elite": 4},
        "early_stopping": rule,
        "trials": 50,
        "deterministic": True,
        "lag": 12,
    }
    found = []
    for copies in (1, 3):
        records = swept(tmp_path / str(copies), copies, **common)
        found.append(
            [
                (record["state"], record["parameters"], timeless(record["reports"]))
                for record in records
            ]
        )
    assert found[0] == found[1]
    assert Counter(state for state, *_ in found[0])["stopped"] > 10
    assert len(set(sent)) < 50  # some were trained together


STRUCTURED = {
    "hidden": [[2], [3], [4]],
    "batch_size": [64, 128],
    "epochs": [2, 3],
    "learning_rate": {"from": 1e-3, "to": 1.0, "scale": "log"},
    "dropout": {"from": 0.1, "to": 0.4},
}


@pytest.mark.sample
@pytest.mark.parametrize("strategy", ["cross_entropy", "halving", "random"])
def test_trials_that_are_alike_differ_in_what_may_differ_in_a_plan(
    strategy: str, tmp_path: Path
) -> None:
    common: dict[str, Any] = {"space": STRUCTURED, "strategy": strategy, "trials": 36, "alike": 8}
    records = swept(tmp_path, **common)
    points = [record["parameters"] for record in records]
    of_cohorts = [points[start : start + 8] for start in range(0, 36, 8)]
    for cohort in of_cohorts:
        for name in ("hidden", "batch_size", "epochs"):
            assert len({str(point[name]) for point in cohort}) == 1
        assert len({point["learning_rate"] for point in cohort}) == len(cohort)
    assert len({str([cohort[0][name] for name in STRUCTURED]) for cohort in of_cohorts}) > 1
    # A resumed sweep goes on within the cohort that was begun.
    ledger = ledger_path(tmp_path, "group", "master", (0,))
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:12]))
    kept = {record["trial"] for record in records_of(ledger) if "trial" in record}
    for record in swept(tmp_path, **common):
        first = points[record["trial"] // 8 * 8]
        if record["trial"] in kept or record["trial"] // 8 * 8 in kept:
            assert record["parameters"]["hidden"] == first["hidden"]
        if strategy != "cross_entropy":
            assert record["parameters"] == points[record["trial"]]


def test_alike_trials_are_the_same_on_any_number_of_trainers(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "space": STRUCTURED,
        "strategy": "cross_entropy",
        "early_stopping": {"rule": "halving", "reduction": 2},
        "trials": 40,
        "alike": 4,
        "deterministic": True,
        "lag": 8,
    }
    found = [
        [
            (record["state"], record["parameters"])
            for record in swept(tmp_path / str(n), n, **common)
        ]
        for n in (1, 3)
    ]
    assert found[0] == found[1]


def test_a_strategy_alone_needs_no_reports_with_a_lag_either(
    tmp_path: Path, sent: list[int]
) -> None:
    records = swept(tmp_path, strategy="cross_entropy", trials=30, deterministic=True)
    assert sent == []
    assert {record["state"] for record in records} == {"finished"}


def test_what_was_reported_is_told_to_a_strategy_that_learns_from_it(sweep: Sweep) -> None:
    (sweep.folder / "learns.py").write_text(
        """
class Learns:
    told = []

    def __init__(self, space, seed):
        Learns.told.append([])

    def ask(self, trial):
        return {"x": trial % 7, "kind": "k"}

    def tell(self, trial, parameters, score):
        raise AssertionError("it has another method")

    def tell_curve(self, trial, parameters, reports, score):
        self.told[-1].append((trial, parameters["x"], tuple(reports), score))

def told():
    return Learns.told
"""
    )
    space = {"x": {"from": 0, "to": 29, "step": 1}, "kind": "k"}
    options = {
        "space": space,
        "trials": 20,
        "strategy": {"name": "./learns.py:Learns"},
        "early_stopping": {"rule": "halving", "reduction": 2},
    }
    sweep.run(options, train="steps", trainers=1)
    sweep.cut_ledger(15)
    sweep.run(options, train="steps", trainers=1)
    from diel import import_function

    first, again = (each for each in import_function("./learns.py:told", sweep.folder)() if each)
    assert first[:14] == again[:14]
    states = {record["trial"]: record["state"] for record in sweep.records if "trial" in record}
    for trial, x, reports, score in again:
        assert [value for _, value in reports] == [x * step for step, _ in reports]
        assert (score is None) == (states[trial] == "stopped")
        assert len(reports) == 9 or score is None
