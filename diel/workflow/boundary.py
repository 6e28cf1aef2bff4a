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
`check_boundaries` finds what is wrong with the parts of a boundary together, and with the modules
and groups that it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from diel.errors import Problem, limited
from diel.text import did_you_mean, show, some_of
from diel.workflow.annotations import InWords
from diel.workflow.fields import Count, Name, StrictTable

if TYPE_CHECKING:
    from diel.workflow.module import Module

Dtype = Literal[
    "float64", "float32", "float16", "complex128", "complex64", "bool",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
]  # fmt: skip

AheadPolicy = Literal["wait", "drop oldest", "error"]
"""What a sender does that is as far ahead of a receiver as it may be."""

Box: TypeAlias = "tuple[tuple[int, int], ...]"
"""For each axis (start, stop): the first index in the box, and the first index behind it."""

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
        """Return the section of each rank that owns or reads this part.

        Parameters
        ----------
        shape : sequence of int
            Of the boundary.
        ranks_of : sequence of int
            How many ranks each copy of the module has.

        Returns
        -------
        list of (copy, rank, box)
            For all ranks that are meant; a box may be empty.
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
    ahead: Count | None = Field(
        default=None,
        description=(
            "How many pushes an owner may be ahead of a reader's pulls; by default any number, "
            "which are all kept in the owner's memory."
        ),
        examples=[2],
    )
    policy: AheadPolicy = Field(
        default="wait",
        description=(
            "What a push does where a reader is that far behind: it waits for a pull, it drops the "
            "oldest push that this reader has not asked for, or it raises an error."
        ),
        examples=["drop oldest"],
    )

    @field_validator("policy")
    @classmethod
    def _check_has_bound(cls, policy: str, info: ValidationInfo) -> str:
        if info.data.get("ahead", 0) is None:
            raise PydanticCustomError(
                "no_bound",
                "says what happens at a bound, and there is none",
                {"remedy": "add ahead = N, the number of pushes that an owner may be ahead"},
            )
        return policy

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
        # Not as min_length, for which pydantic counts valid items only.
        if not parts:
            raise PydanticCustomError(
                "nobody",
                "the list is empty",
                {"remedy": 'name who it is, for example [{ module = "solid", split = 0 }]'},
            )
        return parts

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of all modules that own or read a section."""
        return tuple(dict.fromkeys(part.module for part in (*self.owners, *self.readers)))


def check_boundaries(
    boundaries: Sequence[tuple[int, Boundary]],
    document: Mapping[str, Any],
    modules: Mapping[str, Module],
    unsure: set[str],
) -> list[Problem]:
    """Find problems between the parts of a boundary, and with the modules that it names.

    Parameters
    ----------
    boundaries : sequence of (int, Boundary)
        Those that are valid by themselves, each with its index in the file.
    document : mapping
        The file as TOML reads it.
    modules : mapping of str to Module
        The modules that are valid, by name.
    unsure : set of str
        Holds ``module`` or ``group`` if that table is misspelt or has a wrong shape.
    """
    names = _names(document.get("module"))
    known = None if names is None or "module" in unsure else names
    return list(limited(_problems_of(boundaries, document, modules, unsure, known)))


def _problems_of(
    boundaries: Sequence[tuple[int, Boundary]],
    document: Mapping[str, Any],
    modules: Mapping[str, Module],
    unsure: set[str],
    known: Sequence[str] | None,
) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, boundary in boundaries:
        path = f"boundary[{index}]"
        if first.setdefault(boundary.name, index) != index:
            text = f'boundary[{first[boundary.name]}] is called "{boundary.name}" too'
            yield Problem(f"{path}.name", text, "give each its own name")
        parts = [
            problem
            for place, part in _parts(boundary, path)
            for problem in (
                *_check_geometry(part, boundary, place),
                *_check_ranks(part, place, known, modules),
            )
        ]
        yield from parts or [
            *_check_owners(boundary, path, modules),
            *_check_readers(boundary, path),
            *_check_group(boundary, path, document, unsure),
        ]


def _names(entries: Any) -> list[str] | None:
    """Return the names of entries, None if an entry has no name."""
    if not isinstance(entries, list):
        return None
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    return [str(name) for name in names] if all(isinstance(name, str) for name in names) else None


def _parts(boundary: Boundary, path: str) -> Iterator[tuple[str, Part]]:
    for kind in ("owners", "readers"):
        for position, part in enumerate(getattr(boundary, kind)):
            yield f"{path}.{kind}[{position}]", part


def _check_geometry(part: Part, boundary: Boundary, path: str) -> Iterator[Problem]:
    axes = len(boundary.shape)
    if part.split is not None and part.split >= axes:
        yield Problem(
            f"{path}.split",
            f'there is no axis {part.split}: "{boundary.name}" has {_axes(axes)}, from 0',
            f"for example split = {axes - 1}",
        )
    if part.section is None:
        return
    if len(part.section) != axes:
        yield Problem(
            f"{path}.section",
            f'has {_counted(len(part.section), "range")}, and "{boundary.name}" has {_axes(axes)}',
            f"write a range for each, as in section = {show_box(whole(boundary.shape))}",
        )
        return
    for axis, ((start, stop), length) in enumerate(zip(part.section, boundary.shape, strict=True)):
        if stop > length:
            yield Problem(
                f"{path}.section[{axis}]",
                f"[{start}, {stop}] goes beyond axis {axis}, whose length is {length}",
                f"{length} is the largest that a range can end with",
            )


