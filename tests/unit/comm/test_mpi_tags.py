"""Messages of one kind are never taken for those of another."""

from __future__ import annotations

from diel.comm import tags


def test_no_tag_is_used_twice_nor_for_making_communicators() -> None:
    ours = [value for name, value in vars(tags).items() if name.isupper() and name[0] != "_"]
    assert len(ours) == len(set(ours)) > 5
    made = {tags.for_group(serial) for serial in range(50_000)}
    assert made.isdisjoint(ours)
    assert max(made) < 2**15
