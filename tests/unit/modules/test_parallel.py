"""``training.parallel``: how the ranks of a trainer's copy train one network together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from dnn import ConfigurationError, NeuralNetwork, distributed, mlp
from dnn.distributed import Communicator, run_on_threads
from modules import trainer
from modules.parallel import SCHEMES, Parallel
from modules.space import Space
from modules.space_check import stage_problems
from modules.trial import Report


def checked(processes: int, **options: Any) -> trainer.Options:
    module = SimpleNamespace(name="trainer", processes=processes, gpus=0)
    context = {"folder": Path(), "module": module, "modules": {"trainer": module}}
    return trainer.Options.model_validate(options, context=context)


def parallel(given: Any, processes: int = 2) -> trainer.Options:
    return checked(processes, dataset="digits", training={"parallel": given})


@pytest.mark.parametrize(
    ("processes", "options", "place", "words", "remedy"),
    [
        (
            2,
            {},
            "training",
            "nothing says how they train one network",
            'training.parallel = "data"',
        ),
        (1, {"training": {"parallel": "data"}}, "parallel", "has one process", "add processes = 2"),
        (2, {"training": {"parallel": "dat"}}, "parallel", "no scheme 'dat'", 'mean "data"'),
        (
            2,
            {"training": {"parallel": {"pipelines": 2}}},
            "parallel",
            'scheme "mesh": unknown key "pipelines"',
            'mean "pipeline"',
        ),
        (
            4,
            {"training": {"parallel": {"data": 2, "pipeline": 4}}},
            "parallel",
            "data 2 x pipeline 4 x model 1 = 8 ranks, and there are 4",
            "processes of 'trainer' is 4",
        ),
        (
            2,
            {"training": {"parallel": {"scheme": "mesh", "schedule": "1f2b"}}},
            "parallel",
            "unknown schedule '1f2b'",
            "",
        ),
        (
            2,
            {"training": {"parallel": {"pipeline": 2}}, "time_limit": 3.0},
            "time_limit",
            "a trial of several ranks cannot run in a process beside them",
            "remove time_limit",
        ),
        (
            2,
            {"training": {"parallel": "local_sgd"}, "checkpoints": {}},
            "checkpoints",
            'which trainings by scheme "local_sgd" do not',
            'training.parallel = "data"',
        ),
        *(
            (2, {"training": {"parallel": given}}, "parallel", words, remedy)
            for given, words, remedy in [
                (3, "the name of a scheme or a table, got 3", 'parallel = "data"'),
                (True, "the name of a scheme or a table, got true", 'parallel = "data"'),
                ({"scheme": ["data"]}, "there is no scheme ['data']", 'mean "data"'),
                ({"pipeline": 2, "schedule": ["x"]}, "schedule must be text, not ['x']", ""),
                (
                    {"pipeline": 2, "split": 3},
                    "split must be text or a list of integers, not 3",
                    "",
                ),
                (
                    {"pipeline": 2, "split": ["a"]},
                    "split must be text or a list of integers, not",
                    "",
                ),
                (
                    {"scheme": "local_sgd", "outer_momentum": "a"},
                    "outer_momentum must be a number, not 'a'",
                    "",
                ),
                ({"scheme": "data", "rows": "own"}, "here all load all", "leave it out"),
            ]
        ),
        *(
            (
                2,
                {"training": {"parallel": given}, "precision": "float16"},
                "precision",
                "cannot train in float16",
                "bfloat16",
            )
            for given in (
                {"pipeline": 2},
                "local_sgd",
                "asynchronous_sgd",
                {"scheme": "data", "sharded": True},
            )
        ),
        (2, {"training": {"paralel": "data"}}, "paralel", "Extra inputs", ""),
    ],
)
def test_what_does_not_go_with_the_ranks_is_said_before_a_run(
    processes: int, options: dict[str, Any], place: str, words: str, remedy: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        checked(processes, dataset="digits", **options)
    (error,) = caught.value.errors()
    assert error["loc"][-1] == place
    assert words in error["msg"]
    assert remedy in error.get("ctx", {}).get("remedy", "")


def test_a_function_of_ones_own_has_its_communicator() -> None:
    assert checked(2, train="modules.sklearn_trainer:train").training.chosen is None
    with pytest.raises(ValidationError, match="training: of a dataset"):
        checked(2, train="modules.sklearn_trainer:train", training={"parallel": "data"})


@pytest.mark.parametrize("split", [[5], [3, 1], [], [3, 3]], ids=str)
def test_a_cut_that_a_network_does_not_have_is_said_before_a_run(split: list[int]) -> None:
    parallel = Parallel.of({"pipeline": 2, "split": split})
    assert "for 2 stages: 1 numbers of 3 are wanted" in parallel.problem_with(2, mlp(4, [3], 2))
    assert Parallel.of({"pipeline": 2, "split": [3]}).problem_with(2, mlp(4, [3], 2)) == ""


def test_batches_with_a_row_for_each_rank_are_asked_for_before_a_run() -> None:
    space = Space.parse({"batch_size": [8, 3], "hidden": [[4]]})

    def problems(given: Any) -> list[Any]:
        options = {"training": {"parallel": given}}
        return list(stage_problems(space, SimpleNamespace(options=options, processes=4)))

    (found,) = problems("local_sgd")
    assert found["loc"] == ("space", "batch_size")
    assert "a batch of 3 rows cannot be shared by 4 ranks" in str(found["type"])
    assert problems({"scheme": "parameter_server", "dedicated": True}) == []
    assert problems("data") == []


@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_said_of_float16_is_what_a_network_says(name: str) -> None:
    def refuses(communicator: Communicator) -> bool:
        scheme = Parallel.of(name).scheme(communicator)
        try:
            NeuralNetwork(mlp(4, [3], 2), dtype="float16", parallel=scheme)
        except ConfigurationError:
            return True
        return False

    said = Parallel.of(name).problem_with_precision("float16")
    assert run_on_threads(2, refuses) == [bool(said)] * 2


def test_every_scheme_has_a_name() -> None:
    schemes = {name for name in distributed.__all__ if name in SCHEMES.values()}
    assert schemes == set(SCHEMES.values())
    for name in SCHEMES:
        assert Parallel.of(name).problem_with(2) == ""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "given",
    ["data", {"pipeline": 2}, {"scheme": "local_sgd", "steps": 1}, "parameter_server"],
    ids=str,
)
def test_trials_on_two_ranks_are_those_of_one(given: Any) -> None:
    """To rounding: schemes that average each step of a training without momentum."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    point = {"hidden": [12], "epochs": 3, "learning_rate": 0.1, "momentum": 0.0}

    def trials(communicator: Communicator | None) -> list[dict[str, Any]]:
        train = parallel(given).task(Path()).load()
        found = []
        for seed in (1, 2):
            report = Report(0, seed, options={}, folder=Path(), communicator=communicator)
            metrics = train(point, report)
            found.append({name: metrics[name] for name in ("accuracy", "loss", "mcc")})
        return found

    alone = trials(None)  # as for `diel sweep --dry-run`
    assert alone[0] != alone[1]
    assert min(metrics["accuracy"] for metrics in alone) > 0.7
    for rank in run_on_threads(2, trials):
        for metrics, expected in zip(rank, alone, strict=True):
            assert metrics == pytest.approx(expected, rel=1e-3)
