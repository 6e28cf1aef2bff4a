from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from diel.errors import PayloadError
from diel.tuples import codec

PADDED = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8], "itemsize": 24})
SWAPPED = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]})
OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]})
NESTED = np.dtype([("x", "f4", (2, 3)), ("name", "U5"), ("at", [("s", "M8[s]"), ("b", "?")])])


def over_the_wire(value: object) -> Any:
    """Encode, copy the memory as a message does, and decode."""
    kind, meta, buffer = codec.encode(value)
    return codec.decode(kind, bytes(meta), bytearray(buffer))


def assert_same(one: Any, other: Any) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


ARRAYS = hnp.arrays(
    dtype=hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.unicode_string_dtypes(),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


@given(ARRAYS)
def test_an_array_survives_the_wire(array: Any) -> None:
    array = np.asarray(array)
    kind, _, buffer = codec.encode(array)
    assert (kind, len(buffer)) == (codec.ARRAY, array.nbytes)
    received = over_the_wire(array)
    assert_same(received, array)
    assert received.flags.writeable


@pytest.mark.parametrize("dtype", [PADDED, NESTED, ">f4", "<i2", "M8[ns]", "m8[D]", "V5", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_an_array_of_any_dtype_travels_as_its_memory(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    assert codec.encode(array)[0] == codec.ARRAY
    assert_same(over_the_wire(array), array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0).reshape(4, 6).T,
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(20)[::3],
        np.arange(20)[::-1],
        np.arange(10.0)[::3][:1],
        np.broadcast_to(np.float32(3), (2, 2)),
        np.arange(24).reshape(2, 3, 4)[:, 1:, ::2],
    ],
    ids=["transposed", "fortran", "strided", "reversed", "one-strided", "broadcast", "sliced"],
)
def test_an_array_in_any_order_arrives_in_c_order(array: Any) -> None:
    received = over_the_wire(array)
    np.testing.assert_array_equal(received, array)
    assert received.flags.c_contiguous


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.zeros(4)
    buffer = codec.encode(array)[2]
    array[2] = 1.0
    assert bytes(buffer) == array.tobytes()


@pytest.mark.parametrize("dtype", [SWAPPED, OVERLAPPING, "V0"])
def test_an_array_that_its_memory_does_not_describe_is_pickled(dtype: Any) -> None:
    array = np.zeros(2, dtype)
    assert codec.encode(array)[0] == codec.PICKLE
    assert over_the_wire(array).dtype == array.dtype


def test_an_array_of_objects_is_pickled() -> None:
    array = np.array([1, "two", None], dtype=object)
    assert codec.encode(array)[0] == codec.PICKLE
    assert over_the_wire(array).tolist() == [1, "two", None]


class Unit(np.ndarray):
    """Says itself how it is pickled."""

    unit: str

    def __reduce__(self) -> Any:
        return with_unit, (Unit, np.asarray(self), self.unit)


class Tagged(np.ndarray):
    """Leaves it to NumPy, which keeps no attributes."""

    __slots__ = ("__dict__", "slot")
    unit: str

    def __array_finalize__(self, other: Any) -> None:
        self.unit = "no unit"


class Locked(Tagged):
    def __setattr__(self, name: str, value: object) -> None:
        if name != "unit" or value != "no unit":
            raise TypeError("its unit is for ever")


def with_unit(kind: type, array: Any, unit: str) -> Any:
    made = np.asarray(array).view(kind)
    object.__setattr__(made, "unit", unit)
    return made


SUBCLASSES = {
    "reduced": with_unit(Unit, [1.0, 2.0], "km"),
    "tagged": with_unit(Tagged, [[1.0, 2.0]], "km"),
    "locked": with_unit(Locked, np.arange(6).reshape(2, 3).T, "km"),
    "of text": with_unit(Tagged, ["a", "bc"], "km"),
    "of objects": with_unit(Tagged, np.array([1, None]), "km"),
    "0-d": with_unit(Tagged, 3.5, "km"),
    "large": with_unit(Tagged, np.arange(10_000.0), "km"),
    "matrix": np.array([[1, 2], [3, 4]]).view(np.matrix),
    "masked": np.ma.array([1, 2, 3], mask=[0, 1, 0], fill_value=7),
    "records": np.rec.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]),
    "characters": np.array(["a ", "b"]).view(np.char.chararray),
}


@pytest.mark.parametrize("value", SUBCLASSES.values(), ids=SUBCLASSES)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_subclass_of_array_arrives_whole(value: Any, depth: int) -> None:
    sent, received = value, None
    for _ in range(depth):
        sent = {"in": [sent, "text"]}
    received = over_the_wire(sent)
    for _ in range(depth):
        received = received["in"][0]
    assert type(received) is type(value)
    assert received.dtype == value.dtype
    assert received.dtype.type is value.dtype.type
    assert received.tolist() == value.tolist()
    assert getattr(received, "unit", None) == getattr(value, "unit", None)
    assert getattr(received, "fill_value", None) == getattr(value, "fill_value", None)


def test_the_attributes_of_an_array_may_lead_back_to_it() -> None:
    array = with_unit(Tagged, [1.0], "km")
    array.slot, array.me, array.part = "slot", array, with_unit(Tagged, [2.0], "s")
    received, again = over_the_wire([array, array])
    assert received is again is received.me
    assert (received.slot, received.part.unit, received.part.tolist()) == ("slot", "s", [2.0])


def test_an_array_in_a_file_arrives_in_memory(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "array", "f8", "w+", shape=(2, 3))
    array[:] = 1.5
    assert codec.encode(array)[0] == codec.ARRAY
    received = over_the_wire(array)
    assert type(received) is np.ndarray
    assert_same(received, array)


