"""Attributes of users' functions and strategies that nobody reads are named."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from modules import master, trainer
from modules.attributes import OF_TRAINERS, meant_by, unknown_attributes, unread_of_strategy
from modules.sweep.runners import InProcessRunner, Task

from .sweeping import Sweep


@pytest.mark.parametrize("name", ["keep", "save", "keep_model", "savemodel", "save_models", "Save"])
def test_a_model_that_would_not_be_kept_is_refused_before_the_run(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "mine.py").write_text(
        f"def train(parameters, report): return {{}}\ndef mine(*given): ...\ntrain.{name} = mine\n"
    )
    context = {"folder": tmp_path}
    with pytest.raises(ValidationError, match=f"has an attribute '{name}'") as caught:
        trainer.Options.model_validate({"train": "./mine.py:train"}, context=context)
    assert caught.value.errors()[0]["ctx"]["remedy"] == 'did you mean "save_model"?'


def test_what_a_function_keeps_for_itself_is_named_but_not_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def train(parameters, report): return {'score': 1.0}\n"
        "train.calls = 0\n"
        "train.save_model = lambda parameters, report, path: path\n"
        "setattr(train, 'kept', print)\n"
    )
    options = trainer.Options.model_validate(
        {"train": "./mine.py:train"}, context={"folder": tmp_path}
    )
    runner = InProcessRunner(options.task(tmp_path))
    assert runner.saves_models
    assert [text.partition(":")[0] for text in runner.unread] == ["./mine.py", "./mine.py"]
    assert "'calls', which diel does not read: it reads save_model, facts" in runner.unread[0]


def test_what_decorators_and_objects_have_is_their_own() -> None:
    def train(parameters: Any, report: Any) -> Any: ...

    @functools.wraps(train)
    def wrapped(*given: Any) -> Any: ...

    class Trainer:
        def __init__(self) -> None:
            self.rows, self.keep, self.at_once = 1, 2, 3

        def __call__(self, parameters: Any, report: Any) -> Any: ...

    for fine in (
        train,
        wrapped,
        functools.cache(train),
        Trainer(),
        print,
        functools.partial(train),
    ):
        assert unknown_attributes(fine) == []
    misspelt = Trainer()
    misspelt.save_models = True  # type: ignore[attr-defined]
    assert unknown_attributes(misspelt) == ["save_models"]
    assert meant_by("epochs", OF_TRAINERS) is None


def test_of_our_own_trainer_everything_is_read(tmp_path: Path) -> None:
    runner = InProcessRunner(Task(trainer.prepare, {"dataset": "digits"}, Path()))
    assert runner.unread == []


def test_the_log_of_a_rank_names_what_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(tmp_path)
    with (tmp_path / "mine.py").open("a") as file:
        file.write("\nsetattr(train, 'keep', print)\n")
    sweep.run({"space": {"x": [1]}})
    assert "'keep', which diel does not read: did you mean save_model?" in capsys.readouterr().out


def test_a_strategy_with_a_misspelt_method_is_named() -> None:
    class Mine:
        def ask(self, trial: int) -> None: ...

        def tell(self, *given: Any) -> None: ...

        def reports(self, *given: Any) -> bool:
            return False

        def steps(self) -> None: ...

    class Full(Mine):
        def report(self, *given: Any) -> bool:
            return False

    assert list(unread_of_strategy(Mine())) == [("reports", "report")]
    assert list(unread_of_strategy(Full())) == []
    assert list(unread_of_strategy(SimpleNamespace(asks=1))) == []
    assert master.Options.model_fields
