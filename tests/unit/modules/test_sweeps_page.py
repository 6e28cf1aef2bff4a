"""The snippets of docs/sweeps.md do what the text says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from support import ROOT

from diel.workflow.problems import problems_from_validation
from modules import trainer
from modules.evaluation import jobs_of
from modules.layer_list import references
from modules.options import SweepOptions
from modules.search import Search
from modules.space import Space
from modules.strategies import STRATEGIES
from modules.tabular import augmentations_of
from modules.trainer import Options as TrainerOptions
from modules.trial import Report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = ROOT / "docs" / "sweeps.md"
TEXT = PAGE.read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(TEXT.count("\n", 0, one.start()) + 1, *one.groups()) for one in FENCE.finditer(TEXT)]
TRAINER = {"trainer": SimpleNamespace(function="modules.trainer:run", processes=1, options={})}


def blocks(language: str, about: str = "") -> list[Any]:
    return [
        pytest.param(source, words, id=f"line {line}")
        for line, kind, words, source in BLOCKS
        if kind == language and words.startswith(about) and (about or not words)
    ]


def options_of(source: str) -> dict[str, Any]:
    (table,) = tomllib.loads(source).values()
    return dict(table["options"])


def write_files(folder: Path) -> None:
    """Write the files that the page shows."""
    for _, kind, words, source in BLOCKS:
        if kind == "python" and words.startswith("file="):
            (folder / words.removeprefix("file=")).write_text(source)


def test_no_snippet_is_overlooked() -> None:
    known = {
        ("toml", ""),
        ("toml", "wrong:"),
        ("toml", "trainer"),
        ("toml", "file"),  # with the commands: tests/workflows/test_modules_page.py
        ("sh", ""),
        ("text", ""),
        ("python", ""),
        ("python", "file"),
    }
    found = {(kind, re.split(r"[ =]", words)[0]) for _, kind, words, _ in BLOCKS}
    assert found == known
    assert len(BLOCKS) == TEXT.count("```") / 2 > 15


@pytest.mark.parametrize(("source", "words"), blocks("toml"))
def test_a_sweep_of_the_page_is_valid(source: str, words: str, tmp_path: Path) -> None:
    if "optuna" in source:
        pytest.importorskip("optuna", reason="Optuna is not installed")
    if '"gest"' in source:
        pytest.importorskip("gest_api", reason="gest-api is not installed")
    write_files(tmp_path)
    options = SweepOptions.model_validate(options_of(source), context={"folder": tmp_path})
    search = Search(options, tmp_path)
    asked = [search.ask(trial) for trial in range(3)]
    assert all(isinstance(one, dict) for one in asked)
    for count in re.findall(r"# (\d+) points", source):
        assert Space.parse(options.space).size == int(count)
    for comment in re.findall(r"(\w+) = \{[^}]*\} +# ([\d., ]+)$", source, re.MULTILINE):
        name, values = comment
        dimension = Space.parse(options.space).dimensions[name]
        assert list(dimension.examples()) == [float(one) for one in values.split(",")]


@pytest.mark.parametrize(("source", "words"), blocks("toml", "wrong:"))
def test_what_the_page_calls_wrong_is_refused_so(source: str, words: str) -> None:
    location = {"trainer": SimpleNamespace(file=Path(trainer.__file__), function="run")}
    context = {"folder": Path(), "modules": TRAINER, "locations": location}
    with pytest.raises(ValidationError) as caught:
        SweepOptions.model_validate(options_of(source), context=context)
    (problem,) = problems_from_validation(caught.value, SweepOptions, "")
    assert (
        words.removeprefix("wrong: ")
        in f"{problem.path.strip('.').removeprefix('space.')}: {problem.message}"
    )


@pytest.mark.parametrize(("source", "words"), blocks("toml", "trainer"))
def test_a_trainer_of_the_page_is_valid(source: str, words: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="these rows come with scikit-learn")
    (tmp_path / "table.csv").write_text("size,kind\n1,0\n?,1\n3,0\n4,1\n5,0\n")
    ends = np.arange(10) % 4 + 1
    np.savez(tmp_path / "sentences.npz", x=np.ones((10, 4, 2)), y=np.arange(10) % 2, lengths=ends)
    if "image_folder" in source:
        image = pytest.importorskip("PIL.Image")
        (tmp_path / "photographs").mkdir()
        lines = ["name,tags"]
        for number in range(10):
            pixels = np.full((4, 4, 4), 20 * number, np.uint8)
            image.fromarray(pixels).save(tmp_path / "photographs" / f"{number}.png")
            lines.append(f"{number}.png,{'indoors|animal' if number % 2 else 'animal'}")
        (tmp_path / "photographs" / "labels.csv").write_text("\n".join(lines))
    options = TrainerOptions.model_validate(options_of(source), context={"folder": tmp_path})
    if "image_folder" in source:
        point = {"epochs": 1, "hidden": [2]}
        rows = options.task(tmp_path).load()(point, Report(0, 0, options={}, folder=tmp_path))
        assert rows["exact_match"] >= 0
    elif "patience" in source:
        assert (options.plan.patience, options.plan.seeds, options.plan.score) == (5, 3, 0.25)
    elif "checkpoints" in source:
        assert options.checkpoints is not None
    elif "reading" in source:
        point = {"epochs": 1, **({"recurrent": [2]} if "lengths" in source else {})}
        rows = options.task(tmp_path).load()(point, Report(0, 0, options={}, folder=tmp_path))
        assert rows["accuracy"] >= 0
    elif "evaluation" in source:
        assert options.evaluation is not None
        assert len(jobs_of(options.evaluation.cut([0, 1] * 50))) in (20, 25)
    elif "precision" in source:
        assert (options.device, options.precision) == ("auto", "float16")
    elif "parallel" in source:
        assert options.training.parallel == "data"
    elif "augment" in source:
        assert [*map(repr, augmentations_of(options.augment))][1] == "Cutout(side=2)"
    elif "weights" in source:
        assert (options.weights, options.head, options.freeze) == (
            *("$DIEL_RUN_DIR/body.npz", "new"),
            ["*"],
        )
    elif "layers" in source:
        assert references(options.layers) == ["filters", "units", "depth"]
    else:
        assert options.standardise == "one scale"


def test_the_code_of_the_page_runs() -> None:
    names: dict[str, Any] = {}
    sources = [source for _, kind, words, source in BLOCKS if kind == "python" and not words]
    assert sources
    for source in sources:
        exec(compile(source, str(PAGE), "exec"), names)


def test_a_strategy_of_ones_own_improves(tmp_path: Path) -> None:
    write_files(tmp_path)
    (source,) = (source for _, _, _, source in BLOCKS if "./my_strategies.py" in source)
    options = SweepOptions.model_validate(options_of(source), context={"folder": tmp_path})
    search = Search(options, tmp_path)
    trial = 0
    while isinstance(asked := search.ask(trial), dict):
        search.tell(trial, asked, {"accuracy": 1 - abs(asked["learning_rate"] - 0.01)})
        trial += 1
    assert trial == 100
    assert search.best is not None
    assert search.best[1]["learning_rate"] == pytest.approx(0.01, rel=0.2)


def test_the_page_names_every_strategy() -> None:
    for name in STRATEGIES:
        assert f"`{name.removeprefix('optuna:')}`" in TEXT or f"`{name}`" in TEXT
