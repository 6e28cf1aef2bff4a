"""Values of Python as ``diel_array``, and back."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from diel.compiled.layout import BYTES, DTYPES, JSON, TEXT, ArrayStruct
from diel.compiled.values import CODES, OwnedMemory, as_memory, copied, fill, value_at
from diel.errors import PayloadError


def struct_of(array: Any, **changes: Any) -> ArrayStruct:
    """Return a struct for the memory of an array, as a module in C makes it."""
    struct = ArrayStruct(
        data=array.ctypes.data,
        bytes=array.nbytes,
        dtype=CODES[array.dtype],
        ndim=array.ndim,
    )
    struct.shape[: array.ndim] = array.shape
    for name, value in changes.items():
        setattr(struct, name, value)
    return struct


@given(
    st.sampled_from(sorted(DTYPES.values())).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=1, max_dims=8, max_side=3))
    )
)
def test_arrays_come_back_with_dtype_shape_and_bits(array: Any) -> None:
    memory, struct = OwnedMemory(), ArrayStruct()
    memory.hand_out(struct, *as_memory(array))
    found = value_at(struct)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    target = np.zeros_like(array)
    fill(struct_of(target), *as_memory(array))
    assert target.tobytes() == array.tobytes()
    memory.release(struct)
    assert struct.data is None
    with pytest.raises(PayloadError, match="given back before"):
        memory.release(struct)


@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.none(),
        st.lists(st.integers()),
        st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    )
)
def test_other_values_come_back_as_they_were(value: Any) -> None:
    memory, struct = OwnedMemory(), ArrayStruct()
    memory.hand_out(struct, *as_memory(value))
    assert copied(struct) == value
    assert type(copied(struct)) is type(value)
    if struct.dtype in (TEXT, JSON):
        assert ctypes.string_at(struct.data, struct.bytes + 1)[-1] == 0


def test_what_has_no_form_in_c_is_refused_with_its_type() -> None:
    for value, words in [
        (Fraction(1, 3), "fractions.Fraction"),
        (np.array(["a"]), "dtype <U1"),
        (np.zeros(2, [("x", "f8")]), "an array of dtype"),
        (np.ma.masked_array([1.0], [True]), "MaskedArray"),
        (np.zeros((1,) * 9), "9 axes"),
        ({1, 2}, "builtins.set"),
    ]:
        with pytest.raises(PayloadError, match=words):
            as_memory(value)


def test_a_struct_that_describes_no_memory_is_refused() -> None:
    array = np.zeros((2, 3))
    for changes, words in [
        ({"dtype": 99}, "unknown type 99"),
        ({"ndim": 9}, "9 axes"),
        ({"bytes": 40}, "is not 40 bytes"),
        ({"data": None}, "data is NULL"),
        ({"dtype": BYTES, "data": None}, "data is NULL"),
    ]:
        with pytest.raises(PayloadError, match=words):
            value_at(struct_of(array, **changes))


def test_a_value_that_does_not_fit_changes_nothing() -> None:
    target = np.full(3, 7.0)
    for value in (np.zeros(2), np.zeros((3, 1)), np.zeros(3, np.float32), "text", 1.0):
        with pytest.raises(PayloadError, match="and the memory for it is float64 of shape"):
            fill(struct_of(target), *as_memory(value))
    room = np.zeros(3, np.uint8)
    with pytest.raises(PayloadError, match="bytes of 4 bytes, and the memory for it is bytes of"):
        fill(struct_of(room, dtype=BYTES), *as_memory(b"1234"))
    assert (target == 7).all()
    assert not room.any()


def test_memory_in_another_byte_order_or_not_in_one_piece_is_converted() -> None:
    array = np.arange(6.0).reshape(2, 3)
    for odd in (array.T, array.astype(">f8"), array[::-1]):
        code, memory = as_memory(odd)
        assert DTYPES[code] == "float64"
        assert memory.flags.c_contiguous
        assert (memory == odd).all()
