"""Averages of the networks of several trials: which are chosen, and what the score is of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnn
from modules import trainer
from modules.averaging import Candidate, Choice, greedy, kept_choice, losses, score_lines
from modules.evaluation import EvaluationOptions, jobs_of
from modules.reporter import SweepReporter
from modules.sweep.ledger import trials_of
from modules.sweep.watched import WatchedSweep

from .test_kept_models import heart, swept

pytest.importorskip("safetensors", reason="safetensors is not installed")

TRUTH = np.arange(24) % 3


def test_members_are_added_where_they_lessen_the_loss_of_the_average() -> None:
    truth = np.array([0, 1])
    sure, other, bad = ([[0.9, 0.1], [0.6, 0.4]], [[0.4, 0.6], [0.1, 0.9]], [[0.1, 0.9]] * 2)
    predicted = np.array([bad, sure, other], np.float64)

    def loss(of: Any) -> Any:
        return losses("classification", truth, of)

    assert greedy(loss, predicted, 1) == [1]  # of two that are equal the first
    assert greedy(loss, predicted, 4) == [1, 2, 1, 2]
    predicted[0] = np.nan  # of a network that has diverged
    assert greedy(loss, predicted, 2) == [1, 2]


@pytest.mark.parametrize(
    ("task", "truth", "predicted", "expected"),
    [
        ("classification", [1, 0], [[0.5, 0.5], [0.25, 0.75]], [np.log(2), np.log(4)]),
        ("multilabel", [[1, 0]], [[0.5, 0.75]], [(np.log(2) + np.log(4)) / 2]),
        ("regression", [[1.0, 2.0]], [[3.0, 2.0]], [2.0]),
        ("classification", [1], [[1.0, 0.0]], [-np.log(1e-7)]),
    ],
)
def test_losses(task: str, truth: Any, predicted: Any, expected: Any) -> None:
    assert losses(task, np.array(truth), np.array(predicted)) == pytest.approx(expected)


def choice_of(method: str, truth: Any, seen: list[tuple[int, int]], **options: Any) -> Choice:
    """Return a choice among trials that guess, each by a seed of its own."""
    given = EvaluationOptions.model_validate({"method": method, **options})
    jobs = jobs_of(given.cut(TRUTH))
    splits = len({job.outer for job in jobs})

    def predict(candidate: Candidate, number: int) -> Any:
        seen.append((candidate.trial, number))
        draws = np.random.default_rng((candidate.trial, number))
        return draws.dirichlet(np.ones(3), len(jobs[number].test))

    draws = np.random.default_rng(5)
    candidates = [
        Candidate(trial, {}, trial, None, tuple(draws.random(splits))) for trial in range(12)
    ]
    return Choice(candidates, jobs, "classification", np.asarray(truth), predict, 2)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("nested", {"folds": 3, "inner_folds": 2}),
        ("k_fold", {"folds": 4}),
        ("k_fold", {"folds": 3, "repeats": 2}),
    ],
)
def test_rows_that_score_have_no_part_in_the_choice(method: str, options: dict[str, Any]) -> None:
    seen: list[tuple[int, int]] = []
    choice = choice_of(method, TRUTH, seen, **options)
    jobs, chosen = choice._jobs, []
    original = choice._chosen

    def recorded(pool: Any, numbers: Any) -> Any:
        chosen.append((tuple(each.trial for each in pool), tuple(numbers)))
        return original(pool, numbers)

    choice._chosen = recorded  # type: ignore[method-assign]
    score = choice.score()
    scored = [job for job in jobs if job.is_test] or jobs
    assert score["is_honest"]
    assert score["rows"] == sum(len(job.test) for job in scored)
    for job, (_, numbers) in zip(scored, chosen, strict=True):
        rows = np.concatenate([jobs[number].test for number in numbers])
        assert not np.intersect1d(rows, job.test).size
        if method == "nested":
            assert {jobs[number].outer for number in numbers} == {job.outer}
    # Nor have they one in who the candidates are: a score on the split that is left out changes
    # nothing.
    given = choice._candidates
    for job, (pool, numbers) in zip(scored, chosen, strict=True):
        if method == "k_fold":
            choice._candidates = [
                replace(
                    each, scores=(*each.scores[: job.outer], 9.0, *each.scores[job.outer + 1 :])
                )
                for each in reversed(given)
            ]
        again = choice._pool([jobs[number].outer for number in numbers])
        assert tuple(each.trial for each in again) == pool


def test_with_a_single_split_the_score_says_that_its_rows_chose() -> None:
    score = choice_of("holdout", TRUTH, [], fraction=0.5).score()
    assert not score["is_honest"]
    assert score["rows"] == 12
    given = {"count": 3, "members": [(7, 2), (4, 1)], "score": score}
    (members, line, warning) = score_lines(given)
    assert members == "the average of trials 7 (2 of 3), 4"
    assert "the best trial alone" in line
    assert "on 12 rows: each fifth" in line
    assert warning.startswith("warning: these rows had a part")
    honest = score_lines({**given, "members": [(7, 3)], "score": {**score, "is_honest": True}})
    assert honest[0] == "the average of trial 7 (3 of 3)"
    assert "on 12 rows without a part in it: each fifth" in honest[1]
    assert len(honest) == 2


def test_points_that_results_have_chosen_are_not_scored_honestly_by_folds() -> None:
    choice = choice_of("k_fold", TRUTH, [], folds=3)
    choice._is_blind = False
    assert not choice.score()["is_honest"]
    nested = choice_of("nested", TRUTH, [], folds=3, inner_folds=2)
    nested._is_blind = False
    assert nested.score()["is_honest"]


def test_a_network_is_trained_once_for_each_split() -> None:
    seen: list[tuple[int, int]] = []
    choice = choice_of("k_fold", TRUTH, seen, folds=3)
    members = choice.members()
    choice.score()
    assert len(seen) == len(set(seen))
    assert sum(count for _, count in members) == 2


SPACE = {
    "learning_rate": [0.01, 0.03, 0.1],
    "hidden": [[3], [5]],
    "activation": ["tanh", "relu"],
    "epochs": 3,
}


@pytest.mark.parametrize("evaluation", [None, {"method": "k_fold", "folds": 3}])
def test_the_best_trials_of_a_sweep_are_averaged(tmp_path: Path, evaluation: Any) -> None:
    given = {**heart(tmp_path), **({"evaluation": evaluation} if evaluation else {})}
    folder = swept(tmp_path, given, space=SPACE)
    options = trainer.Options.model_validate(given, context={"folder": tmp_path})
    reporter = SweepReporter()
    asked = reporter.find_candidates(tmp_path, "", 2)
    assert asked["trials"] == 12
    assert 8 <= len(asked["candidates"]) <= 12
    assert reporter.find_candidates(tmp_path, "", 12)["count"] == 12
    with pytest.raises(ValueError, match=r"average of 13: .* has 12 trials with a result; ask for"):
        reporter.find_candidates(tmp_path, "", 13)
    found = trainer.choose_average(options, tmp_path, asked)
    assert sum(count for _, count in found["members"]) == 2
    assert found["score"]["is_honest"] is (evaluation is not None)
    # The choice is kept, and is made again when there are more trials.
    file = folder / "average-2.json"
    assert json.loads(file.read_text())["score"] == found["score"]
    assert kept_choice(file, 12) == json.loads(file.read_text())
    assert kept_choice(file, 13) is None
    # A network that is trained again scores what the trial did.
    best = max(asked["candidates"], key=lambda each: (sum(each["scores"]), -each["trial"]))
    records = {each["trial"]: each for each in trials_of(folder / "trials.jsonl")}
    train = options.task(tmp_path).load()
    report = options.task(tmp_path).report(trainer.Trial(best["trial"], {}, best["seed"]))
    rounds = train.rounds
    right = [
        float((train.predictions(best["parameters"], report, number).argmax(axis=1)
               == rounds.data.y[job.test]).mean())
        for number, job in enumerate(rounds.jobs)
    ]  # fmt: skip
    assert sum(right) / len(right) == pytest.approx(records[best["trial"]]["metrics"]["accuracy"])

    models = []
    for trial, _ in found["members"]:
        one = next(each for each in asked["candidates"] if each["trial"] == trial)
        place = tmp_path / f"trial-{trial}"
        models.append(dnn.load(trainer.save_model(
            options, tmp_path, one["parameters"], trial, one["seed"], place, {})))  # fmt: skip
    average = reporter.average_models(models, found)
    rows = dnn.load_cleveland(tmp_path / "heart.data").x[:9]
    weights = [count / 2 for _, count in found["members"]]
    mean = sum(w * m.predict_proba(rows) for w, m in zip(weights, models, strict=True))
    assert average.predict_proba(rows) == pytest.approx(mean)
    assert average.provenance["score"] == found["score"]


def test_trials_that_went_on_from_others_are_trained_with_these(tmp_path: Path) -> None:
    given = heart(tmp_path)
    space = {"learning_rate": {"from": 0.003, "to": 0.1}, "hidden": [[4]], "epochs": 2}
    population = {"name": "population", "members": 3, "share": 0.4}
    folder = swept(tmp_path, given, space=space, strategy=population, trials=9)
    records = {each["trial"]: each for each in trials_of(folder / "trials.jsonl")}
    assert max(len(_line_of(records, trial)) for trial in records) == 3
    options = trainer.Options.model_validate(given, context={"folder": tmp_path})
    asked = SweepReporter().find_candidates(tmp_path, "", 1)
    for each in asked["candidates"]:
        assert [one["trial"] for one in each["ancestors"]] == _line_of(records, each["trial"])[:-1]
    best = max(records, key=lambda trial: (records[trial]["metrics"]["accuracy"], -trial))
    score = trainer.choose_average(options, tmp_path, asked)["score"]
    assert score["best"]["accuracy"] == pytest.approx(records[best]["metrics"]["accuracy"])
    # One whose beginning is lost is no candidate.
    watched = WatchedSweep(tmp_path, folder / "trials.jsonl")
    assert watched.ancestors(records[8]) is None  # it has read no trial yet


def _line_of(records: dict[int, dict[str, Any]], trial: int) -> list[int]:
    parent = (records[trial].get("parent") or {}).get("trial")
    return [*([] if parent is None else _line_of(records, parent)), trial]


def test_trials_that_a_function_ranks_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sweeps" / "search.master"
    folder.mkdir(parents=True)
    head = {"format": 1, "sweep": {"space": {"x": 1}, "objective": ["./f.py:good"]}}
    (folder / "trials.jsonl").write_text(json.dumps(head) + "\n")
    with pytest.raises(ValueError, match=r"\./f\.py:good ranks the trials"):
        SweepReporter().find_candidates(tmp_path, "", 2)
