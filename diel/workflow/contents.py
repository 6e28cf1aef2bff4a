"""What an entry runs: which of its keys say so, and what is wrong where none of them is given."""

from __future__ import annotations

from typing import Final

from pydantic_core import PydanticCustomError

from diel.errors import Problem

ONE_OF: Final = {"module": ("function", "executable"), "group": ("modules", "groups")}
"""Of these keys of a table, exactly one is given."""

NOTHING_TO_RUN: Final = {
    "module": Problem(
        path="",
        message="says nothing to run: it has neither function nor executable",
        remedy='add function = "package.module:function" or executable = ["./a.out"]',
    ),
    "group": Problem(
        path="",
        message="says nothing to run: it has neither modules nor groups",
        remedy='add modules = ["master", "trainer"], or groups = [...] with names of other groups',
    ),
}
"""What is wrong with an entry that runs nothing, by its table."""


def nothing_to_run(kind: str) -> PydanticCustomError:
    """Return what a model raises for an entry of this table that runs nothing."""
    problem = NOTHING_TO_RUN[kind]
    return PydanticCustomError(
        "nothing_to_run", "{message}", {"message": problem.message, "remedy": problem.remedy}
    )
