"""Validation errors of any model, as a file's reader wants them."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from diel.errors import Problem
from diel.text import join_path, show, show_with_type
from diel.workflow.annotations import InWords, OneOf
from diel.workflow.problems import problems_from_validation


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Range(Strict):
    low: float
    high: float

    @model_validator(mode="after")
    def _check(self) -> Range:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class Steps(Strict):
    kind: Literal["steps"] = "steps"
    count: Annotated[int, Field(gt=0, le=10)]


class Log(Strict):
    kind: Literal["log"] = "log"
    base: float


class Hinted(ValueError):
    remedy = "do better"


class Options(Strict):
    epochs: int = Field(ge=1, examples=[5])
    rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    layers: list[int] | Literal["auto"] = "auto"
    search: Range | list[float] = []
    step: Annotated[Steps | Log, Field(discriminator="kind")] | None = None
    inner: dict[str, Range] = {}
    points: list[Range] = []
    pair: tuple[int, str] = Field(default=(1, "a"), strict=False)
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1,), strict=False, min_length=2)
    colour: Colour = Field(default=Colour.RED, strict=False)
    flag: bool = False
    code: Annotated[str, Field(pattern="^[a-z]$")] = "a"
    even: Annotated[int, InWords("an even number")] = 2
    solver: Annotated[str, OneOf(lambda: SOLVERS)] | None = None
    batch: int = Field(default=1, alias="batch-size", multiple_of=2)
    counts: dict[int, int] = {}
    anything: Any = None
    odd: timedelta = timedelta(0)

    @field_validator("even")
    @classmethod
    def _check_even(cls, even: int) -> int:
        if even == 5:
            raise Hinted("five")
        if even == 7:
            raise PydanticCustomError(
                "seven", "seven is {what}", {"what": "odd", "remedy": "say 8"}
            )
        assert even % 2 == 0, f"{even} is odd"
        return even


SOLVERS = ["jacobi", "cg"]  # looked up when a value is checked


def problems(values: Any, prefix: str = "o") -> list[Problem]:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate(values)
    return problems_from_validation(caught.value, Options, prefix)


RANGE = "expected a table or a list of numbers"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"epochs": 1, "solver": "jacoby"},
            Problem(
                "o.solver",
                'expected "jacobi" or "cg", got the string "jacoby"',
                'for example solver = "jacobi"',
            ),
        ),
        ({"epohcs": 3}, Problem("o.epohcs", "unknown key epohcs", 'did you mean "epochs"?')),
        ({}, Problem("o.epochs", "is missing", "add epochs = 5")),
        (
            {"epochs": "3"},
            Problem(
                "o.epochs",
                'expected a whole number of at least 1, got the string "3"',
                "for example epochs = 3",
            ),
        ),
        (
            {"epochs": 0},
            Problem(
                "o.epochs", "expected a whole number of at least 1, got 0", "for example epochs = 5"
            ),
        ),
        (
            {"rate": 1.0},
            Problem(
                "o.rate", "expected a number above 0 and below 1, got 1.0", "for example rate = 0.5"
            ),
        ),
        (
            {"layers": "Auto"},
            Problem(
                "o.layers",
                'expected a list of whole numbers or "auto", got the string "Auto"',
                'for example layers = "auto"',
            ),
        ),
        (
            {"layers": 3},
            Problem(
                "o.layers",
                'expected a list of whole numbers or "auto", got 3',
                "for example layers = [3]",
            ),
        ),
        (
            {"layers": [3, "x"]},
            Problem("o.layers[1]", 'expected a whole number, got the string "x"', "for example 2"),
        ),
        (
            {"search": {"low": 1, "hihg": 2}},
            Problem("o.search.hihg", "unknown key hihg", 'did you mean "high"?'),
        ),
        ({"search": {"low": 2, "high": 1}}, Problem("o.search", "low is above high")),
        ({"search": 3.5}, Problem("o.search", f"{RANGE}, got 3.5", "for example search = [3.5]")),
        (
            {"step": {"kind": "lin"}},
            Problem("o.step", 'kind is "lin", expected "steps", "log"'),
        ),
        (
            {"step": {"count": 3}},
            Problem(
                "o.step", "kind is missing", "it says which kind of table this is: add kind = ..."
            ),
        ),
        (
            {"step": {"kind": "steps", "count": 11}},
            Problem(
                "o.step.count",
                "expected a whole number above 0 and of at most 10, got 11",
                "for example count = 2",
            ),
        ),
        (
            {"inner": {"odd key": {"low": 1}}},
            Problem('o.inner."odd key".high', "is missing", "add high = 2"),
        ),
        (
            {"points": [{"low": 1, "high": 2}, 3]},
            Problem("o.points[1]", "expected a table, got 3"),
        ),
        ({"pair": [1, 2]}, Problem("o.pair[1]", "expected a string, got 2", 'for example "2"')),
        (
            {"sizes": [1]},
            Problem(
                "o.sizes",
                "expected a list of at least 2, each item a whole number of at least 1, "
                "got the list [1]",
            ),
        ),
        (
            {"colour": "green"},
            Problem(
                "o.colour",
                'expected "red" or "blue", got the string "green"',
                'for example colour = "red"',
            ),
        ),
        (
            {"flag": "True"},
            Problem(
                "o.flag", 'expected true or false, got the string "True"', "for example flag = true"
            ),
        ),
        (
            {"flag": 1},
            Problem("o.flag", "expected true or false, got 1", "for example flag = true"),
        ),
        (
            {"code": "A"},
            Problem(
                "o.code",
                'expected a string that matches ^[a-z]$, got the string "A"',
                'for example code = "a"',
            ),
        ),
        (
            {"even": "x"},
            Problem(
                "o.even", 'expected an even number, got the string "x"', "for example even = 2"
            ),
        ),
        ({"even": 3}, Problem("o.even", "3 is odd")),
        ({"even": 5}, Problem("o.even", "five", "do better")),
        ({"even": 7}, Problem("o.even", "seven is odd", "say 8")),
        (
            {"batch-size": 3},
            Problem(
                "o.batch-size",
                "expected a whole number that is a multiple of 2, got 3",
                "for example batch-size = 2",
            ),
        ),
        (
            {"batch_size": 3},
            Problem("o.batch_size", "unknown key batch_size", 'did you mean "batch-size"?'),
        ),
        (
            {"odd": "x"},
            Problem("o.odd", 'input should be a valid timedelta, got the string "x"'),
        ),
    ],
)
def test_one_wrong_value_is_one_problem(values: dict[str, Any], expected: Problem) -> None:
    if values and "epochs" not in values and "epohcs" not in values:
        values = {"epochs": 1, **values}
    (problem,) = problems(values)
    assert (problem.path, problem.remedy) == (expected.path, expected.remedy)
    assert problem.message.startswith(expected.message)


def test_the_whole_table_may_be_wrong() -> None:
    assert problems(3) == [Problem("o", "expected a table, got 3")]
    assert problems({}, prefix="") == [Problem("epochs", "is missing", "add epochs = 5")]


def test_a_key_that_is_near_none_lists_what_is_known() -> None:
    (problem,) = problems({"epochs": 1, "zzz": 1})
    assert problem.remedy.startswith("known keys: epochs, rate, layers, search, ")
    assert "batch-size" in problem.remedy


def test_a_key_of_a_wrong_type() -> None:
    assert problems({"epochs": 1, "counts": {"x": 1}}) == [
        Problem("o.counts.x", 'expected a whole number as a key, got the string "x"')
    ]
    assert problems({"epochs": 1, "inner": {"[key]": 1}}) == [
        Problem('o.inner."[key]"', "expected a table, got 1")
    ]


def test_several_problems_come_at_once() -> None:
    found = problems({"rate": "x", "flag": 3, "zzz": 1, "layers": "x", "inner": {"a": {}}})
    assert [problem.path for problem in found] == [
        "o.epochs",
        "o.rate",
        "o.layers",
        "o.inner.a.low",
        "o.inner.a.high",
        "o.flag",
        "o.zzz",
    ]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*Options.model_fields, "batch-size"]), JUNK))
def test_any_value_gives_distinct_problems_inside_its_table(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate({**values, "zzz": 1})
    found = problems_from_validation(caught.value, Options, "module[0].options")
    assert len(set(found)) == len(found)
    assert all(problem.path.startswith("module[0].options.") for problem in found)
    assert all("Input should" not in problem.message for problem in found)


def test_values_are_shown_as_toml() -> None:
    assert show({"a": [1, True, 'x"'], "b c": None}) == r'{ a = [1, true, "x\""], "b c" = nothing }'
    assert show("x" * 100) == '"' + "x" * 56 + "..."
    assert show(10**4000) == "a very long number"
    assert show_with_type({}) == "the table {}"
    assert join_path("", ["a", 1, "b.c", 0]) == 'a[1]."b.c"[0]'


def test_what_a_validator_has_tried_on_another_model_is_told_in_its_words() -> None:
    class Sweep(Strict):
        space: dict[str, Any]

        @field_validator("space")
        @classmethod
        def _check(cls, space: dict[str, Any]) -> dict[str, Any]:
            try:
                Options.model_validate(space)
            except ValidationError as error:
                context = {"text": "no", "caught": error, "model": Options}
                kind = PydanticCustomError("tried", "{text}", context)
                line = InitErrorDetails(type=kind, loc=("epochs",), input=space)
                raise ValidationError.from_exception_data("space", [line]) from None
            return space

    with pytest.raises(ValidationError) as caught:
        Sweep(space={"epochs": "5"})
    assert problems_from_validation(caught.value, Sweep, "module[0].options") == [
        Problem(
            "module[0].options.space.epochs",
            'expected a whole number of at least 1, got the string "5"',
            "for example epochs = 5",
        )
    ]
