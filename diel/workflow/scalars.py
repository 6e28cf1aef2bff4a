"""Types of single values that several tables of a workflow file take."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from diel.workflow.wording import InWords

# File names end at 255 bytes on most systems: leave room for what a log file or a run's folder
# adds to the name.
LONGEST_NAME = 100

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=LONGEST_NAME),
    InWords(f'a name: a letter, then letters, digits, "_" or "-", {LONGEST_NAME} at most'),
]
FolderName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_NAME),
    InWords(
        'a name for a folder: a letter or digit, then letters, digits, ".", "_" or "-", '
        f"{LONGEST_NAME} at most"
    ),
]


def _not_absurd(count: int) -> int:
    if count > LARGEST_COUNT:
        raise ValueError(f"{count:,} are more than any machine has")
    return count


LARGEST_COUNT = 2**24
Count = Annotated[int, Field(ge=1), AfterValidator(_not_absurd)]
Times = Annotated[int, Field(ge=0), AfterValidator(_not_absurd)]
# CUDA itself ends at 64 devices in a process.
LARGEST_GPU_COUNT = 64
GpuCount = Annotated[int, Field(ge=0, le=LARGEST_GPU_COUNT)]
