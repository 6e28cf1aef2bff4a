"""What a valid workflow file says.

::

    Workflow                   [workflow]   name, size of logs
    ├── tuple_space            [tuple_space] ranks that serve tuples, and their memory
    ├── modules: Module...     [[module]]   what runs: a Python function or an executable
    ├── groups: Group...       [[group]]    which modules run together, or which groups, how often,
    │                                       and after which other groups
    └── boundaries: Boundary... [[boundary]] arrays that modules share

Each table has a file of its own, named as it is. The models hold what one table can say for
itself. What needs a second table or the disk (a group that names an unknown module, a function that
does not exist) is checked in `load`.
"""

from __future__ import annotations

import os
import re
import unicodedata
from functools import cached_property
from pathlib import Path

from pydantic import Field, field_validator

from diel.workflow.boundary import Boundary
from diel.workflow.group import Group
from diel.workflow.module import Module
from diel.workflow.scalars import LONGEST_NAME, FolderName, may_be_in_a_name
from diel.workflow.strict import StrictTable
from diel.workflow.tuple_space import TupleSpace, size_bytes

_SMALLEST_LOG_BYTES = 2**16
_LARGEST_RETURNED_BYTES = 2**26

__all__ = ["Boundary", "Group", "Module", "TupleSpace", "Workflow", "WorkflowTable", "folder_name"]


class Workflow(StrictTable):
    """A whole workflow file, valid and complete."""

    name: FolderName = Field(
        description="Names the folder of each run; by default the file's name without its suffix.",
        examples=["study"],
    )
    modules: tuple[Module, ...] = Field(description="Every [[module]], in file order.")
    groups: tuple[Group, ...] = Field(description="Every [[group]], in file order.")
    tuple_space: TupleSpace = Field(default=TupleSpace(), description="The table [tuple_space].")
    boundaries: tuple[Boundary, ...] = Field(
        default=(), description="Every [[boundary]], in file order."
    )
    log_size_bytes: int = Field(default=2**26, description="What a log file may grow to.")
    returned_size_bytes: int = Field(
        default=2**16, description="What a returned value may take in the journal."
    )
    private: bool = Field(
        default=True,
        description=(
            "Whether the run directory, and so all that is in it, can be read by its owner alone; "
            "if not, the umask says who else may."
        ),
        examples=[False],
    )
    file: Path = Field(description="The workflow file, as an absolute path.")

    @property
    def folder(self) -> Path:
        """The folder of the workflow file: relative paths in the file start here."""
        return self.file.parent

    @property
    def max_threads(self) -> int:
        """The largest number of threads that a rank of any module uses."""
        return max((module.threads for module in self.modules), default=1)

    def module(self, name: str) -> Module:
        """Return the module of this name, or raise KeyError."""
        return self._modules_by_name[name]

    def group(self, name: str) -> Group:
        """Return the group of this name, or raise KeyError."""
        return self._groups_by_name[name]

    @cached_property
    def _modules_by_name(self) -> dict[str, Module]:
        return {module.name: module for module in self.modules}

    @cached_property
    def _groups_by_name(self) -> dict[str, Group]:
        return {group.name: group for group in self.groups}


class WorkflowTable(StrictTable):
    """The table [workflow] itself."""

    name: FolderName | None = Field(
        default=None,
        description=Workflow.model_fields["name"].description,
        examples=["study"],
    )
    log_size: str | int = Field(
        default="64 MiB",
        description=(
            "What each log file of a module may grow to, in bytes or with a unit (KiB, MiB, GiB, "
            "TiB); of a longer one the first quarter and the end are kept."
        ),
        examples=["64 MiB"],
    )
    returned_size: str | int = Field(
        default="64 KiB",
        description=(
            "What a module may return into the journal, as JSON, in bytes or with a unit, 64 MiB "
            "at most; what is larger goes to a file in the folder `returned` of the run directory."
        ),
        examples=["1 MiB"],
    )
    private: bool = Field(
        default=True,
        description=Workflow.model_fields["private"].description,
        examples=[False],
    )

    @field_validator("returned_size")
    @classmethod
    def _check_returned_size(cls, returned_size: str | int) -> str | int:
        if not 0 <= size_bytes(returned_size) <= _LARGEST_RETURNED_BYTES:
            raise ValueError(f"what the journal holds is 64 MiB at most; got {returned_size!r}")
        return returned_size

    @field_validator("log_size")
    @classmethod
    def _check_log_size(cls, log_size: str | int) -> str | int:
        if size_bytes(log_size) < _SMALLEST_LOG_BYTES:
            raise ValueError(f"a log file needs 64 KiB at least; got {log_size!r}")
        return log_size


def folder_name(stem: str) -> str:
    """Make a file's stem safe as a workflow's name: ``my study (2)`` becomes ``my-study-2``."""
    composed = unicodedata.normalize("NFC", stem)
    marked = "".join(one if may_be_in_a_name(one) else "\0" for one in composed)
    safe = re.sub("\0+", "-", marked).strip("-._")
    while safe and not safe[0].isalnum():  # a mark without its letter
        safe = safe[1:]
    try:
        os.fsencode(safe)
    except UnicodeEncodeError:
        safe = ""
    return safe.encode()[:LONGEST_NAME].decode(errors="ignore") or "workflow"
