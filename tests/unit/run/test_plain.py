"""What a module returns travels to rank 0 and into the journal, whatever it is."""

from __future__ import annotations

import enum
import json
import pickle
from typing import Any

import pytest

from diel.run.json_values import plain


class Colour(enum.IntEnum):
    RED = 1


class Word(str):
    __slots__ = ()


class Share(float):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Colour.RED, 1), (Word("x"), "x"), (Share(0.5), 0.5), ([Colour.RED, {Word("k"): 1}], None)],
)
def test_a_subclass_of_a_users_becomes_its_base(value: Any, expected: Any) -> None:
    found = plain(value)
    assert expected is None or (found == expected and type(found) is type(expected))
    assert b"test_plain" not in pickle.dumps(found)


def test_an_integer_that_python_would_not_print() -> None:
    assert json.loads(json.dumps(plain(10**5000))) == hex(10**5000)
    assert plain(2**64) == 2**64
