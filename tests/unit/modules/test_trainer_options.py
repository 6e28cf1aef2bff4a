"""Options of our trainer: functions of one's own, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from modules import trainer
from modules.sweep.limits import Limits


def trainer_options(folder: Path, **options: Any) -> trainer.Options:
    return trainer.Options.model_validate(options, context={"folder": folder})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either dataset or train"),
        ({"dataset": "digits", "train": "./mine.py:train"}, "either dataset or train"),
        ({"train": "./mine.py:trian"}, 'did you mean "train"?'),
        ({"train": "./gone.py:train"}, "there is no file"),
        ({"train": "no_such_package.x:train"}, "there is no module no_such_package.x"),
        ({"train": "./mine.py:train", "path": "x"}, "path: of a dataset"),
        ({"dataset": "digits", "options": {"a": 1}}, "they go with train"),
        ({"dataset": "digits", "time_limit": 0.0}, "greater than 0"),
        ({"dataset": "digits", "memory_limit": "much"}, 'write "512 MiB"'),
    ],
)
def test_bad_options_of_a_trainer_with_a_function(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    (tmp_path / "mine.py").write_text("def train(parameters, report): return {}")
    with pytest.raises(ValidationError) as caught:
        trainer_options(tmp_path, **options)
    (error,) = caught.value.errors()
    assert words in str(error["msg"])


def test_limits_make_a_process_of_its_own(tmp_path: Path) -> None:
    assert not trainer_options(tmp_path, dataset="digits").limits.needs_process
    options = trainer_options(tmp_path, dataset="digits", memory_limit="1 GiB", time_limit=2)
    assert options.limits == Limits(time_s=2.0, memory_bytes=2**30)
    assert options.limits.needs_process
    assert trainer_options(tmp_path, dataset="digits", isolated=True).limits.needs_process
