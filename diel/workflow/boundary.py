"""Shared boundaries: arrays of which modules own and read sections.

::

    [[boundary]]
    name = "wall"
    dtype = "float64"
    shape = [64, 2]
    owners = [{ module = "solid", split = 0, section = [[0, 64], [0, 1]] },
              { module = "fluid", split = 0, section = [[0, 64], [1, 2]] }]
    readers = [...]

The entry of a part says which ranks are meant: those of a module, of one copy of it, or one rank
of each copy. Each has the whole section, unless ``split`` divides it among them along an axis.
What needs the rest of the file, or a second part, is checked in `boundary_checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from diel.workflow.scalars import Count, Name
from diel.workflow.sections import Box, divide, whole
from diel.workflow.strict import StrictTable
from diel.workflow.wording import InWords

Dtype = Literal[
    "float64", "float32", "float16", "complex128", "complex64", "bool",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
]  # fmt: skip

LARGEST_POINTS = 2**40

Index = Annotated[int, Field(ge=0)]
Range = Annotated[
    tuple[Index, Index],
    Field(strict=False),
    InWords("a range, such as [0, 64]: the first index, and the first one behind it"),
]


class Part(StrictTable):
    """Who has a section of a boundary: an owner or a reader."""

    module: str = Field(description="The module.", examples=["fluid"])
    copy_index: Index | None = Field(
        default=None,
        alias="copy",
        description="The copy, from 0; by default every copy of the module.",
        examples=[0],
    )
    rank: Index | None = Field(
        default=None,
        description="The rank in the copy, from 0; by default every rank.",
        examples=[0],
    )
    section: tuple[Range, ...] | None = Field(
        default=None,
        strict=False,
        description=(
            "For each axis the first index and the first one behind it; by default the whole array."
        ),
        examples=[[[0, 64], [0, 1]]],
    )
    split: Index | None = Field(
        default=None,
        description=(
            "The axis along which the section is divided equally among the ranks that are meant; "
            "by default each of them has all of it."
        ),
        examples=[0],
    )

    @field_validator("section")
    @classmethod
    def _check_section(cls, section: Box | None) -> Box | None:
        for start, stop in section or ():
            if start >= stop:
                raise PydanticCustomError(
                    "empty_range",
                    "the range [{start}, {stop}] is empty",
                    {
                        "start": start,
                        "stop": stop,
                        "remedy": "write the first index, and the first one behind the range",
                    },
                )
        return section

    def box(self, shape: Sequence[int]) -> Box:
        """Return the section, the whole array if none is given."""
        return whole(shape) if self.section is None else self.section

    def shares(self, shape: Sequence[int], ranks_of: Sequence[int]) -> list[tuple[int, int, Box]]:
        """Say what each rank has.

        Parameters
        ----------
        shape : sequence of int
            Of the boundary.
        ranks_of : sequence of int
            How many ranks each copy of the module has.

        Returns
        -------
        list of (copy, rank, box)
            Of all ranks that are meant; a box may be empty.
        """
        meant = [
            (copy, rank)
            for copy, ranks in enumerate(ranks_of)
            for rank in range(ranks)
            if self.copy_index in (None, copy) and self.rank in (None, rank)
        ]
        box = self.box(shape)
        if self.split is None:
            boxes = [box] * len(meant)
        else:
            boxes = divide(box, self.split, len(meant)) if meant else []
        return [(copy, rank, share) for (copy, rank), share in zip(meant, boxes, strict=True)]


class Boundary(StrictTable):
    """An array that modules share: each owns sections of it, or reads those of others."""

    name: Name = Field(description="What modules call it: ctx.boundary(name).", examples=["wall"])
    dtype: Dtype = Field(default="float64", description="What its items are.")
    shape: tuple[Count, ...] = Field(
        strict=False,
        min_length=1,
        max_length=32,
        description="How many items it has along each axis.",
        examples=[[64, 2]],
    )
    owners: tuple[Part, ...] = Field(
        strict=False,
        description="Who writes which section; no two may overlap.",
        examples=[[{"module": "fluid", "split": 0}]],
    )
    readers: tuple[Part, ...] = Field(
        strict=False,
        description="Who reads which section; all of it has an owner.",
        examples=[[{"module": "solid", "split": 0}]],
    )

    @field_validator("shape")
    @classmethod
    def _check_size(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        points = 1
        for length in shape:
            points *= length
        if points > LARGEST_POINTS:
            raise ValueError(f"{points:,} items are more than any machine holds")
        return shape

    @field_validator("owners", "readers")
    @classmethod
    def _check_not_empty(cls, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        # Not as min_length: pydantic counts the valid ones alone.
        if not parts:
            raise PydanticCustomError(
                "nobody",
                "the list is empty",
                {"remedy": 'name who it is, for example [{ module = "solid", split = 0 }]'},
            )
        return parts

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules that have a part in it."""
        return tuple(dict.fromkeys(part.module for part in (*self.owners, *self.readers)))
