"""Forms of models: which fields they have, and texts as values of the file and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.errors import EditRefused
from diel.gui.forms import (
    PARAMETER_KINDS,
    Parameter,
    fields_of,
    parameter_of,
    shown,
    typed,
    value_of,
)
from diel.workflow.model import Group, Module
from modules.master import Options
from modules.space_check import space_problems
from modules.trainer import Options as TrainerOptions


def test_each_key_of_a_model_has_a_field_with_help() -> None:
    fields = {field.label: field for field in fields_of(Module, without=("options",))}
    assert fields.keys() == Module.model_fields.keys() - {"options"}
    assert all(field.help for field in fields.values())
    assert [fields[name].kind for name in ("name", "copies", "executable", "placement")] == [
        *("text", "value", "names", "choice"),
    ]
    assert fields["placement"].choices == ("packed", "spread")
    assert (fields["processes"].unit, fields["processes"].default) == ("ranks", "1")
    assert fields["name"].is_required
    assert typed(fields["executable"], "./a.out --fast 'a b'") == ["./a.out", "--fast", "a b"]
    assert typed(fields["executable"], '["./a.out"]') == ["./a.out"]
    assert typed(fields["executable"], "sum 1, 2") == ["sum", "1,", "2"]
    for words in (["./a.out", "a b"], ["true"], [], ["1", "'"]):
        assert typed(fields["executable"], shown(fields["executable"], words)) == words
    assert shown(fields["executable"], ["./a.out", "-v"]) == "./a.out -v"
    assert {field.kind for field in fields_of(Group)} == {"text", "names", "value"}


def test_names_of_a_table_are_choices_and_texts_may_be_made_when_the_form_is() -> None:
    fields = {field.label: field for field in fields_of(TrainerOptions)}
    assert (fields["dataset"].kind, fields["dataset"].choices[0]) == ("choice", "digits")
    assert fields["precision"].kind == "choice"
    assert "flip" in fields["augment"].choices


def test_what_an_author_says_of_options_makes_their_form() -> None:
    fields = {field.label: field for field in fields_of(Options)}
    assert fields["space"].kind == "space"
    assert fields["space"].is_first
    assert set(fields["space"].starts["activation"]) > {"relu", "gelu"}
    assert not list(space_problems({**fields["space"].starts}, ()))  # each of them is a parameter
    assert fields["space"].notes["delta"] == "from which difference on huber is linear"
    assert not fields["seed"].is_first
    assert shown(fields["objective"], typed(fields["objective"], "accuracy")) == "accuracy"
    assert typed(fields["objective"], "accuracy - loss") == "accuracy - loss"
    assert typed(fields["objective"], '["accuracy", "loss"]') == ["accuracy", "loss"]
    assert [field.label for field in fields_of(TrainerOptions) if field.is_first] == [
        *("dataset", "path", "train"),
    ]
    assert fields["trainer"].kind == "module"
    assert "grid" in fields["strategy"].choices
    assert fields["until"].kind == "table"
    assert fields["until.time"].path == ("until", "time")
    assert fields["deterministic"].kind == "switch"


@pytest.mark.parametrize(
    ("label", "text", "value"),
    [
        ("reading.drop", "year, body mass", ["year", "body mass"]),
        ("reading.drop", "year island", ["year", "island"]),
        ("reading.drop", '"a, b", c', ["a, b", "c"]),
        ("reading.missing", "NA, -99", ["NA", "-99"]),
        ("reading.label", "species", "species"),
        ("reading.label", "a, b", ["a", "b"]),
        ("reading.dates", "born", ["born"]),
        ("reading.dates", "born = %d.%m.%Y", {"born": "%d.%m.%Y"}),
        ("reading.size", "28, 28", [28, 28]),
        (
            "reading.rename",
            "body mass = mass, sex = gender",
            {"body mass": "mass", "sex": "gender"},
        ),
        ("impute", "median", "median"),
        ("impute", "0", 0),
        ("impute", "age = mean, mass = 0", {"age": "mean", "mass": 0}),
        ("impute", "age = mean, mass", "age = mean, mass"),
        ("class_weight", "ill = 3, well = 1.0", {"ill": 3, "well": 1.0}),
        ("augment", "flip, { name = 'crop' }", ["flip, { name = 'crop' }"]),
        ("path", "a = b, c.csv", "a = b, c.csv"),
    ],
)
def test_lists_and_tables_are_typed_without_brackets(label: str, text: str, value: Any) -> None:
    field = next(each for each in fields_of(TrainerOptions) if each.label == label)
    assert typed(field, text) == value
    assert typed(field, shown(field, value)) == value


COPIES = next(field for field in fields_of(Module) if field.label == "copies")
NAME = next(field for field in fields_of(Module) if field.label == "name")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("fill", "fill"), ("2", 2), (" 2.5 ", 2.5), ('"2"', "2"), ("[1, 2]", [1, 2]),
        ("2 GiB", "2 GiB"), ("true", True), ("{ a = 1 }", {"a": 1}), ("2020-01-01", "2020-01-01"),
        ("a\nb", "a\nb"), ("1 # one", 1),
    ],
)  # fmt: skip
def test_what_is_typed_is_read_as_toml_or_else_as_a_string(text: str, value: Any) -> None:
    assert typed(COPIES, text) == value
    if value is not None:
        assert typed(COPIES, shown(COPIES, value)) == value


SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.text()
)


@given(st.one_of(SCALARS, st.lists(SCALARS), st.dictionaries(st.text(min_size=1), SCALARS)))
def test_a_value_stands_in_its_field_as_it_can_be_read_again(value: Any) -> None:
    if not (isinstance(value, str) and not value.strip()):
        assert typed(COPIES, shown(COPIES, value)) == value
    if value != []:  # which no parameter is
        assert value_of(parameter_of(value)) == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([16, [64, 32]], "choices"),
        (["relu", "a, b", "1"], "choices"),
        ({"choices": [1], "if": {"a": 1}}, "choices"),
        ("tanh", "one value"),
        ({"from": 1e-4, "to": 1.0}, "range"),
        ({"from": 1e-4, "to": 1.0, "scale": "log", "if": {"a": [1, 2]}}, "log range"),
        ({"from": 1, "to": 4, "step": 1}, "steps"),
        ({"from": 1, "to": 4, "log_steps": 3}, "log steps"),
        ({"from": 1, "too": 4}, "as written"),
        ({"from": 1, "to": 4, "scale": "linear"}, "as written"),
    ],
)
def test_a_parameter_is_of_a_kind_and_stays_what_it_is(value: Any, kind: str) -> None:
    found = parameter_of(value)
    assert found.kind == kind
    assert found.texts.keys() == set(PARAMETER_KINDS[kind])
    assert value_of(found) == value


def test_words_of_a_list_need_no_quotes_and_what_is_missing_is_said() -> None:
    assert value_of(Parameter("choices", {"values": "tanh, relu, 3"})) == ["tanh", "relu", 3]
    with pytest.raises(EditRefused, match="from and to missing"):
        value_of(Parameter("range", {}))
    with pytest.raises(EditRefused, match="is no list"):
        value_of(Parameter("choices", {"values": "[1, 2"}))
