"""Types of values in a workflow file: names, counts, durations, shares of GPUs; `StrictTable`."""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from diel.errors import Problem
from diel.text import duration_s
from diel.workflow.annotations import InWords


class StrictTable(BaseModel):
    """Base class of the tables of a workflow file: frozen, strict, and without unknown keys."""

    # The validator is built on first use: that takes time at each start, and most files have no
    # [[boundary]].
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


# In bytes: file names have 255 at most on most systems, and a log file or a run's folder adds to
# the name.
LONGEST_NAME = 100


def may_be_in_a_name(letter: str) -> bool:
    """Whether a character is a letter or digit of any alphabet, an accent, or one of ``._-``."""
    if letter.isascii():
        return letter.isalnum() or letter in "._-"
    is_mark = unicodedata.category(letter) in ("Mn", "Mc")
    return letter >= "\xc0" and (letter.isalnum() or is_mark)


def _check_name(name: str) -> str:
    """Refuse names that only the patterns allow, which are simple enough for any JSON Schema."""
    odd = [letter for letter in name if not may_be_in_a_name(letter)] or [name[0]] * (
        not name[0].isalnum()
    )
    if odd:
        raise ValueError(f"{odd[0]!r} is no letter and no digit")
    if unicodedata.normalize("NFC", name) != name:
        raise PydanticCustomError(
            "composed_name",
            "its letters are written as several characters each, so it equals no other spelling",
            {"remedy": "type it anew; as Unicode has it, in the form NFC"},
        )
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"it has {len(name.encode())} bytes in UTF-8, at most {LONGEST_NAME} fit")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        raise ValueError(
            f"files cannot be named like that here, where they are {encoding}"
        ) from None
    return name


# Of ASCII only letters, digits, "_" and "-"; of other characters all that `_check_name` accepts.
Name = Annotated[
    str,
    StringConstraints(
        pattern=r"^[^\x00-@\[-`{-\xbf][^\x00-,./:-@\[-\^`{-\xbf]*$", max_length=LONGEST_NAME
    ),
    InWords(f'a name: a letter, then letters, digits, "_" or "-", {LONGEST_NAME} at most'),
    AfterValidator(_check_name),
]
FolderName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[^\x00-/:-@\[-`{-\xbf][^\x00-,/:-@\[-\^`{-\xbf]*$", max_length=LONGEST_NAME
    ),
    InWords(
        'a name for a folder: a letter or digit, then letters, digits, ".", "_" or "-", '
        f"{LONGEST_NAME} at most"
    ),
    AfterValidator(_check_name),
]


def _check_count(count: int) -> int:
    if count > LARGEST_COUNT:
        raise ValueError(f"{count:,} are more than any machine has")
    return count


LARGEST_COUNT = 2**24
Count = Annotated[int, Field(ge=1), AfterValidator(_check_count)]
Times = Annotated[int, Field(ge=0), AfterValidator(_check_count)]


def _check_duration(duration: float | str) -> float | str:
    duration_s(duration)
    return duration


Duration = Annotated[float | str, AfterValidator(_check_duration)]
# CUDA allows 64 devices in a process.
LARGEST_GPU_COUNT = 64
_CLOSE_TO_A_SHARE: Final = 0.02  # 0.33 is a third


def _whole_or_share(gpus: float) -> float:
    """Return a whole number as an integer, and a number close to 1/n as 1/n."""
    if float(gpus).is_integer():
        return int(gpus)
    copies = round(1 / gpus)
    if 2 <= copies <= LARGEST_GPU_COUNT and abs(gpus * copies - 1) < _CLOSE_TO_A_SHARE:
        return 1 / copies
    raise ValueError(
        f"{gpus:g} is no share of a GPU: write a whole number, or 0.5, 0.25, 0.2 ... for copies "
        "that share one"
    )


GpuCount = Annotated[
    float,
    Field(ge=0, le=LARGEST_GPU_COUNT),
    InWords(f"a whole number from 0 to {LARGEST_GPU_COUNT}, or 0.5, 0.25, 0.2 ... of a GPU"),
    AfterValidator(_whole_or_share),
]


ONE_OF: Final = {
    "module": ("function", "library", "executable"),
    "group": ("modules", "groups"),
}
"""The keys of a table of which exactly one has to be given."""

NOTHING_TO_RUN: Final = {
    "module": Problem(
        path="",
        message="says nothing to run: it has neither function nor library nor executable",
        remedy='add function = "package.module:function" or executable = ["./a.out"]',
    ),
    "group": Problem(
        path="",
        message="says nothing to run: it has neither modules nor groups",
        remedy='add modules = ["master", "trainer"], or groups = [...] with names of other groups',
    ),
}
"""The problem of an entry that runs nothing, by its table."""


def nothing_to_run(kind: str) -> PydanticCustomError:
    """Return the validation error for a ``module`` or ``group`` that runs nothing."""
    problem = NOTHING_TO_RUN[kind]
    return PydanticCustomError(
        "nothing_to_run", "{message}", {"message": problem.message, "remedy": problem.remedy}
    )
