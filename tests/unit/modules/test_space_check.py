"""What is wrong with the points of a space on the data at hand, before anything trains."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modules import master, trainer
from modules.space import Space
from modules.space_check import parameter_problems

ROWS = """
1,4,cat,-2.5,3,0.5
2,3,dog,1.5,0,1.5
3,2,emu,2.5,4,2.5
4,1,cat,3.5,1,0.25"""
TABLE = "a,b,kind,price,count,rate" + 4 * ROWS
KIND = {"label": "kind", "features": ["a", "b"]}


def target(name: str) -> dict[str, Any]:
    return {"reading": {"target": name, "features": ["a", "b"]}}


def look(
    folder: Path, space: dict[str, Any], largest_bytes: int | None = None, **given: Any
) -> tuple[str, list[str]]:
    """Return what the master of a sweep with this space and such a trainer sees."""
    (folder / "pets.csv").write_text(TABLE, encoding="utf-8")
    of_trainer = {"dataset": "csv", "path": "pets.csv", "reading": KIND, **given}
    context = {
        "folder": folder,
        "options_of": {"trainer": of_trainer},
        "locations": {"trainer": SimpleNamespace(file=Path(trainer.__file__), function="run")},
    }
    options = master.Options.model_validate({"space": space}, context=context)
    return master.look_at_data(options, folder, largest_bytes)


@pytest.mark.parametrize(
    ("space", "given", "words"),
    [
        ({"loss": "poisson"}, target("price"), "space.loss: pets: 'price' is -2.5 in row 1"),
        ({"loss": ["huber", "poisson"]}, target("price"), "take another loss"),
        ({"loss": "binary_cross_entropy"}, {}, "is of two classes, and there are 3"),
        ({"class_weight": ["none", {"cow": 2.0}]}, {}, "space.class_weight: class_weight: pets has "
         "no class 'cow' (it has 'cat', 'dog', 'emu')"),
        ({"class_weight": [[1.0, 2.0]]}, {}, "class_weight has 2 numbers, and there are 3 classes"),
        ({}, {"freeze": ["conv2d_*"]}, "freeze: no parameter is called 'conv2d_*'; layers with"),
        ({}, {"freeze": ["*"]}, "freeze: *: nothing is left to train"),
        ({"hidden": [[4], [4, 4]]}, {"freeze": ["fully_connected_3"]}, "'fully_connected_3'"),
        ({"channels": [[4]]}, {}, "convolutions are of images, and these samples are rows of 2"),
        ({"width": [3, 4]}, {"layers": [{"type": "conv2d", "filters": "$width", "window": 2}]},
         "layers with width = "),
    ],
)  # fmt: skip
def test_what_no_trial_could_do_is_a_problem(
    tmp_path: Path, space: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    problem, _ = look(tmp_path, {"epochs": 1, **space}, **given)
    assert words in problem
    assert look(tmp_path, {"epochs": 1, **space}, largest_bytes=10, **given)[0] == ""


@pytest.mark.parametrize(
    ("space", "given"),
    [
        ({"loss": "poisson"}, target("count")),
        ({"class_weight": ["none", "balanced", {"cat": 2.0}, [1.0, 2.0, 3.0]]}, {}),
        ({}, {"freeze": ["*"], "head": "new", "weights": "$DIEL_RUN_DIR/body.npz"}),
        ({"hidden": [[4], [4, 4]]}, {"freeze": ["fully_connected_1"]}),
        ({}, {"freeze": ["embed_*"], "reading": {"target": "count"}, "encode": "embedding"}),
    ],
)  # fmt: skip
def test_what_trials_can_do_is_none(
    tmp_path: Path, space: dict[str, Any], given: dict[str, Any]
) -> None:
    (tmp_path / "body.npz").touch()
    assert look(tmp_path, {"epochs": 1, **space}, **given) == ("", [])


def test_oddities_of_points(tmp_path: Path) -> None:
    given = {**target("rate"), "patience": 5}
    assert look(tmp_path, {"loss": "poisson", "epochs": [2, 5]}, **given) == (
        "",
        [
            "patience is 5, and no training has more than 5 epochs, so none ends early: take a "
            "smaller patience, or more epochs",
            "pets: loss 'poisson' is of counts, and some targets are no whole numbers: right if "
            "these are rates, such as counts by time",
        ],
    )
    assert look(tmp_path, {"epochs": [2, 50]}, patience=5) == ("", [])


def test_modules_of_others_are_left_alone(tmp_path: Path) -> None:
    options = master.Options.model_validate({"space": {"depth": [1, 2]}})
    assert master.look_at_data(options, tmp_path) == ("", [])


@pytest.mark.parametrize(
    ("space", "freeze", "words"),
    [
        ({"hidden": [[4]]}, ["conv2d_1"], "no parameter is called 'conv2d_1'"),
        ({"hidden": [[4]]}, ["embed_columns_1"], ""),
        ({"channels": [[4], [4, 4]]}, ["conv2d_1"], ""),
        ({"channels": [[4], [4, 4]]}, ["conv2d_2"], "no parameter is called 'conv2d_2'"),
        ({"recurrent": [[4]]}, ["lstm_1"], ""),
        ({"recurrent": [[4]]}, ["*"], "nothing is left to train"),
    ],
)
def test_what_is_frozen_is_looked_for_where_the_data_are_not_known(
    space: dict[str, Any], freeze: list[str], words: str
) -> None:
    found = [
        str(each["type"]) for each in parameter_problems(Space.parse(space), {"freeze": freeze})
    ]
    assert len(found) == bool(words)
    assert words in "".join(found)