def test_a_dtype_with_more_than_its_description_is_kept() -> None:
    marked = np.dtype("i4", metadata={"enum": {"on": 1}})
    nested = np.dtype([("x", [("y", marked)])])
    records = np.dtype((np.record, [("x", "i4")]))
    for dtype in (marked, nested, records):
        received = over_the_wire(np.zeros(2, dtype)).dtype
        assert received == dtype
    assert over_the_wire(np.zeros(2, marked)).dtype.metadata == {"enum": {"on": 1}}
    assert over_the_wire(np.zeros(2, nested)).dtype["x"]["y"].metadata == {"enum": {"on": 1}}
    assert over_the_wire(np.zeros(2, records)).dtype.type is np.record


def test_a_dtype_of_another_library_is_kept() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for dtype in (np.dtype(bfloat16), np.dtype([("x", bfloat16, 2)])):
        assert over_the_wire(np.ones(3, dtype)).dtype == dtype


def test_subclasses_of_bytes_are_kept() -> None:
    assert type(over_the_wire(np.bytes_(b"abc"))) is np.bytes_


@pytest.mark.parametrize("value", [b"", b"abc\0", bytearray(b"xyz")])
def test_bytes_travel_as_they_are(value: bytes) -> None:
    assert codec.encode(value)[0] == codec.BYTES
    received = over_the_wire(value)
    assert type(received) is bytes
    assert received == bytes(value)


@pytest.mark.parametrize(
    "value", [0, -1, 2**63 - 1, -(2**63), 1.5, -0.0, float("inf"), 5e-324], ids=repr
)
def test_a_number_takes_eight_bytes_and_comes_back(value: float) -> None:
    kind, meta, buffer = codec.encode(value)
    assert (kind, meta) == (codec.INTEGER if type(value) is int else codec.FLOAT, b"")
    assert len(buffer) == 8
    received = over_the_wire(value)
    assert (type(received), repr(received)) == (type(value), repr(value))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, True, np.float64(1.5), np.int64(3)])
def test_a_number_that_is_not_plain_or_too_long_is_pickled(value: Any) -> None:
    assert codec.encode(value)[0] == codec.PICKLE
    received = over_the_wire(value)
    assert (type(received), received) == (type(value), value)


@pytest.mark.parametrize("value", [None, "text", {"a": [1, (2,)]}, np.float32(1.5), 2**100])
def test_other_objects_are_pickled(value: Any) -> None:
    assert codec.encode(value)[0] == codec.PICKLE
    received = over_the_wire(value)
    assert type(received) is type(value)
    assert received == value


class RaisesOnTheWay:
    def __init__(self, *, there: bool) -> None:
        self.there = there

    def __reduce__(self) -> Any:
        if self.there:
            return (int, ("not a number",))
        raise ZeroDivisionError("no way")


@pytest.mark.parametrize("value", [lambda: 0, RaisesOnTheWay(there=False), memoryview(b"a")])
def test_what_cannot_be_pickled_is_refused(value: object) -> None:
    with pytest.raises(PayloadError, match=f"a {type(value).__name__} cannot travel"):
        codec.encode(value)


def test_what_cannot_be_rebuilt_is_said() -> None:
    with pytest.raises(
        PayloadError, match=r"a builtins\.int, cannot be rebuilt on this rank: ValueError: "
    ):
        over_the_wire(RaisesOnTheWay(there=True))


@given(
    st.sampled_from(["f4", "f8", ">f8", "i8", "M8[s]", "M8[ms]", NESTED, PADDED]),
    st.sampled_from(["f4", "f8", ">f8", "i8", "M8[s]", "M8[ms]", NESTED, PADDED]),
    hnp.array_shapes(max_dims=2, min_side=0, max_side=2),
    hnp.array_shapes(max_dims=2, min_side=0, max_side=2),
)
def test_arrays_fit_each_other_if_their_meta_are_equal(
    dtype: Any, other: Any, shape: tuple[int, ...], other_shape: tuple[int, ...]
) -> None:
    sent = codec.encode(np.zeros(shape, dtype))
    target = codec.receive_into(np.zeros(other_shape, other))
    fits = np.dtype(dtype) == np.dtype(other) and shape == other_shape
    assert (sent[:2] == (target.kind, target.meta)) == fits


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_the_memory_of_out_is_written_in_place(shape: tuple[int, ...]) -> None:
    out = np.zeros(shape)
    target = codec.receive_into(out)
    target.buffer[:] = np.full(shape, 7.0).tobytes()
    assert (out == 7.0).all()


def read_only() -> Any:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ([0.0], "not a list"),
        (bytearray(3), "not a bytearray"),
        (read_only(), "writable"),
        (np.zeros((2, 3)).T, "C-contiguous"),
        (np.zeros(6)[::2], "C-contiguous"),
        (np.zeros(2, object), "without Python objects"),
        (np.ma.zeros(3), "mask"),
        (np.zeros(2, OVERLAPPING), "fields that overlap"),
    ],
)
def test_out_that_cannot_receive_is_refused(out: Any, words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        codec.receive_into(out)


def test_values_are_described_in_words() -> None:
    kind, meta, _ = codec.encode(np.zeros((2, 3), "f4"))
    assert codec.describe(kind, meta) == "an array of dtype float32 and shape (2, 3)"
    assert codec.describe(codec.BYTES, b"") == "bytes"
    assert codec.describe(codec.PICKLE, b"") == "a pickled Python object"
    assert codec.describe(codec.INTEGER, b"") == codec.describe(codec.FLOAT, b"") == "a number"
