"""What a module returns travels to rank 0 and into the journal, whatever it is."""

from __future__ import annotations

import enum
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diel.executive.outcome import ReturnedFolder, recordable
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


class Broken:
    """Raises at whatever it is asked."""

    def __repr__(self) -> str:
        raise ValueError("not yet")

    __str__ = __len__ = __iter__ = __int__ = __float__ = items = values = __repr__


class BrokenList(Broken, list):  # type: ignore[type-arg]
    pass


class BrokenTable(Broken, dict):  # type: ignore[type-arg]
    pass


class BrokenNumber(Broken, int):
    pass


class BrokenArray(Broken):
    tolist = size = property(Broken.__repr__)


class EndlessArray(Broken):
    def tolist(self) -> EndlessArray:
        return EndlessArray()


class Nameless:
    def __repr__(self) -> str:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: Broken(), "<Broken: its __repr__ raises ValueError>"),
        (lambda: Nameless(), "<Nameless: its __repr__ raises TypeError>"),
        (lambda: BrokenList([1]), "<BrokenList: its __repr__ raises ValueError>"),
        (lambda: BrokenTable(a=1), "<BrokenTable: its __repr__ raises ValueError>"),
        (lambda: BrokenNumber(3), 3),
        (lambda: BrokenArray(), "<BrokenArray: its __repr__ raises ValueError>"),
        (lambda: EndlessArray(), "<EndlessArray: its __repr__ raises ValueError>"),
        (lambda: [1, Broken()], [1, "<Broken: its __repr__ raises ValueError>"]),
        (lambda: {Broken(): 1}, {"<Broken: its __repr__ raises ValueError>": 1}),
    ],
)
def test_a_value_that_raises_when_it_is_looked_at_is_said_to_do_so(
    made: Callable[[], Any], expected: Any, tmp_path: Path
) -> None:
    value = made()
    assert plain(value) == expected
    assert recordable(value, ReturnedFolder(tmp_path, 2**20, 1), "m.0.g.0", 2**16) == expected
