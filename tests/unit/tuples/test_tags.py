from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diel import ANY
from diel.errors import TagError
from diel.tuples.tags import (
    decode_tag,
    encode_pattern,
    encode_tag,
    fields_match,
    format_tag,
    is_wildcard,
    near_tags,
    split_fields,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
FIELD = TEXT | st.integers(-(2**70), 2**70) | st.integers(-300, 300)
TAG = st.lists(FIELD, min_size=1, max_size=4).map(tuple)
PATTERN = st.lists(FIELD | st.just(ANY), min_size=1, max_size=4).map(tuple)


def fields_of(tag: Any) -> tuple[Any, ...]:
    return tag if isinstance(tag, tuple) else (tag,)


def matches(pattern: tuple[Any, ...], tag: tuple[Any, ...]) -> bool:
    """Say what matching means, without bytes."""
    return len(pattern) == len(tag) and all(
        wanted is ANY or (type(wanted) is type(field) and wanted == field)
        for wanted, field in zip(pattern, tag, strict=True)
    )


@given(TAG)
@example(("\0",))
@example((0, -1, 127, 128, -128, -129, 255, 256))
def test_a_tag_survives_its_bytes(tag: tuple[Any, ...]) -> None:
    assert fields_of(decode_tag(encode_tag(tag))) == tag


@given(PATTERN)
def test_a_pattern_survives_its_bytes(pattern: tuple[Any, ...]) -> None:
    key, wild = encode_pattern(pattern)
    assert fields_of(decode_tag(key)) == pattern
    assert wild == any(field is ANY for field in pattern)
    assert wild == any(map(is_wildcard, split_fields(key)))


def test_a_string_and_a_tuple_of_it_are_one_tag() -> None:
    assert encode_tag("a") == encode_tag(("a",))
    assert decode_tag(encode_tag("a")) == "a"
    assert decode_tag(encode_tag((3,))) == (3,)
    assert encode_pattern(ANY) == encode_pattern((ANY,))


@given(TAG, TAG)
@example(("ab", "c"), ("a", "bc"))
@example(("1",), (1,))
@example(("a",), ("a", 0))
@example((0,), (0, 0))
@example((256,), (0, 1))
def test_different_tags_have_different_bytes_and_none_is_a_prefix_of_another(
    one: tuple[Any, ...], other: tuple[Any, ...]
) -> None:
    first, second = encode_tag(one), encode_tag(other)
    assert (first == second) == (one == other)
    # Of two tags, one may begin as the other does only if its fields do.
    if second.startswith(first):
        assert other[: len(one)] == one


@given(PATTERN, TAG)
def test_bytes_match_as_fields_do(pattern: tuple[Any, ...], tag: tuple[Any, ...]) -> None:
    key, _ = encode_pattern(pattern)
    found = fields_match(split_fields(key), split_fields(encode_tag(tag)))
    assert found == matches(pattern, tag)


@given(TAG, st.data())
def test_a_tag_with_some_fields_left_open_matches_it(
    tag: tuple[Any, ...], data: st.DataObject
) -> None:
    pattern = tuple(ANY if data.draw(st.booleans()) else field for field in tag)
    key, _ = encode_pattern(pattern)
    fields = split_fields(encode_tag(tag))
    assert fields_match(split_fields(key), fields)
    longer = split_fields(encode_pattern((*pattern, ANY))[0])
    assert not fields_match(longer, fields)


@pytest.mark.parametrize("number", [np.int8(-3), np.uint64(2**63), np.int64(7), np.array(5)])
def test_integers_of_numpy_are_integers(number: Any) -> None:
    assert encode_tag(("a", number)) == encode_tag(("a", int(number)))


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("", "empty string"),
        (("a", ""), "empty string"),
        ((), "at least one field"),
        (1.5, "1.5 is a float"),
        (("a", 1.0), "1.0 is a float"),
        (None, "None is a NoneType"),
        (("a", None), "None is a NoneType"),
        (True, "True is a bool"),
        (("a", False), "False is a bool"),
        (np.True_, "np.True_ is a bool"),
        (["a", 1], "is a list"),
        (("a", ("b",)), "is a tuple"),
        (b"a", "is a bytes"),
        (("a", np.float64(2)), "is a float64"),
        (("a", np.array(1.5)), "is a ndarray"),
        (("a", np.arange(3)), "is a ndarray"),
        (("a", int), "is a type"),
        ("\ud800", "not a valid Unicode string"),
    ],
)
def test_a_malformed_tag_is_refused(tag: Any, words: str) -> None:
    for encode in (encode_tag, encode_pattern):
        with pytest.raises(TagError) as caught:
            encode(tag)
        assert words in str(caught.value)


@pytest.mark.parametrize("tag", [ANY, (ANY,), ("a", ANY)])
def test_a_tag_to_put_has_no_wildcard(tag: Any) -> None:
    with pytest.raises(TagError, match="ANY may stand in tget and tread"):
        encode_tag(tag)


def test_any_is_one_object_in_every_process() -> None:
    assert pickle.loads(pickle.dumps(ANY)) is ANY
    assert format_tag(("a", ANY, 3)) == "('a', ANY, 3)"


def test_tags_that_somebody_may_have_meant_come_best_first() -> None:
    held = [("a", "1"), ("a", 2), ("result", 7), "results", ("b", 1), "a", ("a", 1, 2)]
    assert near_tags(("a", 1), held) == [("a", "1"), ("a", 1, 2), ("a", 2)]
    assert near_tags("result", held) == [("result", 7), "results"]
    assert near_tags(("a", ANY), [("x", 1), ("a", 1, 2)]) == [("a", 1, 2)]
    assert near_tags((ANY, 1), [("x", "1")]) == [("x", "1")]
    assert near_tags("nothing", [("z", 5), "else"]) == []
