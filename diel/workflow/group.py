"""The table [[group]]: what runs together, how often, and after which other groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from diel.workflow.contents import nothing_to_run
from diel.workflow.scalars import Count, Name
from diel.workflow.strict import StrictTable
from diel.workflow.wording import InWords

_LONGEST_TAG_BYTES: Final = 4096  # what a tuple server takes
_TagField = Annotated[str, StringConstraints(min_length=1)] | int
_TagText = Annotated[
    Annotated[str, StringConstraints(min_length=1)]
    | Annotated[tuple[_TagField, ...], Field(strict=False, min_length=1)],
    InWords("a tag: a string, or a list of strings and whole numbers"),
]


class Group(StrictTable):
    """Modules that run at the same time, or other groups; once or several times in a row."""

    name: Name = Field(
        description="What other groups and messages call this group.", examples=["search"]
    )
    modules: tuple[str, ...] = Field(
        default=(),
        strict=False,
        min_length=1,
        description="Names of the modules that run together; or give groups.",
        examples=[["master", "trainer"]],
    )
    groups: tuple[str, ...] = Field(
        default=(),
        strict=False,
        min_length=1,
        description=(
            "Names of the groups inside this one: they run when it does and never by themselves, "
            "at the same time unless they depend on each other. Instead of modules."
        ),
        examples=[["search", "report"]],
    )
    depends: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description=(
            "Names of the groups that must have finished before this one starts; they stand "
            "beside it, in the same group or in none."
        ),
        examples=[["search"]],
    )
    iterations: Count | None = Field(
        default=None,
        description=(
            "How many times the group runs, one after the other; 1 by default, any number where "
            "until is given."
        ),
        examples=[3],
    )
    until: _TagText | None = Field(
        default=None,
        description=(
            "Run again until a tuple with this tag is in the tuple space after an iteration; it "
            "stays there. The group ends before that where iterations says so."
        ),
        examples=["converged", ["converged", 3]],
    )

    @field_validator("modules", "groups", "depends")
    @classmethod
    def _check_no_duplicates(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise PydanticCustomError(
                "duplicate_names",
                "{names} named more than once",
                {"names": _listed(twice), "remedy": "name each once"},
            )
        return names

    @field_validator("groups")
    @classmethod
    def _check_one_content(cls, groups: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("modules"):
            raise PydanticCustomError(
                "two_contents",
                "a group has either modules or groups inside, and both are given",
                {"remedy": "put the modules into a [[group]] of their own, and name that here"},
            )
        return groups

    @field_validator("until")
    @classmethod
    def _check_until(cls, until: _TagText | None) -> _TagText | None:
        fields = (until,) if isinstance(until, str) else until or ()
        lengths = [
            field.bit_length() // 8 + 1 if isinstance(field, int) else len(field.encode())
            for field in fields
        ]
        if sum(lengths) + 5 * len(lengths) > _LONGEST_TAG_BYTES:
            raise ValueError(f"a tag has {_LONGEST_TAG_BYTES:,} bytes at the most")
        return until

    @model_validator(mode="after")
    def _check_something_to_run(self) -> Group:
        if not self.modules and not self.groups:
            raise nothing_to_run("group")
        return self

    @property
    def most_iterations(self) -> int | None:
        """How many times it runs at most; None without a limit."""
        return 1 if self.iterations is None and self.until is None else self.iterations


def _listed(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return f"{quoted[0]} is" if len(quoted) == 1 else f"{', '.join(quoted)} are"