def _axes(count: int) -> str:
    return "1 axis" if count == 1 else f"{count} axes"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def _check_ranks(
    part: Part, path: str, known: Sequence[str] | None, modules: Mapping[str, Module]
) -> Iterator[Problem]:
    if known is not None and part.module not in known:
        near = did_you_mean(part.module, known)
        hint = f'did you mean "{near}"?' if near else f"the file has {some_of(known)}"
        yield Problem(f"{path}.module", f"there is no module {show(part.module)}", hint)
    module = modules.get(part.module)
    if module is None:
        return
    if not module.is_function:
        yield Problem(
            f"{path}.module",
            f'module "{module.name}" is an executable, and boundaries are for functions',
            "let it exchange files, or let a function module speak for it",
        )
    if part.copy_index is not None and module.copies != "fill" and part.copy_index >= module.copies:
        yield Problem(
            f"{path}.copy",
            f"there is no copy {part.copy_index}: "
            f'module "{module.name}" has copies = {module.copies}, from 0',
            f"for example copy = {module.copies - 1}",
        )
    if part.rank is not None and part.rank >= module.processes:
        yield Problem(
            f"{path}.rank",
            f"there is no rank {part.rank}: "
            f'module "{module.name}" has processes = {module.processes}, from 0',
            f"for example rank = {module.processes - 1}",
        )


def _check_owners(
    boundary: Boundary, path: str, modules: Mapping[str, Module]
) -> Iterator[Problem]:
    for position, part in enumerate(boundary.owners):
        module = modules.get(part.module)
        if module is not None and part.split is None and (several := _several(part, module)):
            yield Problem(
                f"{path}.owners[{position}]",
                f'{several} of module "{module.name}" would own the same section',
                "divide it with split = 0, or say which copy and rank owns it",
            )
        for earlier, other in enumerate(boundary.owners[:position]):
            shared = intersection(part.box(boundary.shape), other.box(boundary.shape))
            if shared is not None:
                yield Problem(
                    f"{path}.owners[{position}]",
                    f"{show_box(shared)} has an owner already: owners[{earlier}]",
                    "let sections of owners not overlap",
                )


def _several(part: Part, module: Module) -> str:
    """Describe the ranks that a part means if there are, or may be, several; empty for one rank."""
    ranks = module.processes if part.rank is None else 1
    if part.copy_index is None and module.copies == "fill":
        return 'the copies (copies = "fill")'
    copies = module.copies if part.copy_index is None and module.copies != "fill" else 1
    return f"{copies * ranks} ranks" if copies * ranks > 1 else ""


def _check_readers(boundary: Boundary, path: str) -> Iterator[Problem]:
    owned = [part.box(boundary.shape) for part in boundary.owners]
    for position, part in enumerate(boundary.readers):
        missing = outside(part.box(boundary.shape), owned)
        if missing:
            yield Problem(
                f"{path}.readers[{position}]",
                f"nobody owns {show_box(missing[0])}, which it reads",
                "let it read less, or add an owner",
            )


def _check_group(
    boundary: Boundary, path: str, document: Mapping[str, Any], unsure: Collection[str]
) -> Iterator[Problem]:
    groups = document.get("group")
    if not isinstance(groups, list) or "group" in unsure:
        return
    lists = [entry.get("modules") for entry in groups if isinstance(entry, dict)]
    together = [set(map(str, names)) for names in lists if isinstance(names, list)]
    if together and not any(modules.issuperset(boundary.modules) for modules in together):
        names = ", ".join(f'"{name}"' for name in boundary.modules)
        yield Problem(
            path,
            f"no group has all of its modules: {names}",
            "only modules of one group run together: list them in the modules of one [[group]]",
        )


# -- sections as boxes of index ranges ------------------------------------------------------------


def whole(shape: Sequence[int]) -> Box:
    """Return the box that covers a whole array of this shape."""
    return tuple((0, length) for length in shape)


def slices(box: Box) -> tuple[slice, ...]:
    """Return the index of a box in its array: ``array[slices(box)]``."""
    return tuple(slice(start, stop) for start, stop in box)


def is_empty(box: Box) -> bool:
    """Whether a box has no items."""
    return any(start >= stop for start, stop in box)


def intersection(box: Box, other: Box) -> Box | None:
    """Return the box that two boxes share, None if they do not overlap."""
    shared = tuple(
        (max(start, other_start), min(stop, other_stop))
        for (start, stop), (other_start, other_stop) in zip(box, other, strict=True)
    )
    return None if is_empty(shared) else shared


def divide(box: Box, axis: int, parts: int) -> list[Box]:
    """Cut a box along an axis into parts of equal length; the first parts share the remainder."""
    start, stop = box[axis]
    each, remainder = divmod(stop - start, parts)
    boxes = []
    for index in range(parts):
        end = start + each + (index < remainder)
        boxes.append((*box[:axis], (start, end), *box[axis + 1 :]))
        start = end
    return boxes


def outside(box: Box, others: Iterable[Box]) -> list[Box]:
    """Return the part of a box that no other box covers, as boxes that do not overlap."""
    left = [] if is_empty(box) else [box]
    for other in others:
        left = [piece for part in left for piece in _without(part, other)]
    return left


def _without(box: Box, other: Box) -> list[Box]:
    shared = intersection(box, other)
    if shared is None:
        return [box]
    pieces = []
    for axis, ((start, stop), (shared_start, shared_stop)) in enumerate(
        zip(box, shared, strict=True)
    ):
        # Along the axes before this one a piece has only the shared range, so none overlap.
        for cut in ((start, shared_start), (shared_stop, stop)):
            if cut[0] < cut[1]:
                pieces.append((*shared[:axis], cut, *box[axis + 1 :]))
    return pieces


def show_box(box: Box) -> str:
    """Return a box as a workflow file writes it: ``[[0, 64], [0, 1]]``."""
    return f"[{', '.join(f'[{start}, {stop}]' for start, stop in box)}]"
