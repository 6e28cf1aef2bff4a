"""The table [tuple_space]: how many ranks serve tuples, and what they may hold."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import Field, field_validator

from diel.workflow.scalars import Count
from diel.workflow.strict import StrictTable

_UNITS: Final = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SMALLEST_BYTES: Final = 2**16


class TupleSpace(StrictTable):
    """The table [tuple_space]: how many ranks serve tuples, and what they may hold."""

    servers: Count = Field(
        default=1,
        description="Ranks that serve tuples.",
        examples=[2],
        json_schema_extra={"unit": "ranks"},
    )
    memory: str | int = Field(
        default="2 GiB",
        description=(
            "What each server may hold, in bytes or with a unit (KiB, MiB, GiB, TiB); credit of "
            "clients may add an eighth."
        ),
        examples=["2 GiB"],
    )
    when_full: Literal["wait", "raise"] = Field(
        default="wait",
        description=(
            'What a put does when its server has no room: "wait" until there is, or "raise" '
            "TupleSpaceFull."
        ),
    )
    spill: bool = Field(
        default=False,
        description=(
            "Write the oldest large payloads to files in the run directory when a server's memory "
            "is short, rather than wait or raise."
        ),
    )

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: str | int) -> str | int:
        if size_bytes(memory) < _SMALLEST_BYTES:
            raise ValueError(f"a server needs 64 KiB at least; got {memory!r}")
        return memory

    @property
    def memory_bytes(self) -> int:
        """What each server may hold, in bytes."""
        return size_bytes(self.memory)


def size_bytes(size: str | int) -> int:
    """Return a size that a file gives in bytes or with a unit: ``"2 GiB"``.

    Raises
    ------
    ValueError
        If it is none.
    """
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if found is None or found[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise ValueError(f"{size!r} is no size; write a number and one of {units}")
    return int(float(found[1]) * _UNITS[found[2]])
