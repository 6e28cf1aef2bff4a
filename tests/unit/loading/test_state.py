"""What modules save of themselves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from diel.errors import PayloadError, RunDirectoryError
from diel.loading.state import read_state, write_state
from diel.testing import TupleSpace


def test_a_state_comes_back_as_it_was() -> None:
    state = {
        "step": 7,
        "rate": 0.1,
        "far": [math.inf, -math.inf],
        "name": "ä\ud800",
        "none": None,
        "done": False,
        "sums": np.arange(6.0).reshape(2, 3),
        "empty": np.zeros((0, 2), "f2"),
        "time": np.array(["2026-01-01"], "M8[ns]"),
        "single": np.array(3.5),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "fields": np.ones(2, [("x", "f8"), ("y", "i4")]),
        "half": [{"raw": b"\0\1", "count": np.int64(3)}],
    }
    with TupleSpace() as space:
        first = space.context()
        assert first.restored is None
        first.checkpoint({"step": 6})
        first.checkpoint(state)
        found = space.context().restored
        assert space.context(copy_index=1, copies=2).restored is None
    for name in [name for name, value in state.items() if isinstance(value, np.ndarray)]:
        array, expected = found.pop(name), state.pop(name)
        assert isinstance(expected, np.ndarray)
        assert array.shape == expected.shape
        assert array.dtype == expected.dtype  # type: ignore[attr-defined]
        np.testing.assert_array_equal(array, expected)
    assert found == state


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": [1, {2, 3}]}, "state['a'][1] is of type builtins.set"),
        ({1: 2}, "state: the key 1 is no text"),
        (np.array([object()]), "state is of type numpy.ndarray"),
        ([np.ma.array([1, 2], mask=[0, 1])], "state[0] is of type numpy.ma.MaskedArray and dtype"),
        (np.zeros(2).view(np.matrix), "state is of type numpy.matrix"),
        (
            np.zeros(2, np.dtype("i4", metadata={"a": 1})),
            "state is of type numpy.ndarray and",
        ),
        (np.datetime64(1, "ns"), "state is of type numpy.datetime64"),
        (np.longdouble(1), "state is of type numpy.longdouble"),
    ],
)
def test_what_would_have_to_be_pickled_is_refused(
    tmp_path: Path, state: object, where: str
) -> None:
    with (tmp_path / "state").open("wb") as file, pytest.raises(PayloadError) as refused:
        write_state(file, state)
    assert where in str(refused.value)


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_damaged_file_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "state"
    with path.open("wb") as file:
        write_state(file, [np.ones(100)])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(RunDirectoryError, match=str(path)):
        read_state(path)
